package controller

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/broker/replica"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// The cases of this file need the real controller, the real SDK, and somebody on the wire between the two.

func withLag(lag time.Duration) func(*Config) {
	return func(c *Config) { c.Settings.ReplicaLag = lag }
}

func values(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("v%d", i)
	}
	return out
}

// The controller has taken b2 into the ISR, and b1 never hears of it; b2 gets nothing more. What b1 acknowledges must be on
// b2 all the same.
func TestB19AGrownISRCountsAlthoughTheAnswerIsLost(t *testing.T) {
	c := start(t, t.TempDir(), withLag(time.Minute))
	b := realBrokers(t, c.URL(), "b1", "b2")
	nc := connect(t, c.URL())
	b["b2"].kill()
	eventually(t, "b2 to be fenced", func() bool { v, _ := look[messages.BrokerView](t, nc, "broker.b2"); return v.State == "fenced" })
	id := realTopic(t, nc, "t", 1, "b1", "b2")
	mustWrite(t, nc, id, "t", "before")
	isr := verb(messages.VerbISR, true)
	toB1 := token("asg")
	b["b1"].wire.hold(func(m message) bool { return isr(m) || toB1(m) && m.down })
	b["b2"].start()
	inSync(t, nc, "t", "b1", "b2")
	b["b2"].wire.hold(token("rep"))
	acked := make(chan error, 10)
	epoch := partitionView(t, nc, "t").LeaderEpoch
	for i := range 10 {
		other := connect(t, c.URL())
		go func() { acked <- write(other, id, "t", epoch, fmt.Sprint("during", i)) }()
	}
	eventually(t, "the leader to have them", func() bool { return b["b1"].replica(id).LogEnd == 11 })
	if st := b["b1"].replica(id); st.HighWatermark != 1 || len(acked) != 0 {
		t.Errorf("acknowledged by b1 alone: %d of 10, %+v", len(acked), st)
	}
	b["b1"].kill()
	eventually(t, "b2 to lead", func() bool { v := partitionView(t, nc, "t"); return v.Leader == "b2" && v.LeaderProven })
	if got := read(t, nc, id, "t"); len(got) < 1 || got[0] != "before" {
		t.Errorf("of what was acknowledged there is %q", got)
	}
	for range len(acked) {
		if err := <-acked; err == nil {
			t.Error("a record was acknowledged that the next leader has not got")
		}
	}
}

// A shrink is proposed, and its answer takes its time: the mark waits for it, and then moves without any new traffic.
func TestB20TheMarkWaitsForTheAnswerToAShrink(t *testing.T) {
	c := start(t, t.TempDir(), withLag(300*time.Millisecond))
	b := realBrokers(t, c.URL(), "b1", "b2", "b3")
	nc := connect(t, c.URL())
	id := realTopic(t, nc, "t", 2, "b1", "b2", "b3")
	mustWrite(t, nc, id, "t", "before")
	isr, feed := verb(messages.VerbISR, true), token("asg")
	b["b1"].wire.hold(func(m message) bool { return isr(m) || feed(m) && m.down })
	b["b3"].wire.hold(token("rep"))
	acked := make(chan error, 20)
	for i := range 20 {
		other := connect(t, c.URL())
		go func() { acked <- write(other, id, "t", 0, fmt.Sprint("during", i)) }()
	}
	eventually(t, "the controller to have taken b3 out", func() bool { return len(partitionView(t, nc, "t").ISR) == 2 })
	eventually(t, "b2 to have all", func() bool { return b["b2"].replica(id).LogEnd == 21 })
	if st := b["b1"].replica(id); st.HighWatermark != 1 || len(acked) != 0 {
		t.Errorf("the shrink counts before its answer: %d acknowledged, %+v", len(acked), st)
	}
	b["b1"].wire.letGo()
	for range 20 {
		if err := <-acked; err != nil {
			t.Errorf("after the answer: %v", err)
		}
	}
	b["b3"].wire.letGo()
	inSync(t, nc, "t", "b1", "b2", "b3")
}

