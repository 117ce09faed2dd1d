package brokertest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/highwater-io/highwater/broker"
	"github.com/highwater-io/highwater/messages"
)

// TestHandler runs a broker.Handler through what a controller may ask of it: to be given replicas, to lead, to follow, to
// lead again, to lose its registration, to remove. open returns a new handler over empty storage; t.Cleanup ends what it
// began. A handler passes if it acknowledges each order within limit, proves its log when it is
// to lead, and does nothing for a partition after it has acknowledged its removal.
func TestHandler(t *testing.T, limit time.Duration, open func(t *testing.T) broker.Handler) {
	for name, scenario := range map[string]func(*handlerRun){
		"LeadsAndFollowsInTurn":        leadsAndFollows,
		"LeadsManyPartitionsAtOnce":    leadsMany,
		"StartsAnewAfterItsSession":    startsAnew,
		"RemovesWhatItIsToldToRemove":  removes,
		"StopsInOrder":                 stopsInOrder,
		"StaysTheLeaderInANewEpochToo": leadsAgain,
	} {
		t.Run(name, func(t *testing.T) {
			url := StartNATS(t)
			ctl, err := New(Connect(t, url), "handlertest", Settings())
			if err != nil {
				t.Fatal(err)
			}
			r := &handlerRun{T: t, ctl: ctl, limit: limit, watched: &watched{Handler: open(t), running: map[messages.PartitionID]bool{}}}
			r.other = r.join(url, "other", &watched{Handler: idle{}, running: map[messages.PartitionID]bool{}})
			r.member = r.join(url, "tested", r.watched)
			scenario(r)
			if bad := r.watched.overlaps(); len(bad) > 0 {
				t.Errorf("calls for one partition overlapped: %v", bad)
			}
		})
	}
}

// handlerRun is one scenario.
type handlerRun struct {
	*testing.T
	ctl           *Controller
	limit         time.Duration
	watched       *watched
	member, other *broker.Member
}

func (r *handlerRun) join(url string, id broker.ID, h broker.Handler) *broker.Member {
	r.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	m, err := broker.Join(ctx, Connect(r.T, url), "handlertest", id, h)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(m.Close)
	select {
	case <-m.Ready():
	case <-ctx.Done():
		r.Fatalf("%s is not ready", id)
	}
	return m
}

// within waits for a condition.
func (r *handlerRun) within(what string, f func() bool) {
	r.Helper()
	every := time.NewTicker(2 * time.Millisecond)
	defer every.Stop()
	for deadline := time.Now().Add(r.limit); !f(); <-every.C {
		if time.Now().After(deadline) {
			r.Fatalf("not within %v: %s; acknowledged so far: %v", r.limit, what, r.watched.done())
		}
	}
}

// leads waits until the tested handler has proven a leadership.
func (r *handlerRun) leads(p messages.PartitionID) {
	r.Helper()
	r.within(fmt.Sprintf("to lead %d and prove it", p.Index), func() bool {
		now := r.ctl.Partition(p)
		return now.Leader == "tested" && now.LeaderProven && r.watched.acknowledged(p, "lead", now.LeaderEpoch)
	})
}

func (r *handlerRun) follows(p messages.PartitionID) {
	r.Helper()
	r.within(fmt.Sprintf("to follow in %d", p.Index), func() bool {
		return r.watched.acknowledged(p, "follow", r.ctl.Partition(p).LeaderEpoch)
	})
}

var pair = []broker.ID{"tested", "other"}

func leadsAndFollows(r *handlerRun) {
	p := messages.PartitionID{Topic: r.ctl.CreateTopic("t", 1, pair)}
	r.within("to lead", func() bool { return r.watched.acknowledged(p, "lead", 0) })
	for range 3 {
		r.ctl.Elect(p, "other")
		r.follows(p)
		r.ctl.Elect(p, "tested")
		r.leads(p)
	}
}

func leadsAgain(r *handlerRun) {
	p := messages.PartitionID{Topic: r.ctl.CreateTopic("t", 1, pair)}
	r.within("to lead", func() bool { return r.watched.acknowledged(p, "lead", 0) })
	r.ctl.Elect(p, "tested")
	r.leads(p)
}

