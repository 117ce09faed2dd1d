package natsbus

import (
	"sync"

	"github.com/nats-io/nats.go"
)

// maxQueuedBytes bounds what waits to be written besides leadership, which is bounded by the number of partitions. It is
// reached only when the connection stands still. An answer that is dropped there is asked for again by its sender, a batch of
// assignments leaves a gap in the broker's feed, and the broker takes a snapshot.
const maxQueuedBytes = 128 << 20

// outgoing is the queue to the one goroutine that writes to NATS. Putting something in never waits.
type outgoing struct {
	mu      sync.Mutex
	ready   *sync.Cond
	queue   []*outgoingMsg
	latest  map[string]*outgoingMsg // queued leadership by subject: a newer value takes its place
	bytes   int
	dropped int
	closed  bool
	idle    bool
}

type outgoingMsg struct {
	msg  *nats.Msg
	last bool   // a last value: only the newest of a subject counts
	done func() // called when the message has been handed to the connection, or dropped
}

func newOutgoing() *outgoing {
	o := &outgoing{latest: map[string]*outgoingMsg{}, idle: true}
	o.ready = sync.NewCond(&o.mu)
	return o
}

func msgBytes(m *nats.Msg) int { return len(m.Subject) + len(m.Data) + 64 }

// put queues a message; done may be nil. It reports false, after calling done, if the message was dropped.
func (o *outgoing) put(m *nats.Msg, done func()) bool {
	o.mu.Lock()
	if o.closed || o.bytes+msgBytes(m) > maxQueuedBytes {
		o.dropped++
		o.mu.Unlock()
		if done != nil {
			done()
		}
		return false
	}
	o.bytes += msgBytes(m)
	o.push(&outgoingMsg{msg: m, done: done})
	o.mu.Unlock()
	return true
}

// putLatest queues what build returns as the last value of its subject. build is called under the lock of the queue, so that
// what it reads from the catalog is not older than any value that was put before.
func (o *outgoing) putLatest(build func() *nats.Msg) {
	o.mu.Lock()
	defer o.mu.Unlock()
	m := build()
	if m == nil || o.closed {
		return
	}
	if queued := o.latest[m.Subject]; queued != nil {
		queued.msg = m
		return
	}
	q := &outgoingMsg{msg: m, last: true}
	o.latest[m.Subject] = q
	o.push(q)
}

func (o *outgoing) push(q *outgoingMsg) {
	o.queue = append(o.queue, q)
	o.idle = false
	o.ready.Broadcast()
}

// take waits for messages and returns all that are queued; none when the queue is closed and empty.
func (o *outgoing) take() []*outgoingMsg {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.queue) == 0 {
		o.idle = true
		o.ready.Broadcast()
		if o.closed {
			return nil
		}
		o.ready.Wait()
	}
	batch := o.queue
	o.queue = nil
	for _, q := range batch {
		if q.last {
			delete(o.latest, q.msg.Subject)
		} else {
			o.bytes -= msgBytes(q.msg)
		}
	}
	return batch
}

// write hands messages to send, in order, until the queue is closed and empty.
func (o *outgoing) write(send func(*nats.Msg)) {
	for batch := o.take(); batch != nil; batch = o.take() {
		for _, q := range batch {
			send(q.msg)
			if q.done != nil {
				q.done()
			}
		}
	}
}

// settled waits until everything that was put before has been handed to send.
func (o *outgoing) settled() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for !o.idle {
		o.ready.Wait()
	}
}

// close ends the queue; what is in it is still written.
func (o *outgoing) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.ready.Broadcast()
}

// takeDropped returns how many messages were dropped since the last call.
func (o *outgoing) takeDropped() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := o.dropped
	o.dropped = 0
	return n
}
