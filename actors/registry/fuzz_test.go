package registry

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// FuzzRequests reads any bytes as each kind of request, and has a cluster with brokers, topics and a deletion decide on it:
// no panic, one answer or one creation that waits, and no record besides a refusal.
func FuzzRequests(f *testing.F) {
	seeds := []proto.Message{
		registration("b1", "i9", "s1"), &pb.HeartbeatRequest{Broker: "b1", Incarnation: "i-b1",
			BrokerEpoch: 2, Ready: true, WantsStop: true},
		&pb.RemovedRequest{Broker: "b2", BrokerEpoch: 4, TopicIds: [][]byte{make([]byte, 16), {1}}},
		&pb.CreateTopicRequest{Name: "x", Partitions: 3, ReplicationFactor: 2, Labels: map[string]string{"k": "v"}},
		&pb.CreateTopicRequest{Name: "x", Assignment: []*pb.ReplicaList{{Brokers: []string{"b1", "b2"}}, nil}},
		&pb.DeleteTopicRequest{Name: "t", TopicId: make([]byte, 16)},
		&pb.RegisterRequest{Broker: "b1", Seen: &pb.Seen{ControllerEpoch: 1 << 63, Sequence: 1 << 63}, Rack: "//", Pid: -1},
	}
	for kind, s := range seeds {
		data, err := proto.Marshal(s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(byte(kind), "b1", data)
	}
	f.Fuzz(func(t *testing.T, kind byte, principal string, data []byte) {
		w := inhabited()
		body := []proto.Message{
			&pb.RegisterRequest{}, &pb.HeartbeatRequest{}, &pb.RemovedRequest{}, &pb.CreateTopicRequest{},
			&pb.DeleteTopicRequest{},
		}[kind%5]
		if proto.Unmarshal(data, body) != nil {
			return
		}
		if named, ok := body.(interface{ GetBroker() string }); ok && kind >= 128 {
			principal = named.GetBroker()
		}
		fx := w.ask(principal, body)
		if len(fx.Replies)+len(w.state.creations) != 1 {
			t.Fatalf("%d answers, %d creations", len(fx.Replies), len(w.state.creations))
		}
		if len(fx.Replies) == 1 && fx.Replies[0].Body.(interface{ GetError() *pb.Error }).GetError() != nil && len(fx.Records) > 0 {
			t.Fatalf("refused, and yet %d records", len(fx.Records))
		}
		for _, r := range fx.Records {
			if back, err := messages.RecordFromProto(messages.RecordToProto(r)); err != nil || back == nil {
				t.Fatalf("record %+v: %v", r, err)
			}
		}
		w.wait(4 * time.Second)
	})
}

// inhabited is a cluster with two active brokers, a fenced one, a topic, and one that is being deleted.
func inhabited() *world {
	w := newWorld(messages.DefaultSettings())
	w.step(actors.Activated{})
	for _, b := range []string{"b1", "b2"} {
		w.join(b)
	}
	w.ask("b3", registration("b3", "i-b3", "s-b3"))
	for _, name := range []string{"t", "u"} {
		w.ask("alice", &pb.CreateTopicRequest{Name: name, Assignment: []*pb.ReplicaList{{Brokers: []string{"b1", "b2"}}}})
	}
	w.ask("alice", &pb.DeleteTopicRequest{Name: "u"})
	return w
}
