//go:build e2e && linux

package e2e

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/highwater-io/highwater/client"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// taken waits until another controller than the one that is hurt accepts changes, and says what that took.
func (s *site) taken(what, victim string, fault time.Time) {
	s.t.Helper()
	s.t.Logf("%s: first accepted request after %s", what, s.accepted(fmt.Sprintf("after-%d", fault.UnixNano()), fault, 60*time.Second))
	if now, epoch := s.claimant(); now == victim {
		s.t.Errorf("%s: %s has written last, under controller epoch %d", what, now, epoch)
	}
}

// whole waits until every process is there, and every broker and replica does its part. It returns the active controller,
// which does not have the leader of the journal's stream.
func (s *site) whole(topic string) string {
	s.t.Helper()
	active := s.steady()
	s.allActive(len(brokerHosts))
	s.fullISR(topic)
	s.caughtUp()
	return active
}

// The active controller is killed, and the next one is stopped until another has taken over. When it wakes, it finds
// requests that were sent to it meanwhile: whatever it makes of them, nothing of its epoch reaches the journal any more.
func TestB40NetTheActiveControllerIsKilledAndTheNextOneSleepsThroughATakeover(t *testing.T) {
	t.Parallel()
	s := newSite(t, t.TempDir())
	s.startBrokers()
	s.createTopic("orders", 12)
	victim := s.whole("orders")
	s.attach(s.others(victim)...)
	l := s.startLoad("orders", 12, s.others(victim)...)
	l.progress(200)
	fault := time.Now()
	s.serving[victim].kill()
	s.taken("active controller killed, stream leader elsewhere", victim, fault)
	l.progress(200)
	s.serve(victim)
	victim = s.whole("orders")
	s.attach(s.others(victim)...)
	l.progress(200)
	s.sleepThroughATakeover(victim, l)
	active := s.whole("orders")
	before := s.partitions("orders")
	_, epoch := s.claimant()
	fault = time.Now()
	_, _, err := s.client.StepDown(t.Context())
	must(t, err)
	eventually(t, 20*time.Second, "another controller has claimed", func() error {
		if now, later := s.claimant(); now == active || later == epoch {
			return fmt.Errorf("%s, epoch %d", now, later)
		}
		return nil
	})
	s.taken("step-down", active, fault)
	s.unchanged("orders", before)
	l.progress(200)
	l.finish()
	s.checkJournal()
}

// sleepThroughATakeover stops the active controller, sends it requests over its own server, and wakes it when another one is active.
func (s *site) sleepThroughATakeover(victim string, l *load) {
	s.t.Helper()
	t := s.t
	own, err := client.New(s.connection(victim), clusterName)
	must(t, err)
	_, err = own.Partitions(t.Context(), messages.ListQuery{})
	must(t, err)
	_, epoch := s.claimant()
	fault := time.Now()
	s.serving[victim].signal(syscall.SIGSTOP)
	answers := make(chan error, 20)
	for i := range cap(answers) {
		go func() {
			_, err := own.CreateTopic(t.Context(), &pb.CreateTopicRequest{Name: fmt.Sprintf("asleep-%d", i), Partitions: 1})
			answers <- err
		}()
	}
	s.taken("active controller stopped", victim, fault)
	l.progress(200)
	claimed := s.journal()
	stood := len(s.serving[victim].logged(`"message":"standing by"`))
	s.serving[victim].signal(syscall.SIGCONT)
	accepted := 0
	for range cap(answers) {
		if <-answers == nil {
			accepted++
		}
	}
	eventually(t, 30*time.Second, victim+" ends its term and stands by", func() error {
		if n := len(s.serving[victim].logged(`"message":"standing by"`)); n <= stood || !s.serving[victim].running() {
			return fmt.Errorf("it has stood by %d times, and %d before", n, stood)
		}
		_, err := s.active(2)
		return err
	})
	for _, e := range s.journal() {
		if e.at > claimed[len(claimed)-1].at && e.epoch <= epoch {
			t.Errorf("entry %d was written by %s under controller epoch %d, which had been replaced", e.at, e.controller, e.epoch)
		}
	}
	list, err := s.client.Topics(t.Context(), messages.ListQuery{})
	must(t, err)
	made := 0
	for _, topic := range list {
		var n int
		if _, err := fmt.Sscanf(string(topic.Name), "asleep-%d", &n); err == nil {
			made++
		}
	}
	if made < accepted {
		t.Errorf("%d requests to the sleeping controller were answered well, and %d topics are there", accepted, made)
	}
	t.Logf("%s slept: of 20 requests to it %d were answered well and %d carried out, all by its successors", victim, accepted, made)
}
