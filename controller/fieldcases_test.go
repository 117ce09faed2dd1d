package controller

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// propose sends a leader's proposal of an ISR and returns the code of the answer, "" for a success.
func (b *rawBroker) propose(topic string, le, pe int64, members ...*pb.IsrMember) messages.Code {
	b.t.Helper()
	b.mu.Lock()
	epoch, id := b.epoch, b.assigned[topic+"/0"].GetTopicId()
	b.mu.Unlock()
	answer := &pb.IsrResponse{}
	if err := call(b.nc, subjects.Broker(string(b.id), messages.VerbISR), &pb.IsrRequest{Broker: string(b.id), BrokerEpoch: epoch,
		Proposals: []*pb.IsrProposal{{TopicId: id, LeaderEpoch: le, PartitionEpoch: pe, Isr: members}}}, answer); err != nil {
		b.t.Fatal(err)
	}
	if len(answer.Results) != 1 {
		b.t.Fatalf("%d answers", len(answer.Results))
	}
	return messages.Code(answer.Results[0].GetError().GetCode())
}

func (b *rawBroker) member() *pb.IsrMember {
	b.mu.Lock()
	defer b.mu.Unlock()
	return &pb.IsrMember{Broker: string(b.id), BrokerEpoch: b.epoch}
}

// knows waits until a broker has its assignment.
func (b *rawBroker) knows(topic string) {
	b.t.Helper()
	eventually(b.t, string(b.id)+" to know of "+topic, func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.assigned[topic+"/0"] != nil
	})
}

// A leader proposes a follower that has been restarted since.
func TestB38AnOldIncarnationDoesNotJoin(t *testing.T) {
	c := start(t, t.TempDir(), nil)
	all := cluster(t, c, 3)
	nc := connect(t, c.URL())
	createOn(t, nc, "t", 1, "b1", "b2", "b3")
	all[0].knows("t")
	old := all[1].member()
	all[1].die()
	eventually(t, "b2 to be out", func() bool { return len(partitionView(t, nc, "t").ISR) == 2 })
	again := joinAs(t, c.URL(), "b2", "another")
	eventually(t, "b2 to be unfenced", again.serving)
	b1, b3, now := all[0].member(), all[2].member(), again.member()
	pe := int64(partitionView(t, nc, "t").Epoch)
	for _, step := range []struct {
		name    string
		members []*pb.IsrMember
		want    messages.Code
		epoch   int64
	}{
		{"of before the restart", []*pb.IsrMember{b1, b3, old}, messages.CodeIneligibleReplica, pe},
		{"without an incarnation", []*pb.IsrMember{b1, b3, {Broker: "b2"}}, messages.CodeIneligibleReplica, pe},
		{"of now", []*pb.IsrMember{b1, b3, now}, "", pe + 1},
		{"the same again", []*pb.IsrMember{b1, b3, now}, messages.CodeStalePartitionEpoch, pe + 1},
	} {
		if got := all[0].propose("t", 0, pe, step.members...); got != step.want {
			t.Errorf("%s: %q, want %q", step.name, got, step.want)
		}
		if v := partitionView(t, nc, "t"); int64(v.Epoch) != step.epoch {
			t.Errorf("%s: partition epoch %d, want %d", step.name, v.Epoch, step.epoch)
		}
	}
}

// A leader that has not heard of it proposes followers that are stopping, or that are taken for dead.
func TestB39NobodyJoinsWhoIsLeavingOrFenced(t *testing.T) {
	c := start(t, t.TempDir(), nil)
	all := cluster(t, c, 4)
	nc := connect(t, c.URL())
	createOn(t, nc, "t", 1, "b1", "b2", "b3", "b4")
	all[0].knows("t")
	stop := all[1].member()
	all[1].mu.Lock()
	all[1].stopping = true
	all[1].mu.Unlock()
	eventually(t, "b2 to be out", func() bool { return len(partitionView(t, nc, "t").ISR) == 3 })
	gone := all[2].member()
	all[2].die()
	eventually(t, "b3 to be out", func() bool { return len(partitionView(t, nc, "t").ISR) == 2 })
	before := partitionView(t, nc, "t")
	for name, m := range map[string]*pb.IsrMember{"stopping": stop, "fenced": gone} {
		if got := all[0].propose("t", 0, int64(before.Epoch), all[0].member(), all[3].member(), m); got != messages.CodeIneligibleReplica {
			t.Errorf("%s: %q", name, got)
		}
	}
	if v := partitionView(t, nc, "t"); v.Epoch != before.Epoch {
		t.Errorf("%+v, before %+v", v, before)
	}
	createOn(t, nc, "u", 4, "b2", "b4")
	list, _ := look[[]messages.PartitionView](t, nc, "partitions")
	for _, p := range list {
		if p.Leader == "b2" || slices.Contains(p.ISR, "b2") {
			t.Errorf("a stopping broker has something to do: %+v", p)
		}
	}
	eventually(t, "b2 to be let go", func() bool {
		all[1].mu.Lock()
		defer all[1].mu.Unlock()
		return all[1].mayStop
	})
}

