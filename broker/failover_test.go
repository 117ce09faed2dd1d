package broker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/highwater-io/highwater/broker"
	"github.com/highwater-io/highwater/broker/brokertest"
	"github.com/highwater-io/highwater/broker/replica"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

func TestFailoverLosesNothing(t *testing.T) {
	c := newCluster(t, "b1", "b2", "b3")
	p, topic := c.topic(2, "b1", "b2", "b3")
	const producers, each = 4, 60
	var wg sync.WaitGroup
	progress := make(chan struct{}, producers*each)
	acked := make([]map[int64]string, producers)
	for i := range producers {
		acked[i] = map[int64]string{}
		prod := c.producer(p, topic)
		wg.Add(1)
		go func() {
			defer wg.Done()
			for n := range each {
				v := fmt.Sprintf("p%d-%d", i, n)
				acked[i][prod.send(v).GetBaseOffset()] = v
				progress <- struct{}{}
			}
		}()
	}
	waitFor(progress, producers*each/4)
	c.crash("b1")
	c.ctl.Lose("b1")
	waitFor(progress, producers*each/4)
	c.start("b1")
	c.inSync(p, 3)
	leader := c.ctl.Partition(p).Leader
	c.crash(leader)
	c.ctl.Lose(leader)
	wg.Wait()
	c.start(leader)
	c.inSync(p, 3)

	got := c.values(p, topic)
	total := 0
	for i := range acked {
		for offset, v := range acked[i] {
			total++
			if offset >= int64(len(got)) || got[offset] != v {
				t.Fatalf("%s was acknowledged at %d and is not there", v, offset)
			}
		}
	}
	if total != producers*each || len(got) != total {
		t.Errorf("%d records acknowledged, %d stored: a retry was stored twice or got the wrong offset", total, len(got))
	}
	eventually(t, "equal logs", func() bool {
		a, b, d := c.status("b1", p), c.status("b2", p), c.status("b3", p)
		return a.LogEnd == messages.Offset(total) && a.LogEnd == b.LogEnd && b.LogEnd == d.LogEnd
	})
}

func waitFor(ch chan struct{}, n int) {
	for range n {
		<-ch
	}
}

func TestRetriesAreStoredOnce(t *testing.T) {
	c := newCluster(t, "b1", "b2")
	p, topic := c.topic(2, "b1", "b2")
	prod := c.producer(p, topic)
	first := prod.send("a", "b")
	second := prod.send("c")
	again, err := prod.try(0, "a", "b")
	if err != nil || !again.GetDuplicate() || again.GetBaseOffset() != first.GetBaseOffset() {
		t.Errorf("the same batch again: %v, %v", again, err)
	}
	c.ctl.Elect(p, "b2")
	eventually(t, "the new leader", func() bool { return c.ctl.Partition(p).LeaderProven })
	again, err = prod.try(2, "c")
	if err != nil || !again.GetDuplicate() || again.GetBaseOffset() != second.GetBaseOffset() {
		t.Errorf("the same batch at the next leader: %v, %v", again, err)
	}
	if _, err = prod.try(9, "z"); messages.CodeOf(err) != messages.CodeOutOfOrderSequence {
		t.Errorf("a batch that leaves others out: %v", err)
	}
	if got := c.values(p, topic); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("stored: %v", got)
	}
}

