package broker

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/broker/replica"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// Server is a whole broker over a Storage.
type Server struct {
	nc       *nats.Conn
	s        *session
	id       messages.BrokerID
	cfg      config
	log      zerolog.Logger
	storage  Storage
	writer   *writer
	origin   time.Time
	payload  int // the largest body of a message
	loops    []*dataLoop
	reads    chan readJob
	replicas *nats.Subscription
	stopOnce sync.Once
	ctx      context.Context
	cancel   context.CancelFunc
	workers  sync.WaitGroup
	starting sync.Mutex // between goDo and halt

	epoch          atomic.Uint64
	active         atomic.Bool // a registration is in force
	broken         atomic.Bool // the storage refuses work
	opens          atomic.Int64
	produceBytes   atomic.Int64
	tailBytes      atomic.Int64
	fetchesWaiting atomic.Int64

	mu        sync.RWMutex
	settings  messages.Settings
	bound     bool
	first     bool // no snapshot has been applied yet in this process
	parts     map[messages.PartitionID]*partition
	onDisk    map[messages.PartitionID]messages.TopicName
	fetchers  map[messages.BrokerID]*fetcher
	sessions  map[messages.BrokerID]*fetchSession
	peers     map[messages.BrokerID]bool // whoever was assigned a replica of a partition of this broker
	missing   []messages.TopicID
	described int // where the next part of the description of the replicas begins
	openers   chan *partition
	removals  map[messages.TopicID]bool // ordered, not confirmed yet
}

// Serve registers a broker and serves the partitions that it is assigned, until Shutdown or Close. It returns when
// registered; ctx bounds only that. The storage and the connection belong to the caller, who closes them after the server
// has ended. Errors as Join's; CLUSTER_MISMATCH too if the storage is bound to another broker id.
func Serve(ctx context.Context, nc *nats.Conn, cluster messages.ClusterName, id ID, storage Storage, opts ...Option) (*Server, error) {
	cfg := newConfig(opts)
	ident := storage.Identity()
	if ident.Broker != "" && ident.Broker != id {
		return nil, withSentinel(messages.Errorf(messages.CodeClusterMismatch, "the storage belongs to broker %q, not %q", ident.Broker, id))
	}
	cfg.storage, cfg.clusterID, cfg.fsyncs, cfg.cleanEpoch = ident.Storage, ident.ClusterID, ident.Fsyncs, ident.CleanEpoch
	cfg.seen = ident.Seen
	srv, err := newServer(nc, id, storage, cfg)
	if err != nil {
		return nil, err
	}
	if srv.s, err = newSession(natsBus{nc}, cluster, id, cfg, srv); err != nil {
		return nil, err
	}
	if err := srv.start(ctx); err != nil {
		srv.halt()
		return nil, err
	}
	return srv, nil
}

