package journal

import (
	"errors"

	"github.com/highwater-io/highwater/messages"
)

// maxShrunk is how many times in a row a log may claim to end before what it has acknowledged, until it is taken at its
// word. With the pauses that is about 13 s; a stream leader that is merely cut off steps down within 10 s.
const maxShrunk = 14

// Done takes in the log's answer to the order that is outstanding. Results of other orders are ignored.
func (c *Committer) Done(r Result) {
	if !c.waiting || r.Number != c.number || c.err != nil {
		return
	}
	c.waiting = false
	conflict := (*Conflict)(nil)
	if errors.As(r.Err, &conflict) && conflict.Last < c.at.Last {
		if c.shrunk++; c.shrunk >= maxShrunk {
			c.err = broken(conflict.Last+1, DefectGap, "the log ends at %d, but %d was acknowledged", conflict.Last, c.at.Last)
			return
		}
	} else {
		c.shrunk = 0
	}
	switch {
	case r.Err == nil && c.phase == phaseLook:
		c.looked(r.Payload)
	case r.Err == nil && c.phase == phaseSettle && !c.resend:
		c.stored(r.Sequence, c.tick)
	case r.Err == nil:
		c.stored(r.Sequence, c.batch)
	case errors.As(r.Err, &conflict) && conflict.Last > c.at.Last:
		c.failed(phaseLook, r.Err)
	case c.phase == phaseLook && !errors.Is(r.Err, ErrNotFound):
		c.failed(phaseLook, r.Err)
	default:
		// No outcome. A conflict that names an earlier end than ours is of a server that does not know the end; so is
		// a place that is taken and yet holds nothing. Only a write settles it.
		c.failed(phaseSettle, r.Err)
	}
}

func (c *Committer) failed(next phase, err error) {
	c.phase = next
	c.failures++
	c.trouble = err
}

// stored moves the position over an attempt that is in the log, and settles what that means for the proposals.
func (c *Committer) stored(seq messages.Sequence, a *attempt) {
	if seq != c.at.Last+1 {
		c.err = broken(c.at.Last+1, DefectGap, "an entry that was appended behind %d was given the sequence %d", c.at.Last, seq)
		return
	}
	c.at = Position{Last: seq, Chain: a.chain}
	c.phase, c.trouble = phaseAppend, nil
	if a == c.tick {
		// The batch is not stored and never can be: it expects an end that the log has passed. It is formed anew. The
		// failures go on counting, for the log may take ticks and yet refuse the batch.
		c.committed = append(c.committed, Committed{Sequence: seq, Chain: a.chain})
	} else {
		c.failures = 0
		c.release(a.proposals)
	}
	c.batch, c.tick = nil, nil
}

func (c *Committer) release(n int) {
	for i, p := range c.queue[:n] {
		c.committed = append(c.committed, Committed{Ticket: p.ticket, Sequence: c.at.Last, Records: p.records, Chain: c.at.Chain})
		c.records -= len(p.records)
		c.bytes -= len(p.encoded)
		c.queue[i] = proposal{} // the queue's array lives on
	}
	if c.queue = c.queue[n:]; len(c.queue) == 0 {
		c.queue = nil
	}
}

// looked judges the entry that stands in the place behind our position.
func (c *Committer) looked(payload []byte) {
	at := c.at.Last + 1
	e, err := DecodeEntry(at, payload)
	if err != nil {
		c.err = err
		return
	}
	for _, a := range []*attempt{c.batch, c.tick} {
		if a == nil || e.ID != a.id {
			continue
		}
		if e.Chain != a.chain {
			c.err = broken(at, DefectChain, "an entry of ours was stored with another hash chain")
			return
		}
		c.stored(at, a)
		return
	}
	c.err = &Deposed{At: at, By: e.Controller, Epoch: e.Epoch}
}
