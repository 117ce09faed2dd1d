package registry

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

func codeOf(fx actors.Effects) messages.Code {
	if len(fx.Replies) != 1 {
		return messages.Code(fmt.Sprintf("%d replies", len(fx.Replies)))
	}
	return messages.Code(fx.Replies[0].Body.(interface{ GetError() *pb.Error }).GetError().GetCode())
}

func TestB109LongNamesAreRefusedAndChangeNothing(t *testing.T) {
	w := inhabited()
	hand := []*pb.ReplicaList{{Brokers: []string{"b1"}}}
	for _, n := range []int{1, 248, 249} {
		if got := codeOf(w.ask("alice", &pb.CreateTopicRequest{Name: strings.Repeat("a",
			n), Assignment: hand})); got != "" {
			t.Errorf("a name of %d bytes: %s", n, got)
		}
	}
	for _, name := range []string{strings.Repeat("a", 250), strings.Repeat("a", 255), strings.Repeat("a",
		10_000), strings.Repeat("ä", 249), "a\x00b", "a\xffb", "日本", "a b", "a\nb"} {
		fx := w.ask("alice", &pb.CreateTopicRequest{Name: name, Assignment: hand})
		if got := codeOf(fx); got != messages.CodeInvalidName || len(fx.Records) != 0 {
			t.Errorf("%.20q: %s", name, got)
		}
		if got := codeOf(w.ask("alice", &pb.DeleteTopicRequest{Name: name})); got != messages.CodeInvalidName {
			t.Errorf("deleting %.20q: %s", name, got)
		}
	}
	long := strings.Repeat("b", 10_000)
	if got := codeOf(w.ask(long, registration(long, "i", "s"))); got != messages.CodeInvalidName {
		t.Errorf("broker id: %s", got)
	}
	if fx := w.ask(long, &pb.HeartbeatRequest{Broker: long}); codeOf(fx) != messages.CodeStaleBrokerEpoch || proto.Size(fx.Replies[0].Body) > 500 {
		t.Errorf("heartbeat of a long name: %s, %d bytes", codeOf(fx), proto.Size(fx.Replies[0].Body))
	}
}

func TestB113FieldsOutOfBoundsAreRefused(t *testing.T) {
	register := func(change func(*pb.RegisterRequest)) *pb.RegisterRequest {
		r := registration("b7", "i7", "s7")
		change(r)
		return r
	}
	labels := func(n int) map[string]string {
		m := map[string]string{}
		for i := range n {
			m[fmt.Sprint("k", i)] = "v"
		}
		return m
	}
	create := func(l map[string]string) *pb.CreateTopicRequest {
		return &pb.CreateTopicRequest{Name: "x", Labels: l, Assignment: []*pb.ReplicaList{{Brokers: []string{"b1"}}}}
	}
	long := strings.Repeat("x", 1000)
	for name, c := range map[string]struct {
		principal string
		body      proto.Message
		want      messages.Code
	}{
		"rack":           {"b7", register(func(r *pb.RegisterRequest) { r.Rack = long }), messages.CodeInvalidRack},
		"host":           {"b7", register(func(r *pb.RegisterRequest) { r.Host = long }), messages.CodeInvalidRequest},
		"host not UTF-8": {"b7", register(func(r *pb.RegisterRequest) { r.Host = "\xff" }), messages.CodeInvalidRequest},
		"version":        {"b7", register(func(r *pb.RegisterRequest) { r.Version = long }), messages.CodeInvalidRequest},
		"control byte": {"b7", register(func(r *pb.RegisterRequest) { r.Version = "1\n2" }),
			messages.CodeInvalidRequest},
		"pid": {"b7", register(func(r *pb.RegisterRequest) { r.Pid = -1 }), messages.CodeInvalidRequest},
		"endpoints": {"b7", register(func(r *pb.RegisterRequest) { r.Endpoints = labels(17) }),
			messages.CodeInvalidRequest},
		"endpoint": {"b7", register(func(r *pb.RegisterRequest) { r.Endpoints = map[string]string{"a": long} }),
			messages.CodeInvalidRequest},
		"no endpoint name": {"b7", register(func(r *pb.RegisterRequest) { r.Endpoints = map[string]string{"": "x"} }),
			messages.CodeInvalidRequest},
		"server id": {"b7", register(func(r *pb.RegisterRequest) { r.Connection = &pb.Connection{ServerId: long} }),
			messages.CodeInvalidRequest},
		"versions crossed": {"b7", register(func(r *pb.RegisterRequest) { r.MinProtocol, r.MaxProtocol = 2, 1 }),
			messages.CodeUnsupportedVersion},
		"nil registration": {"", (*pb.RegisterRequest)(nil), messages.CodeDenied},
		"nil heartbeat":    {"", (*pb.HeartbeatRequest)(nil), messages.CodeDenied},
		"nil removed":      {"", (*pb.RemovedRequest)(nil), messages.CodeDenied},
		"nil creation":     {"", (*pb.CreateTopicRequest)(nil), messages.CodeInvalidName},
		"nil deletion":     {"", (*pb.DeleteTopicRequest)(nil), messages.CodeInvalidName},
		"labels":           {"a", create(labels(65)), messages.CodeInvalidRequest},
		"label key":        {"a", create(map[string]string{long: ""}), messages.CodeInvalidRequest},
		"label value":      {"a", create(map[string]string{"k": long}), messages.CodeInvalidRequest},
		"topic id":         {"a", &pb.DeleteTopicRequest{Name: "t", TopicId: []byte{1}}, messages.CodeInvalidRequest},
		"removed id": {"b1", &pb.RemovedRequest{Broker: "b1",
			BrokerEpoch: 2, TopicIds: [][]byte{{1}}}, messages.CodeInvalidRequest},
		"removed ids": {"b1", &pb.RemovedRequest{Broker: "b1",
			BrokerEpoch: 2, TopicIds: make([][]byte, messages.MaxRemovedTopics+1)},
			messages.CodeTooLarge},
	} {
		w := inhabited()
		fx := w.ask(c.principal, c.body)
		if got := codeOf(fx); got != c.want || len(fx.Records) != 0 || len(fx.Tells) != 0 {
			t.Errorf("%s: %s, want %s; %d records", name, got, c.want, len(fx.Records))
		}
	}
}

