package sim

import (
	"context"
	"errors"
	"time"

	"github.com/highwater-io/highwater/journal"
)

// store is the journal's log, with appends that take their time, get lost, or arrive late.
type store struct {
	w     *world
	log   *journal.Memory
	stall time.Duration // until then nothing arrives
	lossy float64       // share of appends whose outcome stays hidden
}

var errNoAnswer = errors.New("the store does not answer")

// orderTimeout is when the controller gives up waiting for an answer.
const orderTimeout = time.Second

// carryOut performs an order and hands the result to the life of the controller that gave it.
func (s *store) carryOut(from *process, o journal.Order, done func(journal.Result)) {
	w, life := s.w, from.life
	arrive := w.between(500*time.Microsecond, 6*time.Millisecond)
	if s.stall > w.now {
		arrive += s.stall - w.now
	}
	fate := 0
	if o.At == 0 && w.chance(s.lossy) {
		fate = 1 + w.rng.IntN(3)
	}
	answered := false
	answer := func(r journal.Result) {
		if !answered {
			answered = true
			from.enter(life, func() { done(r) })
		}
	}
	perform := func(reply bool) func() {
		return func() {
			r := journal.Do(context.Background(), s.log, o)
			w.check.follow()
			if reply {
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
