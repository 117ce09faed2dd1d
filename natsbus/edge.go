package natsbus

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
)

// Edge is the NATS side of one active controller. It is made by New, so that the actors have something to publish to while
// they start; it lets requests in with Open; StopIntake ends that and waits for the answers, Close ends the rest.
type Edge struct {
	cfg      Config
	subjects messages.Subjects
	js       jetstream.JetStream
	tree     Tree // set by Open, before the first request

	waiting   *waiting
	work      *credits // requests about topics and partitions
	sessions  *credits // register and heartbeat
	out       *outgoing
	snapshots chan func()
	events    *eventLog
	heard     *heard
	responses *responses
	retired   *retired
	health    summaries
	monitor   *monitor

	mu      sync.Mutex
	subs    []subscription
	intake  sync.WaitGroup // subscriptions that may still call back
	opened  bool
	stopped bool

	life      context.Context // ends when the edge closes
	end       context.CancelFunc
	workersMu sync.Mutex // so that no worker starts once life has ended
	workers   sync.WaitGroup
	refused   atomic.Uint64 // requests refused at the edge, for the logs
}

// snapshotWorkers serve snapshot pages; snapshotQueue is how many may wait for one before BUSY.
const (
	snapshotWorkers = 2
	snapshotQueue   = 1024
)

// New returns an edge that publishes but lets nothing in yet. It makes the stream of last leadership values if there is
// none. The context bounds that only.
func New(ctx context.Context, cfg Config) (*Edge, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	js, err := jetstream.New(cfg.Conn)
	if err != nil {
		return nil, messages.Errorf(messages.CodeInternal, "JetStream context: %v", err)
	}
	e := &Edge{
		cfg: cfg, subjects: messages.NewSubjects(cfg.Cluster), js: js,
		waiting: newWaiting(), work: newCredits(cfg.MaxOutstanding), sessions: newCredits(cfg.MaxSessions),
		out: newOutgoing(), snapshots: make(chan func(), snapshotQueue), events: newEventLog(), heard: newHeard(), retired: newRetired(), responses: newResponses(),
	}
	e.life, e.end = context.WithCancel(context.Background())
	if cfg.Standby == nil && cfg.StreamReplicas == 1 {
		if err := e.ensureLeadershipStream(ctx); err != nil {
			e.end()
			return nil, err
		}
	}
	e.goWork(func() { e.out.write(e.write) })
	e.goWork(e.tick)
	e.goWork(func() { e.events.run(e.life.Done(), &e.cfg.Logger) })
	for range snapshotWorkers {
		e.goWork(e.serveSnapshots)
	}
	return e, nil
}

// goWork runs f beside everything else; Close waits for it. It reports false when the edge is closing.
func (e *Edge) goWork(f func()) bool {
	e.workersMu.Lock()
	defer e.workersMu.Unlock()
	if e.life.Err() != nil {
		return false
	}
	e.workers.Add(1)
	go func() {
		defer e.workers.Done()
		f()
	}()
	return true
}

// endWork tells every worker to end.
func (e *Edge) endWork() {
	e.workersMu.Lock()
	defer e.workersMu.Unlock()
	e.end()
}

// Open lets requests in, and beside that publishes every committed leadership anew. When it returns, the server knows every
// subscription. The context bounds the wait for that.
func (e *Edge) Open(ctx context.Context, tree Tree) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.opened || e.stopped {
		return messages.Errorf(messages.CodeInternal, "the edge is opened once")
	}
	if e.cfg.Standby != nil {
		return messages.Errorf(messages.CodeInternal, "a standby lets no requests in")
	}
	e.opened, e.tree = true, tree
	e.goWork(e.followConnection)
	e.goWork(func() {
		e.publishAllLeadership() // what it puts is read from the catalog when it is written, so nothing has to wait for it
		e.keepLeadership()
	})
	if e.cfg.StreamReplicas > 1 {
		e.goWork(e.awaitLeadershipStream)
	}
	if err := e.subscribe(); err != nil {
		return err
	}
	m, err := e.startMonitor()
	if err != nil {
		return err
	}
	e.monitor = m
	for _, nc := range []*nats.Conn{e.cfg.Conn, e.cfg.System} {
		if nc == nil {
			continue
		}
		if err := flush(ctx, nc); err != nil {
			return messages.Errorf(messages.CodeUnavailable, "the subscriptions of the edge are not confirmed: %v", err)
		}
	}
	return nil
}

