package placement_test

import (
	"slices"
	"testing"

	"github.com/highwater-io/highwater/placement"
)

func benchmark(b *testing.B, s placement.Snapshot) {
	b.Helper()
	for i := range s.Brokers {
		s.Brokers[i].Weight = 100 + 50*(i%3)
		s.Brokers[i].Replicas = i * 7 % 200
		s.Brokers[i].Leaders = i * 5 % 60
	}
	topic := placement.NewTopic{Partitions: 100_000, ReplicationFactor: 3}
	for i := range b.N {
		if _, err := placement.Place(s, topic, [2]uint64{uint64(i), 1}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPlace1000BrokersInTenRacks(b *testing.B) {
	benchmark(b, racksOf(slices.Repeat([]int{100}, 10)...))
}

func BenchmarkPlace1000BrokersInThreeRacks(b *testing.B) { benchmark(b, racksOf(334, 333, 333)) }

func BenchmarkPlace1000BrokersInUnevenRacks(b *testing.B) { benchmark(b, racksOf(700, 299, 1)) }

func BenchmarkPlace1000BrokersInARackEach(b *testing.B) {
	benchmark(b, racksOf(slices.Repeat([]int{1}, 1000)...))
}
