package journal

import (
	"time"

	"github.com/highwater-io/highwater/messages"
)

// Ticket names a proposal. The caller chooses it; 0 is not allowed, it stands for the committer's own ticks.
type Ticket uint64

// Limits bounds a committer. A zero field takes its default.
type Limits struct {
	Records        int // records of an entry; default 4,000. A proposal with more goes alone.
	Bytes          int // bytes of an entry's records; default 512 KiB. A proposal with more goes alone.
	MaxBytes       int // bytes of an entry at most; default 7 MiB. A proposal with more is refused. At most what the log takes.
	BacklogRecords int // records that may wait; default 200,000
	BacklogBytes   int // bytes that may wait; default 64 MiB
}

func (l Limits) withDefaults() Limits {
	for _, f := range []struct {
		at    *int
		value int
	}{
		{&l.Records, 4_000}, {&l.Bytes, 512 << 10}, {&l.MaxBytes, 7 << 20}, {&l.BacklogRecords, 200_000},
		{&l.BacklogBytes, 64 << 20},
	} {
		if *f.at <= 0 {
			*f.at = f.value
		}
	}
	return l
}

// Committed says that a proposal is committed. Ticket 0 is a tick of the committer's own, which has no records but moves
// the log's end. Apply it to the catalog, then let out what waited for the ticket.
type Committed struct {
	Ticket   Ticket
	Sequence messages.Sequence
	Records  []messages.Record
	Chain    [32]byte // the hash chain up to the entry
}

// At returns the position that the entry has brought the log to.
func (c Committed) At() Position { return Position{Last: c.Sequence, Chain: c.Chain} }

// Order is what the committer wants done with the log: Get the payload at At if that is set, else Append Payload behind
// Expected.
type Order struct {
	// Number counts the orders; a result of another than the one outstanding is ignored.
	Number   uint64
	At       messages.Sequence
	Expected messages.Sequence
	Payload  []byte
	// Failures counts the results without an outcome since the last commit. See Pause.
	Failures int
}

// Pause is how long to wait before carrying out the order, so that a log that does not answer is not stormed: nothing for
// the first one after a failure, then 50 ms, doubled with every failure up to 1.6 s.
func (o Order) Pause() time.Duration {
	if o.Failures < 2 {
		return 0
	}
	return 50 * time.Millisecond << min(o.Failures-2, 5)
}

// Result is what the log answered to an order: of Append the sequence, of Get the payload, or the error as it was.
type Result struct {
	Number   uint64
	Sequence messages.Sequence
	Payload  []byte
	Err      error
}

// Committer decides what one writer appends to the log, and when which proposal is committed. It is a pure state machine:
// no goroutine, clock, lock or random source; it is not safe for concurrent use. Its host calls
//
//	Propose(ticket, records)            when somebody wants something committed,
//	Next(stamp)                         after each Propose and Done: an order to carry out, at most one at a time,
//	Done(result)                        when the log has answered,
//	Committed(), then Err()             after Done: what is committed now, in order; and whether all is over.
//
// Everything that is proposed while an append is under way goes into the next entry, in the order of the proposals; none
// is ever split. When an append has no clear outcome, the committer appends an empty tick with the same expectation: if
// that is accepted, the entry before is not stored and never can be, and is appended anew; if it is refused, the entry
// that took the place says whose it is. So nothing is lost, stored twice, or reordered.
//
// Once Err is *Deposed, everything that is still pending is certainly not stored. If instead the host gives up while
// something is pending, because the log does not answer, then the outcome of that is not known.
type Committer struct {
	writer Writer
	limits Limits
	at     Position // the end of what is committed

	queue   []proposal // waiting; the first len(batch.proposals) of them are in the batch while there is one
	records int        // in queue
	bytes   int        // in queue

	phase    phase
	number   uint64
	waiting  bool // an order is outstanding
	batch    *attempt
	tick     *attempt
	failures int
	resend   bool // a batch without an outcome is itself sent again instead of a tick; see Claim
	shrunk   int  // conflicts in a row that named an end before ours
	trouble  error

	committed []Committed
	err       error
}

// phase says what the next order is.
type phase uint8

const (
	phaseAppend phase = iota // append the next batch
	phaseSettle              // append a tick in the place of a batch whose outcome is not known
	phaseLook                // read who took the place
)

type proposal struct {
	ticket  Ticket
	records []messages.Record
	encoded []byte
}

// attempt is an entry that may stand in the place behind the committer's position. At most two can: the batch and, when
// the batch's outcome was not known, the tick. Each is always sent with the same bytes.
type attempt struct {
	id        EntryID
	payload   []byte
	chain     [32]byte
	proposals int
}

// NewCommitter returns a committer of one writer that continues a log at a position. The writer must be the one of the
// last claim, or propose its claim first.
func NewCommitter(at Position, w Writer, l Limits) *Committer {
	return &Committer{at: at, writer: w, limits: l.withDefaults()}
}