// The registration of a broker is sent a second time by somebody who has recorded it: while the broker is there, and when it has
// been replaced by another incarnation.
func TestB45ARecordedRegistrationIsNoWayIn(t *testing.T) {
	c := start(t, t.TempDir(), nil)
	w := newWire(t, c.URL())
	var recorded atomic.Pointer[[]byte]
	w.watch(func(m message) {
		if !m.down && verb(messages.VerbRegister, false)(m) && recorded.Load() == nil {
			data := slices.Clone(m.data)
			recorded.Store(&data)
		}
	})
	first := joinAs(t, w.url(), "b1", "first")
	eventually(t, "b1 to be unfenced", first.serving)
	nc := connect(t, c.URL())
	first.die()
	eventually(t, "b1 to be fenced", func() bool { v, _ := look[messages.BrokerView](t, nc, "broker.b1"); return v.State == "fenced" })
	second := joinAs(t, c.URL(), "b1", "second")
	eventually(t, "the second to be unfenced", second.serving)
	before, _ := look[messages.BrokerView](t, nc, "broker.b1")
	q, answer := &pb.RegisterRequest{}, &pb.RegisterResponse{}
	if err := proto.Unmarshal(*recorded.Load(), q); err != nil || q.Incarnation != "first" {
		t.Fatalf("recorded %v, %v", q, err)
	}
	if err := call(nc, subjects.Broker("b1", messages.VerbRegister), q, answer); messages.CodeOf(err) != messages.CodeBrokerIDInUse {
		t.Errorf("the recorded registration: %v", err)
	}
	if now, _ := look[messages.BrokerView](t, nc, "broker.b1"); now.Epoch != before.Epoch || now.State != "active" {
		t.Errorf("%+v, before %+v", now, before)
	}
}

// A broker dies and comes back again and again. It leads nothing any more after the first time, nobody else notices, and the
// others' partitions are left alone.
func TestB62AFlappingBrokerDoesNotDragLeadershipWithIt(t *testing.T) {
	c := start(t, t.TempDir(), nil)
	all := cluster(t, c, 3)
	nc := connect(t, c.URL())
	createOn(t, nc, "mine", 50, "b1", "b2", "b3")
	createOn(t, nc, "other", 50, "b2", "b3")
	before := epochs(t, nc)
	flapping := all[0]
	for round := range 8 {
		flapping.die()
		eventually(t, "b1 to be fenced, and to lead nothing", func() bool {
			v, _ := look[messages.BrokerView](t, nc, "broker.b1")
			return v.State == "fenced" && v.Leaders == 0
		})
		flapping = joinAs(t, c.URL(), "b1", fmt.Sprint("life ", round))
		eventually(t, "b1 to be back", flapping.serving)
	}
	list, _ := look[[]messages.PartitionView](t, nc, "partitions")
	after := epochs(t, nc)
	for _, p := range list {
		if p.Topic == "mine" && (p.Leader == "b1" || p.LeaderEpoch != 1) {
			t.Errorf("after eight deaths of its first leader: %+v", p)
		}
		if place := fmt.Sprintf("%s/%d", p.Topic, p.Partition); p.Topic == "other" && after[place] != before[place] {
			t.Errorf("%+v has nothing to do with b1, before it was %s", p, before[place])
		}
	}
	for _, b := range all[1:] {
		if v, _ := look[messages.BrokerView](t, nc, "broker."+string(b.id)); v.State != "active" {
			t.Errorf("%s: %+v", b.id, v)
		}
	}
}

