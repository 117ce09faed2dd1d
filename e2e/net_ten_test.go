//go:build e2e && linux

package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// Ten times in a row the active controller is killed, with 500 partitions under load. It is none of the partitions' business:
// no leader, no epoch and no ISR changes, and writing goes on.
func TestNetTenControllersDieInARowAndNoPartitionChanges(t *testing.T) {
	t.Parallel()
	const partitions = 500
	s := newSite(t, t.TempDir())
	s.startBrokers()
	s.createTopic("orders", partitions)
	victim := s.whole("orders")
	l := s.startLoad("orders", partitions, s.names...)
	l.progress(500)
	before := s.partitions("orders")
	var took []time.Duration
	for round := range 10 {
		fault := time.Now()
		s.serving[victim].kill()
		took = append(took, s.accepted(fmt.Sprintf("after-%d", round), fault, 60*time.Second))
		s.unchanged("orders", before)
		s.serve(victim)
		victim = s.steady()
		s.caughtUp()
		s.unchanged("orders", before)
		l.progress(100)
	}
	s.allActive(len(brokerHosts))
	s.unchanged("orders", before)
	was := byPartition(before)
	for _, now := range s.partitions("orders") {
		if was := was[now.Partition]; now.Epoch != was.Epoch {
			t.Errorf("partition %d has partition epoch %d, before %d: %+v", now.Partition, now.Epoch, was.Epoch, now)
		}
	}
	slices.Sort(took)
	t.Logf("ten controllers killed, %d partitions: first accepted request after %s, %s in the middle, %s at most", partitions, took[0], took[5], took[9])
	l.finish()
	s.checkJournal()
}
