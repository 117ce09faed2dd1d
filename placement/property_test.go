package placement_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/highwater-io/highwater/messages"
	"github.com/highwater-io/highwater/placement"
)

// drawCluster makes any small cluster: labels of any depth, refused brokers, weights and loads. One at least is usable.
func drawCluster(t *rapid.T, most int) placement.Snapshot {
	var s placement.Snapshot
	label := rapid.SampledFrom([]string{"", "x", "x/1", "x/2", "x/3", "y", "y/1", "y/2", "y/2/a", "y/2/b", "z", "w/1"})
	for i := range rapid.IntRange(1, most).Draw(t, "brokers") {
		fate := 11
		if i > 0 {
			fate = rapid.IntRange(0, 11).Draw(t, "fate")
		}
		s.Brokers = append(s.Brokers, placement.Broker{
			ID: messages.BrokerID(fmt.Sprint(i)), Rack: messages.RackPath(label.Draw(t, "rack")),
			Weight: rapid.SampledFrom([]int{0, 100, 100, 100, 200, 50, 1000, 1}).Draw(t, "weight"),
			Fenced: fate == 0, Stopping: fate == 1, Draining: fate == 2,
			Replicas: rapid.IntRange(0, 60).Draw(t, "replicas"), Leaders: rapid.IntRange(0, 20).Draw(t, "leaders"),
		})
	}
	return s
}

func usableOf(s placement.Snapshot) []placement.Broker {
	var usable []placement.Broker
	for _, b := range s.Brokers {
		if b.Refusal() == "" {
			usable = append(usable, b)
		}
	}
	return usable
}

// costOf is the sum of squares of the counts per domain, level by level, straight from the labels.
func costOf(set []placement.Broker) []int {
	cost := make([]int, messages.MaxRackDepth)
	for level := range cost {
		counts := map[string]int{}
		for _, b := range set {
			levels := append(b.Rack.Levels(), make([]string, messages.MaxRackDepth)...)
			counts[strings.Join(levels[:level+1], "/")]++
		}
		for _, n := range counts {
			cost[level] += n * n
		}
	}
	return cost
}

// cheapest tries every set of the given size.
func cheapest(brokers []placement.Broker, size int, set []placement.Broker) []int {
	if len(set) == size {
		return costOf(set)
	}
	var best []int
	for i := range brokers {
		if len(brokers)-i < size-len(set) {
			break
		}
		cost := cheapest(brokers[i+1:], size, append(slices.Clip(set), brokers[i]))
		if best == nil || slices.Compare(cost, best) < 0 {
			best = cost
		}
	}
	return best
}

func TestSpreadIsTheBestPossible(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawCluster(t, 9)
		usable := usableOf(s)
		factor := rapid.IntRange(1, len(usable)).Draw(t, "factor")
		p := place(t, &s, rapid.IntRange(1, 20).Draw(t, "partitions"), factor, rapid.Uint64().Draw(t, "seed"))
		best := cheapest(usable, factor, nil)
		racks := placement.NewRacks(s)
		for i, list := range p.Replicas {
			var set []placement.Broker
			for _, b := range usable {
				if slices.Contains(list, b.ID) {
					set = append(set, b)
				}
			}
			if cost := costOf(set); !slices.Equal(cost, best) {
				t.Fatalf("partition %d: %v costs %v, the best is %v", i, list, cost, best)
			}
			status := racks.Check(list)
			if status.Avoidable {
				t.Fatalf("partition %d: %v is the best and is called avoidable: %s", i, list, status.Detail)
			}
			if status.Violated != hasLine(p.Warnings, "rack_violation") {
				t.Fatalf("partition %d: %v violated %v, warnings %q", i, list, status, p.Warnings)
			}
		}
	})
}

func TestRackCheckKnowsWhatCouldBeBetter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawCluster(t, 8)
		usable := usableOf(s)
		set := rapid.Permutation(usable).Draw(t, "set")[:rapid.IntRange(1, len(usable)).Draw(t, "factor")]
		var list []messages.BrokerID
		for _, b := range set {
			list = append(list, b.ID)
		}
		could := slices.Compare(cheapest(usable, len(set), nil), costOf(set)) < 0
		if status := placement.NewRacks(s).Check(list); status.Avoidable != could {
			t.Fatalf("%v: avoidable %v, want %v", list, status, could)
		}
	})
}

func TestEqualBrokersGetEqualParts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		racks, size := rapid.IntRange(1, 6).Draw(t, "racks"), rapid.IntRange(1, 5).Draw(t, "size")
		s := racksOf(slices.Repeat([]int{size}, racks)...)
		factor := rapid.IntRange(1, min(racks*size, 7)).Draw(t, "factor")
		place(t, &s, rapid.IntRange(1, 120).Draw(t, "partitions"), factor, rapid.Uint64().Draw(t, "seed"))
		if r, l := spanOf(s, replicasOf), spanOf(s, leadersOf); r > 1 || l > 1 {
			t.Fatalf("%d racks × %d, factor %d: replicas differ by %d, leaders by %d", racks, size, factor, r, l)
		}
	})
}