func TestATopicIsOneEntryOfBoundedSizeWithABoundedAnswer(t *testing.T) {
	w := newWorld(messages.DefaultSettings())
	w.step(actors.Activated{})
	w.join("b1")
	w.join("b2")
	place := func(name string, partitions int, replicas ...messages.BrokerID) actors.Effects {
		w.ask("alice", &pb.CreateTopicRequest{Name: name, Partitions: uint32(partitions),
			ReplicationFactor: uint32(len(replicas))})
		p := actors.Placement{Ticket: w.state.ticket}
		for range partitions {
			p.Replicas = append(p.Replicas, replicas)
		}
		return w.step(p)
	}
	fx := place("most", 10_000, "b1", "b2")
	if got := len(answer[*pb.CreateTopicResponse](fx).GetPartitions()); got != maxAnswerPartitions || len(fx.Records) != 10_001 {
		t.Fatalf("%d partitions in the answer, %d records", got, len(fx.Records))
	}
	fx = place(strings.Repeat("n", 249), 10_000, "b1", "b2")
	if got := proto.Size(fx.Replies[0].Body); got > 700<<10 {
		t.Fatalf("the answer has %d bytes", got)
	}
	var long []messages.BrokerID
	for i := range 9 {
		b := strings.Repeat("x", 60) + fmt.Sprint("_", i)
		w.join(b)
		long = append(long, messages.BrokerID(b))
	}
	if fx = place("huge", 10_000, long...); codeOf(fx) != messages.CodeTooLarge || len(fx.Records) != 0 {
		t.Fatalf("%s, %d records", codeOf(fx), len(fx.Records))
	}
	w.join("b3")
	if got := codeOf(w.ask("alice", &pb.CreateTopicRequest{Name: "wide",
		Partitions: 10_000, ReplicationFactor: 12})); got != messages.CodeInvalidPartitions {
		t.Fatalf("120,000 replicas: %s", got)
	}
}

func TestCreationsThatWaitAreBounded(t *testing.T) {
	w := newWorld(messages.DefaultSettings())
	w.step(actors.Activated{})
	w.join("b1")
	var fx actors.Effects
	for i := range maxCreations + 1 {
		fx = w.ask("alice", &pb.CreateTopicRequest{Name: fmt.Sprint("t", i), Partitions: 1, ReplicationFactor: 1})
	}
	if out := answer[*pb.CreateTopicResponse](fx); out.GetError().GetCode() != string(messages.CodeBusy) || out.GetError().GetRetryAfterMs() == 0 {
		t.Fatalf("%v", out)
	}
}