// OpenMonitor lets monitors ask, and nobody else: for a standby. Without a connection at the moment it returns all the same;
// the server hears of the subscriptions when there is one again.
func (e *Edge) OpenMonitor(ctx context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.opened || e.stopped {
		return messages.Errorf(messages.CodeInternal, "the edge is opened once")
	}
	e.opened = true
	m, err := e.startMonitor()
	if err != nil {
		return err
	}
	e.monitor = m
	if err := flush(ctx, e.cfg.Conn); err != nil {
		if e.cfg.Conn.IsClosed() {
			return messages.Errorf(messages.CodeUnavailable, "the subscriptions of the edge are not confirmed: %v", err)
		}
		e.cfg.Logger.Warn().Err(err).Msg("the subscriptions of a standby are not confirmed yet")
	}
	return nil
}

// awaitLeadershipStream makes the stream of last values as soon as the servers can, and then fills it.
func (e *Edge) awaitLeadershipStream() {
	for e.life.Err() == nil {
		ctx, cancel := context.WithTimeout(e.life, streamTimeout)
		err := e.ensureLeadershipStream(ctx)
		cancel()
		if err == nil {
			e.refill()
			return
		}
		select {
		case <-e.life.Done():
		case <-time.After(time.Second):
		}
	}
}

// flushTimeout bounds the wait for a server that does not answer.
const flushTimeout = 10 * time.Second

func flush(ctx context.Context, nc *nats.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	return nc.FlushWithContext(ctx)
}

