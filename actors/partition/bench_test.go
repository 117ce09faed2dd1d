package partition

import (
	"testing"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
)

// BenchmarkFence measures the decision of a partition whose leader is fenced.
func BenchmarkFence(b *testing.B) {
	ids := []messages.BrokerID{"b1", "b2", "b3"}
	record := &messages.Partition{ID: testID, Replicas: ids, ISR: ids, Leader: "b1", MinISR: 2, LeaderProven: true}
	c := newCluster(record, ids...)
	c.set("b1", func(k *messages.Broker) { k.Fenced, k.FencedReason = true, "its connection ended" })
	env := c.env(0)
	b.ReportAllocs()
	for b.Loop() {
		s := &State{id: testID, topic: testTopic.Name, record: record, leaderBroker: 5}
		if _, fx := (Machine{}).Step(env, s, actors.BrokerChanged{Broker: "b1"}); len(fx.Records) != 1 {
			b.Fatalf("%d records", len(fx.Records))
		}
	}
}

// BenchmarkActivate measures what every partition costs when a controller takes over and there is nothing to decide.
func BenchmarkActivate(b *testing.B) {
	ids := []messages.BrokerID{"b1", "b2", "b3"}
	record := &messages.Partition{ID: testID, Replicas: ids, ISR: ids, Leader: "b1", MinISR: 2, LeaderProven: true, Epoch: 1}
	env := newCluster(record, ids...).env(0)
	b.ReportAllocs()
	for b.Loop() {
		s := &State{id: testID, topic: testTopic.Name, record: record, leaderBroker: 5}
		if _, fx := (Machine{}).Step(env, s, actors.Activated{}); len(fx.Records)+len(fx.Publish) != 0 {
			b.Fatalf("it decides %+v", fx)
		}
	}
}