func TestConfirmationsBeyondOneEntryAreTakenInPart(t *testing.T) {
	w := newWorld(messages.DefaultSettings())
	w.step(actors.Activated{})
	w.join("b1")
	w.join("b2")
	r := &pb.RemovedRequest{Broker: "b1", BrokerEpoch: uint64(w.cluster.brokers["b1"].Epoch)}
	for i := range 12 {
		d := &messages.TopicDeletion{ID: messages.TopicID{1, byte(i)}, Name: "t",
			Partitions: 10_000, Epochs: make([]messages.PartitionEpoch, 10_000),
			Pending: []messages.BrokerID{"b1", "b2"}}
		w.cluster.apply(d)
		r.TopicIds = append(r.TopicIds, d.ID.Bytes())
	}
	for turn, want := range []messages.Code{messages.CodeBusy, messages.CodeBusy, ""} {
		fx := w.ask("b1", r)
		if got := codeOf(fx); got != want || len(fx.Records) == 0 || len(fx.Records) > 5 {
			t.Fatalf("turn %d: %q and %d records", turn, got, len(fx.Records))
		}
	}
	w.cluster.Deletions(func(d *messages.TopicDeletion) bool {
		if len(d.Pending) != 1 || d.Pending[0] != "b2" {
			t.Errorf("%v is pending", d.Pending)
		}
		return true
	})
}

func TestB36ADeletionCoversWhatIsOnItsWayToTheJournal(t *testing.T) {
	w := inhabited()
	topic, _ := w.cluster.TopicByName("t")
	last, _ := w.cluster.Partition(messages.PartitionID{Topic: topic.ID})
	w.ask("alice", &pb.DeleteTopicRequest{Name: "t"})
	d, ok := w.cluster.Deletion(topic.ID)
	if !ok || len(d.Epochs) != 1 || d.Epochs[0] <= last.Epoch+2 {
		t.Fatalf("%+v, last epoch %d", d, last.Epoch)
	}
}

func TestNobodyIsAnsweredWhoDoesNotWait(t *testing.T) {
	w := inhabited()
	for _, body := range []proto.Message{
		w.beat("b1"), registration("b4", "i4", "s4"), &pb.DeleteTopicRequest{Name: "nope"},
		&pb.CreateTopicRequest{Name: "x", Assignment: []*pb.ReplicaList{{Brokers: []string{"b1"}}}},
	} {
		principal := "alice"
		if b, ok := body.(interface{ GetBroker() string }); ok {
			principal = b.GetBroker()
		}
		if fx := w.step(actors.Request{Principal: principal, Body: body}); len(fx.Replies) != 0 {
			t.Errorf("%T: %v", body, fx.Replies)
		}
	}
}

func TestWhatTheRegistryDoesNotKnowIsIgnored(t *testing.T) {
	w := inhabited()
	for _, msg := range []actors.Message{nil, actors.TopicDeleted{}, actors.Request{ID: 1}, actors.Request{ID: 1,
		Body: &pb.IsrRequest{}},
		actors.Disconnected{Abrupt: true}, actors.GraceEnded{Broker: "b1",
			Epoch: 2}, actors.GraceEnded{Broker: "nope"}, actors.Placement{}} {
		if fx := w.step(msg); len(fx.Records) != 0 || len(fx.Replies) != 0 {
			t.Errorf("%T: %+v", msg, fx)
		}
	}
}

func TestAClusterWithoutIdentityIsNotLoaded(t *testing.T) {
	c := newFakeCluster(messages.DefaultSettings())
	c.identity = nil
	if _, err := (Machine{}).Load(actors.Env{Cluster: c}, actors.Registry); err == nil {
		t.Fatal("loaded")
	}
}

func TestK54EveryTopicHasAnIdOfItsOwn(t *testing.T) {
	w := inhabited()
	seen := map[string]bool{}
	for i := range 50 {
		// The same random numbers each time, as a host with a broken source would give.
		w.steps = 7
		w.ask("alice", &pb.CreateTopicRequest{Name: fmt.Sprint("t",
			i), Assignment: []*pb.ReplicaList{{Brokers: []string{"b1"}}}})
	}
	for id := range w.cluster.topics {
		seen[id.String()] = true
	}
	if len(seen) != 51 {
		t.Fatalf("%d ids for 51 topics", len(seen))
	}
}
