package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/client"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// simBroker speaks the protocol of a broker without keeping anything: it registers, takes a snapshot, sends heartbeats and
// confirms its leaderships. A thousand of them fit into one process.
type simBroker struct {
	nc       *nats.Conn
	subjects messages.Subjects
	id       messages.BrokerID
	run      string
	epoch    uint64
	feed     atomic.Pointer[pb.FeedPosition]
	beat     time.Duration
	session  time.Duration
	latency  *durations
	heard    atomic.Uint64 // controller epoch of the last answered heartbeat
	answered atomic.Int64  // when that came, in nanoseconds of the wall clock
	stirred  chan struct{} // beat now: the connection is back
	stop     context.CancelFunc
	ended    chan struct{}
}

// startSimBroker registers a broker and returns when it is active.
func startSimBroker(ctx context.Context, url string, i int, latency *durations) (*simBroker, error) {
	id := messages.BrokerID(fmt.Sprintf("s%d", i))
	s := &simBroker{subjects: messages.NewSubjects(benchCluster), id: id, run: fmt.Sprintf("run-%d-%d", i, time.Now().UnixNano()),
		latency: latency, stirred: make(chan struct{}, 1), ended: make(chan struct{})}
	nc, err := nats.Connect(url, append(client.ConnectOptions(string(id)), nats.ReconnectHandler(func(*nats.Conn) {
		select {
		case s.stirred <- struct{}{}:
		default:
		}
	}))...)
	if err != nil {
		return nil, err
	}
	s.nc = nc
	if err := s.join(ctx, i); err != nil {
		nc.Close()
		return nil, err
	}
	loop, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = stop
	go s.heartbeats(loop)
	return s, nil
}

func (s *simBroker) request(ctx context.Context, verb messages.BrokerVerb, in, out proto.Message) error {
	raw, err := proto.Marshal(in)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	m, err := s.nc.RequestWithContext(ctx, s.subjects.Broker(string(s.id), verb), raw)
	if err != nil {
		return fmt.Errorf("%s of %s: %w", verb, s.id, err)
	}
	return proto.Unmarshal(m.Data, out)
}

func (s *simBroker) join(ctx context.Context, i int) error {
	if _, err := s.nc.Subscribe(s.subjects.Assignments(s.id), s.assigned); err != nil {
		return err
	}
	client, err := s.nc.GetClientID()
	if err != nil {
		return err
	}
	var joined pb.RegisterResponse
	err = s.request(ctx, messages.VerbRegister, &pb.RegisterRequest{Broker: string(s.id), Incarnation: s.run, Storage: "storage-" + string(s.id),
		Rack: fmt.Sprintf("r%d", i%3+1), Fsyncs: true, MinProtocol: 1, MaxProtocol: 1, Host: "bench", Pid: int64(i) + 1,
		Connection: &pb.Connection{ServerId: s.nc.ConnectedServerId(), ClientId: client}}, &joined)
	if err != nil {
		return err
	}
	if e := messages.ErrorFromProto(joined.GetError()); e != nil {
		return e
	}
	settings := messages.SettingsFromProto(joined.GetSettings())
	s.epoch, s.beat, s.session = joined.GetBrokerEpoch(), settings.Heartbeat, settings.Session
	for cursor := ""; ; {
		var page pb.SnapshotResponse
		if err := s.request(ctx, messages.VerbSnapshot, &pb.SnapshotRequest{Broker: string(s.id), BrokerEpoch: s.epoch, Cursor: cursor}, &page); err != nil {
			return err
		}
		if e := messages.ErrorFromProto(page.GetError()); e != nil {
			return e
		}
		if page.GetFeed() != nil {
			s.feed.Store(page.GetFeed())
		}
		if cursor = page.GetNext(); cursor == "" {
			break
		}
	}
	return within(ctx, time.Minute, "an answered heartbeat", s.heartbeat) // of very many that join at once, some have to wait
}

func (s *simBroker) heartbeat(ctx context.Context) error {
	var answer pb.HeartbeatResponse
	sent := time.Now()
	own := &pb.Connection{ServerId: s.nc.ConnectedServerId()}
	own.ClientId, _ = s.nc.GetClientID() // unknown while disconnected, and then nothing is sent anyway
	ctx, cancel := context.WithTimeout(ctx, s.session/3)
	defer cancel()
	err := s.request(ctx, messages.VerbHeartbeat, &pb.HeartbeatRequest{Broker: string(s.id), Incarnation: s.run, BrokerEpoch: s.epoch,
		Feed: s.feed.Load(), Ready: true, Connection: own}, &answer)
	if err != nil {
		return err
	}
	s.latency.add(time.Since(sent))
	if e := messages.ErrorFromProto(answer.GetError()); e != nil {
		return e
	}
	if s.heard.Swap(answer.GetSeen().GetControllerEpoch()) != answer.GetSeen().GetControllerEpoch() {
		s.answered.Store(time.Now().UnixNano())
	}
	return nil
}

func (s *simBroker) heartbeats(ctx context.Context) {
	defer close(s.ended)
	t := time.NewTicker(s.beat)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.stirred:
		case <-t.C:
		}
		_ = s.heartbeat(ctx) // the next one tells as much
	}
}

// assigned confirms the leaderships of a batch.
func (s *simBroker) assigned(m *nats.Msg) {
	var batch pb.AssignmentBatch
	if proto.Unmarshal(m.Data, &batch) != nil {
		return
	}
	s.feed.Store(batch.GetFeed())
	r := &pb.ReadyRequest{Broker: string(s.id), BrokerEpoch: s.epoch}
	flush := func() {
		if raw, err := proto.Marshal(r); err == nil && len(r.Reports) > 0 {
			_ = s.nc.Publish(s.subjects.Broker(string(s.id), messages.VerbReady), raw) // without an answer: the deadline asks again
		}
		r.Reports = nil
	}
	for _, a := range batch.GetAssignments() {
		if a.GetLeader() == string(s.id) && !a.GetLeaderProven() {
			r.Reports = append(r.Reports, &pb.LeaderReport{TopicId: a.GetTopicId(), Partition: a.GetPartition(), LeaderEpoch: a.GetLeaderEpoch(),
				LogEnd: a.GetFloor(), HighWatermark: a.GetFloor()})
		}
		if len(r.Reports) == messages.MaxBatchItems {
			flush()
		}
	}
	flush()
}

// close ends the broker as a crash would: its connection is gone.
func (s *simBroker) close() {
	s.stop()
	s.nc.Close()
	<-s.ended
}

// startingAtOnce is how many simulated brokers register at a time.
const startingAtOnce = 16

// startSimBrokers starts n of them, in racks r1 to r3.
func startSimBrokers(ctx context.Context, c *cluster, n int, latency *durations) ([]*simBroker, error) {
	all, errs := make([]*simBroker, n), make([]error, n)
	var starting sync.WaitGroup
	places := make(chan struct{}, startingAtOnce)
	for i := range n {
		places <- struct{}{}
		starting.Go(func() {
			defer func() { <-places }()
			all[i], errs[i] = startSimBroker(ctx, c.url(), i, latency)
		})
	}
	starting.Wait()
	for _, s := range all {
		if s != nil {
			c.closers = append(c.closers, func() error {
				s.close()
				return nil
			})
		}
	}
	return all, errors.Join(errs...)
}
