package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

var subjects = messages.NewSubjects("dev")

// settings are quick, and long enough for a busy machine. The session is longer than any test, so that whatever is noticed
// sooner was noticed by other means.
func settings() messages.Settings {
	s := messages.DefaultSettings()
	s.Heartbeat, s.Session, s.DisconnectGrace = 50*time.Millisecond, 2*time.Minute, 50*time.Millisecond
	return s
}

func start(t testing.TB, dir string, change func(*Config)) *Controller {
	t.Helper()
	cfg := Config{DataDir: dir, Listen: "127.0.0.1:0", Settings: settings()}
	if change != nil {
		change(&cfg)
	}
	c, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, c) })
	return c
}

func stop(t testing.TB, c *Controller) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := c.Stop(ctx); err != nil {
		t.Errorf("stopping: %v", err)
	}
}

func connect(t testing.TB, url string) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond), nats.ReconnectBufSize(-1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("in vain waited for: %s", what)
		}
		<-time.After(2 * time.Millisecond)
	}
}

// call sends a request in protobuf and returns the answer's error.
func call(nc *nats.Conn, subject string, body, answer proto.Message) error {
	return callWithin(10*time.Second, nc, subject, body, answer)
}

func callWithin(patience time.Duration, nc *nats.Conn, subject string, body, answer proto.Message) error {
	data, err := proto.Marshal(body)
	if err != nil {
		return err
	}
	m, err := nc.RequestMsg(&nats.Msg{Subject: subject, Data: data, Header: nats.Header{"Content-Type": {"application/protobuf"}}}, patience)
	if err != nil {
		return err
	}
	if err := proto.Unmarshal(m.Data, answer); err != nil {
		return err
	}
	if e := answer.(interface{ GetError() *pb.Error }).GetError(); e != nil {
		return messages.ErrorFromProto(e)
	}
	return nil
}

func look[T any](t testing.TB, nc *nats.Conn, endpoint string) (T, messages.View) {
	t.Helper()
	data, v, err := inquire[T](nc, endpoint, 10*time.Second)
	if err != nil {
		t.Fatalf("%s: %v", endpoint, err)
	}
	return data, v
}

// inquire is look where there may be nobody to answer.
func inquire[T any](nc *nats.Conn, endpoint string, patience time.Duration) (data T, view messages.View, err error) {
	m, err := nc.Request(subjects.Monitor(endpoint), nil, patience)
	if err != nil {
		return data, view, err
	}
	var v struct {
		messages.View
		Data T `json:"data"`
	}
	if err := json.Unmarshal(m.Data, &v); err != nil {
		return data, view, fmt.Errorf("%s: %w", m.Data, err)
	}
	return v.Data, v.View, nil
}

// rawBroker speaks the broker's side of the protocol over a connection, without any storage: it is ready at once for
// whatever it is told to lead.
type rawBroker struct {
	t           testing.TB
	id          messages.BrokerID
	incarnation string
	nc          *nats.Conn
	end         chan struct{}

	mu       sync.Mutex
	epoch    uint64
	feed     *pb.FeedPosition
	assigned map[string]*pb.Assignment // newest by topic/partition
	fenced   bool
	stopping bool  // it wants to
	mayStop  bool  // it was told
	served   bool  // it was unfenced
	fences   int   // how often it was told that it is fenced, after that
	refused  error // of the last heartbeat
}

func (b *rawBroker) connection() *pb.Connection {
	id, err := b.nc.GetClientID()
	if err != nil {
		return nil
	}
	return &pb.Connection{ServerId: b.nc.ConnectedServerId(), ClientId: id}
}

// join registers a broker and lets its heart beat until the test ends.
func join(t testing.TB, url string, id messages.BrokerID) *rawBroker {
	t.Helper()
	return joinAs(t, url, id, "i-"+string(id))
}

