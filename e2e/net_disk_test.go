//go:build e2e && linux

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/highwater-io/highwater/messages"
)

// diskRoom is the size of a test's disk, in MiB.
const diskRoom = 2048

// onDisks gives the data folder of each controller a disk of its own.
func onDisks(t testing.TB, dir string, names ...string) map[string]*disk {
	t.Helper()
	disks := map[string]*disk{}
	for _, name := range names {
		disks[name] = newDisk(t, diskRoom)
		must(t, os.Symlink(disks[name].path, filepath.Join(dir, name)))
	}
	return disks
}

// The disk of the process that leads the journal's stream hangs: the process goes on speaking and cannot write. Then that of
// the active controller. Either way changes are accepted again while the disk still hangs, and a process whose disk has hung
// for long ends instead of standing in the way.
func TestNetADiskHangs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	disks := onDisks(t, dir, "c1", "c2", "c3")
	s := newSite(t, dir)
	s.startBrokers()
	s.createTopic("orders", 6)
	s.whole("orders")
	s.hang(disks, "the stream leader's", s.streamLeader())
	active := s.whole("orders")
	s.hang(disks, "the active controller's", active)
}

// hang has the disk of a process hang under load, until changes are accepted and the process has ended.
func (s *site) hang(disks map[string]*disk, whose, victim string) {
	s.t.Helper()
	others := s.others(victim)
	s.attach(others...)
	topic := fmt.Sprintf("load-%s", victim)
	s.createTopic(topic, 6)
	s.fullISR(topic)
	l := s.startLoad(topic, 6, others...)
	l.progress(200)
	fault := time.Now()
	disks[victim].freeze()
	took := s.accepted("hung-"+victim, fault, 90*time.Second)
	l.progress(200)
	s.t.Logf("%s disk hangs: first accepted request after %s, writing goes on after %s", whose, took, time.Since(fault))
	eventually(s.t, 60*time.Second, victim+" says that its disk takes no writes, and why it ends", func() error {
		if len(s.serving[victim].logged("a write to the data folder has not ended within")) == 0 {
			return fmt.Errorf("it says nothing")
		}
		return nil
	})
	s.t.Logf("%s says so after %s", victim, time.Since(fault))
	disks[victim].thaw()
	select {
	case <-s.serving[victim].done: // a process that is in a hanging write ends with that write
	case <-time.After(30 * time.Second):
		s.t.Fatalf("%s has not ended", victim)
	}
	s.serve(victim)
	s.whole(topic)
	l.progress(200)
	l.finish()
	s.checkJournal()
}

// The power of everything fails at the same moment: all processes are gone, and of what they had written only that is left
// which was synced. Everything that was acknowledged, records and decisions, is there afterwards.
func TestNetThePowerFails(t *testing.T) {
	t.Parallel()
	d := newDisk(t, diskRoom)
	s := newSite(t, d.path)
	s.startBrokers()
	s.createTopic("orders", 6)
	s.whole("orders")
	l := s.startLoad("orders", 6, s.names...)
	l.progress(1000)
	made := 0
	for round := range 2 {
		for i := range 10 {
			s.createTopic(fmt.Sprintf("made-%d-%d", round, i), 3)
			made++
		}
		before, registered := s.partitions("orders"), s.registrations()
		d.cutPower()
		fault := time.Now()
		s.powerless()
		d.unmount()
		d.mount()
		for _, name := range s.names {
			s.serve(name)
		}
		for i, b := range brokerHosts {
			s.startBroker(messages.BrokerID(b), s.names[i])
		}
		t.Logf("the power has failed: first accepted request %s after it", s.accepted(fmt.Sprintf("after-%d", round), fault, 120*time.Second))
		eventually(t, 60*time.Second, "every broker has registered again", func() error {
			for b, now := range s.registrations() {
				if now <= registered[b] {
					return fmt.Errorf("%s has epoch %d still", b, now)
				}
			}
			return nil
		})
		s.whole("orders")
		s.stillThere(before, made)
		l.progress(500)
	}
	l.finish()
	s.checkJournal()
}

// registrations are the brokers' epochs.
func (s *site) registrations() map[messages.BrokerID]messages.BrokerEpoch {
	s.t.Helper()
	all := map[messages.BrokerID]messages.BrokerEpoch{}
	list, err := s.client.Brokers(s.t.Context(), messages.ListQuery{})
	must(s.t, err)
	for _, b := range list {
		all[b.ID] = b.Epoch
	}
	return all
}

// powerless ends everything that is left running.
func (s *site) powerless() {
	var all []interface{ kill() }
	for _, name := range s.names {
		all = append(all, s.serving[name])
	}
	for _, b := range brokerHosts {
		all = append(all, s.broker(messages.BrokerID(b)))
	}
	killAll(all...)
}

// stillThere checks what was decided before a power failure.
func (s *site) stillThere(before []messages.PartitionView, made int) {
	s.t.Helper()
	now := byPartition(s.partitions("orders"))
	for _, was := range before {
		if p := now[was.Partition]; p.LeaderEpoch < was.LeaderEpoch || p.Epoch < was.Epoch || p.TopicID != was.TopicID {
			s.t.Errorf("partition %d went back: %+v, before %+v", was.Partition, p, was)
		}
	}
	list, err := s.client.Topics(s.t.Context(), messages.ListQuery{})
	must(s.t, err)
	found := 0
	for _, topic := range list {
		var round, i int
		if _, err := fmt.Sscanf(string(topic.Name), "made-%d-%d", &round, &i); err == nil {
			found++
		}
	}
	if found < made {
		s.t.Errorf("the creation of %d topics was acknowledged, %d are there", made, found)
	}
}
