package broker

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// sink is what a session drives. The calls come one at a time and must not block for long: heartbeats wait for them.
type sink interface {
	holdings
	// registered begins a registration. An error ends the session for good.
	registered(r registration) error
	// assigned gives the newest state of a partition; the same one may come again.
	assigned(a Assignment)
	// removed is the order to delete replicas; confirmed by session.confirmRemoved.
	removed(r removal)
	// retired says that the controller does not assign a partition to this broker any more. Its data stays.
	retired(p messages.PartitionID)
	// snapshotApplied follows the assignments of each snapshot. It names the held topic ids that the controller has never
	// heard of: to be kept aside.
	snapshotApplied(unknown []messages.TopicID)
	// ended says that the registration is over: no leadership holds when it returns.
	ended(cause error)
}

// holdings is what a session tells the controller of its broker.
type holdings interface {
	// copies describes a part of the replicas on the disk, another one with each call, and says how many there are.
	copies() ([]*pb.HeldReplica, int)
	// held lists what the broker has on its disk.
	held() []*pb.HeldTopic
	// reports returns the marks to report at a checkpoint.
	reports() []*pb.OffsetReport
	// storageFailed: the storage refuses work.
	storageFailed() bool
	// ready: what the snapshot assigned is open, so that the broker may be unfenced.
	ready() bool
}

// registration is what the controller answered.
type registration struct {
	clusterID string
	epoch     messages.BrokerEpoch
	settings  messages.Settings
}

// session keeps one broker registered: a loop over registrations, and within one over heartbeats and assignments. Its
// mutable state belongs to the goroutine of run, but for what mu guards.
type session struct {
	bus      bus
	id       messages.BrokerID
	subjects messages.Subjects
	cfg      config
	sink     sink
	log      zerolog.Logger
	lease    lease

	inbox       chan *nats.Msg
	unsubscribe func()
	kicks       chan struct{} // a heartbeat is wanted now
	lost        chan struct{} // the connection was lost, or is gone
	back        chan struct{} // the connection is there again
	firstReady  chan struct{} // closed when first unfenced
	mayStop     chan struct{} // closed when the controller lets a stopping broker go
	done        chan struct{}
	cancel      context.CancelFunc
	ctx         context.Context

	proposals *batcher
	readies   *batcher
	removals  *remover

	// of the loop
	feed       feed
	known      map[messages.PartitionID]messages.PartitionEpoch
	orders     map[messages.TopicID]removal // removals that were given, so that late assignments do not revive them
	resync     bool                         // take a snapshot after the next answered heartbeat
	term       leaseTerm                    // of the last answered heartbeat
	covered    leaseTerm                    // for which a snapshot has been applied
	beating    bool                         // a heartbeat is on its way
	beatAgain  bool
	taking     bool // a snapshot is on its way
	heldFrom   int  // where the next part of what is held begins
	snapshotIn bool // the first snapshot of this registration has been applied
	cleanEpoch messages.BrokerEpoch

	mu          sync.Mutex
	reg         registration
	incarnation messages.IncarnationID
	clusterID   string
	seen        messages.Seen
	newOrders   bool // the controller has ordered something since the position was kept last
	doubted     bool // the controller asks for what is held, because its journal may have gone back
	fenced      bool
	stopping    bool
	err         error
	stale       map[messages.PartitionID]messages.PartitionEpoch // of which a newer state is known to exist
	link        context.Context                                  // ends when the connection is lost, and is replaced
	unlink      context.CancelFunc
	lastBeat    time.Time // when the last answered heartbeat was sent
}

func newSession(b bus, cluster messages.ClusterName, id messages.BrokerID, cfg config, s sink) (*session, error) {
	if err := cluster.Validate(); err != nil {
		return nil, err
	}
	if err := id.Validate(); err != nil {
		return nil, err
	}
	rack, err := messages.ParseRackPath(string(cfg.rack))
	if err != nil {
		return nil, err
	}
	cfg.rack = rack
	if cfg.storage == "" {
		cfg.storage = messages.StorageID(randomID())
	}
	ses := &session{
		bus: b, id: id, subjects: messages.NewSubjects(cluster), cfg: cfg, sink: s, clusterID: cfg.clusterID,
		log:   cfg.logger.With().Str("broker", string(id)).Logger(),
		inbox: make(chan *nats.Msg, maxWaiting), kicks: make(chan struct{}, 1), lost: make(chan struct{}, 1),
		back: make(chan struct{}, 1), firstReady: make(chan struct{}), mayStop: make(chan struct{}),
		done: make(chan struct{}), cleanEpoch: cfg.cleanEpoch, fenced: true, seen: cfg.seen,
		known: map[messages.PartitionID]messages.PartitionEpoch{}, orders: map[messages.TopicID]removal{},
	}
	ses.lease.said = ses.traceLease
	ses.ctx, ses.cancel = context.WithCancel(context.Background())
	ses.link, ses.unlink = context.WithCancel(ses.ctx)
	ses.proposals = newBatcher(ses, messages.VerbISR, packProposals)
	ses.readies = newBatcher(ses, messages.VerbReady, packReports)
	ses.removals = newRemover(ses)
	return ses, nil
}