// b2 has a record and does not know yet that it is committed. It is restarted, and the leader dies the moment it is back.
func TestB23ARestartedFollowerCutsNothingBeforeItHasAsked(t *testing.T) {
	c := start(t, t.TempDir(), nil)
	b := realBrokers(t, c.URL(), "b1", "b2")
	nc := connect(t, c.URL())
	id := realTopic(t, nc, "t", 1, "b1", "b2")
	mustWrite(t, nc, id, "t", "m0", "m1")
	inSync(t, nc, "t", "b1", "b2")
	b["b2"].kill()
	b["b2"].wire.hold(token("rep")) // it will not get an answer of this leader any more
	b["b2"].start()                 // returns when it is registered
	b["b1"].kill()
	b["b2"].ready()
	eventually(t, "b2 to have opened its replica", func() bool { _, open := b["b2"].srv.Replica(id); return open })
	eventually(t, "the controller to miss b1", func() bool { v, _ := look[messages.BrokerView](t, nc, "broker.b1"); return v.State == "fenced" })
	if st := b["b2"].replica(id); st.LogEnd != 2 {
		t.Errorf("b2 has cut its log: %+v", st)
	}
	b["b2"].wire.letGo()
	b["b1"].start()
	inSync(t, nc, "t", "b1", "b2")
	if got := read(t, nc, id, "t"); !slices.Equal(got, []string{"m0", "m1"}) {
		t.Errorf("after the failover: %q", got)
	}
}

// b3 is registered, and the answer to that takes its time; meanwhile the controller sends orders for its new registration.
func TestB37OrdersBeforeTheAnswerToTheRegistrationAreNotLost(t *testing.T) {
	c := start(t, t.TempDir(), nil)
	b := realBrokers(t, c.URL(), "b1", "b2", "b3")
	nc := connect(t, c.URL())
	id := realTopic(t, nc, "t", 1, "b3", "b1", "b2")
	mustWrite(t, nc, id, "t", "a")
	before := inSync(t, nc, "t", "b1", "b2", "b3")
	old, _ := look[messages.BrokerView](t, nc, "broker.b3")
	b["b3"].kill()
	eventually(t, "another to lead", func() bool { v := partitionView(t, nc, "t"); return v.Leader == "b1" && v.LeaderProven })
	orders := make(chan struct{}, 1)
	b["b3"].wire.watch(func(m message) {
		if m.down && token("asg")(m) {
			select {
			case orders <- struct{}{}:
			default:
			}
		}
	})
	b["b3"].wire.hold(verb(messages.VerbRegister, true))
	started := make(chan struct{})
	go func() {
		defer close(started)
		b["b3"].start()
	}()
	eventually(t, "the controller to have registered b3", func() bool {
		v, _ := look[messages.BrokerView](t, nc, "broker.b3")
		return v.Epoch != old.Epoch
	})
	b["b1"].kill() // b2 leads: an order to everybody, b3 included
	<-orders
	b["b3"].wire.letGo()
	<-started
	eventually(t, "b3 to follow", func() bool {
		st := b["b3"].replica(id)
		return st.Role == replica.RoleFollower && st.LeaderEpoch > before.LeaderEpoch+1 && st.Leader == "b2"
	})
	inSync(t, nc, "t", "b2", "b3")
	if st := b["b3"].srv.State(); st.Fenced || st.Epoch == old.Epoch {
		t.Errorf("b3: %+v", st)
	}
}