func TestB42DeposedLeaderAcknowledgesNothingAndItsSubjectFallsSilent(t *testing.T) {
	c := newCluster(t, "b1", "b2", "b3")
	p, topic := c.topic(2, "b1", "b2", "b3")
	prod := c.producer(p, topic)
	prod.send("kept")
	// The leader hears no more of what the controller decides; another is elected.
	c.ctl.SetDeaf("b1", true)
	c.ctl.Elect(p, "b2")
	prod.send("new")
	subject := c.subject(p, topic, 0, messages.VerbProduce)
	resp := &pb.ProduceResponse{}
	if err := call(c.client, subject, &pb.ProduceRequest{TopicId: p.Topic.Bytes(), TimeoutMs: 300,
		Batch: &pb.RecordBatch{Records: records("lost", "lost")}}, resp); err != nil || resp.GetError().GetCode() != string(messages.CodeOutcomeUnknown) {
		t.Fatalf("the deposed leader answers %v, %v", resp, err)
	}
	if st := c.status("b1", p); st.LogEnd != 3 || st.HighWatermark > 1 {
		t.Fatalf("the deposed leader has committed something: %+v", st)
	}
	// It hears again: it follows, drops its tail, and its subject has no subscriber.
	c.ctl.SetDeaf("b1", false)
	c.ctl.Elect(p, "b2")
	eventually(t, "the old leader to follow", func() bool { return c.status("b1", p).Role == replica.RoleFollower })
	prod.send("newer")
	c.inSync(p, 3)
	if got := c.values(p, topic); !slices.Equal(got, []string{"kept", "new", "newer"}) {
		t.Errorf("after the failover: %v", got)
	}
	eventually(t, "an equal log", func() bool { return c.status("b1", p).LogEnd == 3 && c.status("b1", p).HighWatermark >= 2 })
	err := call(c.client, subject, &pb.ProduceRequest{TopicId: p.Topic.Bytes(), Batch: &pb.RecordBatch{Records: records("x")}}, resp)
	if !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("the deposed leader's subject is answered: %v, %v", resp, err)
	}
}

func TestDeposedLeaderTruncatesItsTail(t *testing.T) {
	c := newCluster(t, "b1", "b2", "b3")
	p, topic := c.topic(2, "b1", "b2", "b3")
	c.producer(p, topic).send("a")
	// Cut the leader from its followers and from the controller: it appends what nobody else gets.
	for _, b := range []broker.ID{"b2", "b3"} {
		c.crash(b)
	}
	cut := c.producer(p, topic)
	cut.acks = pb.Acks_ACKS_LEADER
	if _, err := cut.try(0, "tail 1", "tail 2"); err != nil {
		t.Fatal(err)
	}
	if end := c.status("b1", p).LogEnd; end != 3 {
		t.Fatalf("the leader ends at %d", end)
	}
	c.crash("b1") // its disk keeps the tail
	c.ctl.Lose("b2")
	c.ctl.Lose("b3")
	c.start("b2")
	c.start("b3")
	// b1 was the last in the ISR, so nobody leads until the test decides so: b2 holds all that was committed.
	c.ctl.Lose("b1")
	eventually(t, "a leader", func() bool { return c.ctl.Partition(p).Leader != "" })
	prod := c.producer(p, topic)
	prod.send("b", "c", "d")
	c.start("b1")
	c.inSync(p, 3)
	if got := c.values(p, topic); !slices.Equal(got, []string{"a", "b", "c", "d"}) {
		t.Errorf("read %v", got)
	}
	if st := c.status("b1", p); st.LogEnd != 4 || st.Role != replica.RoleFollower {
		t.Errorf("the old leader: %+v", st)
	}
}

func TestLeaderWithoutALease(t *testing.T) {
	c := newCluster(t, "b1", "b2")
	p, topic := c.topic(1, "b1", "b2")
	prod := c.producer(p, topic)
	prod.send("a")
	strict := &pb.FetchRequest{Strict: true}
	if _, err := c.fetch(p, topic, strict); err != nil {
		t.Fatalf("a strict read under a lease: %v", err)
	}
	c.ctl.Close() // heartbeats are not answered any more
	eventually(t, "the lease to end", func() bool { return c.servers["b1"].State().Lease == 0 })
	if _, err := c.fetch(p, topic, strict); messages.CodeOf(err) != messages.CodeNoLease {
		t.Errorf("a strict read without a lease: %v", err)
	}
	prod.acks = pb.Acks_ACKS_LEADER
	if _, err := prod.try(prod.next, "b"); messages.CodeOf(err) != messages.CodeNoLease {
		t.Errorf("acks=leader without a lease: %v", err)
	}
	prod.acks = pb.Acks_ACKS_ALL
	if resp := prod.send("b"); !resp.GetProtected() {
		t.Errorf("acks=all needs no lease: %v", resp)
	}
	if got := c.values(p, topic); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("reads below the mark need no lease: %v", got)
	}
}

