package broker_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "github.com/highwater-io/highwater/messages/highwaterpb"
	"github.com/nats-io/nats.go"

	"github.com/highwater-io/highwater/broker"
	"github.com/highwater-io/highwater/broker/brokertest"
	"github.com/highwater-io/highwater/messages"
)

// roleKeeper is a Handler that keeps the role of each partition.
type roleKeeper struct {
	mu      sync.Mutex
	roles   map[messages.PartitionID]string
	leads   map[messages.PartitionID]*broker.Leadership
	removed []broker.Partition
	end     messages.Offset
	refuse  error
}

func newRoleKeeper() *roleKeeper {
	return &roleKeeper{roles: map[messages.PartitionID]string{}, leads: map[messages.PartitionID]*broker.Leadership{}}
}

func (r *roleKeeper) set(p messages.PartitionID, role string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.roles[p] = role
	return nil
}

func (r *roleKeeper) role(p messages.PartitionID) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.roles[p]
}

func (r *roleKeeper) lead(p messages.PartitionID) *broker.Leadership {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.leads[p]
}

func (r *roleKeeper) AddReplica(_ context.Context, a broker.Assignment) error {
	return r.set(a.Partition.ID, "added")
}

func (r *roleKeeper) BecomeLeader(_ context.Context, l *broker.Leadership) error {
	l.Report(broker.Progress{LogEnd: r.end, HighWatermark: r.end})
	r.mu.Lock()
	r.leads[l.Partition().ID] = l
	r.mu.Unlock()
	_ = r.set(l.Partition().ID, fmt.Sprintf("leader %d", l.Epoch()))
	return r.refuse
}

func (r *roleKeeper) BecomeFollower(_ context.Context, a broker.Assignment) error {
	return r.set(a.Partition.ID, "follower of "+string(a.Leader))
}

func (r *roleKeeper) RemoveReplica(_ context.Context, p broker.Partition) error {
	r.mu.Lock()
	r.removed = append(r.removed, p)
	r.mu.Unlock()
	return r.set(p.ID, "removed")
}

// members starts a controller and members with handlers.
func members(t *testing.T, ids ...broker.ID) (*brokertest.Controller, map[broker.ID]*broker.Member, map[broker.ID]*roleKeeper, string) {
	t.Helper()
	url := brokertest.StartNATS(t)
	ctl, err := brokertest.New(brokertest.Connect(t, url), clusterName, brokertest.Settings())
	if err != nil {
		t.Fatal(err)
	}
	ms, hs := map[broker.ID]*broker.Member{}, map[broker.ID]*roleKeeper{}
	for _, id := range ids {
		hs[id] = newRoleKeeper()
		m, err := broker.Join(t.Context(), brokertest.Connect(t, url), clusterName, id, hs[id])
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.Close)
		<-m.Ready()
		ms[id] = m
	}
	return ctl, ms, hs, url
}

func TestHandlerFollowsTheController(t *testing.T) {
	ctl, ms, hs, _ := members(t, "b1", "b2")
	topic := ctl.CreateTopic("t", 1, []broker.ID{"b1", "b2"}, []broker.ID{"b2", "b1"})
	p0, p1 := messages.PartitionID{Topic: topic}, messages.PartitionID{Topic: topic, Index: 1}
	eventually(t, "the first roles", func() bool {
		return hs["b1"].role(p0) == "leader 0" && hs["b2"].role(p0) == "follower of b1" && hs["b2"].role(p1) == "leader 0"
	})
	old := hs["b1"].lead(p0)
	eventually(t, "the leader's lease", old.Valid)
	ctl.Elect(p0, "b2")
	eventually(t, "the election", func() bool { return hs["b2"].role(p0) == "leader 1" && hs["b1"].role(p0) == "follower of b2" })
	if old.Current() || !errors.Is(context.Cause(old.Context()), broker.ErrNotLeader) {
		t.Errorf("the old leadership goes on: %v", context.Cause(old.Context()))
	}
	eventually(t, "the proof", func() bool { return ctl.Partition(p0).LeaderProven })
	ctl.Takeover()
	ctl.Elect(p0, "b1")
	eventually(t, "an election under the next controller", func() bool { return hs["b1"].role(p0) == "leader 2" })

	ms["b1"].Report(p0, broker.Progress{LogEnd: 12, HighWatermark: 11})
	eventually(t, "the mark", func() bool { return ctl.Mark(p0) == 11 })

	ctl.DeleteTopic(topic)
	eventually(t, "the removal", func() bool { return !ctl.Deleting(topic) })
	if hs["b1"].role(p0) != "removed" || hs["b2"].role(p1) != "removed" || ms["b1"].State().Partitions != 0 {
		t.Errorf("after the removal: %q %q %+v", hs["b1"].role(p0), hs["b2"].role(p1), ms["b1"].State())
	}
}