// The connection of a broker breaks ten times in a row: one registration is left, and both sides agree on it.
func TestB47ABurstOfBrokenConnectionsLeavesOneRegistration(t *testing.T) {
	c := start(t, t.TempDir(), func(c *Config) { c.Settings.DisconnectGrace = time.Minute })
	b := realBrokers(t, c.URL(), "b1", "b2", "b3")
	nc := connect(t, c.URL())
	id := realTopic(t, nc, "t", 2, "b3", "b1", "b2")
	mustWrite(t, nc, id, "t", values(5)...)
	before := inSync(t, nc, "t", "b1", "b2", "b3")
	was := b["b3"].srv.State()
	for range 10 {
		b["b3"].wire.cut()
		eventually(t, "the broken connection to be noticed", func() bool { return !b["b3"].nc.IsConnected() })
		b["b3"].wire.heal()
		eventually(t, "a connection", b["b3"].nc.IsConnected)
	}
	eventually(t, "a lease over the last connection", func() bool { return b["b3"].srv.State().Lease > 0 })
	mustWrite(t, nc, id, "t", "after")
	v, _ := look[messages.BrokerView](t, nc, "broker.b3")
	if now := b["b3"].srv.State(); now.Incarnation != was.Incarnation || now.Epoch != was.Epoch || v.Incarnation != now.Incarnation ||
		v.Epoch != now.Epoch || v.State != "active" {
		t.Errorf("the broker says %+v, the controller %+v, before %+v", now, v, was)
	}
	if p := inSync(t, nc, "t", "b1", "b2", "b3"); p.LeaderEpoch != before.LeaderEpoch {
		t.Errorf("the leadership moved: %+v", p)
	}
}

// The heart of b3 beats, but what it is told does not arrive. It loses what it should lead, and it is told who is deaf.
func TestB47ADeafBrokerIsPassedOverAndNamed(t *testing.T) {
	c := start(t, t.TempDir(), func(c *Config) { c.Settings.LeaderReady, c.Settings.ReplicaLag = time.Second, time.Second })
	b := realBrokers(t, c.URL(), "b1", "b2", "b3")
	nc := connect(t, c.URL())
	id := realTopic(t, nc, "t", 1, "b1", "b3", "b2")
	mustWrite(t, nc, id, "t", "before")
	inSync(t, nc, "t", "b1", "b2", "b3")
	deaf := func() (messages.HealthView, bool) {
		h, _ := look[messages.HealthView](t, nc, "health")
		return h, slices.ContainsFunc(h.Reasons, func(r messages.HealthReason) bool { return r.Code == "BROKER_UNRESPONSIVE" })
	}
	if h, is := deaf(); is {
		t.Errorf("before anything happened: %+v", h)
	}
	b["b3"].wire.hold(func(m message) bool { return m.down && token("asg")(m) })
	b["b1"].kill()
	eventually(t, "b2 to lead instead of b3", func() bool { v := partitionView(t, nc, "t"); return v.Leader == "b2" && v.LeaderProven })
	mustWrite(t, nc, id, "t", "after")
	eventually(t, "b3 to be named", func() bool {
		h, is := deaf()
		v, _ := look[messages.BrokerView](t, nc, "broker.b3")
		return is && slices.Equal(h.Brokers.UnresponsiveIDs, []messages.BrokerID{"b3"}) && v.State == "unresponsive"
	})
	b["b3"].kill()
	b["b3"].wire.lose()
	b["b3"].wire.hold(nil)
	b["b3"].start()
	inSync(t, nc, "t", "b2", "b3")
	if h, is := deaf(); is || h.Brokers.Active != 2 {
		t.Errorf("after it was started anew: %+v", h)
	}
}

