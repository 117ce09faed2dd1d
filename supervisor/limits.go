package supervisor

import (
	"runtime"
	"time"

	"github.com/highwater-io/highwater/journal"
)

// Limits bounds a tree. A zero field takes its default.
type Limits struct {
	// Mailbox is how many messages may wait for one actor before its requests are answered BUSY; default 1,024. What is
	// no request is always taken.
	Mailbox int
	// Backlog is how many records may wait for the journal before requests to partitions are answered BUSY; default
	// 50,000. It may be passed by what is already admitted: at most one proposal for each actor.
	Backlog int
	// Children is how many actors one supervisor has below it; a topic with more partitions gets groups. Default 1,000.
	Children int
	// Slice is how many actors a supervisor spawns before it serves other messages; default 250.
	Slice int
	// Workers is how many messages the machines handle at the same time; default GOMAXPROCS, at least 2.
	Workers int
	// Quantum is how many messages one actor handles in its turn; default 64.
	Quantum int
	// Restarts is how many failures of one actor within RestartWindow are forgiven; default 5. With one more the actor is
	// failed, and is tried once in each window.
	Restarts int
	// RestartWindow has a default of 1 min.
	RestartWindow time.Duration
	// BackoffFirst is the pause after the second failure, doubled with each further one; default 200 ms. The first is
	// without a pause.
	BackoffFirst time.Duration
	// BackoffMax bounds the pause; default 30 s.
	BackoffMax time.Duration
	// AppendTimeout bounds one append to the log, after which its outcome is not known and gets settled; default 5 s.
	AppendTimeout time.Duration
	// AppendLimit is how long something may be on the way to the log before the tree ends; default 15 s.
	AppendLimit time.Duration
	// Journal bounds the entries. Its own limits on what waits are not used; Backlog takes their place.
	Journal journal.Limits
}

func (l Limits) withDefaults() Limits {
	number := func(at *int, value int) {
		if *at <= 0 {
			*at = value
		}
	}
	duration := func(at *time.Duration, value time.Duration) {
		if *at <= 0 {
			*at = value
		}
	}
	number(&l.Mailbox, 1_024)
	number(&l.Backlog, 50_000)
	number(&l.Children, 1_000)
	number(&l.Slice, 250)
	number(&l.Workers, max(2, runtime.GOMAXPROCS(0)))
	number(&l.Quantum, 64)
	number(&l.Restarts, 5)
	duration(&l.RestartWindow, time.Minute)
	duration(&l.BackoffFirst, 200*time.Millisecond)
	duration(&l.BackoffMax, 30*time.Second)
	duration(&l.AppendTimeout, 5*time.Second)
	duration(&l.AppendLimit, 15*time.Second)
	return l
}