func TestALeaderThatCannotProveItsLogDeclines(t *testing.T) {
	ctl, ms, hs, _ := members(t, "b1", "b2")
	hs["b2"].end = 7
	p := messages.PartitionID{Topic: ctl.CreateTopic("t", 1, []broker.ID{"b1", "b2"})}
	eventually(t, "roles", func() bool { return hs["b1"].role(p) == "leader 0" && hs["b2"].role(p) == "follower of b1" })
	ms["b1"].Report(p, broker.Progress{LogEnd: 7, HighWatermark: 7})
	eventually(t, "the mark", func() bool { return ctl.Partition(p).HighWatermark == 7 })
	ctl.Elect(p, "b1") // whose handler says that its log is empty
	eventually(t, "the other to lead", func() bool { return hs["b2"].role(p) == "leader 2" })
	if hs["b1"].lead(p).Current() {
		t.Error("a leader that has declined is current")
	}
}

func TestISRProposals(t *testing.T) {
	ctl, _, hs, _ := members(t, "b1", "b2")
	p := messages.PartitionID{Topic: ctl.CreateTopic("t", 1, []broker.ID{"b1", "b2"})}
	eventually(t, "roles", func() bool { return hs["b1"].role(p) == "leader 0" })
	l := hs["b1"].lead(p)
	var lost atomic.Int32
	ctl.SetFault(func(r brokertest.Request) brokertest.Outcome {
		if r.Verb == messages.VerbISR && lost.Add(1) == 1 {
			return brokertest.DropAnswer // carried out, and not heard of
		}
		return brokertest.Deliver
	})
	me := broker.ISRMember{Broker: "b1"}
	a, err := l.ProposeISR(t.Context(), []broker.ISRMember{me})
	if err != nil || len(a.ISR) != 1 || lost.Load() < 2 {
		t.Fatalf("after a lost answer: %+v, %v, %d requests", a, err, lost.Load())
	}
	other, _ := ctl.Broker("b2")
	a, err = l.ProposeISR(t.Context(), []broker.ISRMember{me, {Broker: "b2", Epoch: other.Epoch + 1}})
	if messages.CodeOf(err) != messages.CodeIneligibleReplica || len(a.ISR) != 1 {
		t.Errorf("another life of a member: %+v, %v", a, err)
	}
	if a, err = l.ProposeISR(t.Context(), []broker.ISRMember{me, {Broker: "b2", Epoch: other.Epoch}}); err != nil || len(a.ISR) != 2 {
		t.Errorf("growing again: %+v, %v", a, err)
	}
	ctl.Elect(p, "b2")
	eventually(t, "the election", func() bool { return !l.Current() })
	if _, err = l.ProposeISR(t.Context(), []broker.ISRMember{me}); !errors.Is(err, broker.ErrNotLeader) {
		t.Errorf("a deposed leader's proposal: %v", err)
	}
}

func TestResigningMovesTheLeadership(t *testing.T) {
	ctl, _, hs, _ := members(t, "b1", "b2")
	p := messages.PartitionID{Topic: ctl.CreateTopic("t", 1, []broker.ID{"b1", "b2"})}
	eventually(t, "roles", func() bool { return hs["b1"].role(p) == "leader 0" })
	hs["b1"].lead(p).Resign("maintenance")
	eventually(t, "the other to lead", func() bool { return hs["b2"].role(p) == "leader 1" })
}