// The lead is moved to a preferred replica and back again and again, while records are written: nothing is lost, nothing goes to
// one that is not in sync, and whoever hands over has ended its lease for the partition.
func TestB27B28HandingOverTheLeadLosesNothing(t *testing.T) {
	c := start(t, t.TempDir(), nil)
	b := realBrokers(t, c.URL(), "b1", "b2", "b3")
	nc := connect(t, c.URL())
	id := realTopic(t, nc, "t", 2, "b1", "b2", "b3")
	mustWrite(t, nc, id, "t", "v0")
	inSync(t, nc, "t", "b1", "b2", "b3")
	prefer := func(to messages.BrokerID) {
		if err := c.current().tree.Tell(actors.Partition(id), actors.PreferLeader{To: to, Reason: "test"}); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"v0"}
	for round := range 6 {
		to := []messages.BrokerID{"b2", "b1"}[round%2]
		written := make(chan error, 1)
		value := fmt.Sprint("v", round+1)
		go func() {
			writer := connect(t, c.URL())
			for deadline := time.Now().Add(20 * time.Second); ; <-time.After(5 * time.Millisecond) { // it finds the next leader
				err := send(writer, dataSubject("t", partitionView(t, writer, "t").LeaderEpoch, messages.VerbProduce), id, value, time.Second)
				if err == nil || time.Now().After(deadline) {
					written <- err
					return
				}
			}
		}()
		prefer(to)
		if err := <-written; err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		want = append(want, value)
		eventually(t, string(to)+" to lead", func() bool { v := partitionView(t, nc, "t"); return v.Leader == to && v.LeaderProven })
	}
	v := partitionView(t, nc, "t")
	if v.LeaderEpoch != 6 || len(v.ISR) != 3 {
		t.Errorf("after six moves: %+v", v)
	}
	got := slices.Compact(read(t, nc, id, "t")) // a write that was not answered may be there twice: it has no producer id
	if !slices.Equal(got, want) {
		t.Errorf("read %q, want %q", got, want)
	}
	b["b3"].kill()
	inSync(t, nc, "t", "b1", "b2")
	prefer("b3") // not in the ISR: nothing moves
	mustWrite(t, nc, id, "t", "end")
	if now := partitionView(t, nc, "t"); now.LeaderEpoch != v.LeaderEpoch {
		t.Errorf("the lead went to one that is not in sync: %+v", now)
	}
}

// A new leader has no history of its followers. It writes at once and is told three times more that it leads: nobody leaves
// the ISR.
func TestB50ANewLeaderKeepsItsFollowers(t *testing.T) {
	c := start(t, t.TempDir(), withLag(5*time.Second))
	b := realBrokers(t, c.URL(), "b1", "b2", "b3")
	nc := connect(t, c.URL())
	id := realTopic(t, nc, "t", 1, "b3", "b1", "b2")
	mustWrite(t, nc, id, "t", "before")
	inSync(t, nc, "t", "b1", "b2", "b3")
	var order atomic.Pointer[[]byte]
	b["b1"].wire.watch(func(m message) {
		batch := &pb.AssignmentBatch{}
		if m.down && token("asg")(m) && proto.Unmarshal(m.data, batch) == nil && len(batch.GetAssignments()) > 0 {
			data := slices.Clone(m.data)
			order.Store(&data)
		}
	})
	b["b3"].kill()
	eventually(t, "b1 to lead", func() bool { v := partitionView(t, nc, "t"); return v.Leader == "b1" && v.LeaderProven })
	led := partitionView(t, nc, "t")
	for range 3 {
		mustWrite(t, nc, id, "t", "during")
		if err := c.conns.edge.Publish(subjects.Assignments("b1"), *order.Load()); err != nil {
			t.Fatal(err)
		}
	}
	mustWrite(t, nc, id, "t", "after")
	if v := partitionView(t, nc, "t"); v.Epoch != led.Epoch || v.LeaderEpoch != led.LeaderEpoch || len(v.ISR) != 2 {
		t.Errorf("%+v, before %+v", v, led)
	}
	if st := b["b1"].replica(id); st.Role != replica.RoleLeader || len(st.Proposed) != 0 {
		t.Errorf("the leader: %+v", st)
	}
}

