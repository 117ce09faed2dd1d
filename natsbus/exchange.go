package natsbus

import (
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// exchange is one request from the moment it came in until its answer is written. It is answered exactly once: later
// answers are ignored. Its credits are given back when the answer has left.
type exchange struct {
	edge      *Edge
	reply     string // "" when nobody waits for the answer
	json      bool
	principal string
	failure   func(*pb.Error) proto.Message
	pool      *credits
	cost      int
	answered  atomic.Bool
}

// answer sends the answer.
func (x *exchange) answer(body proto.Message) {
	if !x.answered.CompareAndSwap(false, true) {
		return
	}
	done := func() {}
	if x.cost > 0 {
		done = func() { x.pool.give(x.cost) }
	}
	if x.reply == "" {
		done()
		return
	}
	x.edge.send(x.reply, body, x, done)
}

// refuse answers with an error.
func (x *exchange) refuse(err error) { x.answer(x.failure(messages.AsError(err).Proto())) }

// settle answers with a body, or with an error where there is one: what a waiter does that waits for a single answer.
func (x *exchange) settle(body proto.Message, err *messages.Error) {
	if err != nil {
		x.refuse(err)
		return
	}
	x.answer(body)
}

// waiting are the questions to actors that are not answered yet, by request id.
type waiting struct {
	last atomic.Uint64

	mu    sync.Mutex
	asked map[actors.RequestID]question
}

// question waits for one answer of one actor. Its done is called exactly once, without a lock, and must not wait.
type question struct {
	asked time.Time
	done  func(proto.Message, *messages.Error)
}

func newWaiting() *waiting { return &waiting{asked: map[actors.RequestID]question{}} }

// ask returns the id of a new question.
func (w *waiting) ask(now time.Time, done func(proto.Message, *messages.Error)) actors.RequestID {
	id := actors.RequestID(w.last.Add(1))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked[id] = question{asked: now, done: done}
	return id
}

// settle answers a question; an answer to none, or a second one, is ignored.
func (w *waiting) settle(id actors.RequestID, body proto.Message, err *messages.Error) {
	w.mu.Lock()
	q, ok := w.asked[id]
	delete(w.asked, id)
	w.mu.Unlock()
	if ok {
		q.done(body, err)
	}
}

// expire fails every question that was asked before a time, and returns how many there were.
func (w *waiting) expire(before time.Time, err *messages.Error) int {
	w.mu.Lock()
	var late []question
	for id, q := range w.asked {
		if q.asked.Before(before) {
			late = append(late, q)
			delete(w.asked, id)
		}
	}
	w.mu.Unlock()
	for _, q := range late {
		q.done(nil, err)
	}
	return len(late)
}

// gather collects the results of a batched request, in the order of its items, and answers when the last one is there.
type gather struct {
	x      *exchange
	answer func([]*pb.IsrResult) proto.Message

	mu      sync.Mutex
	left    int
	results []*pb.IsrResult
}

func newGather(x *exchange, items int, answer func([]*pb.IsrResult) proto.Message) *gather {
	return &gather{x: x, answer: answer, left: items, results: make([]*pb.IsrResult, items)}
}

// put stores the result of item i, which is put once.
func (g *gather) put(i int, r *pb.IsrResult) {
	g.mu.Lock()
	g.results[i] = r
	g.left--
	last := g.left == 0
	g.mu.Unlock()
	if last {
		g.x.answer(g.answer(g.results))
	}
}
