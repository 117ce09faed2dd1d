package supervisor

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	cmap "github.com/orcaman/concurrent-map"
	"github.com/rs/zerolog"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/messages"
)

// stopGrace is how long Stop waits for the actors themselves when its context has ended already.
const stopGrace = 5 * time.Second

// Edge is where effects leave the tree. It is called from many goroutines at a time, in order for any one actor, and must
// not block: a call that waits keeps a worker of all actors. A panic in it is logged and goes no further.
type Edge interface {
	// Reply answers a request.
	Reply(actors.Reply)
	// Fail answers a request that no machine could answer.
	Fail(actors.RequestID, *messages.Error)
	// Publish publishes what is committed; seen is the position it rests on.
	Publish([]actors.Publication, messages.Seen)
	// Observe takes events for logs and metrics.
	Observe(actors.Address, []actors.Event)
}

// Config says what a tree is built from.
type Config struct {
	// Machines are the kinds of actors: KindRegistry, KindPlacer, KindPartition, KindOutbox. A kind may be missing; then
	// nothing can be told to it.
	Machines map[actors.Kind]Factory
	// Log is appended to from Position on, in the name of Controller with its claimed Epoch. Catalog is what the log holds
	// up to Position. Nobody else may append or apply while the tree is running.
	Log        journal.Log
	Catalog    *journal.Catalog
	Position   journal.Position
	Controller string
	Epoch      messages.ControllerEpoch

	// GrantValidity bounds the granting of leases to that long after the last entry that the log took was sent; Claimed is
	// when the claim was sent. 0 where no successor can begin while this one lives.
	GrantValidity time.Duration
	Claimed       time.Time
	// IdleTick has an empty entry appended when nothing else was for that long, which keeps grants valid and shows a writer
	// that was replaced that it was. 0 is never.
	IdleTick time.Duration

	Edge   Edge
	Logger zerolog.Logger
	Limits Limits
}

// Tree is a running tree of actors:
//
//	Start ──► serving ──Stop──► draining ──► stopped
//	             └──deposed, store lost, fault──► ended ──Stop──► stopped
//
// Its methods may be called from any goroutine.
type Tree struct {
	limits   Limits
	log      journal.Log
	catalog  *journal.Catalog
	epoch    messages.ControllerEpoch
	claimed  messages.Sequence // where the claim of this epoch stands in the log
	machines map[actors.Kind]Factory
	edge     Edge
	logger   zerolog.Logger

	system    *actor.ActorSystem
	root      *actor.PID
	strategy  *backoff
	pool      *pool
	apart     separately
	directory *directory
	journal   *journalActor
	topics    *topicsActor
	outboxes  *outboxesActor
	starting  starting
	crashes   throttle

	validity   time.Duration
	grantUntil atomic.Int64 // a time.Duration since origin; see actors.Env

	origin  time.Time
	active  atomic.Int64                   // messages at work, those with a commit on the way included
	idle    chan struct{}                  // told when active falls to 0 while the tree is ending
	refused atomic.Pointer[messages.Error] // why nothing is admitted any more; nil while serving

	mu     sync.Mutex
	failed map[actors.Address]struct{}
	err    error
	done   chan struct{}

	stopping sync.Once
	stopErr  error
	stopped  chan struct{} // closed when the last actor has stopped
}

func init() {
	// The library keeps its actors in 1,024 maps of SHARD_COUNT parts each. One part is enough with so many maps; the
	// usual 32 cost 3 MiB and 10 ms for each tree. The variable is read without a lock all the time, so it is set once,
	// before any system exists.
	cmap.SHARD_COUNT = 1
}

