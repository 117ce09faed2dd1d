package controller

import (
	"context"
	"errors"
	"time"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/actors/outbox"
	"github.com/highwater-io/highwater/actors/partition"
	"github.com/highwater-io/highwater/actors/placer"
	"github.com/highwater-io/highwater/actors/registry"
	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/messages"
	"github.com/highwater-io/highwater/natsbus"
	"github.com/highwater-io/highwater/placement"
	"github.com/highwater-io/highwater/supervisor"
)

// grantValidity is for how long the active controller may go on granting leases after it sent the last entry that the
// journal took.
const grantValidity = 4 * time.Second

// term is one stretch of time in one role: as a standby it has a catalog and an edge for monitors, as the active
// controller also an epoch and the tree. Its catalog is never used by a term after one that was active.
type term struct {
	active  bool
	catalog *journal.Catalog
	store   *storeWatch
	epoch   messages.ControllerEpoch // 0 for a standby
	handed  bool                     // the predecessor had released the journal
	settled time.Duration            // from then on no predecessor can be granting anything; since c.origin
	edge    edge
	tree    tree // nil for a standby

	// Of the active controller: what takes snapshots and gives them out, and what its catalog was rebuilt from.
	shots   *snapshotter
	exports *exporter
	ahead   *aheadWatch
	from    journal.Recovery
}

// claimed is what a successful claim leaves.
type claimed struct {
	at    journal.Position
	epoch messages.ControllerEpoch
	sent  time.Time // before the claim was sent
	// handed: the predecessor has released the journal, and grants nothing any more.
	handed bool
	from   journal.Recovery
}

// current returns the term that is on; before the first one it is an empty one.
func (c *Controller) current() *term {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.term
}

func (c *Controller) enter(t *term) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.term = t
}

// edgeConfig is what the edges of both roles have in common.
func (c *Controller) edgeConfig(t *term) natsbus.Config {
	cfg := natsbus.Config{
		Conn: c.conns.edge, System: c.conns.system, Cluster: c.cfg.Cluster, Controller: c.cfg.Name, Epoch: t.epoch,
		Catalog: t.catalog, Logger: c.log.With().Str("part", "edge").Logger(), Racks: racks,
		Problems:       func() []messages.HealthReason { return t.problems() },
		MaxOutstanding: c.cfg.MaxOutstanding, RequestTimeout: c.cfg.RequestTimeout,
	}
	cfg.Known, cfg.Controllers = c.cfg.versions, func() []messages.ControllerView { return c.itself(t) }
	if c.members != nil {
		cfg.Controllers = c.members.list
		cfg.StreamReplicas = c.cfg.JournalReplicas
	}
	return cfg
}

// begin makes the active term: the edge, the tree of actors that speaks through it, then the way in, and snapshots.
func (c *Controller) begin(ctx context.Context, catalog *journal.Catalog, by claimed) (*term, error) {
	t := &term{active: true, catalog: catalog, store: c.store, epoch: by.epoch, handed: by.handed, shots: c.newSnapshotter(catalog, by), from: by.from}
	if t.settled = c.now(); !by.handed && by.epoch > 1 {
		t.settled += registry.Wait(grantValidity)
	}
	e, err := natsbus.New(ctx, c.edgeConfig(t))
	if err != nil {
		return nil, err
	}
	t.edge = e
	t.ahead = &aheadWatch{edge: e, log: c.log}
	config := supervisor.Config{
		Log: c.store, Catalog: catalog, Position: by.at, Controller: c.cfg.Name, Epoch: by.epoch, Edge: t.ahead, Claimed: by.sent,
		Logger: c.log.With().Str("part", "actors").Logger(),
		Limits: supervisor.Limits{AppendTimeout: c.cfg.AppendTimeout, AppendLimit: c.cfg.AppendLimit},
	}
	sessions := registry.Machine{Known: c.cfg.versions, AwaitOpen: true}
	if !c.alone() {
		config.GrantValidity, config.IdleTick = grantValidity, c.cfg.IdleTick
		if !by.handed {
			sessions.GrantValidity = grantValidity
		}
	}
	config.Machines = map[actors.Kind]supervisor.Factory{
		actors.KindRegistry:  supervisor.Host[*registry.State](nextForms(sessions)),
		actors.KindPlacer:    supervisor.Host[*placer.State](placer.Machine{}),
		actors.KindPartition: supervisor.Host[*partition.State](partition.Machine{}),
		actors.KindOutbox:    supervisor.Host[*outbox.State](outbox.Machine{}),
	}
	tr, err := supervisor.Start(config)
	if err == nil {
		t.tree = tr
		t.exports, err = startExporter(c.conns.edge, c.cfg.Cluster, catalog)
	}
	if err == nil {
		err = e.Open(ctx, t.tree) // which also waits until the server knows of every subscription
	}
	if err == nil {
		err = t.tree.Tell(actors.Registry, actors.Opened{})
	}
	if err != nil {
		return nil, errors.Join(err, t.end(ctx))
	}
	t.shots.start()
	c.store.watch(t.shots.grow)
	return t, nil
}