func TestControlledStopOfAServerIsClean(t *testing.T) {
	c := newCluster(t, "b1", "b2", "b3")
	p, topic := c.topic(2, "b1", "b2", "b3")
	prod := c.producer(p, topic)
	prod.send("a")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	epoch := c.servers["b1"].State().Epoch
	if err := c.servers["b1"].Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	if got := c.ctl.Partition(p); got.Leader == "b1" || slices.Contains(got.ISR, "b1") {
		t.Errorf("stopped while it leads or is in the ISR: %+v", got)
	}
	if got := c.disks["b1"].Open().Identity().CleanEpoch; got != epoch {
		t.Errorf("the storage says epoch %d was its last clean one, want %d", got, epoch)
	}
	prod.send("b")
	c.ctl.Lose("b1")
	c.start("b1")
	c.inSync(p, 3)
	prod.send("c")
	if got := c.values(p, topic); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("read %v", got)
	}
}

func TestAStorageThatFailsGivesItsLeadershipsAway(t *testing.T) {
	c := newCluster(t, "b1", "b2", "b3")
	p, topic := c.topic(2, "b1", "b2", "b3")
	prod := c.producer(p, topic)
	prod.send("a")
	c.disks["b1"].Fail(errors.New("no space left on device"))
	prod.send("b")
	if got := c.ctl.Partition(p); got.Leader == "b1" {
		t.Errorf("still led by the broken broker: %+v", got)
	}
	if st := c.status("b1", p); st.Role != replica.RoleFaulted {
		t.Errorf("the broken replica is %s", st.Role)
	}
	if got := c.values(p, topic); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("read %v", got)
	}
}

// The controller moves the leaderships when it hears of the failure, which may be before its answer is here.
func TestTheLeaseHasEndedWhenAFailedStorageIsTold(t *testing.T) {
	c := newCluster(t, "b1", "b2")
	p, topic := c.topic(1, "b1", "b2")
	c.producer(p, topic).send("a")
	b1, told := c.servers["b1"], make(chan time.Duration, 100)
	c.ctl.SetFault(func(r brokertest.Request) brokertest.Outcome {
		if h, ok := r.Body.(*pb.HeartbeatRequest); ok && h.GetStorageFailed() && len(told) < cap(told) {
			told <- b1.State().Lease
		}
		return brokertest.Deliver
	})
	eventually(t, "a lease", func() bool { return b1.State().Lease > 0 })
	c.disks["b1"].Fail(errors.New("no space left on device"))
	c.producer(p, topic).send("b")
	if left := <-told; left > 0 {
		t.Errorf("told with %v of the lease left", left)
	}
}

func TestABrokerThatRegistersAgainIsLetInAgain(t *testing.T) {
	c := newCluster(t, "b1", "b2", "b3")
	p, topic := c.topic(2, "b1", "b2", "b3")
	prod := c.producer(p, topic)
	prod.send("a")
	for _, b := range []broker.ID{"b2", "b1"} { // a follower, then the leader; their processes go on
		first := c.servers[b].State()
		c.ctl.Forget(b)
		c.inSync(p, 3)
		if st := c.servers[b].State(); st.Epoch <= first.Epoch || st.Incarnation == first.Incarnation {
			t.Errorf("%s: %+v after %+v", b, st, first)
		}
		prod.send("next")
	}
	if got := c.values(p, topic); !slices.Equal(got, []string{"a", "next", "next"}) {
		t.Errorf("read %v", got)
	}
}