// The order to delete a topic stays on its way until the broker has been started anew and has a replica of another topic of
// that name.
func TestB36ADelayedOrderToDeleteHurtsNobodyInTheNextLife(t *testing.T) {
	c := start(t, t.TempDir(), nil)
	b := realBrokers(t, c.URL(), "b1", "b2")
	nc := connect(t, c.URL())
	realTopic(t, nc, "t", 1, "b1", "b2")
	inSync(t, nc, "t", "b1", "b2")
	var order atomic.Pointer[[]byte]
	b["b2"].wire.hold(func(m message) bool {
		batch := &pb.AssignmentBatch{}
		if !m.down || !token("asg")(m) || proto.Unmarshal(m.data, batch) != nil || len(batch.GetRemovals()) == 0 {
			return false
		}
		data := slices.Clone(m.data)
		order.Store(&data)
		return true
	})
	if err := remove(nc, "t"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the order to be on its way", func() bool { return order.Load() != nil })
	b["b2"].kill()
	b["b2"].wire.lose()
	b["b2"].wire.hold(nil)
	b["b2"].start()
	b["b2"].ready()
	id := realTopic(t, nc, "t", 2, "b1", "b2")
	mustWrite(t, nc, id, "t", values(3)...)
	inSync(t, nc, "t", "b1", "b2")
	if err := c.conns.edge.Publish(subjects.Assignments("b2"), *order.Load()); err != nil {
		t.Fatal(err)
	}
	mustWrite(t, nc, id, "t", "after") // needs b2, behind the order on the same subject
	if st := b["b2"].replica(id); st.LogEnd != 4 || st.Role != replica.RoleFollower {
		t.Errorf("the replica of the new topic: %+v", st)
	}
}

// The whole cluster is stopped in order and started again at once: nobody waits for the sessions of those who have left.
func TestBrokersThatLeftInOrderAreLetInAtOnceAfterARestartOfEverything(t *testing.T) {
	dir := t.TempDir()
	slow := func(c *Config) { c.Settings.DisconnectGrace = time.Minute } // the session is two minutes
	c := start(t, dir, slow)
	b := realBrokers(t, c.URL(), "b1", "b2")
	for _, one := range b {
		if err := one.srv.Shutdown(t.Context()); err != nil {
			t.Fatal(err)
		}
		one.nc.Close()
	}
	stop(t, c)
	c = start(t, dir, slow)
	for _, one := range b {
		one.wire = newWire(t, c.URL())
		one.start()
		one.ready()
	}
}

// Three brokers with 300 partitions are killed and started again one after the other: each time all are in sync again, under
// min ISR for no longer than it takes to notice, and the proposals come in few messages.
func TestB56ARollingRestartOfManyPartitionsTakesFewMessages(t *testing.T) {
	const partitions = 300
	c := start(t, t.TempDir(), nil)
	b := realBrokers(t, c.URL(), "b1", "b2", "b3")
	nc := connect(t, c.URL())
	create(t, nc, "t", partitions)
	var requests atomic.Int64
	for _, one := range b {
		one.wire.watch(func(m message) {
			if !m.down && verb(messages.VerbISR, false)(m) {
				requests.Add(1)
			}
		})
	}
	whole := func() bool {
		p := partitionCounts(t, nc)
		return p.Total == partitions && p.UnderReplicated == 0 && p.Unproven == 0
	}
	eventually(t, "all to be in sync", whole)
	for _, id := range []messages.BrokerID{"b1", "b2", "b3"} {
		before := requests.Load()
		b[id].kill()
		eventually(t, "it to be out everywhere", func() bool {
			p := partitionCounts(t, nc)
			return p.UnderReplicated == partitions && p.UnderMinISR == 0 && p.Offline == 0 && p.Unproven == 0
		})
		b[id].start()
		eventually(t, "all to be in sync again", whole)
		if n := requests.Load() - before; n > partitions/3 {
			t.Errorf("%s: %d requests for %d partitions to come back", id, n, partitions)
		}
	}
}
