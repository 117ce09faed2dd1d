package controller

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	js "github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/journal/jetstream"
	"github.com/highwater-io/highwater/messages"
)

// stopGrace bounds an orderly stop that nobody has asked for, and what is left of one whose context has ended.
const stopGrace = 5 * time.Second

// Controller is a running controller process.
type Controller struct {
	cfg     Config
	log     zerolog.Logger
	release func() // the lock of the data folder
	server  *natsServer
	conns   connections
	client  js.JetStream
	store   *storeWatch
	kept    journal.Snapshots
	purger  journal.Purger
	empty   journal.EmptyLog
	origin  time.Time

	// Of a process that shares its journal; nil or unused where it is alone.
	members   *members
	orders    chan order
	life      context.Context // ends when the process is to stop
	endLife   context.CancelFunc
	refreshed uint64        // reconnects of the edge's connection that are accounted for; see refresh
	claimed   atomic.Uint64 // the epoch that was claimed and has not ended, 0 for a standby
	governed  chan struct{} // closed when govern has returned; nil if it was not started

	stopping atomic.Bool
	unfit    atomic.Pointer[unfit] // why this build must not become active
	stuck    atomic.Bool           // the disk takes no writes: nothing that needs it is waited for
	stop     sync.Once
	stopErr  error
	done     chan struct{}
	failures chan error

	mu   sync.Mutex
	err  error
	term *term
}

// Start starts a controller and returns when it is ready. Alone, that is: it has claimed the journal, its actors are loaded
// and have reconciled themselves, and its subjects are open. One that shares its journal with others is ready as soon as it
// stands by; it becomes active when nobody else is. The context bounds the start only.
//
// Errors: INVALID_REQUEST for a bad configuration, with everything that is wrong; UNAVAILABLE when the data folder is in use, the
// port is taken, or NATS does not answer; CLUSTER_MISMATCH for a journal that is not the data folder's; *journal.Broken for a
// journal that must not be trusted; UNSUPPORTED_VERSION, of a process alone, when the build is too old for the journal;
// *journal.Conflict when another controller claims at the same time.
func Start(ctx context.Context, cfg Config) (*Controller, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	c := newController(cfg)
	began := time.Now()
	begin := c.share
	if c.alone() {
		begin = c.claim
	}
	for _, step := range []func(context.Context) error{c.lock, c.serve, c.watchDisk, c.connect, c.openJournal, c.restoreFirst, begin} {
		if err := step(ctx); err != nil {
			c.stopping.Store(true)
			bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
			defer cancel()
			return nil, errors.Join(err, c.shutdown(bounded))
		}
	}
	go c.watch()
	c.log.Info().Str("cluster", string(cfg.Cluster)).Str("url", withoutSecrets(c.URL())).Uint64("controller_epoch", uint64(c.Epoch())).
		Uint64("revision", uint64(c.current().catalog.Applied())).Dur("took", time.Since(began)).Msg("controller is ready")
	return c, nil
}

func newController(cfg Config) *Controller {
	c := &Controller{cfg: cfg, done: make(chan struct{}), failures: make(chan error, 1), term: &term{}, orders: make(chan order, 1),
		origin: time.Now(), log: cfg.Logger.With().Str("controller", cfg.Name).Logger(), release: func() {}}
	c.life, c.endLife = context.WithCancel(context.Background())
	return c
}

func (c *Controller) lock(context.Context) (err error) {
	if c.cfg.DataDir == "" {
		return nil
	}
	release, err := lockFolder(c.cfg.DataDir, c.cfg.Name)
	if err == nil {
		c.release = release
	}
	return err
}

func (c *Controller) serve(ctx context.Context) (err error) {
	if c.cfg.embedded() {
		c.server, err = startServer(ctx, c.cfg)
	}
	return err
}

// alone reports whether no other process may stand by for this one.
func (c *Controller) alone() bool { return !c.cfg.shared() }

// openJournal opens the journal and the store of its snapshots, or makes them. Servers that form a cluster need a while until
// they can.
func (c *Controller) openJournal(ctx context.Context) (err error) {
	if c.client, err = js.New(c.conns.journal); err != nil {
		return messages.Errorf(messages.CodeInternal, "JetStream context: %v", err)
	}
	for {
		if err = c.ensure(ctx); err == nil || c.alone() || fatal(err) {
			return err
		}
		c.log.Debug().Err(err).Msg("the journal's streams are not there yet")
		select {
		case <-ctx.Done():
			return err
		case <-time.After(openPause):
		}
	}
}

// How long one try to open a stream may take, and the pause between two. What is asked before the servers have found each
// other is never answered, so tries are short.
const (
	openPatience = 3 * time.Second
	openPause    = 200 * time.Millisecond
)

