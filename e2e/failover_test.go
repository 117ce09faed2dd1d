//go:build e2e

package e2e

import (
	"fmt"
	"io"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/highwater-io/highwater/messages"
)

// feed writes values [from, to) to a production at a steady pace, so that faults fall into the stream.
func feed(t testing.TB, w io.Writer, from, to int) {
	t.Helper()
	pace := time.NewTicker(10 * time.Millisecond)
	defer pace.Stop()
	for i := from; i < to; {
		for end := min(i+20, to); i < end; i++ {
			if _, err := fmt.Fprintln(w, value(i)); err != nil {
				t.Errorf("produce does not take more input: %v", err)
				return
			}
		}
		<-pace.C
	}
}

// (a) Leaders are killed three times and one is paused for longer than its session: nothing acknowledged is lost, nothing is
// stored twice, offsets are dense.
func TestAcknowledgedRecordsSurviveKilledAndPausedLeaders(t *testing.T) {
	const records, partitions = 20_000, 12
	c := newCluster(t, 3)
	c.createTopic("orders", partitions)
	p := c.produce("orders")
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		feed(t, p.stdin, 0, records)
	}()
	for round := range 3 {
		p.reach((round + 1) * records / 6)
		victim := c.someLeader("orders")
		c.brokers[victim].kill()
		p.reach((round+1)*records/6 + 500)
		c.startBroker(victim)
		c.allActive(3)
		c.fullISR("orders")
	}
	p.reach(records * 2 / 3)
	victim := c.someLeader("orders")
	c.brokers[victim].signal(syscall.SIGSTOP)
	eventually(t, 20*time.Second, "the paused broker is fenced", func() error {
		h, err := c.health()
		if err == nil && h.Brokers.Fenced != 1 {
			err = fmt.Errorf("%+v", h.Brokers)
		}
		return err
	})
	p.reach(records*2/3 + 500)
	c.brokers[victim].signal(syscall.SIGCONT)
	<-fed
	p.end()
	c.allActive(3)
	c.fullISR("orders")
	c.check("orders", p, records)
}

func byPartition(list []messages.PartitionView) map[int32]messages.PartitionView {
	m := map[int32]messages.PartitionView{}
	for _, p := range list {
		m[p.Partition] = p
	}
	return m
}

// (b), (c) A dead broker costs only the partitions that it led; when it returns it catches up and nothing is deleted.
func TestB29B34ADeadBrokerCostsOnlyWhatItLedAndComesBack(t *testing.T) {
	const records = 3000
	c := newCluster(t, 3)
	c.createTopic("t", 12)
	p := c.produce("t")
	feed(t, p.stdin, 0, records)
	p.end()
	c.fullISR("t")
	before := byPartition(c.partitions("t"))
	victim := messages.BrokerID("b2")
	c.brokers[victim].kill()
	eventually(t, 10*time.Second, "every partition is led by a survivor", func() error {
		for _, p := range c.partitions("t") {
			if p.Leader == "" || p.Leader == victim || !p.LeaderProven || len(p.ISR) != 2 {
				return fmt.Errorf("%+v", p)
			}
		}
		return nil
	})
	for i, after := range byPartition(c.partitions("t")) {
		was := before[i]
		if was.Leader == victim {
			if after.LeaderEpoch <= was.LeaderEpoch {
				t.Errorf("partition %d changed leader under epoch %d", i, after.LeaderEpoch)
			}
		} else if after.Leader != was.Leader || after.LeaderEpoch != was.LeaderEpoch {
			t.Errorf("partition %d was not led by %s and changed from %s/%d to %s/%d", i, victim, was.Leader, was.LeaderEpoch, after.Leader, after.LeaderEpoch)
		}
	}
	c.startBroker(victim)
	c.allActive(3)
	c.fullISR("t")
	for i, now := range byPartition(c.partitions("t")) {
		if was := before[i]; was.Leader == victim && now.Leader == victim {
			t.Errorf("partition %d went back to %s by itself", i, victim)
		}
	}
	c.check("t", p, records)
}