func TestControlledStopHandsOver(t *testing.T) {
	ctl, ms, hs, _ := members(t, "b1", "b2")
	p := messages.PartitionID{Topic: ctl.CreateTopic("t", 1, []broker.ID{"b1", "b2"})}
	eventually(t, "roles", func() bool { return hs["b1"].role(p) == "leader 0" })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := ms["b1"].Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	if got := ctl.Partition(p); got.Leader != "b2" || len(got.ISR) != 1 {
		t.Errorf("after the stop: %+v", got)
	}
	select {
	case <-ms["b1"].Done():
	default:
		t.Error("the member has not ended")
	}
	if err := ms["b1"].Err(); err != nil {
		t.Error(err)
	}
}

func TestB47FlappingConnectionAndDeafBroker(t *testing.T) {
	url := brokertest.StartNATS(t)
	ctl, err := brokertest.New(brokertest.Connect(t, url), clusterName, brokertest.Settings())
	if err != nil {
		t.Fatal(err)
	}
	nc, h := brokertest.Connect(t, url), newRoleKeeper()
	m, err := broker.Join(t.Context(), nc, clusterName, "b3", h)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	<-m.Ready()
	first := m.State()
	for range 10 {
		if err := nc.ForceReconnect(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the connection", nc.IsConnected)
	}
	p := messages.PartitionID{Topic: ctl.CreateTopic("t", 1, []broker.ID{"b3"})}
	eventually(t, "to lead", func() bool { return h.role(p) == "leader 0" })
	b, _ := ctl.Broker("b3")
	if st := m.State(); st.Incarnation != first.Incarnation || b.Incarnation != first.Incarnation || st.Epoch != b.Epoch {
		t.Errorf("before %+v, after %+v, registered %+v", first, st, b)
	}
	if n := len(ctl.Requests(messages.VerbRegister, "b3")); n != 1 {
		t.Errorf("%d registrations", n)
	}

	// Deaf: orders are lost while heartbeats flow. The heartbeats say so, and the next order that arrives heals it.
	ctl.SetDeaf("b3", true)
	ctl.Elect(p, "b3")
	eventually(t, "heartbeats that show the loss", func() bool {
		applied, sent := ctl.Applied("b3")
		return applied < sent && m.State().Lease > 0
	})
	if h.role(p) != "leader 0" {
		t.Fatal("the order was not lost")
	}
	ctl.SetDeaf("b3", false)
	ctl.Elect(p, "b3")
	eventually(t, "the snapshot", func() bool { return h.role(p) == "leader 2" })
}

func TestOrdersOfAnotherLifeAreNotCarriedOut(t *testing.T) {
	ctl, ms, hs, _ := members(t, "b1")
	topic := ctl.CreateTopic("t", 1, []broker.ID{"b1"})
	p := messages.PartitionID{Topic: topic}
	eventually(t, "to lead", func() bool { return hs["b1"].role(p) == "leader 0" })
	epoch := ms["b1"].State().Epoch
	order := &pb.Removal{TopicId: topic.Bytes(), Topic: "t", PartitionEpochs: []int64{99}}
	for name, batch := range map[string]*pb.AssignmentBatch{
		"an earlier registration's": {Broker: "b1", BrokerEpoch: uint64(epoch - 1)},
		"another broker's":          {Broker: "b2", BrokerEpoch: uint64(epoch)},
	} {
		_, sent := ctl.Applied("b1")
		batch.Seen, batch.Removals = messages.SeenToProto(ms["b1"].State().Seen), []*pb.Removal{order}
		batch.Feed = &pb.FeedPosition{Feed: 1<<32 | 1, Position: sent + 1}
		if err := ctl.Publish("b1", batch); err != nil {
			t.Fatal(err)
		}
		ctl.Elect(p, "b1")
		want := fmt.Sprintf("leader %d", ctl.Partition(p).LeaderEpoch)
		eventually(t, "the next order", func() bool { return hs["b1"].role(p) == want })
		if len(hs["b1"].removed) != 0 {
			t.Errorf("%s order was carried out", name)
		}
	}
}

func TestAClosedConnectionEndsTheMember(t *testing.T) {
	url := brokertest.StartNATS(t)
	if _, err := brokertest.New(brokertest.Connect(t, url), clusterName, brokertest.Settings()); err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	m, err := broker.Join(t.Context(), nc, clusterName, "b1", newRoleKeeper())
	if err != nil {
		t.Fatal(err)
	}
	nc.Close()
	select {
	case <-m.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("the member goes on without a connection")
	}
	if m.Err() == nil {
		t.Error("no reason is given")
	}
}