func (c *Controller) ensure(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, openPatience)
	entries, err := jetstream.Ensure(bounded, c.client, c.cfg.Cluster, c.cfg.JournalReplicas)
	cancel()
	if err != nil {
		return err
	}
	bounded, cancel = context.WithTimeout(ctx, openPatience)
	defer cancel()
	kept, err := jetstream.EnsureSnapshots(bounded, c.client, c.cfg.Cluster, c.cfg.JournalReplicas)
	if err != nil {
		return err
	}
	c.store, c.kept, c.purger, c.empty = &storeWatch{Log: entries}, kept, entries, entries
	if c.cfg.wrapLog != nil {
		c.store.Log = c.cfg.wrapLog(entries)
	}
	if c.cfg.wrapSnapshots != nil {
		c.kept = c.cfg.wrapSnapshots(kept)
	}
	return nil
}

// now is the monotonic time since the process began.
func (c *Controller) now() time.Duration { return time.Since(c.origin) }

// claim recovers the catalog and makes this controller the only writer of the journal. An empty journal becomes a new
// cluster, unless the data folder knows better.
func (c *Controller) claim(ctx context.Context) error {
	catalog := c.newCatalog()
	from, err := c.recover(ctx, catalog)
	if err != nil {
		return err
	}
	also, err := c.identity(catalog, from.At)
	if err != nil {
		return err
	}
	by := claimed{sent: time.Now(), from: from}
	if by.at, by.epoch, err = journal.Claim(ctx, c.store, catalog, from.At, c.cfg.Name, also...); err != nil {
		return err
	}
	if err := c.remember(catalog); err != nil {
		return err
	}
	t, err := c.begin(ctx, catalog, by)
	if err == nil {
		c.enter(t)
	}
	return err
}

// share begins the life of a process among others: as a standby.
func (c *Controller) share(ctx context.Context) error {
	s := c.newStandby()
	if err := s.recover(ctx); err != nil {
		return err
	}
	if err := c.remember(s.catalog); err != nil {
		return err
	}
	var err error
	if c.members, err = startMembers(ctx, c); err != nil {
		return err
	}
	t, err := c.watchAsStandby(ctx, s)
	if err != nil {
		return err
	}
	c.enter(t)
	c.governed = make(chan struct{})
	go c.govern(s, t)
	return nil
}

// remember marks the data folder with the id of the cluster, once it has one.
func (c *Controller) remember(catalog *journal.Catalog) error {
	if id := catalog.Identity(); id != nil && c.cfg.DataDir != "" {
		return writeMark(c.cfg.DataDir, id.ID)
	}
	return nil
}

// recover rebuilds an empty catalog from the newest good snapshot and the journal behind it.
func (c *Controller) recover(ctx context.Context, catalog *journal.Catalog) (journal.Recovery, error) {
	began, before := time.Now(), c.store.bytes.Load()
	r, err := journal.RecoverFrom(ctx, c.store, c.kept, catalog)
	for _, u := range r.Unusable {
		c.log.Error().Uint64("revision", uint64(u.At)).Err(u.Err).Msg("a snapshot cannot be used; going on with the one before")
	}
	if err != nil {
		return r, err
	}
	c.log.Info().Uint64("snapshot", uint64(r.From.At.Last)).Int64("snapshot_bytes", r.From.Bytes).Uint64("replayed", r.Replayed).
		Int64("replayed_bytes", c.store.bytes.Load()-before).Uint64("revision", uint64(r.At.Last)).Dur("took", time.Since(began)).
		Msg("the catalog is recovered")
	if damage, n := catalog.Damaged(); n > 0 {
		c.log.Error().Int("records", n).Stringer("first", damage[0]).Msg("the journal holds records that cannot be used; they are left out")
	}
	return r, nil
}

// identity returns the record of a new cluster for an empty journal, and checks the one that an older journal has.
func (c *Controller) identity(catalog *journal.Catalog, at journal.Position) ([]messages.Record, error) {
	known := catalog.Identity()
	if known == nil && at.Last > 0 {
		return nil, messages.Errorf(messages.CodeClusterMismatch, "the journal has %d entries but names no cluster", at.Last)
	}
	id := ""
	if known != nil {
		id = known.ID
		if known.Name != c.cfg.Cluster {
			return nil, messages.Errorf(messages.CodeClusterMismatch, "the journal is of cluster %q, not %q", known.Name, c.cfg.Cluster)
		}
		if err := c.checkVersion(known); err != nil {
			return nil, err
		}
		if known.Settings != c.cfg.Settings && c.cfg.Settings != messages.DefaultSettings() {
			c.log.Warn().Msg("the cluster exists already and keeps its settings; those given are not used")
		}
	}
	if c.cfg.DataDir != "" {
		if err := checkMark(c.cfg.DataDir, id); err != nil {
			return nil, err
		}
	}
	if known != nil {
		return nil, nil
	}
	fresh := &messages.Cluster{Name: c.cfg.Cluster, ID: newClusterID(), Settings: c.cfg.Settings, Store: newClusterID(), Version: c.cfg.versions.Max}
	c.log.Debug().Str("cluster_id", fresh.ID).Msg("the journal is empty: a claim begins a new cluster")
	return []messages.Record{fresh}, nil
}

