package broker

import (
	"bytes"
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// fakeBus is a bus inside a test's bubble: answers take no time but what the test says.
type fakeBus struct {
	mu     sync.Mutex
	answer func(verb messages.BrokerVerb, body []byte) (proto.Message, time.Duration)
	inbox  chan *nats.Msg
	events chan nats.Status
	up     bool
	asked  map[messages.BrokerVerb][]time.Time
	starts time.Time
}

func newFakeBus() *fakeBus {
	return &fakeBus{events: make(chan nats.Status, 10), up: true, asked: map[messages.BrokerVerb][]time.Time{}, starts: time.Now()}
}

func (b *fakeBus) request(ctx context.Context, subject string, body []byte) ([]byte, error) {
	_, verb, _ := messages.NewSubjects("c").ParseBroker(subject)
	b.mu.Lock()
	b.asked[verb] = append(b.asked[verb], time.Now())
	answer, delay := proto.Message(nil), time.Duration(0)
	if b.answer != nil {
		answer, delay = b.answer(verb, body)
	}
	b.mu.Unlock()
	if answer == nil {
		return nil, nats.ErrNoResponders
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(delay):
		return proto.Marshal(answer)
	}
}

func (b *fakeBus) subscribe(_ string, ch chan *nats.Msg) (func(), error) {
	b.inbox = ch
	return func() {}, nil
}

func (b *fakeBus) watch() (<-chan nats.Status, func()) {
	return b.events, func() { close(b.events) }
}

func (b *fakeBus) connected() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.up
}

func (b *fakeBus) connection() *pb.Connection { return &pb.Connection{ServerId: "s", ClientId: 1} }

// set changes what the bus does while requests may be under way.
func (b *fakeBus) set(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
}

// deliver sends a batch of assignments to the broker.
func (b *fakeBus) deliver(batch *pb.AssignmentBatch) {
	data, _ := proto.Marshal(batch)
	b.inbox <- &nats.Msg{Data: data}
}

// script is a controller that answers everything well; a test changes the parts it is about.
type script struct {
	epoch       uint64
	seen        *pb.Seen
	feed        *pb.FeedPosition
	lease       time.Duration
	fenced      bool
	unfenced    uint64
	register    *pb.RegisterResponse // instead of a success
	registerIn  time.Duration
	heartbeat   *pb.HeartbeatResponse // instead of a success
	assignments []*pb.Assignment
	silent      map[messages.BrokerVerb]bool
	beats       []*pb.HeartbeatRequest
	registers   []*pb.RegisterRequest
}

func newScript() *script {
	return &script{epoch: 5, seen: &pb.Seen{ControllerEpoch: 3, Sequence: 5}, feed: &pb.FeedPosition{Feed: 1}, lease: 2700 * time.Millisecond,
		silent: map[messages.BrokerVerb]bool{}}
}

func (s *script) answer(verb messages.BrokerVerb, body []byte) (proto.Message, time.Duration) {
	if s.silent[verb] {
		return nil, 0
	}
	switch verb {
	case messages.VerbRegister:
		r := &pb.RegisterRequest{}
		_ = proto.Unmarshal(body, r)
		s.registers = append(s.registers, r)
		if s.register != nil {
			return s.register, s.registerIn
		}
		return &pb.RegisterResponse{ClusterId: "id", BrokerEpoch: s.epoch, Settings: messages.SettingsToProto(messages.DefaultSettings()),
			Seen: s.seen, Protocol: 1}, s.registerIn
	case messages.VerbHeartbeat:
		r := &pb.HeartbeatRequest{}
		_ = proto.Unmarshal(body, r)
		s.beats = append(s.beats, r)
		if s.heartbeat != nil {
			return s.heartbeat, 0
		}
		return &pb.HeartbeatResponse{LeaseMs: uint32(s.lease.Milliseconds()), Fenced: s.fenced, Seen: s.seen, Unfenced: s.unfenced}, 100 * time.Millisecond
	case messages.VerbSnapshot:
		return &pb.SnapshotResponse{Seen: s.seen, Feed: s.feed, Assignments: s.assignments}, 0
	case messages.VerbReady:
		r := &pb.ReadyRequest{}
		_ = proto.Unmarshal(body, r)
		out := &pb.ReadyResponse{}
		for _, p := range r.GetReports() {
			current := &pb.Assignment{}
			for _, a := range s.assignments { // what was reported is committed now
				if bytes.Equal(a.GetTopicId(), p.GetTopicId()) && a.GetPartition() == p.GetPartition() {
					current = proto.Clone(a).(*pb.Assignment)
					current.LeaderProven = !p.GetDeclined()
				}
			}
			out.Results = append(out.Results, &pb.IsrResult{TopicId: p.GetTopicId(), Partition: p.GetPartition(), Current: current})
		}
		return out, 0
	}
	return &pb.OffsetsResponse{}, 0
}

var testTopic = messages.TopicID{9}

// assignmentFor is partition 0 of the test's topic as led by someone.
func assignmentFor(leader string, le, pe int64) *pb.Assignment {
	return &pb.Assignment{TopicId: testTopic.Bytes(), Topic: "t", Replicas: []string{"b1", "b2"}, Isr: []string{"b1", "b2"}, Leader: leader,
		LeaderEpoch: le, PartitionEpoch: pe, MinIsr: 1}
}

// recorder is a Handler that writes down what it is told.
type recorder struct {
	mu    sync.Mutex
	calls []string
	lead  *Leadership
	// onLead, if set, is what BecomeLeader does.
	onLead func(l *Leadership) error
}

func (r *recorder) note(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, what)
}

func (r *recorder) seen() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.calls...)
}

func (r *recorder) leadership() *Leadership {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lead
}

func (r *recorder) AddReplica(context.Context, Assignment) error { r.note("add"); return nil }

func (r *recorder) BecomeLeader(_ context.Context, l *Leadership) error {
	r.note("lead")
	r.mu.Lock()
	r.lead = l
	r.mu.Unlock()
	if r.onLead != nil {
		return r.onLead(l)
	}
	return nil
}

func (r *recorder) BecomeFollower(context.Context, Assignment) error { r.note("follow"); return nil }
func (r *recorder) RemoveReplica(context.Context, Partition) error   { r.note("remove"); return nil }

type msg = proto.Message