// StopIntake ends the subscriptions and waits until every request that had come in is answered, or the context ends.
// Requests that come later find nobody, which their senders learn at once.
func (e *Edge) StopIntake(ctx context.Context) error {
	e.mu.Lock()
	e.stopped = true
	subs := e.subs
	e.subs = nil
	m := e.monitor
	e.monitor = nil
	e.mu.Unlock()
	for _, s := range subs {
		if err := s.sub.Drain(); err != nil {
			s.ended() // the connection is closed: there is no callback any more
		}
	}
	m.stop()
	if err := waitFor(ctx, e.intake.Wait); err != nil {
		return err
	}
	for e.work.outstanding() > 0 || e.sessions.outstanding() > 0 {
		select {
		case <-ctx.Done():
			return messages.Errorf(messages.CodeUnavailable, "%d requests are without an answer", e.Outstanding())
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

// Close answers what is still open with UNAVAILABLE, writes what is queued and ends the goroutines of the edge. The
// context bounds the writing. The connections stay open.
func (e *Edge) Close(ctx context.Context) error {
	e.mu.Lock()
	intake := !e.stopped
	e.mu.Unlock()
	var errs []error
	if intake {
		errs = append(errs, e.StopIntake(ctx))
	}
	e.waiting.expire(time.Now().Add(time.Hour), messages.Errorf(messages.CodeUnavailable, "the controller is stopping"))
	e.out.close()
	e.endWork()
	errs = append(errs, waitFor(ctx, e.workers.Wait))
	if e.cfg.Conn.IsConnected() {
		errs = append(errs, flush(ctx, e.cfg.Conn))
	}
	return errors.Join(errs...)
}

func waitFor(ctx context.Context, wait func()) error {
	done := make(chan struct{})
	go func() {
		wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Outstanding returns how much admitted work is not answered yet.
func (e *Edge) Outstanding() int { return e.work.outstanding() + e.sessions.outstanding() }

// Reply takes an actor's answer to a request. A second answer, or one to a request that has timed out, is ignored.
func (e *Edge) Reply(r actors.Reply) { e.waiting.settle(r.To, r.Body, nil) }

// Fail answers a request that no actor has answered.
func (e *Edge) Fail(id actors.RequestID, err *messages.Error) {
	if err == nil {
		err = messages.Errorf(messages.CodeInternal, "the request failed without a reason")
	}
	e.waiting.settle(id, nil, err)
}

// address writes the address of an actor for people.
type address actors.Address

// String returns kind and name, "partition <topic id>/<index>".
func (a address) String() string {
	switch a.Kind {
	case actors.KindRegistry:
		return "registry"
	case actors.KindPlacer:
		return "placer"
	case actors.KindTopics:
		return "topics"
	case actors.KindPartition:
		return "partition " + a.Partition.String()
	case actors.KindOutbox:
		return "outbox " + string(a.Broker)
	}
	return "none"
}

// seen is the position that the edge speaks for.
func (e *Edge) seen() messages.Seen {
	return messages.Seen{Controller: e.epoch(), Sequence: e.cfg.Catalog.Applied()}
}

// epoch is the controller epoch that the edge speaks for.
func (e *Edge) epoch() messages.ControllerEpoch {
	if s := e.cfg.Standby; s != nil {
		return s.Epoch()
	}
	return e.cfg.Epoch
}

// send queues an answer. One that is larger than the server takes is replaced by an error that says so.
func (e *Edge) send(to string, body proto.Message, x *exchange, done func()) {
	h, data, err := encode(body, x.json)
	if limit := e.cfg.Conn.MaxPayload(); err == nil && limit > 0 && int64(len(data)) > limit {
		if shorter := abridged(body); shorter != nil {
			h, data, err = encode(shorter, x.json)
		}
		if err == nil && int64(len(data)) > limit {
			err = messages.Errorf(messages.CodeTooLarge, "the answer has %d bytes, NATS takes %d; the request itself has been served",
				len(data), limit)
		}
	}
	if err != nil {
		h, data, err = encode(x.failure(messages.AsError(err).Proto()), x.json)
	}
	if err != nil {
		e.cfg.Logger.Error().Err(err).Msg("an answer cannot be written")
		done()
		return
	}
	e.out.put(&nats.Msg{Subject: to, Header: h, Data: data}, done)
}

// write hands one message to the connection. While that is down, nothing is kept for later: askers ask again, brokers see
// a gap, and leadership is published anew after the reconnect.
func (e *Edge) write(m *nats.Msg) {
	if err := e.cfg.Conn.PublishMsg(m); err != nil {
		e.cfg.Logger.Debug().Err(err).Str("subject", m.Subject).Msg("message not published")
	}
}

// tick is the edge's clock: it fails what was asked too long ago.
func (e *Edge) tick() {
	t := time.NewTicker(max(10*time.Millisecond, min(time.Second, e.cfg.RequestTimeout/4)))
	defer t.Stop()
	for {
		select {
		case <-e.life.Done():
			return
		case <-t.C:
		}
		late := messages.Errorf(messages.CodeUnavailable, "no answer within %v; whether the request took effect is not known",
			e.cfg.RequestTimeout)
		if n := e.waiting.expire(time.Now().Add(-e.cfg.RequestTimeout), late); n > 0 {
			e.cfg.Logger.Warn().Int("requests", n).Msg("requests timed out")
		}
		if n := e.out.takeDropped(); n > 0 {
			e.cfg.Logger.Warn().Int("messages", n).Msg("messages dropped: the connection takes nothing")
		}
		if n := e.refused.Swap(0); n > 0 {
			e.cfg.Logger.Debug().Uint64("requests", n).Msg("requests refused")
		}
	}
}

// followConnection publishes every leadership anew after a reconnect, because what was published meanwhile is lost.
func (e *Edge) followConnection() {
	changed := e.cfg.Conn.StatusChanged(nats.CONNECTED)
	defer e.cfg.Conn.RemoveStatusListener(changed)
	for {
		select {
		case <-e.life.Done():
			return
		case <-changed:
		}
		ctx, cancel := context.WithTimeout(e.life, streamTimeout)
		if err := e.ensureLeadershipStream(ctx); err != nil {
			e.cfg.Logger.Warn().Err(err).Msg("leadership stream not checked after the reconnect")
		}
		cancel()
		e.publishAllLeadership()
	}
}