func TestEqualBrokersStayEvenOverManyTopics(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { manyTopics(t, false, 2) })
}

// Topics with one replica leave less choice: there a leader is all that a broker gets.
func TestEqualBrokersStayEvenOverTopicsOfAnyFactor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { manyTopics(t, true, 3) })
}

func manyTopics(t *rapid.T, mixed bool, bound int) {
	racks, size := rapid.IntRange(1, 5).Draw(t, "racks"), rapid.IntRange(1, 4).Draw(t, "size")
	s := racksOf(slices.Repeat([]int{size}, racks)...)
	factors := rapid.IntRange(1, min(racks*size, 4))
	factor := factors.Draw(t, "factor")
	most := rapid.SampledFrom([]int{1, 3, 20}).Draw(t, "most")
	seed := rapid.Uint64().Draw(t, "seed")
	for i := range rapid.IntRange(1, 40).Draw(t, "topics") {
		if mixed {
			factor = factors.Draw(t, "factor")
		}
		place(t, &s, rapid.IntRange(1, most).Draw(t, "partitions"), factor, seed+uint64(i))
		if r, l := spanOf(s, replicasOf), spanOf(s, leadersOf); r > bound || l > bound {
			t.Fatalf("topic %d: replicas differ by %d, leaders by %d", i, r, l)
		}
	}
}

// Nobody leads more than its part of a topic plus one, whatever the racks, weights and loads.
func TestNobodyLeadsMoreThanItsPartPlusOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawCluster(t, 12)
		usable, weight := usableOf(s), 0
		for i := range usable {
			if usable[i].Weight == 0 {
				usable[i].Weight = placement.DefaultWeight
			}
			weight += usable[i].Weight
		}
		partitions := rapid.IntRange(1, 100).Draw(t, "partitions")
		p := place(t, &s, partitions, rapid.IntRange(1, len(usable)).Draw(t, "factor"), rapid.Uint64().Draw(t, "seed"))
		_, leaders := tally(p.Replicas)
		for _, b := range usable {
			if n := leaders[b.ID]; (n-1)*weight > partitions*b.Weight {
				t.Fatalf("broker %s leads %d of %d with weight %d of %d", b.ID, n, partitions, b.Weight, weight)
			}
		}
	})
}

func TestSmallRacksLeadNoMoreThanTheirPart(t *testing.T) {
	for _, sizes := range [][]int{{4, 4, 1}, {10, 10, 1}, {6, 3, 3}, {4, 1}} {
		t.Run(fmt.Sprint(sizes), func(t *testing.T) {
			s := racksOf(sizes...)
			partitions := 0
			for i := range 60 {
				n := 1 + i*7%40
				place(t, &s, n, min(3, len(sizes)), uint64(i))
				partitions += n
				for _, b := range s.Brokers {
					if part := partitions/len(s.Brokers) + 1; b.Leaders > part+1 {
						t.Fatalf("topic %d: broker %s leads %d of %d, its part is %d", i, b.ID, b.Leaders, partitions, part)
					}
				}
			}
		})
	}
}

func TestTheSameSeedGivesTheSameProposal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawCluster(t, 12)
		topic := placement.NewTopic{
			Partitions:        rapid.IntRange(1, 50).Draw(t, "partitions"),
			ReplicationFactor: rapid.IntRange(1, len(usableOf(s))).Draw(t, "factor"),
		}
		seed := [2]uint64{rapid.Uint64().Draw(t, "seed"), 0}
		one, err := placement.Place(s, topic, seed)
		if err != nil {
			t.Fatal(err)
		}
		s.Brokers = rapid.Permutation(s.Brokers).Draw(t, "order")
		if two, _ := placement.Place(s, topic, seed); !reflect.DeepEqual(one, two) {
			t.Fatalf("two proposals:\n%v\n%v", one, two)
		}
	})
}

// What is proposed for equal weights and empty brokers is as even as the racks allow: within a rack by one.
func TestBrokersOfOneRackDifferByOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sizes := rapid.SliceOfN(rapid.IntRange(1, 6), 1, 5).Draw(t, "sizes")
		s := racksOf(sizes...)
		factor := rapid.IntRange(1, min(len(s.Brokers), 5)).Draw(t, "factor")
		place(t, &s, rapid.IntRange(1, 80).Draw(t, "partitions"), factor, rapid.Uint64().Draw(t, "seed"))
		for r := range sizes {
			var rack placement.Snapshot
			for _, b := range s.Brokers {
				if b.Rack == messages.RackPath(fmt.Sprintf("r%d", r)) {
					rack.Brokers = append(rack.Brokers, b)
				}
			}
			if span := spanOf(rack, replicasOf); span > 1 {
				t.Fatalf("racks %v, factor %d: in r%d replicas differ by %d", sizes, factor, r, span)
			}
		}
	})
}
