package natsbus

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

const accounts = `
accounts {
  SYS: { users: [{user: sys, password: sys}] }
  HW: { jetstream: enabled, users: [{user: hw, password: hw}] }
}
system_account: SYS
no_auth_user: hw
`

func startServer(t testing.TB, payload int32) *server.Server {
	t.Helper()
	o := &server.Options{}
	if err := o.ProcessConfigString(accounts); err != nil {
		t.Fatal(err)
	}
	o.Host, o.Port, o.JetStream, o.StoreDir, o.MaxPayload = "127.0.0.1", -1, true, t.TempDir(), payload
	o.NoSigs, o.NoLog = true, true
	s, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(20 * time.Second) {
		t.Fatal("the server does not start")
	}
	return s
}

func connect(t testing.TB, s *server.Server, opts ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(s.ClientURL(), append([]nats.Option{nats.MaxReconnects(-1), nats.ReconnectBufSize(-1),
		nats.ReconnectWait(10 * time.Millisecond)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// fakeTree takes every message and answers as told.
type fakeTree struct {
	edge *Edge

	mu     sync.Mutex
	told   []told
	answer func(to actors.Address, msg actors.Message) error
	failed []actors.Address
}

type told struct {
	to  actors.Address
	msg actors.Message
}

func (f *fakeTree) Tell(to actors.Address, msg actors.Message) error {
	f.mu.Lock()
	f.told = append(f.told, told{to, msg})
	answer := f.answer
	f.mu.Unlock()
	return answer(to, msg)
}

func (f *fakeTree) Failed() []actors.Address {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failed
}

func (f *fakeTree) respond(answer func(actors.Address, actors.Message) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer = answer
}

func (f *fakeTree) messages() []told {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]told(nil), f.told...)
}

// agree answers every request with success.
func (f *fakeTree) agree(_ actors.Address, msg actors.Message) error {
	switch m := msg.(type) {
	case actors.FinalizeUpgrade:
		if len(m.Controllers) == 0 {
			return messages.Errorf(messages.CodeInternal, "no controllers are named")
		}
		f.edge.Reply(actors.Reply{To: m.Request, Body: success(m.Body)})
	case actors.Request:
		f.edge.Reply(actors.Reply{To: m.ID, Body: success(m.Body)})
	case actors.ISRProposal:
		f.edge.Reply(actors.Reply{To: m.Request, Body: &pb.IsrResult{TopicId: m.Proposal.TopicId, Partition: m.Proposal.Partition}})
	case actors.LeaderReport:
		f.edge.Reply(actors.Reply{To: m.Request, Body: &pb.IsrResult{TopicId: m.Report.TopicId, Partition: m.Report.Partition}})
	case actors.FeedStart:
		f.edge.Reply(actors.Reply{To: m.Request, Body: &pb.FeedPosition{Feed: 7, Position: 3}})
	}
	return nil
}

func success(body proto.Message) proto.Message {
	switch m := body.(type) {
	case *pb.RegisterRequest:
		return &pb.RegisterResponse{BrokerEpoch: 5, ClusterId: "c"}
	case *pb.HeartbeatRequest:
		return &pb.HeartbeatResponse{LeaseMs: 2700}
	case *pb.RemovedRequest:
		return &pb.RemovedResponse{}
	case *pb.CreateTopicRequest:
		return &pb.CreateTopicResponse{Name: m.GetName(), Revision: 9}
	case *pb.DeleteTopicRequest:
		return &pb.DeleteTopicResponse{Revision: 10}
	case *pb.ForgetBrokerRequest:
		return &pb.ForgetBrokerResponse{Revision: 10}
	case *pb.FinalizeUpgradeRequest:
		return &pb.FinalizeUpgradeResponse{Revision: 10}
	}
	return nil
}

// rig is an edge on a real server with a tree that is none.
type rig struct {
	t        testing.TB
	server   *server.Server
	catalog  *journal.Catalog
	tree     *fakeTree
	edge     *Edge
	client   *nats.Conn
	subjects messages.Subjects
}

func newRig(t testing.TB, change func(*Config)) *rig {
	t.Helper()
	return newRigOn(t, startServer(t, 8<<20), journal.NewCatalog(), change)
}

func newRigOn(t testing.TB, s *server.Server, catalog *journal.Catalog, change func(*Config)) *rig {
	t.Helper()
	cfg := Config{
		Conn: connect(t, s), System: connect(t, s, nats.UserInfo("sys", "sys")), Cluster: "dev", Controller: "c1", Epoch: 4,
		Catalog: catalog,
	}
	if change != nil {
		change(&cfg)
	}
	e, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	tree := &fakeTree{edge: e}
	tree.answer = tree.agree
	if err := e.Open(t.Context(), tree); err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, server: s, catalog: catalog, tree: tree, edge: e, client: connect(t, s), subjects: messages.NewSubjects("dev")}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := e.Close(ctx); err != nil {
			t.Errorf("closing the edge: %v", err)
		}
	})
	return r
}

