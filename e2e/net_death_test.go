//go:build e2e && linux

package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/highwater-io/highwater/messages"
)

// startBrokersAt starts the brokers at some of the servers, which they stay with as long as those live.
func (s *site) startBrokersAt(servers ...string) {
	s.t.Helper()
	for i, b := range brokerHosts {
		s.startBroker(messages.BrokerID(b), servers[i%len(servers)])
	}
	s.allActive(len(brokerHosts))
}

// While the journal's servers elect, nothing can be decided, and nothing needs to be: brokers and clients at servers that
// live write with acks=all and read what is committed as if nothing had happened. Then a second process dies, and what is left
// neither decides anything nor does harm, and says so at once.
func TestB65NetTheStreamLeaderDiesAndWritingGoesOnAndThenTheNextDies(t *testing.T) {
	t.Parallel()
	s := newSite(t, t.TempDir())
	s.steady()
	victim := s.streamLeader()
	living := s.others(victim)
	s.startBrokersAt(living...)
	s.attach(living...)
	s.createTopic("orders", 6)
	s.fullISR("orders")
	l := s.startLoad("orders", 6, living...)
	l.progress(500)
	if now := s.streamLeader(); now != victim {
		t.Fatalf("the leader of the journal's stream has gone from %s to %s by itself", victim, now)
	}
	before := s.partitions("orders")
	ordinary, _ := l.gaps(l.bounds())
	fault, from := time.Now(), machineClock()
	s.serving[victim].kill()
	took := s.accepted("after", fault, 60*time.Second)
	produce, consume := l.gaps(from, machineClock())
	s.unchanged("orders", before)
	t.Logf("stream leader killed: first accepted request after %s; meanwhile longest gap %s writing and %s reading, before it %s writing",
		took, produce, consume, ordinary)
	if produce > took/2 || consume > took/2 {
		t.Errorf("writing stood still for %s and reading for %s of the %s in which nothing could be decided", produce, consume, took)
	}
	l.progress(200)
	s.oneIsLeft(living, l, before)
	s.serve(victim)
	s.whole("orders")
	l.progress(200)
	s.unhurt(before)
	l.finish()
	s.checkJournal()
}

// unhurt checks that no broker has ended or was fenced, and that nothing of a topic has changed.
func (s *site) unhurt(before []messages.PartitionView) {
	s.t.Helper()
	s.unchanged("orders", before)
	for _, r := range s.runs {
		if fenced := r.logged(`"fenced":true`); !r.running() || len(fenced) > 0 {
			s.t.Errorf("%s runs: %v; it was fenced: %v", r.name, r.running(), fenced)
		}
	}
}

// oneIsLeft kills all but one of the processes that are left, and brings them back.
func (s *site) oneIsLeft(living []string, l *load, before []messages.PartitionView) {
	s.t.Helper()
	left := living[0]
	s.attach(left)
	var dead []interface{ kill() }
	for _, name := range living[1:] {
		dead = append(dead, s.serving[name])
	}
	killAll(dead...)
	slowest := time.Duration(0)
	eventually(s.t, 30*time.Second, "a refusal before the patience of whoever asks ends", func() error {
		code, took := s.refusal("never", 5*time.Second)
		slowest = took
		if code == "" || code == messages.CodeInternal || took > 2*time.Second {
			return fmt.Errorf("after %s: %q", took, code)
		}
		return nil
	})
	s.t.Logf("one of three left: refused after %s", slowest)
	for range 5 {
		if code, took := s.refusal("never", 5*time.Second); code == "" || code == messages.CodeInternal {
			s.t.Errorf("with one of three a change was answered %q after %s", code, took)
		}
	}
	l.progress(100) // the brokers and the client have found the server that is left
	fault := time.Now()
	for _, name := range living[1:] {
		s.serve(name)
	}
	s.attach(living...)
	s.t.Logf("two of three again: first accepted request after %s", s.accepted("again", fault, 60*time.Second))
	s.allActive(len(brokerHosts))
	s.fullISR("orders")
	now := byPartition(s.partitions("orders"))
	for _, was := range before {
		if p := now[was.Partition]; p.LeaderEpoch < was.LeaderEpoch || p.HighWatermark < was.HighWatermark {
			s.t.Errorf("partition %d went back: %+v, before %+v", was.Partition, p, was)
		}
	}
	l.progress(200)
}

// The active controller and a broker die within the same 50 ms: the successor hears neither the broker's end nor its silence
// from its predecessor, and elects all the same.
func TestNetTheActiveControllerAndABrokerDieAtTheSameMoment(t *testing.T) {
	t.Parallel()
	s := newSite(t, t.TempDir())
	s.startBrokers()
	s.createTopic("orders", 12)
	victim := s.whole("orders")
	s.attach(s.others(victim)...)
	l := s.startLoad("orders", 12, s.others(victim)...)
	l.progress(300)
	broker := s.someLeader("orders")
	before := s.partitions("orders")
	fault := time.Now()
	killAll(s.serving[victim], s.broker(broker))
	if took := time.Since(fault); took > 50*time.Millisecond {
		t.Logf("the two ended within %s", took)
	}
	t.Logf("controller and broker killed: first accepted request after %s", s.accepted("after", fault, 60*time.Second))
	eventually(t, 60*time.Second, "what the broker led has a new leader", func() error {
		for _, p := range s.partitions("orders") {
			if p.Leader == "" || p.Leader == broker || !p.LeaderProven {
				return fmt.Errorf("%+v", p)
			}
		}
		return nil
	})
	t.Logf("every partition has a leader again %s after it", time.Since(fault))
	l.progress(300)
	t.Logf("writing goes on %s after it", time.Since(fault))
	was := byPartition(before)
	for i, now := range byPartition(s.partitions("orders")) {
		if w := was[i]; w.Leader != broker && now.Leader != w.Leader && now.Reason == w.Reason {
			t.Errorf("partition %d was led by %s and is led by %s for no reason: %+v", i, w.Leader, now.Leader, now)
		}
	}
	s.serve(victim)
	s.startBroker(broker, s.names...)
	s.whole("orders")
	l.progress(200)
	l.finish()
	s.checkJournal()
}
