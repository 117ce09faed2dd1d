package supervisor

import (
	"sync"

	"github.com/asynkron/protoactor-go/actor"
)

// lane says how urgent a message is.
type lane uint8

const (
	// laneSystem is the library's: start, stop, failures of children. Delivered always, also to a suspended actor.
	laneSystem lane = iota
	// laneUrgent is for the results that an actor waits for. Delivered before ordinary messages, also while they are held.
	laneUrgent
	// laneOrdinary is everything else, in the order of arrival.
	laneOrdinary
)

// verdict is what became of a message at the door of a mailbox.
type verdict uint8

const (
	accepted verdict = iota
	full
	closed
)

// mailbox is the queue of one actor. Its rules, which the library's own mailboxes do not have:
//   - Nobody ever waits at it: it takes a message or refuses it at once.
//   - It may exist, and take messages, before its actor does. They are delivered when the actor has started.
//   - Its actor can hold ordinary messages back, while it waits for an urgent one.
//   - It yields to other actors after a quantum of messages.
//   - What is still queued when the actor stops is handed back to be answered, not lost.
//   - While it is empty it owns no memory but itself.
type mailbox struct {
	mu       sync.Mutex // held for a few instructions only, never while a message is handled
	queues   *queues    // nil while nothing waits
	invoker  actor.MessageInvoker
	dispatch dispatcher
	// started: the library has registered its handlers. running: some worker has it or will. suspended: by the
	// library, after a panic. held: by the actor. closed: takes no urgent and ordinary messages any more. express: served
	// before others by a pool.
	started, running, suspended, held, closed, express bool
}

var _ actor.Mailbox = (*mailbox)(nil)

// queues are the lanes of a mailbox.
type queues [3]fifo

var spareQueues = sync.Pool{New: func() any { return new(queues) }}

// post puts a message into a lane. With a limit above 0 it is refused when that many ordinary messages wait already.
func (m *mailbox) post(l lane, msg any, limit int) verdict {
	m.mu.Lock()
	if m.closed && l != laneSystem {
		m.mu.Unlock()
		return closed
	}
	if m.queues == nil {
		m.queues = spareQueues.Get().(*queues)
	}
	if limit > 0 && m.queues[laneOrdinary].size() >= limit {
		m.mu.Unlock()
		return full
	}
	m.queues[l].push(msg)
	m.wake()
	m.mu.Unlock()
	return accepted
}

// wake schedules the mailbox if there is something to do. The caller holds mu.
func (m *mailbox) wake() {
	if m.started && !m.running && m.deliverable() {
		m.running = true
		m.dispatch.schedule(m)
	}
}

func (m *mailbox) deliverable() bool {
	q := m.queues
	if q == nil {
		return false
	}
	return q[laneSystem].size() > 0 || !m.suspended && (q[laneUrgent].size() > 0 || !m.held && q[laneOrdinary].size() > 0)
}

// process delivers up to quantum messages and reports whether there are more. A mailbox with more must be processed
// again; one without will schedule itself.
func (m *mailbox) process(quantum int) (more bool) {
	for range quantum {
		msg, system, ok := m.next()
		if !ok {
			return false
		}
		m.deliver(msg, system)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.running = m.deliverable()
	return m.running
}

// next takes the most urgent message out; with none it gives the mailbox free.
func (m *mailbox) next() (msg any, system, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.deliverable() {
		m.running = false
		return nil, false, false
	}
	q := m.queues
	switch {
	case q[laneSystem].size() > 0:
		msg, system = q[laneSystem].pop(), true
	case q[laneUrgent].size() > 0:
		msg = q[laneUrgent].pop()
	default:
		msg = q[laneOrdinary].pop()
	}
	m.release()
	return msg, system, true
}

// release gives the queues back when they are empty. The caller holds mu.
func (m *mailbox) release() {
	if q := m.queues; q != nil && q[0].size()+q[1].size()+q[2].size() == 0 {
		spareQueues.Put(q)
		m.queues = nil
	}
}

// deliver hands one message to the actor. A panic goes to the actor's supervisor; the library then suspends this mailbox
// by a system message, which is seen before anything else.
func (m *mailbox) deliver(msg any, system bool) {
	defer func() {
		if reason := recover(); reason != nil {
			m.invoker.EscalateFailure(reason, msg)
		}
	}()
	if !system {
		m.invoker.InvokeUserMessage(msg)
		return
	}
	switch msg.(type) {
	case *actor.SuspendMailbox:
		m.set(&m.suspended, true)
	case *actor.ResumeMailbox:
		m.set(&m.suspended, false)
	default:
		m.invoker.InvokeSystemMessage(msg)
	}
}

func (m *mailbox) set(flag *bool, to bool) {
	m.mu.Lock()
	*flag = to
	m.mu.Unlock()
}

// hold keeps ordinary messages back until they are released. Only the actor itself calls it, while it handles a message.
func (m *mailbox) hold(on bool) { m.set(&m.held, on) }

// take removes the ordinary messages that match and returns them, in order.
func (m *mailbox) take(match func(any) bool) []any {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.queues == nil {
		return nil
	}
	taken := m.queues[laneOrdinary].take(match)
	m.release()
	return taken
}

// close refuses every urgent and ordinary message from now on and returns the ordinary ones that have not been delivered.
func (m *mailbox) close() []any {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	if m.queues == nil {
		return nil
	}
	all := func(any) bool { return true }
	left := m.queues[laneOrdinary].take(all)
	m.queues[laneUrgent].take(all)
	m.release()
	return left
}

// PostUserMessage takes a message that was sent by PID; this package sends none of its own that way.
func (m *mailbox) PostUserMessage(msg any) { m.post(laneOrdinary, msg, 0) }

// PostSystemMessage takes a message of the library.
func (m *mailbox) PostSystemMessage(msg any) { m.post(laneSystem, msg, 0) }

// RegisterHandlers is called by the library while it spawns the actor. The dispatcher of the library is not used: it
// takes functions, and making one for each wake-up costs an allocation.
func (m *mailbox) RegisterHandlers(invoker actor.MessageInvoker, _ actor.Dispatcher) {
	m.invoker = invoker
}

// Start is called by the library when the actor can be given messages.
func (m *mailbox) Start() {
	m.mu.Lock()
	m.started = true
	m.wake()
	m.mu.Unlock()
}

// UserMessageCount returns how many ordinary messages wait.
func (m *mailbox) UserMessageCount() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.queues == nil {
		return 0
	}
	return m.queues[laneOrdinary].size()
}
