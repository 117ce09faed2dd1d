package placement_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/highwater-io/highwater/messages"
	"github.com/highwater-io/highwater/placement"
)

// A dead broker's load must not fall on one neighbour.
func TestFollowersOfOneLeaderAreScattered(t *testing.T) {
	for _, c := range []struct {
		name    string
		cluster placement.Snapshot
		others  int // brokers that may follow a leader
	}{
		{"one rack of twelve", racksOf(12), 11},
		{"three racks of four", racksOf(4, 4, 4), 8},
		{"six racks of two", racksOf(2, 2, 2, 2, 2, 2), 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := c.cluster
			p := place(t, &s, 12*c.others*2, 3, 7) // each broker leads 2·others partitions
			all, first := map[[2]messages.BrokerID]int{}, map[[2]messages.BrokerID]int{}
			firsts := map[messages.BrokerID]int{}
			for _, list := range p.Replicas {
				first[[2]messages.BrokerID{list[0], list[1]}]++
				firsts[list[1]]++
				for _, f := range list[1:] {
					all[[2]messages.BrokerID{list[0], f}]++
				}
			}
			// Even would be 4 of all and 2 of the first for each pair, and 2·others first ones for each broker.
			for pair, n := range all {
				if n > 7 {
					t.Errorf("%s follows %s %d times, 4 would be even", pair[1], pair[0], n)
				}
			}
			for pair, n := range first {
				if n > 4 {
					t.Errorf("%s is first to follow %s %d times, 2 would be even", pair[1], pair[0], n)
				}
			}
			if len(all) != 12*c.others || len(first) < 11*c.others {
				t.Errorf("%d pairs and %d first pairs of %d are used", len(all), len(first), 12*c.others)
			}
			for b, n := range firsts {
				if n < 2*c.others-4 || n > 2*c.others+4 {
					t.Errorf("%s is first to follow %d times, %d would be even", b, n, 2*c.others)
				}
			}
		})
	}
}

func TestLoadFollowsWeight(t *testing.T) {
	s := cluster("0@a*300 1@a*100 2@b*300 3@b*100 4@c*300 5@c*100")
	place(t, &s, 120, 3, 1)
	for _, b := range s.Brokers {
		if b.Replicas != 60*b.Weight/200 || b.Leaders != 20*b.Weight/200 {
			t.Errorf("broker %s of weight %d has %d replicas and leads %d", b.ID, b.Weight, b.Replicas, b.Leaders)
		}
	}
}

func TestEmptyBrokersCatchUpWithoutLeadingEverything(t *testing.T) {
	s := racksOf(3, 3, 3)
	for i := range s.Brokers[:8] {
		s.Brokers[i].Replicas, s.Brokers[i].Leaders = 300, 100
	}
	place(t, &s, 90, 3, 1)
	// It leads its part plus one. The others cannot lead all the rest without the other two brokers of its rack.
	if b := s.Brokers[8]; b.Replicas != 90-13 || b.Leaders != 11 {
		t.Errorf("the empty broker has %d replicas of 90 and leads %d", b.Replicas, b.Leaders)
	}
}

func TestUpperLevelGoesFirst(t *testing.T) {
	s := cluster("1@eu/a 2@eu/b 3@eu/c 4@us/a 5@us/a 6@us/a")
	for i, list := range place(t, &s, 30, 3, 1).Replicas {
		in := racksIn(s, list)
		// Both regions, but the second of one region only where it has another zone: the region us has one zone.
		if in["us/a"] != 1 {
			t.Errorf("partition %d: %v has %d replicas in us/a, want 1", i, list, in["us/a"])
		}
	}
	for _, c := range []struct {
		list     string
		violated bool
	}{{"1 2 4", false}, {"1 2 3", true}, {"1 4 5", true}} {
		var list []messages.BrokerID
		for _, id := range strings.Fields(c.list) {
			list = append(list, messages.BrokerID(id))
		}
		if got := placement.NewRacks(s).Check(list); got.Violated != c.violated || got.Avoidable != c.violated {
			t.Errorf("%s: %+v, want violated %v", c.list, got, c.violated)
		}
	}
}

func TestLostRegionIsAViolationWithoutARemedy(t *testing.T) {
	s := cluster("1@eu/a 2@eu/b 3@eu/c 4@us/a!fenced")
	got := placement.NewRacks(s).Check([]messages.BrokerID{"1", "2", "3"})
	if !got.Violated || got.Avoidable || got.Detail != "3 of 3 replicas are in rack eu" {
		t.Errorf("%+v", got)
	}
}

func TestWithoutLabelsNothingIsViolated(t *testing.T) {
	s := cluster("1@- 2@- 3@-")
	p := place(t, &s, 6, 3, 1)
	if len(p.Warnings) != 0 {
		t.Errorf("warnings: %q", p.Warnings)
	}
	if got := placement.NewRacks(s).Check([]messages.BrokerID{"1", "2", "3"}); got != (placement.RackStatus{}) {
		t.Errorf("%+v", got)
	}
}

func TestUnregisteredReplicasCountForNothing(t *testing.T) {
	racks := placement.NewRacks(cluster("1@A 2@B"))
	if got := racks.Check([]messages.BrokerID{"1", "gone", "2"}); got.Violated {
		t.Errorf("%+v", got)
	}
}

func TestExplanationIsBounded(t *testing.T) {
	s := racksOf(slices.Repeat([]int{5}, 40)...)
	for i := range 60 {
		s.Brokers[i].Fenced = true
	}
	p := place(t, &s, 2000, 3, 1)
	if n := len(p.Explanation); n < 30 || n > 60 {
		t.Errorf("%d lines", n)
	}
	for _, line := range p.Explanation {
		if len(line) > 400 {
			t.Errorf("a line of %d bytes: %s", len(line), line)
		}
	}
	wantLine(t, p.Explanation, "120 brokers more get")
	wantLine(t, p.Explanation, "not used: 40 brokers more")
	wantLine(t, p.Explanation, "1997 partitions more")
}