// joinAs is join of a certain incarnation.
func joinAs(t testing.TB, url string, id messages.BrokerID, incarnation string) *rawBroker {
	t.Helper()
	b := &rawBroker{t: t, id: id, incarnation: strings.ReplaceAll(incarnation, " ", "-"), nc: connect(t, url), end: make(chan struct{}), assigned: map[string]*pb.Assignment{}, fenced: true}
	if _, err := b.nc.Subscribe(subjects.Assignments(id), b.assign); err != nil {
		t.Fatal(err)
	}
	b.register()
	var beating sync.WaitGroup
	beating.Add(1)
	go func() {
		defer beating.Done()
		b.beat()
	}()
	t.Cleanup(func() {
		b.die()
		beating.Wait()
	})
	return b
}

func (b *rawBroker) register() {
	b.t.Helper()
	answer := &pb.RegisterResponse{}
	eventually(b.t, "registration of "+string(b.id), func() bool {
		answer.Reset()
		return call(b.nc, subjects.Broker(string(b.id), messages.VerbRegister), &pb.RegisterRequest{
			Broker: string(b.id), Incarnation: b.incarnation, Storage: "s-" + string(b.id), Rack: "eu/" + string(b.id), Fsyncs: true,
			MinProtocol: 1, MaxProtocol: 1, Host: "here", Pid: 1, Version: "test", Connection: b.connection()}, answer) == nil
	})
	b.mu.Lock()
	b.epoch = answer.BrokerEpoch
	b.mu.Unlock()
}

func (b *rawBroker) beat() {
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-b.end:
			return
		case <-ticker.C:
		}
		answer := &pb.HeartbeatResponse{}
		b.mu.Lock()
		epoch, feed, stopping := b.epoch, b.feed, b.stopping
		b.mu.Unlock()
		err := callWithin(time.Second, b.nc, subjects.Broker(string(b.id), messages.VerbHeartbeat), &pb.HeartbeatRequest{Broker: string(b.id),
			Incarnation: b.incarnation, BrokerEpoch: epoch, Feed: feed, Ready: !stopping, WantsStop: stopping, Connection: b.connection()}, answer)
		b.mu.Lock()
		b.refused = err
		b.fenced = err != nil || answer.Fenced
		b.mayStop = b.mayStop || answer.MayStop
		if b.served = b.served || !b.fenced; err == nil && answer.Fenced && b.served {
			b.fences++
		}
		b.mu.Unlock()
	}
}

func (b *rawBroker) assign(m *nats.Msg) {
	batch := &pb.AssignmentBatch{}
	if err := proto.Unmarshal(m.Data, batch); err != nil {
		b.t.Errorf("assignments: %v", err)
		return
	}
	b.mu.Lock()
	b.feed = batch.GetFeed()
	ready := &pb.ReadyRequest{Broker: string(b.id), BrokerEpoch: b.epoch}
	for _, a := range batch.Assignments {
		b.assigned[fmt.Sprintf("%s/%d", a.Topic, a.Partition)] = a
		if a.Leader == string(b.id) && !a.LeaderProven {
			ready.Reports = append(ready.Reports, &pb.LeaderReport{TopicId: a.TopicId, Partition: a.Partition, LeaderEpoch: a.LeaderEpoch})
		}
	}
	b.mu.Unlock()
	if len(ready.Reports) > 0 {
		go func() { _ = call(b.nc, subjects.Broker(string(b.id), messages.VerbReady), ready, &pb.ReadyResponse{}) }()
	}
}

func (b *rawBroker) serving() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.fenced
}

// die closes the connection as the end of a process would.
func (b *rawBroker) die() {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-b.end:
	default:
		close(b.end)
		b.nc.Close()
	}
}

// cluster starts a controller with brokers that are unfenced.
func cluster(t testing.TB, c *Controller, n int) []*rawBroker {
	t.Helper()
	var all []*rawBroker
	for i := range n {
		all = append(all, join(t, c.URL(), messages.BrokerID(fmt.Sprintf("b%d", i+1))))
	}
	for _, b := range all {
		eventually(t, string(b.id)+" to be unfenced", b.serving)
	}
	return all
}

func create(t testing.TB, nc *nats.Conn, name string, partitions uint32) *pb.CreateTopicResponse {
	t.Helper()
	answer := &pb.CreateTopicResponse{}
	if err := call(nc, subjects.Control("op", "topic", "create"), &pb.CreateTopicRequest{Name: name, Partitions: partitions}, answer); err != nil {
		t.Fatalf("creating %s: %v", name, err)
	}
	return answer
}
