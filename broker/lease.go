package broker

import (
	"sync"
	"time"
)

// lease is the right to act as leader where two leaders must not act at the same time. It is counted from the moment that
// an answered heartbeat was sent, on the monotonic clock, so it ends before the controller lets anyone else lead. Losing
// the connection suspends it: only a heartbeat that was sent after the loss and answered can bring it back.
type lease struct {
	mu         sync.RWMutex
	until      time.Time             // zero: none
	generation uint64                // rises with every suspension
	said       func(until time.Time) // hears of every change, of an end as the zero time just before; may be nil
}

// begin returns the generation under which a heartbeat that is sent now counts.
func (l *lease) begin() uint64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.generation
}

// grant extends the lease by an answer to the heartbeat that was sent at sent under a generation. A later end never
// becomes an earlier one by a shorter grant that was overtaken; ending it is end's business.
func (l *lease) grant(generation uint64, sent time.Time, d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if generation != l.generation || d <= 0 {
		return
	}
	if until := sent.Add(d); until.After(l.until) {
		l.until = until
		l.say(until)
	}
}

// end gives the lease up: fenced, or the registration is over. Answers to heartbeats that are on their way do not count.
func (l *lease) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.say(time.Time{})
	l.until = time.Time{}
	l.generation++
}

func (l *lease) say(until time.Time) {
	if l.said != nil {
		l.said(until)
	}
}

// valid reports whether the lease holds at now, and remaining until when.
func (l *lease) valid(now time.Time) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return now.Before(l.until)
}

func (l *lease) ends() time.Time {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.until
}
