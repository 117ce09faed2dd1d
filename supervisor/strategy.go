package supervisor

import (
	"math/rand/v2"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/highwater-io/highwater/messages"
)

// backoff decides what happens to an actor that has failed; every supervisor of the tree uses it. It concerns the one
// actor only, it never escalates, and it never uses the library's restart, which would make a new actor: the host
// has thrown its state away, so it is resumed and loads again.
//
// The first failure in a window is forgiven at once. The further ones cost a pause that doubles, with a jitter of half of it
// to either side, so that many actors that fail of one cause do not come back all at the same moment. One failure too
// many marks the actor failed; from then on there is one attempt in each window, and an actor that then fails again
// before a whole window has passed is failed at once.
type backoff struct{ tree *Tree }

var _ actor.SupervisorStrategy = (*backoff)(nil)

// HandleFailure is called by the library in the supervisor's turn.
func (b *backoff) HandleFailure(_ *actor.ActorSystem, supervisor actor.Supervisor, child *actor.PID,
	_ *actor.RestartStatistics, reason, _ any) {
	c, ok := reason.(*crash)
	if !ok { // not a machine: a supervisor or the journal
		b.tree.end(messages.Errorf(messages.CodeInternal, "the actor %s of the tree itself has failed: %v", child.Id, reason))
		return
	}
	h := c.host
	if h.record == nil {
		h.record = &record{}
	}
	if h.dropping != nil { // nothing is left to load it from
		supervisor.StopChildren(child)
		b.tree.lastWord(h.dropping, h.address.Partition)
		return
	}
	pause, failed := h.record.add(b.tree.now(), b.tree.limits)
	if failed {
		h.fail()
	}
	resume := func() {
		h.mailbox.post(laneUrgent, activate{}, 0)
		supervisor.ResumeChildren(child)
	}
	if pause == 0 {
		resume()
		return
	}
	time.AfterFunc(pause, resume)
}

// record is the history of an actor's failures. It exists from the first failure on and never holds more than the
// failures of one window.
type record struct {
	times     []time.Duration
	probation time.Duration // until then, one failure is one too many
}

// add notes a failure and returns the pause before the next attempt, and whether there were too many.
func (r *record) add(now time.Duration, l Limits) (pause time.Duration, failed bool) {
	kept := r.times[:0]
	for _, t := range r.times {
		if now-t < l.RestartWindow {
			kept = append(kept, t)
		}
	}
	r.times = append(kept, now)
	if len(r.times) > l.Restarts || now < r.probation {
		r.times = nil
		r.probation = now + 2*l.RestartWindow // the attempt is after one window, and must then last another
		return l.RestartWindow, true
	}
	if len(r.times) == 1 {
		return 0, false
	}
	pause = min(l.BackoffFirst<<min(len(r.times)-2, 20), l.BackoffMax)
	return pause/2 + rand.N(pause+1), false
}
