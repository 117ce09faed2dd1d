package placement_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/highwater-io/highwater/messages"
	"github.com/highwater-io/highwater/placement"
)

// large makes a cluster of so many brokers in ten racks, with one topic of so many partitions × 3.
func large(t failer, brokers, partitions int) (placement.Snapshot, []placement.Partition) {
	t.Helper()
	s := racksOf(slices.Repeat([]int{brokers / 10}, 10)...)
	p, err := placement.Place(s, placement.NewTopic{Partitions: partitions, ReplicationFactor: 3}, [2]uint64{1, 2})
	if err != nil {
		t.Fatalf("%v", err)
	}
	parts := make([]placement.Partition, partitions)
	for i, ids := range p.Replicas {
		parts[i] = placement.Partition{
			ID: partitionID(i), Replicas: ids, ISR: ids, Leader: ids[0], MinISR: 2, Bytes: int64(i%1000) << 20, WriteRate: int64(i % 100),
		}
	}
	for i, share := range p.Shares {
		s.Brokers[i].Replicas, s.Brokers[i].Leaders = share.Replicas, share.Leaders
	}
	return s, parts
}

func holding(parts []placement.Partition, id messages.BrokerID) []placement.Partition {
	return slices.DeleteFunc(slices.Clone(parts), func(p placement.Partition) bool { return !slices.Contains(p.Replicas, id) })
}

func benchmarkPlan(b *testing.B, v placement.View, propose func(placement.View) (*placement.Plan, error)) {
	b.Helper()
	b.ReportAllocs()
	b.ResetTimer()
	var plan *placement.Plan
	for i := range b.N {
		v.Seed = [2]uint64{uint64(i), 1}
		var err error
		if plan, err = propose(v); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(plan.Copies), "copies")
	b.ReportMetric(float64(plan.Copies-plan.FewestCopies), "beyond")
	b.ReportMetric(float64(plan.Considered), "considered")
}

func BenchmarkRepairOfOneBrokerOf500With100kPartitions(b *testing.B) {
	s, parts := large(b, 500, 100_000)
	s.Brokers[7].Fenced, s.Brokers[7].Gone = true, true
	v := placement.View{Snapshot: s, Partitions: slices.Values(holding(parts, s.Brokers[7].ID))}
	benchmarkPlan(b, v, placement.Repair)
}

func BenchmarkDrainOfARackOf50Brokers(b *testing.B) {
	s, parts := large(b, 500, 100_000)
	for i := range 50 {
		s.Brokers[i].Draining = true
	}
	v := placement.View{Snapshot: s, Partitions: slices.Values(parts)}
	benchmarkPlan(b, v, func(v placement.View) (*placement.Plan, error) { return placement.Drain(v) })
}

func BenchmarkAddTenBrokersTo500With100kPartitions(b *testing.B) {
	s, parts := large(b, 500, 100_000)
	var added []messages.BrokerID
	for i := range 10 {
		id := messages.BrokerID(fmt.Sprint("new", i))
		added = append(added, id)
		s.Brokers = append(s.Brokers, placement.Broker{ID: id, Rack: messages.RackPath(fmt.Sprint("r", i)), Weight: 100})
	}
	v := placement.View{Snapshot: s, Partitions: slices.Values(parts)}
	benchmarkPlan(b, v, func(v placement.View) (*placement.Plan, error) { return placement.Add(v, added...) })
}

func BenchmarkRebalanceNothingToDo(b *testing.B) {
	s, parts := large(b, 500, 100_000)
	benchmarkPlan(b, placement.View{Snapshot: s, Partitions: slices.Values(parts)}, placement.Rebalance)
}

func BenchmarkRebalanceOfNewWeightsOver500Brokers(b *testing.B) {
	s, parts := large(b, 500, 100_000)
	for i := range s.Brokers {
		s.Brokers[i].Weight = 100 + 50*(i%3)
	}
	benchmarkPlan(b, placement.View{Snapshot: s, Partitions: slices.Values(parts)}, placement.Rebalance)
}

func BenchmarkRebalanceOfUnevenRacksOver500Brokers(b *testing.B) {
	s, parts := large(b, 500, 100_000)
	for i := range s.Brokers {
		if i%50 < 30 && i >= 250 {
			s.Brokers[i].Rack = "r1"
		}
		s.Brokers[i].Weight = 100 + 50*(i%3)
	}
	benchmarkPlan(b, placement.View{Snapshot: s, Partitions: slices.Values(parts)}, placement.Rebalance)
}

func BenchmarkRebalanceWithoutRacks(b *testing.B) {
	s, parts := large(b, 500, 100_000)
	for i := range s.Brokers {
		s.Brokers[i].Rack, s.Brokers[i].Weight = "", 100+50*(i%3)
	}
	benchmarkPlan(b, placement.View{Snapshot: s, Partitions: slices.Values(parts)}, placement.Rebalance)
}

func BenchmarkRebalanceOntoARackEach(b *testing.B) {
	s, parts := large(b, 500, 100_000)
	for i := range s.Brokers {
		s.Brokers[i].Rack, s.Brokers[i].Weight = messages.RackPath(fmt.Sprint("x", i)), 100+50*(i%3)
	}
	benchmarkPlan(b, placement.View{Snapshot: s, Partitions: slices.Values(parts)}, placement.Rebalance)
}

func BenchmarkSuccessorsOfOneBrokerOf500(b *testing.B) {
	s, parts := large(b, 500, 100_000)
	v := placement.View{Snapshot: s, Partitions: slices.Values(holding(parts, s.Brokers[7].ID))}
	b.ResetTimer()
	for range b.N {
		led(b, v, succeed(s.Brokers[7].ID))
	}
}

func BenchmarkBalanceLeadersAllOnOneRack(b *testing.B) {
	s, parts := large(b, 500, 100_000)
	for i := range parts {
		for _, id := range parts[i].Replicas {
			if id < parts[i].Leader {
				parts[i].Leader = id
			}
		}
	}
	v := placement.View{Snapshot: s, Partitions: slices.Values(parts)}
	b.ResetTimer()
	for range b.N {
		led(b, v, balance(placement.LeaderRules{}))
	}
}

func BenchmarkWhatIfARackOf50BrokersIsLost(b *testing.B) {
	s, parts := large(b, 500, 100_000)
	v := placement.View{Snapshot: s, Partitions: slices.Values(parts)}
	b.ResetTimer()
	for range b.N {
		if _, err := placement.WhatIf(v, placement.Change{LoseRacks: []messages.RackPath{"r3"}}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSpreadDebtOf100kPartitions(b *testing.B) {
	s, parts := large(b, 500, 100_000)
	v := placement.View{Snapshot: s, Partitions: slices.Values(parts)}
	b.ResetTimer()
	for range b.N {
		if _, err := placement.SpreadDebt(v); err != nil {
			b.Fatal(err)
		}
	}
}
