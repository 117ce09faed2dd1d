package controller

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	js "github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/actors/outbox"
	"github.com/highwater-io/highwater/actors/partition"
	"github.com/highwater-io/highwater/actors/placer"
	"github.com/highwater-io/highwater/actors/registry"
	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/journal/jetstream"
	"github.com/highwater-io/highwater/messages"
	"github.com/highwater-io/highwater/natsbus"
	"github.com/highwater-io/highwater/placement"
	"github.com/highwater-io/highwater/supervisor"
)

// stopGrace bounds an orderly stop that nobody has asked for, and what is left of one whose context has ended.
const stopGrace = 5 * time.Second

// grantValidity is for how long a controller elsewhere may go on granting leases after its last append. With the embedded
// server there is none: the lock of the data folder says so.
const grantValidity = 4 * time.Second

// Controller is a running controller process.
type Controller struct {
	cfg     Config
	log     zerolog.Logger
	release func() // the lock of the data folder
	server  *natsServer
	conns   connections
	store   *storeWatch
	catalog *journal.Catalog
	epoch   messages.ControllerEpoch
	edge    edge
	tree    tree
	shots   *snapshotter // nil until the journal is claimed
	from    journal.Recovery
	exports *exporter // nil until the edge is open

	stopping atomic.Bool
	stop     sync.Once
	stopErr  error
	done     chan struct{}
	failures chan error

	mu  sync.Mutex
	err error
}

