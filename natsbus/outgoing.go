package natsbus

import (
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/highwater-io/highwater/messages"
)

// maxQueuedBytes bounds what waits to be written besides leadership, which is bounded by the number of partitions. It is
// reached only when the connection stands still. An answer that is dropped there is asked for again by its sender, a batch of
// assignments leaves a gap in the broker's feed, and the broker takes a snapshot.
const maxQueuedBytes = 128 << 20

// outgoing is the queue to the one goroutine that writes to NATS. Putting something in never waits.
//
// It has two lanes. Answers and assignments go first: brokers wait for them, and they are few. Last values, of which there
// are as many as partitions, follow in portions, and are made only when their turn has come; so the death of a broker that
// led thousands of partitions delays nobody's heartbeat, and several words about one partition cost one. If there are very
// many, they wait until the brokers have been told: whoever hears of a leader before the leader does can only ask again.
type outgoing struct {
	mu      sync.Mutex
	ready   *sync.Cond
	queue   []outgoingMsg
	spare   []outgoingMsg                  // the queue before, to be filled again
	latest  map[lastValue]func() *nats.Msg // a newer value takes the place of the queued one
	order   []lastValue                    // in which the latest came first
	held    bool                           // the latest wait for the brokers to be told
	since   time.Time                      // when they began to
	told    time.Time                      // when assignments were put last
	bytes   int
	dropped int
	closed  bool
	idle    bool // nothing is queued or being written
	waiting bool // the writer waits
}

// lastValue names what only the newest word counts about: the leadership of one partition.
type lastValue struct {
	topic messages.TopicName
	index int32
}

type outgoingMsg struct {
	msg  *nats.Msg
	done func() // called when the message has been handed to the connection, or dropped
}

// portion is how many last values are written before the other lane is looked at again; maxSpare is the room, in messages,
// that an emptied queue keeps.
const (
	portion  = 64
	maxSpare = 4096
)

// With more than burst last values queued, they are held until no assignments have come for quiet, but no longer than
// maxHold.
const (
	burst   = 256
	quiet   = 10 * time.Millisecond
	maxHold = 50 * time.Millisecond
)

func newOutgoing() *outgoing {
	o := &outgoing{latest: map[lastValue]func() *nats.Msg{}, idle: true}
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
	o.queue = append(o.queue, outgoingMsg{msg: m, done: done})
	o.wake()
	o.mu.Unlock()
	return true
}

// putLatest queues the last value of a partition; build makes it when it is written, or returns nil if it is not to be said
// any more. Values of one partition are put in the order of their making; valid is called under the lock of the queue, so
// that a value that has been overtaken does not take the place of its successor.
func (o *outgoing) putLatest(of lastValue, valid func() bool, build func() *nats.Msg) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed || !valid() {
		return
	}
	if _, queued := o.latest[of]; !queued {
		o.order = append(o.order, of)
		if len(o.order) == burst+1 && !o.held {
			o.held, o.since = true, time.Now()
			time.AfterFunc(quiet, o.letGo)
		}
	}
	o.latest[of] = build
	o.wake()
}

// putAssignments is put for what brokers must know.
func (o *outgoing) putAssignments(m *nats.Msg) {
	o.mu.Lock()
	o.told = time.Now()
	o.mu.Unlock()
	o.put(m, nil)
}

// letGo ends the hold, if it is time.
func (o *outgoing) letGo() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if now := time.Now(); now.Sub(o.told) < quiet && now.Sub(o.since) < maxHold {
		time.AfterFunc(quiet/2, o.letGo)
		return
	}
	o.held = false
	o.ready.Broadcast()
}

// wake tells the writer that there is something. The caller holds mu.
func (o *outgoing) wake() {
	o.idle = false
	if o.waiting {
		o.ready.Broadcast()
	}
}

// take waits for something to write and returns all messages of the first lane, and a portion of the last values; nothing
// when the queue is closed and empty. The messages are valid until the next call.
func (o *outgoing) take() (batch []outgoingMsg, values []func() *nats.Msg) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.queue) == 0 && (len(o.order) == 0 || o.held && !o.closed) {
		if len(o.order) == 0 {
			o.idle = true
			o.ready.Broadcast()
			if o.closed {
				return nil, nil
			}
		}
		o.waiting = true
		o.ready.Wait()
		o.waiting = false
	}
	batch = o.queue
	clear(o.spare)
	if cap(o.spare) > maxSpare {
		o.spare = nil
	}
	o.queue, o.spare = o.spare[:0], batch
	for _, q := range batch {
		o.bytes -= msgBytes(q.msg)
	}
	n := min(len(o.order), portion)
	if o.held && !o.closed {
		n = 0
	}
	for _, of := range o.order[:n] {
		values = append(values, o.latest[of])
		delete(o.latest, of)
	}
	if o.order = o.order[n:]; len(o.order) == 0 {
		o.order = nil
	}
	return batch, values
}

// write hands messages to send, each lane in order, until the queue is closed and empty.
func (o *outgoing) write(send func(*nats.Msg)) {
	for {
		batch, values := o.take()
		if len(batch) == 0 && len(values) == 0 {
			return
		}
		for _, q := range batch {
			send(q.msg)
			if q.done != nil {
				q.done()
			}
		}
		for _, build := range values {
			if m := build(); m != nil {
				send(m)
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
