package placement_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/highwater-io/highwater/messages"
	"github.com/highwater-io/highwater/placement"
)

// What a plan looks at grows with what it is about, not with the cluster: one dead broker costs its own partitions times
// racks, however many others there are.
func TestRepairOfOneBrokerLooksAtItsPartitionsOnly(t *testing.T) {
	for _, brokers := range []int{50, 500} {
		t.Run(fmt.Sprint(brokers), func(t *testing.T) {
			s, parts := large(t, brokers, 200*brokers) // 600 replicas on each broker
			dead := &s.Brokers[7]
			dead.Fenced, dead.Gone = true, true
			concerned := holding(parts, dead.ID)
			v := placement.View{Snapshot: s, Partitions: slices.Values(concerned), Seed: [2]uint64{1, 1}}
			plan := planned(t, v, placement.Repair)
			if most := 30 * len(concerned); plan.Copies != len(concerned) || plan.Copies != plan.FewestCopies || plan.Considered > most {
				t.Errorf("%d copies for %d partitions, %d looked at, the limit is %d", plan.Copies, len(concerned), plan.Considered, most)
			}
			gained := 0
			for _, l := range plan.Loads {
				gained = max(gained, l.ReplicasAfter-l.ReplicasBefore)
			}
			if most := len(concerned)/(brokers*9/10) + 2; gained > most {
				t.Errorf("one broker gets %d of %d replicas, the limit is %d", gained, len(concerned), most)
			}
			elections := led(t, v, succeed(dead.ID))
			if most := 10 * len(concerned); len(elections.Changes) != 200 || elections.Considered > most {
				t.Errorf("%d elections, %d looked at, the limit is %d", len(elections.Changes), elections.Considered, most)
			}
			lead := int64(0)
			for _, l := range elections.Loads {
				lead = max(lead, l.After)
			}
			if most := int64(200 + 200/(brokers*9/10) + 2); lead > most {
				t.Errorf("somebody leads %d, the limit is %d", lead, most)
			}
		})
	}
}

func TestPlansOfTheWholeClusterLookAtItAFewTimes(t *testing.T) {
	s, parts := large(t, 500, 100_000)
	weights := slices.Clone(s.Brokers)
	for i := range weights {
		weights[i].Weight = 100 + 50*(i%3)
	}
	var added []messages.BrokerID
	grown := slices.Clone(s.Brokers)
	for i := range 10 {
		added = append(added, messages.BrokerID(fmt.Sprint("new", i)))
		grown = append(grown, placement.Broker{ID: added[i], Rack: messages.RackPath(fmt.Sprint("r", i)), Weight: 100})
	}
	for _, c := range []struct {
		name    string
		brokers []placement.Broker
		propose func(placement.View) (*placement.Plan, error)
		exactly int // copies, -1 for any number
	}{
		{"an even cluster has no plan", s.Brokers, placement.Rebalance, 0},
		{"ten more brokers", grown, func(v placement.View) (*placement.Plan, error) { return placement.Add(v, added...) }, 5880},
		{"other weights", weights, placement.Rebalance, -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			plan := planned(t, placement.View{Snapshot: placement.Snapshot{Brokers: c.brokers}, Partitions: slices.Values(parts)}, c.propose)
			if most := 10 * 3 * len(parts); plan.Considered > most || plan.Copies != plan.FewestCopies {
				t.Errorf("%d looked at, the limit is %d; %d copies, at least %d", plan.Considered, most, plan.Copies, plan.FewestCopies)
			}
			if c.exactly >= 0 && plan.Copies != c.exactly {
				t.Errorf("%d copies, want %d", plan.Copies, c.exactly)
			}
			if n := len(plan.Explanation); n > 120 {
				t.Errorf("the explanation has %d lines", n)
			}
		})
	}
}