// Start builds a tree: one actor for every partition of the catalog, and the single ones. It returns when all of them have
// handled Activated and the records of that are committed; an actor that has failed by then is in Failed and does not
// prevent the start, unless it is the registry or the placer. Errors: INVALID_REQUEST for an incomplete configuration,
// INTERNAL when a single actor has failed, or what has ended the tree meanwhile.
func Start(c Config) (*Tree, error) {
	if c.Log == nil || c.Catalog == nil || c.Edge == nil || c.Epoch == 0 {
		return nil, messages.Errorf(messages.CodeInvalidRequest, "a tree needs a log, a catalog, an edge and a claimed epoch")
	}
	if _, has := c.Machines[actors.KindPartition]; !has && c.Catalog.TopicCount() > 0 {
		return nil, messages.Errorf(messages.CodeInvalidRequest, "the catalog has topics, but there is no machine for partitions")
	}
	t := &Tree{
		limits: c.Limits.withDefaults(), log: c.Log, catalog: c.Catalog, epoch: c.Epoch, claimed: c.Position.Last, machines: c.Machines,
		edge: c.Edge, logger: c.Logger, directory: newDirectory(), origin: time.Now(), idle: make(chan struct{}, 1),
		validity: c.GrantValidity, failed: map[actors.Address]struct{}{}, done: make(chan struct{}), stopped: make(chan struct{}),
	}
	t.granted(c.Claimed)
	t.starting.ready = make(chan struct{})
	t.strategy = &backoff{tree: t}
	t.pool = newPool(t.limits.Workers, t.limits.Quantum)
	t.apart = separately{quantum: t.limits.Quantum}
	t.system = newSystem(t)
	t.build(c)
	if err := t.awaitStart(); err != nil {
		ctx, cancel := context.WithTimeout(context.Background(), stopGrace)
		defer cancel()
		return nil, errors.Join(err, t.Stop(ctx))
	}
	if c.IdleTick > 0 {
		t.journal.tickEvery(c.IdleTick)
	}
	return t, nil
}

// build makes the actors that there is one of, and spawns the root, which spawns everything else.
func (t *Tree) build(c Config) {
	whole := t.starting.token()
	defer whole.release()
	t.journal = newJournalActor(t, c.Position, journal.Writer{Controller: c.Controller, Epoch: c.Epoch}, t.limits.Journal)
	single := func(a actors.Address) *host {
		f, has := c.Machines[a.Kind]
		if !has {
			return nil
		}
		h := newHost(t, a, f)
		h.expectFrom(whole)
		return h
	}
	t.directory.registry, t.directory.placer = single(actors.Registry), single(actors.Placer)
	t.outboxes = newOutboxesActor(t)
	var topics []messages.TopicID
	t.catalog.Topics(func(topic *messages.Topic) bool {
		topics = append(topics, topic.ID)
		return true
	})
	t.topics = newTopicsActor(t, topics)
	root := newRootActor(t)
	t.root = newNursery(t).spawn(t.system.Root, "hw", root, &root.mailbox)
}

func (t *Tree) awaitStart() error {
	select {
	case <-t.starting.ready:
	case <-t.done:
		return t.Err()
	}
	for _, h := range []*host{t.directory.registry, t.directory.placer} {
		if h != nil && h.failed.Load() {
			return messages.Errorf(messages.CodeInternal, "the %s cannot be started; see the log", addressName(h.address))
		}
	}
	return nil
}

// Tell sends a message to an actor. It never blocks. A nil error means that the message is admitted: if it is a request,
// it will be answered exactly once by Edge.Reply or Edge.Fail. With an error it was not taken, and the edge is not
// called: BUSY, UNAVAILABLE, NOT_ACTIVE_CONTROLLER, UNKNOWN_TOPIC_ID, UNKNOWN_PARTITION or UNKNOWN_BROKER. Only what comes
// from outside and may be sent again is ever refused as BUSY; see refusable.
func (t *Tree) Tell(to actors.Address, msg actors.Message) error {
	if refusal := t.refusal(); refusal != nil {
		return refusal
	}
	if to.Kind == actors.KindPartition && refusable(msg) && t.journal.backlog.Load() > int64(t.limits.Backlog) {
		return errBusy("too many changes wait for the journal")
	}
	if err := t.route(to, msg); err != nil {
		return err
	}
	return nil
}

// route finds the actor of an address and offers it the message.
func (t *Tree) route(to actors.Address, msg actors.Message) *messages.Error {
	if to.Kind == actors.KindTopics {
		if t.topics.mailbox.post(laneOrdinary, msg, 0) == closed {
			return t.gone()
		}
		return nil
	}
	h := t.directory.find(to)
	if h == nil && to.Kind == actors.KindOutbox {
		h = t.openOutbox(to)
	}
	if h == nil {
		return t.unknown(to)
	}
	return h.offer(msg)
}

// openOutbox makes the outbox of a registered broker. It takes messages at once, and handles them once it is spawned.
func (t *Tree) openOutbox(to actors.Address) *host {
	f, has := t.machines[actors.KindOutbox]
	if _, registered := t.catalog.Brokers()[to.Broker]; !has || !registered {
		return nil
	}
	h, added := t.directory.addOutbox(to.Broker, func() *host { return newHost(t, to, f) })
	if added && t.outboxes.mailbox.post(laneOrdinary, spawnOutbox{h}, 0) == closed {
		h.end()
	}
	return h
}

