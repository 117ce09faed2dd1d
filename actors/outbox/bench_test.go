package outbox

import (
	"fmt"
	"testing"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// BenchmarkGather measures a thousand assignments on their way through an outbox.
func BenchmarkGather(b *testing.B) {
	const n = 1000
	cluster := fakeCluster{topics: map[messages.TopicID]*messages.Topic{{1}: {ID: messages.TopicID{1}}}}
	all := make([]*pb.Assignment, n)
	for i := range all {
		all[i] = messages.AssignmentOf("orders", &messages.Partition{ID: messages.PartitionID{Topic: messages.TopicID{1}, Index: int32(i)},
			Replicas: []messages.BrokerID{"b1", "b2", "b3"}, ISR: []messages.BrokerID{"b1", "b2"}, Leader: "b1"})
	}
	env := actors.Env{Cluster: cluster}
	m := Machine{}
	s, err := m.Load(env, actors.Outbox("b1"))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		for _, a := range all {
			s, _ = m.Step(env, s, actors.Assign{Assignment: a})
		}
		sent := 0
		_, fx := m.Step(env, s, actors.Flush{})
		for _, p := range fx.Publish {
			sent += len(p.(actors.PublishAssignments).Assignments)
		}
		if sent != n {
			b.Fatal(fmt.Sprint("sent ", sent))
		}
	}
}