// (d) A broker that returns with an empty disk is never elected before it has caught up. B44.
func TestB44AWipedBrokerDoesNotLeadBeforeItHasCaughtUp(t *testing.T) {
	const records = 3000
	c := newCluster(t, 3)
	c.createTopic("t", 6)
	p := c.produce("t")
	feed(t, p.stdin, 0, records)
	p.end()
	c.fullISR("t")
	victim := c.leaderOf("t", 0)
	before, err := c.client.Broker(t.Context(), victim)
	must(t, err)
	c.brokers[victim].kill()
	must(t, os.RemoveAll(c.folder(victim)))
	c.startBroker(victim)
	eventually(t, 20*time.Second, "the wiped broker has registered with its new storage", func() error {
		now, err := c.client.Broker(t.Context(), victim)
		if err == nil && (now.Epoch == before.Epoch || now.Storage == before.Storage) {
			err = fmt.Errorf("%+v", now)
		}
		return err
	})
	// Until it is in an ISR it must not lead that partition; its mark must never bring a log down.
	eventually(t, 40*time.Second, "the wiped broker has caught up", func() error {
		for _, p := range c.partitions("t") {
			in := false
			for _, b := range p.ISR {
				in = in || b == victim
			}
			if p.Leader == victim && !in {
				t.Fatalf("%s leads partition %d outside its ISR: %+v", victim, p.Partition, p)
			}
			if !in {
				return fmt.Errorf("%+v", p)
			}
		}
		return nil
	})
	c.check("t", p, records)
	// Now it must be as good as any: the others stop, it leads and has everything.
	for b, process := range c.brokers {
		if b != victim {
			process.kill()
		}
	}
	eventually(t, 20*time.Second, "the wiped broker leads what it caught up with", func() error {
		for _, p := range c.partitions("t") {
			if p.Leader != victim {
				return fmt.Errorf("%+v", p)
			}
		}
		return nil
	})
}

// (e) The controller is killed and started again: no leader or epoch changes, the topics are the same.
func TestB117ARestartedControllerChangesNothing(t *testing.T) {
	const records = 4000
	c := newCluster(t, 3)
	c.createTopic("t", 12)
	c.fullISR("t")
	before := byPartition(c.partitions("t"))
	p := c.produce("t")
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		feed(t, p.stdin, 0, records)
	}()
	p.reach(500)
	c.controller.kill()
	c.startController()
	c.controllerReady()
	<-fed
	p.end()
	c.allActive(3)
	c.fullISR("t")
	after := byPartition(c.partitions("t"))
	if len(after) != len(before) {
		t.Fatalf("%d partitions, before %d", len(after), len(before))
	}
	for i, was := range before {
		now := after[i]
		if now.Leader != was.Leader || now.LeaderEpoch != was.LeaderEpoch || now.Epoch != was.Epoch || now.TopicID != was.TopicID {
			t.Errorf("partition %d changed: %+v, before %+v", i, now, was)
		}
	}
	c.check("t", p, records)
}

// (f) SIGTERM to a broker under load: it hands over first, no produce fails, nothing is lost.
func TestAnOrderlyStopLosesNothingAndFailsNothing(t *testing.T) {
	const records = 6000
	c := newCluster(t, 3)
	c.createTopic("t", 12)
	p := c.produce("t")
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		feed(t, p.stdin, 0, records)
	}()
	p.reach(1000)
	victim := c.someLeader("t")
	c.brokers[victim].term()
	for _, v := range c.partitions("t") {
		if v.Leader == victim || v.Leader == "" {
			t.Errorf("after %s has stopped: %+v", victim, v)
		}
	}
	c.startBroker(victim)
	<-fed
	p.end() // exits 0 only if every line was acknowledged
	c.allActive(3)
	c.fullISR("t")
	c.check("t", p, records)
}