// Four of nine brokers vanish at once, among them a whole rack. Who can lead leads at once, nothing is copied anywhere, and
// when they are back all is as it was.
func TestB57HalfTheClusterVanishesAndNothingIsCopied(t *testing.T) {
	c := start(t, t.TempDir(), nil)
	all := cluster(t, c, 9)
	nc := connect(t, c.URL())
	create(t, nc, "t", 30)
	replicas := func() map[int32]string {
		list, _ := look[[]messages.PartitionView](t, nc, "partitions")
		out := map[int32]string{}
		for _, p := range list {
			out[p.Partition] = fmt.Sprint(p.Replicas)
		}
		return out
	}
	before := replicas()
	for _, b := range all[5:] {
		b.die()
	}
	eventually(t, "whoever has a live replica in sync to lead", func() bool {
		list, _ := look[[]messages.PartitionView](t, nc, "partitions")
		for _, p := range list {
			live := slices.ContainsFunc(append(p.ISR, p.Eligible...), func(b messages.BrokerID) bool { return b <= "b5" })
			if live != (p.Leader != "") || p.Leader > "b5" {
				return false
			}
		}
		h, _ := look[messages.HealthView](t, nc, "health")
		return h.Brokers.Fenced == 4 && h.Status != "HEALTHY"
	})
	for i, b := range all[5:] {
		again := joinAs(t, c.URL(), b.id, fmt.Sprint("again ", i))
		eventually(t, string(b.id)+" to be back", again.serving)
	}
	if after := replicas(); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("replicas have moved: %v, before %v", after, before)
	}
	if h, _ := look[messages.HealthView](t, nc, "health"); h.Partitions.Offline != 0 {
		t.Errorf("with everybody back: %+v", h.Partitions)
	}
}

// The leader of 400 of 2,000 partitions dies: what the others are sent grows with their number, not with that of the
// partitions, and partitions without a replica there are left alone.
func TestB63AFailoverCostsMessagesPerBrokerNotPerPartition(t *testing.T) {
	c := start(t, t.TempDir(), nil)
	all := cluster(t, c, 5)
	nc := connect(t, c.URL())
	createOn(t, nc, "mine", 400, "b1", "b2", "b3")
	createOn(t, nc, "other", 1600, "b4", "b5")
	for i, b := range all {
		want := []int{400, 400, 400, 1600, 1600}[i]
		eventually(t, string(b.id)+" to know what it has", func() bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			return len(b.assigned) == want
		})
	}
	before := revision(t, nc)
	batches := map[messages.BrokerID]int{}
	var mu sync.Mutex
	for _, b := range all {
		id := b.id
		if _, err := nc.Subscribe(subjects.Assignments(id), func(m *nats.Msg) {
			batch := &pb.AssignmentBatch{}
			mu.Lock()
			defer mu.Unlock()
			if proto.Unmarshal(m.Data, batch) == nil && len(batch.Assignments) > 0 {
				batches[id]++
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	all[0].die()
	eventually(t, "400 new leaders", func() bool {
		v, _ := look[messages.BrokerView](t, nc, "broker.b2")
		return v.Leaders == 400
	})
	eventually(t, "them to have proven themselves", func() bool { h, _ := look[messages.HealthView](t, nc, "health"); return h.Partitions.Unproven == 0 })
	mu.Lock()
	defer mu.Unlock()
	if batches["b4"]+batches["b5"] != 0 || batches["b2"] == 0 || batches["b2"] > 40 || batches["b3"] > 40 {
		t.Errorf("400 partitions moved; batches to the brokers: %v", batches)
	}
	if entries := revision(t, nc) - before; entries > 100 {
		t.Errorf("400 partitions moved in %d entries of the journal", entries)
	}
	c.current().catalog.Partitions(func(topic *messages.Topic, p *messages.Partition) bool {
		if topic.Name == "other" && (p.Epoch != 0 || p.LeaderEpoch != 0) {
			t.Errorf("it has nothing to do with b1: %+v", p)
		}
		return !t.Failed()
	})
}

func revision(t testing.TB, nc *nats.Conn) messages.Sequence {
	t.Helper()
	_, v := look[messages.HealthView](t, nc, "health")
	return v.Revision
}