// watch ends the controller when a part of it has ended by itself.
func (c *Controller) watch() {
	if c.server != nil {
		go func() {
			c.server.server.WaitForShutdown()
			if !c.stopping.Load() {
				c.fail(messages.Errorf(messages.CodeUnavailable, "the embedded NATS server has ended"))
			}
		}()
	}
	var err error
	var ended <-chan struct{} // among others the end of a tree is only the end of a term
	if c.alone() {
		ended = c.current().tree.Done()
	}
	select {
	case <-c.done:
		return
	case <-ended:
		if err = c.current().tree.Err(); err == nil {
			return // stopped in order
		}
	case err = <-c.failures:
	}
	c.mu.Lock()
	c.err = err
	c.mu.Unlock()
	c.log.Error().Err(err).Msg("the controller ends")
	ctx, cancel := context.WithTimeout(context.Background(), stopGrace)
	defer cancel()
	if err := c.Stop(ctx); err != nil {
		c.log.Error().Err(err).Msg("the controller did not stop in order")
	}
}

// fail ends the controller with an error; the first one counts.
func (c *Controller) fail(err error) {
	select {
	case c.failures <- err:
	default:
	}
}

// URL returns where brokers and clients connect.
func (c *Controller) URL() string {
	if c.server != nil {
		return c.server.server.ClientURL()
	}
	return c.cfg.NATSURL
}

// Epoch returns the controller epoch of this activation, 0 of a standby.
func (c *Controller) Epoch() messages.ControllerEpoch { return c.current().epoch }

// Active reports whether this process is the active controller, as far as it knows.
func (c *Controller) Active() bool { return c.current().active }

// Ready returns nil while the controller can decide, and why it cannot otherwise.
func (c *Controller) Ready() error {
	if c.stopping.Load() {
		return messages.Errorf(messages.CodeUnavailable, "the controller is stopping")
	}
	if err := c.Err(); err != nil {
		return err
	}
	if !c.conns.edge.IsConnected() || !c.conns.journal.IsConnected() {
		return messages.Errorf(messages.CodeUnavailable, "the controller is not connected to NATS")
	}
	if !c.Active() {
		return messages.Errorf(messages.CodeNotActiveController, "this process stands by")
	}
	if p := c.store.problem(); p != "" {
		return messages.Errorf(messages.CodeUnavailable, "%s", p)
	}
	return nil
}

// Inquire answers a question of monitoring as the service would: the JSON of "health", "topic.<name>" and so on.
func (c *Controller) Inquire(what string, q messages.ListQuery) ([]byte, error) {
	t := c.current()
	if t.edge == nil {
		return nil, messages.Errorf(messages.CodeUnavailable, "the controller changes its role")
	}
	return t.edge.Inquire(what, q)
}

// Stop stops the controller in order: no more requests, answers to those that were admitted, commits of what was decided,
// then connections and server. The context bounds the waiting; when it ends, the rest is stopped all the same and its
// error returned. Further calls wait for the first and return the same.
func (c *Controller) Stop(ctx context.Context) error {
	c.stop.Do(func() {
		c.stopping.Store(true)
		c.stopErr = c.shutdown(ctx)
		close(c.done)
	})
	return c.stopErr
}

// shutdown stops whatever has been started.
func (c *Controller) shutdown(ctx context.Context) error {
	c.endLife()
	var err error
	if c.stuck.Load() { // nothing more can be decided or handed over
		bounded, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		ctx = bounded
	}
	if c.governed != nil {
		select {
		case <-c.governed: // it has handed over if it was active
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	err = errors.Join(err, c.current().end(ctx))
	if c.members != nil {
		c.members.close()
	}
	c.conns.close()
	if c.server != nil {
		err = errors.Join(err, c.server.stop(!c.stuck.Load()))
	}
	c.release()
	return err
}

// Done is closed when the controller has stopped, for whatever reason.
func (c *Controller) Done() <-chan struct{} { return c.done }

// Err returns why the controller has ended by itself; nil while it runs and after an ordinary Stop.
func (c *Controller) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}