func leadsMany(r *handlerRun) {
	lists := make([][]broker.ID, 50)
	for i := range lists {
		lists[i] = pair
	}
	topic := r.ctl.CreateTopic("t", 1, lists...)
	for i := range lists {
		p := messages.PartitionID{Topic: topic, Index: int32(i)}
		r.ctl.Elect(p, "tested")
		r.leads(p)
	}
}

func startsAnew(r *handlerRun) {
	p := messages.PartitionID{Topic: r.ctl.CreateTopic("t", 1, pair)}
	r.within("to lead", func() bool { return r.watched.acknowledged(p, "lead", 0) })
	epoch := r.member.State().Epoch
	r.ctl.Forget("tested")
	r.within("a new registration", func() bool { return r.member.State().Epoch > epoch && !r.member.State().Fenced })
	r.ctl.Elect(p, "tested")
	r.leads(p)
}

func removes(r *handlerRun) {
	topic := r.ctl.CreateTopic("t", 1, pair, pair)
	for i := range int32(2) {
		r.within("to lead", func() bool { return r.watched.acknowledged(messages.PartitionID{Topic: topic, Index: i}, "lead", 0) })
	}
	r.ctl.DeleteTopic(topic)
	r.within("the removal", func() bool { return !r.ctl.Deleting(topic) })
	if calls := r.watched.done(); calls[len(calls)-1].what != "remove" {
		r.Errorf("called after the removal: %v", calls)
	}
}

func stopsInOrder(r *handlerRun) {
	p := messages.PartitionID{Topic: r.ctl.CreateTopic("t", 1, pair)}
	r.within("to lead", func() bool { return r.watched.acknowledged(p, "lead", 0) })
	ctx, cancel := context.WithTimeout(context.Background(), r.limit)
	defer cancel()
	if err := r.member.Shutdown(ctx); err != nil {
		r.Fatal(err)
	}
	if got := r.ctl.Partition(p); got.Leader != "other" {
		r.Errorf("after the stop %q leads", got.Leader)
	}
}

// watched passes calls on and keeps what was acknowledged.
type watched struct {
	broker.Handler
	mu      sync.Mutex
	calls   []acknowledgement
	running map[messages.PartitionID]bool
	overlap []messages.PartitionID
}

type acknowledgement struct {
	p     messages.PartitionID
	what  string
	epoch messages.LeaderEpoch
}

func (w *watched) call(p messages.PartitionID, what string, epoch messages.LeaderEpoch, f func() error) error {
	w.mu.Lock()
	if w.running[p] {
		w.overlap = append(w.overlap, p)
	}
	w.running[p] = true
	w.mu.Unlock()
	err := f()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running[p] = false
	if err == nil {
		w.calls = append(w.calls, acknowledgement{p, what, epoch})
	}
	return err
}

func (w *watched) done() []acknowledgement {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.calls)
}

func (w *watched) acknowledged(p messages.PartitionID, what string, epoch messages.LeaderEpoch) bool {
	return slices.Contains(w.done(), acknowledgement{p, what, epoch})
}

func (w *watched) overlaps() []messages.PartitionID {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.overlap
}

// AddReplica passes the call on.
func (w *watched) AddReplica(ctx context.Context, a broker.Assignment) error {
	return w.call(a.Partition.ID, "add", a.LeaderEpoch, func() error { return w.Handler.AddReplica(ctx, a) })
}

// BecomeLeader passes the call on.
func (w *watched) BecomeLeader(ctx context.Context, l *broker.Leadership) error {
	return w.call(l.Partition().ID, "lead", l.Epoch(), func() error { return w.Handler.BecomeLeader(ctx, l) })
}

// BecomeFollower passes the call on.
func (w *watched) BecomeFollower(ctx context.Context, a broker.Assignment) error {
	return w.call(a.Partition.ID, "follow", a.LeaderEpoch, func() error { return w.Handler.BecomeFollower(ctx, a) })
}

// RemoveReplica passes the call on.
func (w *watched) RemoveReplica(ctx context.Context, p broker.Partition) error {
	return w.call(p.ID, "remove", 0, func() error { return w.Handler.RemoveReplica(ctx, p) })
}

// idle is a handler that agrees to everything.
type idle struct{}

func (idle) AddReplica(context.Context, broker.Assignment) error       { return nil }
func (idle) BecomeLeader(context.Context, *broker.Leadership) error    { return nil }
func (idle) BecomeFollower(context.Context, broker.Assignment) error   { return nil }
func (idle) RemoveReplica(_ context.Context, _ broker.Partition) error { return nil }