// Start starts a controller and returns when it is ready: it has claimed the journal, its actors are loaded and have
// reconciled themselves, and its subjects are open. The context bounds the start only.
//
// Errors: INVALID_REQUEST for a bad configuration, with everything that is wrong; UNAVAILABLE when the data folder is in use, the
// port is taken, or NATS does not answer; CLUSTER_MISMATCH for a journal that is not the data folder's; *journal.Broken for a
// journal that must not be trusted; *journal.Conflict when another controller claims at the same time.
func Start(ctx context.Context, cfg Config) (*Controller, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	c := &Controller{cfg: cfg, done: make(chan struct{}), failures: make(chan error, 1), catalog: journal.NewCatalog(),
		log: cfg.Logger.With().Str("controller", cfg.Name).Logger(), release: func() {}}
	began := time.Now()
	for _, step := range []func(context.Context) error{c.lock, c.serve, c.connect, c.claim, c.act} {
		if err := step(ctx); err != nil {
			c.stopping.Store(true)
			bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
			defer cancel()
			return nil, errors.Join(err, c.shutdown(bounded))
		}
	}
	go c.watch()
	c.log.Info().Str("cluster", string(cfg.Cluster)).Str("url", c.URL()).Uint64("controller_epoch", uint64(c.epoch)).
		Uint64("revision", uint64(c.catalog.Applied())).Dur("took", time.Since(began)).Msg("controller is ready")
	return c, nil
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

// claim recovers the catalog and makes this controller the only writer of the journal. An empty journal becomes a new
// cluster, unless the data folder knows better.
func (c *Controller) claim(ctx context.Context) error {
	shots, err := c.openJournal(ctx)
	if err != nil {
		return err
	}
	at, err := c.recover(ctx, shots)
	if err != nil {
		return err
	}
	also, err := c.identity(at)
	if err != nil {
		return err
	}
	if at, c.epoch, err = journal.Claim(ctx, c.store, c.catalog, at, c.cfg.Name, also...); err != nil {
		return err
	}
	if c.cfg.DataDir != "" {
		if err := writeMark(c.cfg.DataDir, c.catalog.Identity().ID); err != nil {
			return err
		}
	}
	shots.start()
	c.shots, c.store.grown = shots, shots.grow
	return c.plant(ctx, at)
}

// openJournal opens the journal and the store of its snapshots.
func (c *Controller) openJournal(ctx context.Context) (*snapshotter, error) {
	client, err := js.New(c.conns.journal)
	if err != nil {
		return nil, messages.Errorf(messages.CodeInternal, "JetStream context: %v", err)
	}
	entries, err := jetstream.Ensure(ctx, client, c.cfg.Cluster, c.cfg.JournalReplicas)
	if err != nil {
		return nil, err
	}
	kept, err := jetstream.EnsureSnapshots(ctx, client, c.cfg.Cluster, c.cfg.JournalReplicas)
	if err != nil {
		return nil, err
	}
	c.store = &storeWatch{Log: entries}
	if c.cfg.wrapLog != nil {
		c.store.Log = c.cfg.wrapLog(entries)
	}
	shots := &snapshotter{cfg: c.cfg, catalog: c.catalog, store: kept, log: entries, written: c.store.bytes.Load,
		logger: c.log.With().Str("part", "snapshots").Logger()}
	if c.cfg.wrapSnapshots != nil {
		shots.store = c.cfg.wrapSnapshots(kept)
	}
	return shots, nil
}

// recover rebuilds the catalog from the newest good snapshot and the journal behind it.
func (c *Controller) recover(ctx context.Context, shots *snapshotter) (journal.Position, error) {
	began := time.Now()
	r, err := journal.RecoverFrom(ctx, c.store, shots.store, c.catalog)
	for _, u := range r.Unusable {
		c.log.Error().Uint64("revision", uint64(u.At)).Err(u.Err).Msg("a snapshot cannot be used; going on with the one before")
	}
	if err != nil {
		return r.At, err
	}
	c.from = r
	shots.good = r.From.At.Last
	c.log.Info().Uint64("snapshot", uint64(r.From.At.Last)).Int64("snapshot_bytes", r.From.Bytes).Uint64("replayed", r.Replayed).
		Int64("replayed_bytes", c.store.bytes.Load()).Uint64("revision", uint64(r.At.Last)).Dur("took", time.Since(began)).
		Msg("the catalog is recovered")
	if damage, n := c.catalog.Damaged(); n > 0 {
		c.log.Error().Int("records", n).Stringer("first", damage[0]).Msg("the journal holds records that cannot be used; they are left out")
	}
	return r.At, nil
}

// identity returns the record of a new cluster for an empty journal, and checks the one that an older journal has.
func (c *Controller) identity(at journal.Position) ([]messages.Record, error) {
	known := c.catalog.Identity()
	if known == nil && at.Last > 0 {
		return nil, messages.Errorf(messages.CodeClusterMismatch, "the journal has %d entries but names no cluster", at.Last)
	}
	id := ""
	if known != nil {
		id = known.ID
		if known.Name != c.cfg.Cluster {
			return nil, messages.Errorf(messages.CodeClusterMismatch, "the journal is of cluster %q, not %q", known.Name, c.cfg.Cluster)
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
	fresh := &messages.Cluster{Name: c.cfg.Cluster, ID: newClusterID(), Settings: c.cfg.Settings, Store: newClusterID()}
	c.log.Info().Str("cluster_id", fresh.ID).Msg("the journal is empty: a new cluster begins")
	return []messages.Record{fresh}, nil
}

// plant makes the edge, and the tree of actors that speaks through it.
func (c *Controller) plant(ctx context.Context, at journal.Position) error {
	e, err := natsbus.New(ctx, natsbus.Config{
		Conn: c.conns.edge, System: c.conns.system, Cluster: c.cfg.Cluster, Controller: c.cfg.Name, Epoch: c.epoch,
		Catalog: c.catalog, Logger: c.log.With().Str("part", "edge").Logger(), Racks: racks, Problems: c.problems,
		MaxOutstanding: c.cfg.MaxOutstanding, RequestTimeout: c.cfg.RequestTimeout,
	})
	if err != nil {
		return err
	}
	c.edge = e
	sessions := registry.Machine{}
	if !c.cfg.embedded() {
		sessions.GrantValidity = grantValidity
	}
	t, err := supervisor.Start(supervisor.Config{
		Machines: map[actors.Kind]supervisor.Factory{
			actors.KindRegistry:  supervisor.Host[*registry.State](sessions),
			actors.KindPlacer:    supervisor.Host[*placer.State](placer.Machine{}),
			actors.KindPartition: supervisor.Host[*partition.State](partition.Machine{}),
			actors.KindOutbox:    supervisor.Host[*outbox.State](outbox.Machine{}),
		},
		Log: c.store, Catalog: c.catalog, Position: at, Controller: c.cfg.Name, Epoch: c.epoch, Edge: e,
		Logger: c.log.With().Str("part", "actors").Logger(),
		Limits: supervisor.Limits{AppendTimeout: c.cfg.AppendTimeout, AppendLimit: c.cfg.AppendLimit},
	})
	if err != nil {
		return err
	}
	c.tree = t
	return nil
}

// act opens the edge.
func (c *Controller) act(ctx context.Context) (err error) {
	if c.exports, err = startExporter(c.conns.edge, c.cfg.Cluster, c.catalog); err != nil {
		return err
	}
	return c.edge.Open(ctx, c.tree) // which also waits until the server knows of every subscription
}

// racks judges replica sets by the racks of the brokers.
func racks(brokers map[messages.BrokerID]*messages.Broker) func([]messages.BrokerID) bool {
	s := placement.Snapshot{Brokers: make([]placement.Broker, 0, len(brokers))}
	for _, b := range brokers {
		s.Brokers = append(s.Brokers, placement.BrokerOf(b, 0, 0))
	}
	judge := placement.NewRacks(s)
	return func(replicas []messages.BrokerID) bool { return judge.Check(replicas).Violated }
}

// problems are the reasons for which this process is not well.
func (c *Controller) problems() []messages.HealthReason {
	var out []messages.HealthReason
	if p := c.store.problem(); p != "" {
		out = append(out, messages.HealthReason{Code: "STORE_UNAVAILABLE", Count: 1, Detail: p})
	}
	if _, n := c.catalog.Damaged(); n > 0 {
		out = append(out, messages.HealthReason{Code: "JOURNAL_DAMAGED", Count: n, Detail: "records of the journal that cannot be used"})
	}
	if n, why := c.shots.problem(); n > 0 {
		out = append(out, messages.HealthReason{Code: "SNAPSHOTS_FAILING", Count: n, Detail: why})
	}
	return out
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
	select {
	case <-c.done:
		return
	case <-c.tree.Done():
		if err = c.tree.Err(); err == nil {
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

// Epoch returns the controller epoch of this activation.
func (c *Controller) Epoch() messages.ControllerEpoch { return c.epoch }

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
	if p := c.store.problem(); p != "" {
		return messages.Errorf(messages.CodeUnavailable, "%s", p)
	}
	return nil
}

// Inquire answers a question of monitoring as the service would: the JSON of "health", "topic.<name>" and so on.
func (c *Controller) Inquire(what string, q messages.ListQuery) ([]byte, error) {
	return c.edge.Inquire(what, q)
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
	var errs []error
	try := func(step func(context.Context) error) {
		bounded, cancel := context.WithCancel(ctx)
		if ctx.Err() != nil { // the time is up: still end it, but without patience
			bounded, cancel = context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		}
		defer cancel()
		errs = append(errs, step(bounded))
	}
	if c.exports != nil {
		c.exports.stop()
	}
	if c.edge != nil {
		try(c.edge.StopIntake)
	}
	if c.tree != nil {
		try(c.tree.Stop)
	}
	if c.shots != nil {
		c.shots.stop(ctx, c.Err() == nil)
	}
	if c.edge != nil {
		try(c.edge.Close)
	}
	c.conns.close()
	if c.server != nil {
		c.server.stop()
	}
	c.release()
	return errors.Join(errs...)
}

// Done is closed when the controller has stopped, for whatever reason.
func (c *Controller) Done() <-chan struct{} { return c.done }

// Err returns why the controller has ended by itself; nil while it runs and after an ordinary Stop.
func (c *Controller) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}
