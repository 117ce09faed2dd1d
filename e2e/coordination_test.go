//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// registrations are the broker epochs as they are.
func (c *cluster) registrations() map[messages.BrokerID]messages.BrokerEpoch {
	c.t.Helper()
	out := map[messages.BrokerID]messages.BrokerEpoch{}
	for id := range c.brokers {
		b, err := c.client.Broker(c.t.Context(), id)
		must(c.t, err)
		if b.State != "active" {
			c.t.Errorf("%+v", b)
		}
		out[id] = b.Epoch
	}
	return out
}

func (c *cluster) brokersRun() error {
	for id, b := range c.brokers {
		if !b.running() {
			return fmt.Errorf("%s has ended", id)
		}
	}
	return nil
}

// The only controller stands still for longer than a session, and with it the server that everybody is connected to. It gives
// everybody a new session before it judges anybody: nobody is fenced, no leadership moves.
func TestB40AControllerThatStoodStillFencesNobody(t *testing.T) {
	const records = 3000
	c := newCluster(t, 3)
	c.createTopic("t", 12)
	c.fullISR("t")
	p := c.produce("t")
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		feed(t, p.stdin, 0, records)
	}()
	p.reach(500)
	before, was := byPartition(c.partitions("t")), c.registrations()
	c.controller.signal(syscall.SIGSTOP)
	throughout(t, 5*time.Second, "brokers wait", c.brokersRun)
	c.controller.signal(syscall.SIGCONT)
	<-fed
	p.end()
	c.allActive(3)
	for i, now := range byPartition(c.partitions("t")) {
		if w := before[i]; now.Leader != w.Leader || now.LeaderEpoch != w.LeaderEpoch || !slices.Equal(now.ISR, w.ISR) {
			t.Errorf("partition %d: %+v, before %+v", i, now, w)
		}
	}
	if now := c.registrations(); fmt.Sprint(now) != fmt.Sprint(was) {
		t.Errorf("registrations %v, before %v", now, was)
	}
	c.check("t", p, records)
}

// The journal's stream gets another leader, and then one of three servers is away for two sessions: no broker ends, none is
// fenced, no leadership moves, and work goes on.
func TestB65AHiccupOfTheStoreEndsNoBroker(t *testing.T) {
	const records = 5000
	s := newSeveral(t, 3)
	s.createTopic("t", 12)
	s.fullISR("t")
	active := s.steady()
	leader, victim := s.streamLeader(), ""
	for _, name := range s.names {
		if name != active && name != leader {
			victim = name
		}
	}
	s.away("")
	p := s.produce("t")
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		feed(t, p.stdin, 0, records)
	}()
	p.reach(500)
	before, was := s.partitions("t"), s.registrations()
	s.serving[leader].kill()
	s.accepted("after-1", time.Now(), 40*time.Second)
	s.serve(leader)
	eventually(t, 60*time.Second, "all three are there", func() error { _, err := s.active(2); return err })
	s.serving[victim].kill()
	throughout(t, 6*time.Second, "brokers go on", s.brokersRun)
	s.accepted("after-2", time.Now(), 20*time.Second)
	s.serve(victim)
	<-fed
	p.end()
	s.allActive(3)
	s.unchanged("t", before)
	if now := s.registrations(); fmt.Sprint(now) != fmt.Sprint(was) {
		t.Errorf("registrations %v, before %v", now, was)
	}
	s.check("t", p, records)
}

