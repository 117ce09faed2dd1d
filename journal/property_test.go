package journal

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/highwater-io/highwater/messages"
)

// history is one writer over a log that misbehaves, with what was proposed and what was said to be committed.
type history struct {
	ctx       context.Context
	log       *Memory
	m         *Committer
	stamps    uint64
	next      Ticket
	committed []Committed
	rival     messages.Sequence // the first entry of another writer; 0 = none
}

func newHistory(t rapid.TB, ctx context.Context, l Limits) *history {
	h := &history{ctx: ctx, log: NewMemory()}
	at, epoch, err := Claim(ctx, h.log, NewCatalog(), Position{}, "c1")
	if err != nil {
		t.Fatal(err)
	}
	h.m = NewCommitter(at, Writer{Controller: "c1", Epoch: epoch}, l)
	return h
}

func (h *history) stamp() Stamp {
	h.stamps++
	return Stamp{ID: EntryID{1, byte(h.stamps), byte(h.stamps >> 8)}}
}

// name is the broker that stands for the i-th record of a ticket, so that the log tells which proposal an entry holds.
func name(t Ticket, i int) messages.BrokerID { return messages.BrokerID(fmt.Sprintf("t%d-%d", t, i)) }

func (h *history) propose(t rapid.TB, n int) {
	h.next++
	records := make([]messages.Record, n)
	for i := range records {
		records[i] = &messages.Broker{ID: name(h.next, i)}
	}
	if err := h.m.Propose(h.next, records); err != nil && h.m.Err() == nil {
		t.Fatal(err)
	}
}

// step carries out one order, if there is one.
func (h *history) step() bool {
	o, ok := h.m.Next(h.stamp())
	if !ok {
		return false
	}
	h.m.Done(Do(h.ctx, h.log, o))
	h.committed = append(h.committed, h.m.Committed()...)
	return true
}

// claimAsRival makes another controller active, as it would after a suspicion.
func (h *history) claimAsRival(t rapid.TB) {
	h.log.SetStale(0)
	c := NewCatalog()
	at, _, err := Recover(h.ctx, h.log, c)
	if err != nil {
		t.Fatal(err)
	}
	// The claim must not run into faults that are meant for the writer.
	queued := h.log.faults
	h.log.faults = nil
	if at, _, err = Claim(h.ctx, h.log, c, at, "c2"); err != nil {
		t.Fatal(err)
	}
	h.log.faults = queued
	h.rival = at.Last
}