// start subscribes, registers, and goes on in the background. It returns when registered, or why that cannot be.
func (s *session) start(ctx context.Context) error {
	unsubscribe, err := s.bus.subscribe(s.subjects.Assignments(s.id), s.inbox)
	if err != nil {
		s.cancel()
		return err
	}
	s.unsubscribe = unsubscribe
	if err := s.register(ctx); err != nil {
		unsubscribe()
		s.cancel()
		return err
	}
	events, stop := s.bus.watch()
	go s.watch(events)
	go func() {
		defer stop()
		s.run()
	}()
	return nil
}

// watch suspends the lease the moment the connection is lost, without waiting for the loop.
func (s *session) watch(events <-chan nats.Status) {
	for e := range events {
		if e == nats.CONNECTED {
			notify(s.back)
			continue
		}
		s.lease.end()
		s.relink()
		notify(s.lost)
	}
}

// relink gives up everything that was asked over the connection that is lost: it will not be answered.
func (s *session) relink() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unlink()
	s.link, s.unlink = context.WithCancel(s.ctx)
}

// overLink returns a context that ends with the connection as it is now, too.
func (s *session) overLink(ctx context.Context, timeout time.Duration) (context.Context, func()) {
	s.mu.Lock()
	link := s.link
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	stop := context.AfterFunc(link, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

func notify(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// errOver says that the registration has ended and that a new one is to be made.
var errOver = errors.New("the registration is over")

// run is the session's goroutine.
func (s *session) run() {
	defer close(s.done)
	defer s.unsubscribe()
	var err error
	for {
		err = s.live()
		s.lease.end()
		s.setFenced(true)
		s.sink.ended(err)
		if !errors.Is(err, errOver) {
			break
		}
		s.log.Warn().Err(err).Msg("registration is over, registering again")
		s.mu.Lock()
		s.cleanEpoch = s.reg.epoch // this process has lost nothing of what it held under that epoch
		s.mu.Unlock()
		if err = s.register(s.ctx); err != nil {
			break
		}
	}
	s.mu.Lock()
	s.err = err
	s.mu.Unlock()
	s.cancel()
}

// live is one registration. It returns errOver when a new one is needed, nil when closed, else what ends the session.
func (s *session) live() error {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	l := &life{session: s, ctx: ctx, beats: make(chan beat, 1), snapshots: make(chan snapshot, 1)}
	s.term, s.covered = leaseTerm{}, leaseTerm{}
	s.feed, s.resync, s.beating, s.beatAgain, s.taking, s.snapshotIn = feed{}, false, false, false, false, false
	interval := s.registration().settings.Heartbeat
	timer := time.NewTimer(0)
	defer timer.Stop()
	checkpoint := time.NewTicker(max(s.registration().settings.Checkpoint, time.Millisecond))
	defer checkpoint.Stop()
	l.takeSnapshot()
	for {
		var err error
		select {
		case <-s.ctx.Done():
			return nil
		case m := <-s.inbox:
			err = l.onBatch(m.Data)
		case <-s.lost:
			err = l.onLost()
		case <-s.back:
			l.beat()
		case <-s.kicks:
			l.beat()
		case <-timer.C:
			l.beat()
			timer.Reset(interval)
		case b := <-l.beats:
			err = l.onBeat(b)
		case snap := <-l.snapshots:
			err = l.onSnapshot(snap)
		case <-checkpoint.C:
			l.checkpoint()
		}
		if err != nil {
			return err
		}
	}
}

// life is one registration of a session, with the answers that are on their way to its loop.
type life struct {
	*session
	ctx       context.Context
	beats     chan beat
	snapshots chan snapshot
}

func (l *life) onLost() error {
	l.resync = true
	if !l.bus.connected() {
		if c, ok := l.bus.(interface{ closed() bool }); ok && c.closed() {
			return messages.Errorf(messages.CodeUnavailable, "the NATS connection has been closed for good")
		}
	}
	return nil
}

// close ends the session without asking anybody.
func (s *session) close() {
	s.cancel()
	<-s.done
}

// kick asks for a heartbeat now.
func (s *session) kick() { notify(s.kicks) }

// requestSnapshot says that the controller has a newer state of a partition than epoch. It usually arrives by itself; if
// it has not when the next heartbeat is answered, a snapshot is taken.
func (s *session) requestSnapshot(id messages.PartitionID, epoch messages.PartitionEpoch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stale == nil {
		s.stale = map[messages.PartitionID]messages.PartitionEpoch{}
	}
	s.stale[id] = epoch
}

// overdue reports whether a requested state has not arrived, and forgets the requests.
func (l *life) overdue() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	found := false
	for id, epoch := range l.stale {
		known, ok := l.known[id]
		found = found || ok && known <= epoch
	}
	l.stale = nil
	return found
}

func (s *session) registration() registration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reg
}

func (s *session) setFenced(f bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fenced = f
}

// observe keeps the highest position seen. It reports false for one of a controller that has been replaced.
func (s *session) observe(p *pb.Seen) bool {
	seen := messages.SeenFromProto(p)
	s.mu.Lock()
	defer s.mu.Unlock()
	if seen.Controller < s.seen.Controller {
		return false
	}
	s.seen = s.seen.With(seen)
	return true
}

func (s *session) highest() messages.Seen {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen
}

func randomID() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}