// Two of three servers are away, and a broker dies meanwhile. Nothing is decided, requests are refused soon; when they are back,
// the dead broker's partitions get leaders, and nothing else moves.
func TestB121WithoutAQuorumNothingIsDecidedAndThenItIs(t *testing.T) {
	s := newSeveral(t, 3)
	s.createTopic("t", 12)
	s.write("t", 0, 200)
	s.fullISR("t")
	left := s.steady()
	s.away("")
	s.watchLeaders()
	before := byPartition(s.partitions("t"))
	for _, name := range s.names {
		if name != left {
			s.serving[name].kill()
		}
	}
	s.brokers["b2"].kill()
	refused := 0
	throughout(t, 10*time.Second, "nothing is decided, and that is said soon", func() error {
		asked := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := s.client.CreateTopic(ctx, &pb.CreateTopicRequest{Name: "never", Partitions: 1})
		switch code := messages.CodeOf(err); {
		case err == nil || code == messages.CodeInternal:
			return fmt.Errorf("a topic was made, or worse: %v", err)
		case time.Since(asked) < 2*time.Second:
			refused++
		}
		return nil
	})
	if refused < 5 {
		t.Errorf("refused within two seconds %d times", refused)
	}
	for _, name := range s.names {
		if name != left {
			s.serve(name)
		}
	}
	s.accepted("after", time.Now(), 60*time.Second)
	eventually(t, 40*time.Second, "the dead broker leads nothing", func() error {
		for _, p := range s.partitions("t") {
			if p.Leader == "b2" || p.Leader == "" || slices.Contains(p.ISR, "b2") || !p.LeaderProven {
				return fmt.Errorf("%+v", p)
			}
		}
		return nil
	})
	for i, now := range byPartition(s.partitions("t")) {
		if w := before[i]; w.Leader != "b2" && (now.Leader != w.Leader || now.LeaderEpoch != w.LeaderEpoch) {
			t.Errorf("partition %d was not led by b2: %+v, before %+v", i, now, w)
		}
	}
	must(t, s.brokersRunBut("b2"))
	s.holdsAll("t", 200)
}

func (c *cluster) brokersRunBut(dead messages.BrokerID) error {
	for id, b := range c.brokers {
		if id != dead && !b.running() {
			return fmt.Errorf("%s has ended", id)
		}
	}
	return nil
}

// holdsAll checks that a topic of several partitions holds as many different values as were written.
func (c *cluster) holdsAll(topic string, n int) {
	c.t.Helper()
	seen := map[string]bool{}
	for _, v := range c.consumed(topic) {
		seen[v] = true
	}
	if len(seen) != n {
		c.t.Errorf("%s: %d different values, want %d", topic, len(seen), n)
	}
}

// One process, with its copy of the journal, is frozen while more than fifty leaderships change. It is woken up in the moment
// in which the active one dies, so that it may take over at once: it acts on nothing that is old.
func TestB118NothingIsDecidedFromAStaleCopyOfTheStore(t *testing.T) {
	s := newSeveral(t, 3)
	s.createTopic("t", 60)
	s.fullISR("t")
	active := s.steady()
	frozen := ""
	for _, name := range s.names {
		if name != active && name != s.streamLeader() {
			frozen = name
		}
	}
	s.away(frozen)
	s.watchLeaders()
	s.serving[frozen].signal(syscall.SIGSTOP)
	changes := 0
	for changes < 50 {
		before := byPartition(s.partitions("t"))
		victim := s.someLeader("t")
		s.brokers[victim].kill()
		eventually(t, 20*time.Second, "every partition is led by a survivor", func() error {
			for _, p := range s.partitions("t") {
				if p.Leader == "" || p.Leader == victim || !p.LeaderProven {
					return fmt.Errorf("%+v", p)
				}
			}
			return nil
		})
		for i, p := range byPartition(s.partitions("t")) {
			if p.LeaderEpoch != before[i].LeaderEpoch {
				changes++
			}
		}
		s.startBroker(victim)
		s.fullISR("t")
	}
	before := s.partitions("t")
	s.serving[frozen].signal(syscall.SIGCONT)
	s.serving[active].kill()
	t.Logf("%d leaderships had changed; first accepted request after %s", changes, s.accepted("after", time.Now(), 60*time.Second))
	s.allActive(3)
	s.unchanged("t", before)
	s.write("t", 0, 200)
	s.holdsAll("t", 200)
}
