package partition

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
)

// TestTheLeadIsTakenOnlyFromALeaderWithoutALease: all brokers are well, and hints, deadlines, proposals and reports come in any
// order, rightly or not. A leader that has proven itself loses the lead only by its own word.
func TestTheLeadIsTakenOnlyFromALeaderWithoutALease(t *testing.T) {
	moved, resigned := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		c := newCluster(soundPartition(), someBrokers...)
		now := time.Duration(0)
		s, err := Machine{}.Load(c.env(now), actors.Partition(testID))
		if err != nil {
			t.Fatal(err)
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			msg := drawMessage(t, c, s.Partition())
			switch m := msg.(type) {
			case actors.BrokerChanged, actors.BrokerRestarted:
				msg = actors.PreferLeader{To: rapid.SampledFrom(someBrokers[:3]).Draw(t, "hint")}
			case actors.LeaderReport:
				if m.Report.Declined {
					m.Report.Declined, m.Report.Resigned = false, true
				}
			}
			before, led := s.Partition(), s.leaderBroker
			var fx actors.Effects
			s, fx = Machine{}.Step(c.env(now), s, msg)
			c.apply(fx.Records)
			if err := checkLease(c, msg, led, before, s.Partition()); err != "" {
				t.Fatalf("%T %+v: %s: %+v after %+v", msg, msg, err, s.Partition(), before)
			}
			if s.Partition().LeaderEpoch != before.LeaderEpoch {
				moved++
				if before.LeaderProven {
					resigned++
				}
			}
			for _, b := range someBrokers { // drawMessage changes them at times
				c.set(b, func(b *messages.Broker) {
					b.Fenced, b.Stopping, b.Draining, b.Suspect, b.Epoch = false, false, false, false, 5
				})
			}
			now += time.Duration(rapid.IntRange(0, 30).Draw(t, "seconds")) * time.Second
		}
	})
	if moved < 20 || resigned < 5 {
		t.Errorf("too little happened: the lead moved %d times, %d of them from a proven leader", moved, resigned)
	}
}

// checkLease checks that the lead is taken only from a leader that has no lease: one that has not proven itself, that the
// registry has given up, or that has given it up itself. led is the registration under which it leads.
func checkLease(c *cluster, msg actors.Message, led messages.BrokerEpoch, before, after *messages.Partition) string {
	old := c.brokers[before.Leader]
	if after.LeaderEpoch == before.LeaderEpoch || before.Leader == "" || !before.LeaderProven || !old.CanLead() || old.Suspect ||
		!slices.Contains(before.ISR, before.Leader) || !slices.Contains(before.Replicas, before.Leader) {
		return ""
	}
	switch m := msg.(type) {
	case actors.LeaderReport:
		if m.Broker == before.Leader && (m.Report.GetDeclined() || m.Report.GetResigned()) {
			return ""
		}
	case actors.BrokerRestarted:
		if m.Broker == before.Leader {
			return ""
		}
	}
	if led != old.Epoch {
		return "" // another process
	}
	return "the lead is taken from a leader that may hold a lease"
}
