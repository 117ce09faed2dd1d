package sim

import (
	"context"
	"errors"
	"time"

	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/messages"
)

// store is the journal's log, with appends that take their time, get lost, or arrive late, and its snapshots.
type store struct {
	w     *world
	log   *journal.Memory
	kept  *journal.MemorySnapshots
	stall time.Duration     // until then there is no leader: nothing arrives
	lossy float64           // share of appends whose outcome stays hidden
	back  messages.Sequence // where it went back to, 0 if it did not
}

var errNoAnswer = errors.New("the store does not answer")

// storeName is the store's name in the network.
const storeName = "journal"

// orderTimeout is when a controller gives up waiting for an answer.
const orderTimeout = time.Second

// carryOut performs an order and hands the result to the life of the controller that gave it.
func (s *store) carryOut(from *process, o journal.Order, done func(journal.Result)) {
	w := s.w
	fate := 0
	if o.At == 0 && w.chance(s.lossy) {
		fate = 1 + w.rng.IntN(3)
	}
	if fate != 3 && (w.net.cuts(from.name, storeName) || s.stall > w.now && w.chance(0.5)) {
		fate = 1
	}
	if w.cfg.Faults.AppendAnywhere && o.At == 0 {
		o.Expected, _ = s.log.Last(context.Background())
	}
	answer := s.answerOnce(from, func(r journal.Result) { done(r) })
	arrive := s.arrival()
	perform := func(reply bool) func() {
		return func() {
			r := journal.Do(context.Background(), s.log, o)
			w.check.follow()
			if reply && !w.net.cuts(storeName, from.name) {
				w.after(w.between(500*time.Microsecond, 3*time.Millisecond), "store answers", func() { answer(r) })
			}
		}
	}
	switch fate {
	case 0:
		w.after(arrive, "store", perform(true))
	case 1: // lost on its way
	case 2: // the answer is lost
		w.after(arrive, "store", perform(false))
	case 3: // late
		w.after(arrive+w.between(orderTimeout, 3*orderTimeout), "store late", perform(false))
	}
	w.after(orderTimeout, "store timeout", func() { answer(journal.Result{Number: o.Number, Err: errNoAnswer}) })
}

// answerOnce lets only the first answer in, and only to the present life.
func (s *store) answerOnce(from *process, done func(journal.Result)) func(journal.Result) {
	answered, life := false, from.life
	return func(r journal.Result) {
		if !answered {
			answered = true
			from.enter(life, func() { done(r) })
		}
	}
}

func (s *store) arrival() time.Duration {
	d := s.w.between(500*time.Microsecond, 6*time.Millisecond)
	if s.stall > s.w.now {
		d += s.stall - s.w.now
	}
	return d
}

// read hands a process the log as it was when the request arrived, or an error.
func (s *store) read(from *process, done func(journal.Log, error)) {
	w := s.w
	answered, life := false, from.life
	answer := func(log journal.Log, err error) {
		if !answered {
			answered = true
			from.enter(life, func() { done(log, err) })
		}
	}
	if !w.net.cuts(from.name, storeName) {
		w.after(s.arrival(), "store read", func() {
			last, _ := s.log.Last(context.Background())
			if !w.net.cuts(storeName, from.name) {
				w.after(w.between(500*time.Microsecond, 20*time.Millisecond), "store has read", func() { answer(asOf{s.log, last}, nil) })
			}
		})
	}
	w.after(orderTimeout/2, "store read timeout", func() { answer(nil, errNoAnswer) })
}

// asOf is a log as it was when it ended at a sequence.
type asOf struct {
	*journal.Memory
	last messages.Sequence
}

// Last returns where the log ended.
func (l asOf) Last(ctx context.Context) (messages.Sequence, error) {
	last, err := l.Memory.Last(ctx)
	return min(last, l.last), err
}

// Get returns an entry that was there.
func (l asOf) Get(ctx context.Context, at messages.Sequence) ([]byte, error) {
	if at > l.last {
		return nil, journal.ErrNotFound
	}
	return l.Memory.Get(ctx, at)
}

var errEnough = errors.New("what follows came later")

// Replay calls f for the entries that were there.
func (l asOf) Replay(ctx context.Context, from messages.Sequence, f func(messages.Sequence, []byte) error) error {
	err := l.Memory.Replay(ctx, from, func(seq messages.Sequence, payload []byte) error {
		if seq > l.last {
			return errEnough
		}
		return f(seq, payload)
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}