// Propose takes in a proposal: its records are committed together, or none of them is. Without records it is a tick. The
// records must not be changed any more. Errors, with which nothing was taken in: BUSY when too much is waiting already,
// TOO_LARGE, INTERNAL for a record that must not be written, *Deposed or *Broken when it is over.
func (c *Committer) Propose(t Ticket, records []messages.Record) error {
	if c.records+len(records) > c.limits.BacklogRecords || c.bytes > c.limits.BacklogBytes {
		return &messages.Error{Code: messages.CodeBusy, RetryAfterMs: busyRetryMs,
			Message: "too many changes are waiting for the journal"}
	}
	return c.ProposeUrgent(t, records)
}

// busyRetryMs is the time after which a refused proposal may come again, in milliseconds.
const busyRetryMs = 250

// ProposeUrgent is Propose without the limit on what may wait, for what must not be refused for being too busy, as the
// fencing of a broker. It keeps its place in the order.
func (c *Committer) ProposeUrgent(t Ticket, records []messages.Record) error {
	if c.err != nil {
		return c.err
	}
	if t == 0 {
		return messages.Errorf(messages.CodeInternal, "a proposal has ticket 0")
	}
	encoded, err := encodeRecords(records)
	if err != nil {
		return err
	}
	if size := len(encoded) + headRoom + len(c.writer.Controller); size > c.limits.MaxBytes {
		return messages.Errorf(messages.CodeTooLarge, "the change has %d records and %d bytes, a journal entry takes %d bytes",
			len(records), size, c.limits.MaxBytes)
	}
	c.queue = append(c.queue, proposal{ticket: t, records: records, encoded: encoded})
	c.records += len(records)
	c.bytes += len(encoded)
	return nil
}

// headRoom bounds what an entry adds to its records and the controller's name, in bytes.
const headRoom = 160

// Next returns the next order, or false while one is outstanding and when there is nothing to do. The stamp is used for a
// new entry, if one is made, and must be new for each call.
func (c *Committer) Next(s Stamp) (Order, bool) {
	if c.waiting || c.err != nil || c.phase == phaseAppend && len(c.queue) == 0 {
		return Order{}, false
	}
	c.waiting = true
	c.number++
	o := Order{Number: c.number, Failures: c.failures}
	switch c.phase {
	case phaseAppend:
		c.batch = c.form(s)
		o.Expected, o.Payload = c.at.Last, c.batch.payload
	case phaseSettle:
		if c.resend {
			o.Expected, o.Payload = c.at.Last, c.batch.payload
			break
		}
		if c.tick == nil {
			payload, chain := assemble(c.at, c.writer, s, nil)
			c.tick = &attempt{id: s.ID, payload: payload, chain: chain}
		}
		o.Expected, o.Payload = c.at.Last, c.tick.payload
	case phaseLook:
		o.At = c.at.Last + 1
	}
	return o, true
}

// form makes an entry of the first proposals that fit into it: at least one.
func (c *Committer) form(s Stamp) *attempt {
	var encoded [][]byte
	records, size := 0, 0
	for _, p := range c.queue {
		records, size = records+len(p.records), size+len(p.encoded)
		if len(encoded) > 0 && (records > c.limits.Records || size > c.limits.Bytes) {
			break
		}
		encoded = append(encoded, p.encoded)
	}
	payload, chain := assemble(c.at, c.writer, s, encoded)
	return &attempt{id: s.ID, payload: payload, chain: chain, proposals: len(encoded)}
}

// Committed returns what has been committed since the last call, in the order of the log.
func (c *Committer) Committed() []Committed {
	out := c.committed
	c.committed = nil
	return out
}

// Err returns *Deposed or *Broken once nothing more can be committed, else nil.
func (c *Committer) Err() error { return c.err }

// Trouble returns why the last order brought no outcome, nil after one that did. It is for logs: the committer goes on.
func (c *Committer) Trouble() error { return c.trouble }

// Position returns the end of what is committed.
func (c *Committer) Position() Position { return c.at }

// Writer returns who writes.
func (c *Committer) Writer() Writer { return c.writer }

// Idle reports whether nothing is waiting and nothing is under way.
func (c *Committer) Idle() bool { return !c.waiting && len(c.queue) == 0 && c.phase == phaseAppend }

// Backlog returns how many proposals and records are waiting or under way, and their size in bytes.
func (c *Committer) Backlog() (proposals, records, bytes int) {
	return len(c.queue), c.records, c.bytes
}

// Pending returns the tickets that are waiting or under way, in the order of their proposals.
func (c *Committer) Pending() []Ticket {
	out := make([]Ticket, len(c.queue))
	for i, p := range c.queue {
		out[i] = p.ticket
	}
	return out
}