// unknown says why there is no actor at an address.
func (t *Tree) unknown(to actors.Address) *messages.Error {
	switch to.Kind {
	case actors.KindPartition:
		topic, known := t.catalog.Topic(to.Partition.Topic)
		if !known {
			return messages.Errorf(messages.CodeUnknownTopicID, "there is no topic with the id %s", to.Partition.Topic)
		}
		if to.Partition.Index < 0 || int(to.Partition.Index) >= topic.Partitions {
			return messages.Errorf(messages.CodeUnknownPartition, "the topic %q has %d partitions, none with the index %d",
				topic.Name, topic.Partitions, to.Partition.Index)
		}
	case actors.KindOutbox:
		if _, registered := t.catalog.Brokers()[to.Broker]; !registered {
			return messages.Errorf(messages.CodeUnknownBroker, "no broker is registered with the id %q", to.Broker)
		}
	}
	e := messages.Errorf(messages.CodeUnavailable, "the actor %q is not running", addressName(to))
	e.RetryAfterMs = 100
	return e
}

func (t *Tree) gone() *messages.Error {
	if e := t.refusal(); e != nil {
		return e
	}
	return messages.Errorf(messages.CodeUnavailable, "the controller is stopping")
}

// Failed returns the actors that have failed too often and are tried again once a minute, in no order.
func (t *Tree) Failed() []actors.Address {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]actors.Address, 0, len(t.failed))
	for a := range t.failed {
		all = append(all, a)
	}
	return all
}

// Done is closed when the tree serves no more: it has ended, or was stopped.
func (t *Tree) Done() <-chan struct{} { return t.done }

// Err returns why the tree has ended: *journal.Deposed, *journal.Broken, UNAVAILABLE when the log has taken nothing for
// Limits.AppendLimit, INTERNAL for a fault of the tree itself. Nil while it serves and after an ordinary stop.
func (t *Tree) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

// refusal returns why nothing is admitted any more, nil while the tree serves.
func (t *Tree) refusal() *messages.Error { return t.refused.Load() }

// end stops all decisions, at once. What is on the way to the journal is settled by the journal actor.
func (t *Tree) end(err error) {
	if err == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case <-t.done:
		return
	default:
	}
	t.err = err
	refusal := *messages.AsError(err)
	if refusal.Code != messages.CodeNotActiveController {
		refusal.Code = messages.CodeUnavailable
	}
	t.refused.Store(&refusal)
	close(t.done)
	t.logger.Error().Err(err).Msg("the controller ends")
}

// enter counts a message as being worked on, unless nothing is begun any more. Whoever has ended the tree and then finds
// nobody at work can be sure that nobody begins.
func (t *Tree) enter() *messages.Error {
	t.active.Add(1)
	if refusal := t.refusal(); refusal != nil {
		t.leave()
		return refusal
	}
	return nil
}

func (t *Tree) leave() {
	if t.active.Add(-1) == 0 && t.refusal() != nil {
		select {
		case t.idle <- struct{}{}:
		default:
		}
	}
}

// now is the monotonic time since the tree began.
func (t *Tree) now() time.Duration { return time.Since(t.origin) }

// env is what a machine may know in its next step. Applied is read before the machine reads the catalog, so the catalog
// is never older than Applied says.
func (t *Tree) env() actors.Env {
	now := time.Now()
	return actors.Env{
		Now: now.Sub(t.origin), WallUnixMs: now.UnixMilli(), Random: [2]uint64{rand.Uint64(), rand.Uint64()},
		Applied: t.catalog.Applied(), Controller: t.epoch, Claimed: t.claimed, Cluster: t.catalog, GrantUntil: time.Duration(t.grantUntil.Load()),
	}
}

// granted notes that the log took an entry that was sent at a time.
func (t *Tree) granted(sent time.Time) {
	if t.validity == 0 {
		return
	}
	until := max(1, int64(sent.Sub(t.origin)+t.validity)) // 0 would be without end
	for old := t.grantUntil.Load(); until > old && !t.grantUntil.CompareAndSwap(old, until); old = t.grantUntil.Load() {
	}
}