func newServer(nc *nats.Conn, id ID, storage Storage, cfg config) (*Server, error) {
	held, err := storage.Replicas()
	if err != nil {
		return nil, err
	}
	s := &Server{nc: nc, id: id, cfg: cfg, storage: storage, origin: time.Now(), first: true,
		log:   cfg.logger.With().Str("broker", string(id)).Logger(),
		parts: map[messages.PartitionID]*partition{}, onDisk: make(map[messages.PartitionID]messages.TopicName, len(held)),
		fetchers: map[messages.BrokerID]*fetcher{}, sessions: map[messages.BrokerID]*fetchSession{},
		peers:    map[messages.BrokerID]bool{},
		removals: map[messages.TopicID]bool{}, reads: make(chan readJob, maxReads), openers: make(chan *partition, 1<<16)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.payload = int(nc.MaxPayload()) - payloadMargin
	if l := s.cfg.limits.BatchBytes; l <= 0 || l > s.payload {
		s.cfg.limits.BatchBytes = s.payload
	}
	s.writer = newWriter(storage, s.storageBroke)
	for _, h := range held {
		s.onDisk[h.Partition] = h.Topic
	}
	return s, nil
}

// payloadMargin is left free in a message of the largest size for what surrounds a batch, in bytes.
const payloadMargin = 4096

// start runs the goroutines of the server and then its session.
func (s *Server) start(ctx context.Context) error {
	go s.writer.run()
	s.startLoops()
	for range openConcurrency {
		s.goDo(s.openLoop)
	}
	for range readConcurrency {
		s.goDo(s.readLoop)
	}
	s.goDo(s.tickLoop)
	s.goDo(s.keepSeen)
	s.goDo(s.watchConnection)
	var err error
	if s.replicas, err = s.nc.Subscribe(s.s.subjects.ReplicationWildcard(s.id), s.onReplicaFetch); err != nil {
		return err
	}
	return s.s.start(ctx)
}

// watchConnection tells who waits for an answer that the connection has been lost and is back.
func (s *Server) watchConnection() {
	back := s.nc.StatusChanged(nats.CONNECTED)
	defer s.nc.RemoveStatusListener(back)
	for {
		select {
		case <-s.ctx.Done():
			return
		case _, open := <-back:
			if !open {
				return
			}
			s.reconnected()
		}
	}
}

// goDo runs f in a goroutine that halt waits for. After halt it does nothing.
func (s *Server) goDo(f func()) {
	s.starting.Lock()
	defer s.starting.Unlock()
	if s.ctx.Err() != nil {
		return
	}
	s.workers.Add(1)
	go func() {
		defer s.workers.Done()
		f()
	}()
}

// Shutdown leaves in order: the controller moves the leaderships away and takes this broker out of every ISR; then what
// is in memory is written and the storage is marked clean. If ctx ends before the controller lets the broker go, it stops
// all the same and ctx's error is returned.
func (s *Server) Shutdown(ctx context.Context) error {
	err := s.s.stop(ctx)
	epoch := s.brokerEpoch()
	s.halt()
	if s.broken.Load() {
		return messages.Errorf(messages.CodeStorageFailed, "the storage refuses work; it is not marked clean")
	}
	if werr := s.writeMarks(); werr != nil {
		return werr
	}
	if epoch > 0 {
		if merr := s.storage.MarkClean(epoch); merr != nil {
			return merr
		}
	}
	return err
}

// Close stops at once, as a crash would, but for the goroutines, which have ended when it returns. Nothing is written
// that is not being written already.
func (s *Server) Close() { s.halt() }

func (s *Server) halt() {
	s.stopOnce.Do(func() {
		s.active.Store(false)
		if s.s != nil {
			s.s.cancel()
			select {
			case <-s.s.done:
			default:
				if s.brokerEpoch() > 0 {
					<-s.s.done
				}
			}
		}
		if s.replicas != nil {
			_ = s.replicas.Unsubscribe()
		}
		for _, p := range s.all() {
			p.suspend(false)
		}
		s.starting.Lock()
		s.cancel()
		s.starting.Unlock()
		s.stopLoops()
		s.workers.Wait()
		s.writer.close()
	})
}

// writeMarks stores the marks of all replicas, so that a restart knows them.
func (s *Server) writeMarks() error {
	var writes []Write
	for _, p := range s.all() {
		p.mu.Lock()
		if p.machine != nil && !p.removed {
			writes = append(writes, Write{Partition: p.id, HighWatermark: p.machine.HighWatermark()})
		}
		p.mu.Unlock()
	}
	if len(writes) == 0 {
		return nil
	}
	return s.storage.Write(writes)
}

// Ready is closed when the broker has been unfenced for the first time.
func (s *Server) Ready() <-chan struct{} { return s.s.firstReady }

// Done is closed when the session has ended; Err then says why.
func (s *Server) Done() <-chan struct{} { return s.s.done }

// Err returns why the session ended, nil while it has not and after Shutdown or Close.
func (s *Server) Err() error { return s.s.failure() }

// State returns the server's state.
func (s *Server) State() State {
	st := s.s.state()
	for _, p := range s.all() {
		st.Partitions++
		p.mu.Lock()
		if p.serving != nil {
			st.Leading++
		}
		p.mu.Unlock()
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	st.Unknown = s.missing
	return st
}

// Replica returns the state of one replica; false if this broker has none open.
func (s *Server) Replica(id messages.PartitionID) (replica.Status, bool) {
	p := s.partition(id)
	if p == nil {
		return replica.Status{}, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.machine == nil {
		return replica.Status{}, false
	}
	return p.machine.Status(), true
}

func (s *Server) partition(id messages.PartitionID) *partition {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.parts[id]
}

func (s *Server) all() []*partition {
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := make([]*partition, 0, len(s.parts))
	for _, p := range s.parts {
		out = append(out, p)
	}
	return out
}

func (s *Server) now() time.Duration { return time.Since(s.origin) }

func (s *Server) brokerEpoch() messages.BrokerEpoch { return messages.BrokerEpoch(s.epoch.Load()) }

func (s *Server) respond(to string, body proto.Message) {
	data, err := proto.Marshal(body)
	if err != nil {
		s.log.Error().Err(err).Msg("an answer cannot be written")
		return
	}
	if err := s.nc.Publish(to, data); err != nil {
		s.log.Debug().Err(err).Msg("an answer cannot be sent")
	}
}

// tickLoop is the clock of the machines: leaders every 100 ms, the others every second.
func (s *Server) tickLoop() {
	t := time.NewTicker(100 * time.Millisecond)
	defer t.Stop()
	for n := 0; ; n++ {
		select {
		case <-s.ctx.Done():
			return
		case <-t.C:
		}
		for _, p := range s.all() {
			p.tick(n%10 == 0)
		}
	}
}

func (p *partition) tick(all bool) {
	var fx effects
	p.mu.Lock()
	if p.machine != nil && (all || p.serving != nil || len(p.tickets) > 0) {
		p.apply(p.machine.Tick(p.srv.now()), &fx)
		p.settle(&fx)
		p.expireConsumers(&fx)
		p.wakeOutsiders()
	}
	p.mu.Unlock()
	p.srv.carryOut(&fx)
}

// reports returns the marks of the led partitions.
func (s *Server) reports() []*pb.OffsetReport {
	var out []*pb.OffsetReport
	for _, p := range s.all() {
		p.mu.Lock()
		if p.serving != nil {
			if r, ok := p.machine.OffsetReport(); ok {
				out = append(out, r)
			}
		}
		p.mu.Unlock()
	}
	return out
}