// check compares what the writer says with what the log holds.
func (h *history) check(t rapid.TB) {
	t.Helper()
	var stored []string
	var entries []messages.Sequence // of this writer, behind its claim
	at := Position{}
	err := h.log.Replay(h.ctx, 1, func(seq messages.Sequence, payload []byte) error {
		e, err := DecodeEntry(seq, payload)
		if err != nil {
			return err
		}
		if err := e.Follows(at); err != nil {
			return err
		}
		at = Position{Last: seq, Chain: e.Chain}
		if seq > 1 && e.Epoch == h.m.Writer().Epoch {
			entries = append(entries, seq)
		}
		for _, r := range e.Records {
			if b, ok := r.(*messages.Broker); ok {
				stored = append(stored, fmt.Sprintf("%d:%s", seq, b.ID))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	var sequences []messages.Sequence
	for _, c := range h.committed {
		sequences = append(sequences, c.Sequence)
		for i := range c.Records {
			said = append(said, fmt.Sprintf("%d:%s", c.Sequence, name(c.Ticket, i)))
		}
	}
	if !slices.Equal(stored, said) {
		t.Fatalf("the log holds\n%s\nbut committed was\n%s", strings.Join(stored, " "), strings.Join(said, " "))
	}
	if got := slices.Compact(sequences); !slices.Equal(entries, got) {
		t.Fatalf("the log has the entries %v of this writer, committed was %v", entries, got)
	}
	if h.rival == 0 && at != h.m.Position() {
		t.Fatalf("the writer is at %d, the log at %d", h.m.Position().Last, at.Last)
	}
}

func genFault(t *rapid.T) Fault {
	return Fault{Kind: rapid.SampledFrom([]FaultKind{FaultNone, FaultNone, FaultRefused, FaultLostBefore, FaultLostAfter,
		FaultLate, FaultTwice}).Draw(t, "fault")}
}

func TestNothingIsLostTwiceOrReorderedWhateverTheLogDoes(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		h := newHistory(rt, t.Context(), Limits{Records: 6, Bytes: 120, BacklogRecords: 1 << 20})
		rt.Repeat(map[string]func(*rapid.T){
			"propose":     func(t *rapid.T) { h.propose(t, rapid.IntRange(0, 9).Draw(t, "records")) },
			"step":        func(t *rapid.T) { h.log.Inject(genFault(t)); h.step() },
			"step again":  func(t *rapid.T) { h.log.Inject(genFault(t)); h.step() },
			"deliver":     func(*rapid.T) { h.log.Deliver() },
			"stale reads": func(t *rapid.T) { h.log.SetStale(rapid.IntRange(0, 2).Draw(t, "missing")) },
			"rival": func(t *rapid.T) {
				if h.rival == 0 && rapid.IntRange(0, 7).Draw(t, "now") == 0 {
					h.claimAsRival(t)
				}
			},
		})
		h.finish(rt)
	})
}

// finish lets the log recover and the writer come to its end, and checks the whole history.
func (h *history) finish(t rapid.TB) {
	h.log.SetStale(0)
	h.log.faults = nil
	h.log.Deliver()
	h.propose(t, 1) // a writer learns that it is deposed by writing
	for range 1000 {
		if !h.step() {
			break
		}
	}
	h.log.SetStale(0)
	h.check(t)
	done := map[Ticket]bool{}
	last := Ticket(0)
	for _, c := range h.committed {
		if c.Ticket == 0 {
			continue
		}
		if done[c.Ticket] || c.Ticket != last+1 {
			t.Fatalf("ticket %d is committed after %d", c.Ticket, last)
		}
		done[c.Ticket], last = true, c.Ticket
	}
	deposed := (*Deposed)(nil)
	if got := errors.As(h.m.Err(), &deposed); got != (h.rival > 0) {
		t.Fatalf("the writer's error is %v; the rival's first entry is %d", h.m.Err(), h.rival)
	}
	if h.rival > 0 && (deposed.At != h.rival || deposed.By != "c2") {
		t.Fatalf("the writer says %v; the rival's first entry is %d", deposed, h.rival)
	}
	if h.rival == 0 && (last != h.next || !h.m.Idle()) {
		t.Fatalf("%d of %d proposals are committed, pending %v", last, h.next, h.m.Pending())
	}
	for _, p := range h.m.Pending() {
		if done[p] {
			t.Fatalf("ticket %d is committed and pending", p)
		}
	}
}

func FuzzDecodeEntry(f *testing.F) {
	after := Position{Last: 4, Chain: [32]byte{9}}
	good, _, err := EncodeEntry(after, Writer{"c1", 3}, Stamp{ID: EntryID{5}, WallUnixMs: 1}, []messages.Record{
		&messages.Broker{ID: "b1"}, &messages.Topic{ID: messages.TopicID{1}, Name: "t", Partitions: 2},
		&messages.Partition{ID: messages.PartitionID{Topic: messages.TopicID{1}, Index: 1}, Replicas: []messages.BrokerID{"b1"}},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:len(good)/2])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, payload []byte) {
		e, err := DecodeEntry(5, payload)
		if err != nil {
			if b := (*Broken)(nil); !errors.As(err, &b) || b.At != 5 {
				t.Fatalf("the error is %v", err)
			}
			return
		}
		if e.Follows(after) == nil && !slices.Contains([]string{"c1"}, e.Controller) {
			t.Fatal("a forged entry fits the chain")
		}
		NewCatalog().Apply(5, e.Records)
		again, chain, err := EncodeEntry(after, Writer{e.Controller, e.Epoch}, Stamp{ID: e.ID, WallUnixMs: e.WallUnixMs}, e.Records)
		if err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		second, err := DecodeEntry(5, again)
		if err != nil || len(second.Damaged) > 0 || len(second.Records) != len(e.Records) || second.Chain != chain ||
			second.ID != e.ID || second.Follows(after) != nil {
			t.Fatalf("what was written reads differently: %v, %v", err, second)
		}
	})
}