// newSnapshotter makes what takes snapshots in an active term. Alone, the newest good one is known from recovering; where
// others have been active meanwhile, it has to be looked for.
func (c *Controller) newSnapshotter(catalog *journal.Catalog, by claimed) *snapshotter {
	s := &snapshotter{cfg: c.cfg, catalog: catalog, store: c.kept, log: c.purger, written: c.store.bytes.Load,
		logger: c.log.With().Str("part", "snapshots").Logger()}
	if c.alone() {
		s.good, s.parting = by.from.From.At.Last, func() bool { return c.Err() == nil }
	} else {
		s.base, s.adopts = c.store.bytes.Load(), true
	}
	return s
}

// watchAsStandby makes the term of a standby, which answers monitors.
func (c *Controller) watchAsStandby(ctx context.Context, s *standby) (*term, error) {
	t := &term{catalog: s.catalog, store: c.store}
	cfg := c.edgeConfig(t)
	cfg.System = nil
	cfg.Standby = &natsbus.Standby{Epoch: func() messages.ControllerEpoch { return s.catalog.Claimed().Epoch }, Age: s.age}
	e, err := natsbus.New(ctx, cfg)
	if err != nil {
		return nil, err
	}
	t.edge = e
	if err := e.OpenMonitor(ctx); err != nil {
		return nil, errors.Join(err, t.end(ctx))
	}
	return t, nil
}

// end stops what has been started: no more requests, answers to those that were admitted, commits of what was decided.
// When the context ends, the rest is stopped without patience.
func (t *term) end(ctx context.Context) error {
	var errs []error
	try := func(step func(context.Context) error) {
		bounded, cancel := context.WithCancel(ctx)
		if ctx.Err() != nil { // the time is up: still end it, but without patience
			bounded, cancel = context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		}
		defer cancel()
		errs = append(errs, step(bounded))
	}
	if t.exports != nil {
		t.exports.stop()
	}
	if t.edge != nil {
		try(t.edge.StopIntake)
	}
	if t.tree != nil {
		try(t.tree.Stop)
	}
	if t.shots != nil {
		t.store.watch(nil)
		t.shots.stop(ctx)
	}
	if t.edge != nil {
		try(t.edge.Close)
	}
	return errors.Join(errs...)
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
func (t *term) problems() []messages.HealthReason {
	var out []messages.HealthReason
	if p := t.store.problem(); p != "" {
		out = append(out, messages.HealthReason{Code: "STORE_UNAVAILABLE", Count: 1, Detail: p})
	}
	if _, n := t.catalog.Damaged(); n > 0 {
		out = append(out, messages.HealthReason{Code: "JOURNAL_DAMAGED", Count: n, Detail: "records of the journal that cannot be used"})
	}
	if t.ahead != nil {
		if n, why := t.ahead.problem(); n > 0 {
			out = append(out, messages.HealthReason{Code: string(messages.CodeStoreWentBack), Count: n, Detail: why})
		}
	}
	if t.shots != nil {
		if n, why := t.shots.problem(); n > 0 {
			out = append(out, messages.HealthReason{Code: "SNAPSHOTS_FAILING", Count: n, Detail: why})
		}
	}
	return out
}