// ask sends a request and reads the protobuf answer.
func (r *rig) ask(subject string, body, answer proto.Message) {
	r.t.Helper()
	data, err := proto.Marshal(body)
	if err != nil {
		r.t.Fatal(err)
	}
	m := r.request(subject, data, nats.Header{"Content-Type": {"application/protobuf"}})
	if err := proto.Unmarshal(m.Data, answer); err != nil {
		r.t.Fatalf("the answer to %s cannot be read: %v", subject, err)
	}
}

func (r *rig) request(subject string, data []byte, h nats.Header) *nats.Msg {
	r.t.Helper()
	m, err := r.client.RequestMsg(&nats.Msg{Subject: subject, Data: data, Header: h}, 10*time.Second)
	if err != nil {
		r.t.Fatalf("%s: %v", subject, err)
	}
	return m
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("in vain waited for: %s", what)
		}
		<-time.After(time.Millisecond)
	}
}

// settled waits until every credit is back.
func (r *rig) settled() {
	r.t.Helper()
	eventually(r.t, "all credits to come back", func() bool { return r.edge.Outstanding() == 0 })
	r.edge.waiting.mu.Lock()
	defer r.edge.waiting.mu.Unlock()
	if n := len(r.edge.waiting.asked); n != 0 {
		r.t.Errorf("%d questions are still open", n)
	}
}

func topicID(n byte) messages.TopicID { return messages.TopicID{0: n, 15: 1} }

func broker(id messages.BrokerID, epoch messages.BrokerEpoch) *messages.Broker {
	return &messages.Broker{ID: id, Epoch: epoch, Rack: messages.RackPath("eu/" + string(id)), Weight: 100, Fsyncs: true}
}

// topic applies a topic whose partitions are on the given brokers, the first leading.
func (r *rig) topic(seq messages.Sequence, n byte, name messages.TopicName, partitions int, replicas ...messages.BrokerID) {
	applyTopic(r.catalog, seq, n, name, partitions, replicas...)
}

func applyTopic(c *journal.Catalog, seq messages.Sequence, n byte, name messages.TopicName, partitions int, replicas ...messages.BrokerID) {
	records := []messages.Record{&messages.Topic{ID: topicID(n), Name: name, Partitions: partitions,
		ReplicationFactor: len(replicas), MinISR: 2}}
	for i := range partitions {
		records = append(records, partition(n, int32(i), replicas...))
	}
	c.Apply(seq, records)
}

func partition(n byte, index int32, replicas ...messages.BrokerID) *messages.Partition {
	return &messages.Partition{ID: messages.PartitionID{Topic: topicID(n), Index: index}, Replicas: replicas, ISR: replicas,
		Leader: replicas[0], MinISR: 2, Epoch: 1, LeaderProven: true}
}

func deletion(n byte, name messages.TopicName, partitions int, pending ...messages.BrokerID) *messages.TopicDeletion {
	return &messages.TopicDeletion{ID: topicID(n), Name: name, Partitions: partitions,
		Epochs: make([]messages.PartitionEpoch, partitions), Pending: pending}
}

func code(e *pb.Error) messages.Code { return messages.Code(e.GetCode()) }

func brokerName(i int) messages.BrokerID { return messages.BrokerID(fmt.Sprintf("b%d", i)) }

func newCatalog() *journal.Catalog { return journal.NewCatalog() }

func protoString(s string) protoreflect.Value { return protoreflect.ValueOfString(s) }

func protoUint(n uint64) protoreflect.Value { return protoreflect.ValueOfUint64(n) }
