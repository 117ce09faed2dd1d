package registry

import (
	"container/heap"
	"time"

	"github.com/highwater-io/highwater/messages"
)

// session is what the registry knows of one broker's contact. One exists for every broker that was heard by this registry
// or was unfenced when it began.
type session struct {
	broker messages.BrokerID
	// live: the process is taken to be there until contact + session.
	live bool
	// contact is when it was heard last, or was last given the benefit of the doubt; it may be in the future.
	contact time.Duration

	// speaks is the connection of the last heartbeat, spoke the one before it.
	speaks, spoke connection
	// gone: the end of speaks was reported; lost says how, graceDue when the broker is given up.
	gone     bool
	lost     string
	graceDue time.Duration

	// mayStop: the last heartbeat was told that the broker may stop.
	mayStop bool
	// unfenced is the journal position up from which the broker may lead again, 0 if that was before this registry began.
	unfenced uint64
	// held: since heldSince the broker is ready, but some partition has not let go of it.
	held      bool
	heldSince time.Duration

	// queued is the deadline under which the session stands in the queue; the true one may be later. place is where, -1 for
	// nowhere.
	queued time.Duration
	place  int
}

// session returns the session of a broker, a new one without contact if it had none.
func (s *State) session(b messages.BrokerID) *session {
	ses := s.sessions[b]
	if ses == nil {
		ses = &session{broker: b, place: -1}
		s.sessions[b] = ses
	}
	return ses
}

// touch notes contact. It costs nothing but for a session that was not live: the queue is set right when its front is looked at.
func (t *step) touch(ses *session, at time.Duration) {
	ses.contact = max(ses.contact, at)
	ses.live = true
	if ses.place < 0 {
		ses.queued = ses.contact + t.settings.Session
		heap.Push(&t.state.queue, ses)
	}
}

// end ends a session. It stays known, and out of the queue from the next look on.
func (ses *session) end() {
	ses.live, ses.mayStop, ses.held = false, false, false
}

// front returns the live session with the earliest deadline and that deadline; nil if there is none.
func (t *step) front() (*session, time.Duration) {
	q := &t.state.queue
	for q.Len() > 0 {
		ses := (*q)[0]
		deadline := ses.contact + t.settings.Session
		switch {
		case !ses.live:
			heap.Pop(q)
		case deadline != ses.queued:
			ses.queued = deadline
			heap.Fix(q, 0)
		default:
			return ses, deadline
		}
	}
	return nil, 0
}

// queue is a heap of sessions by queued deadline. Heartbeats do not touch it: a session's true deadline is never before the
// queued one, and front looks again at what comes to the front.
type queue []*session

// Len is for container/heap.
func (q queue) Len() int { return len(q) }

// Less is for container/heap: earliest deadline first, then by id.
func (q queue) Less(i, j int) bool {
	if q[i].queued != q[j].queued {
		return q[i].queued < q[j].queued
	}
	return q[i].broker < q[j].broker
}

// Swap is for container/heap.
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].place, q[j].place = i, j
}

// Push is for container/heap.
func (q *queue) Push(x any) {
	ses := x.(*session)
	ses.place = len(*q)
	*q = append(*q, ses)
}

// Pop is for container/heap.
func (q *queue) Pop() any {
	last := len(*q) - 1
	ses := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	ses.place = -1
	return ses
}
