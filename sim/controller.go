package sim

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/actors/outbox"
	"github.com/highwater-io/highwater/actors/partition"
	"github.com/highwater-io/highwater/actors/placer"
	"github.com/highwater-io/highwater/actors/registry"
	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// controller is the one controller process: it hosts the machines as the supervisor does. An actor handles one message at
// a time, and none while its records are on the way to the journal; effects leave only after that.
type controller struct {
	process
	committer *journal.Committer
	catalog   *journal.Catalog
	epoch     messages.ControllerEpoch
	hosts     map[actors.Address]*host
	commits   map[journal.Ticket]*commit
	tickets   journal.Ticket
	requests  map[actors.RequestID]func(proto.Message)
	asked     actors.RequestID
}

// host is one actor.
type host struct {
	address actors.Address
	body    body
	queue   []actors.Message
	held    bool // a commit is on its way
	running bool // a turn is planned
}

// commit is a step that waits for the journal.
type commit struct {
	host    *host
	effects actors.Effects
}

// body is a machine with its state.
type body interface {
	load(actors.Env, actors.Address) error
	step(actors.Env, actors.Message) actors.Effects
}

type machine[S any] struct {
	m actors.Machine[S]
	s S
}

func (b *machine[S]) load(env actors.Env, self actors.Address) (err error) {
	b.s, err = b.m.Load(env, self)
	return err
}

func (b *machine[S]) step(env actors.Env, msg actors.Message) (fx actors.Effects) {
	b.s, fx = b.m.Step(env, b.s, msg)
	return fx
}

func newBody(k actors.Kind) body {
	switch k {
	case actors.KindRegistry:
		return &machine[*registry.State]{m: registry.Machine{}}
	case actors.KindPlacer:
		return &machine[*placer.State]{m: placer.Machine{}}
	case actors.KindPartition:
		return &machine[*partition.State]{m: partition.Machine{}}
	case actors.KindOutbox:
		return &machine[*outbox.State]{m: outbox.Machine{}}
	}
	return nil
}

// start recovers the catalog from the journal, claims, and builds the actors.
func (c *controller) start() {
	w := c.w
	c.begin()
	ctx := context.Background()
	c.catalog = journal.NewCatalog()
	at, _, err := journal.Recover(ctx, w.store.log, c.catalog)
	if err != nil {
		w.violated("the journal cannot be recovered: %v", err)
		return
	}
	var also []messages.Record
	if c.catalog.Identity() == nil {
		also = append(also, &messages.Cluster{Name: "sim", ID: "sim-1", Settings: settings})
	}
	at, c.epoch, err = journal.Claim(ctx, w.store.log, c.catalog, at, "c1", also...)
	if err != nil {
		w.violated("the journal cannot be claimed: %v", err)
		return
	}
	w.check.follow()
	w.say("controller starts with epoch %d at %d", c.epoch, at.Last)
	c.committer = journal.NewCommitter(at, journal.Writer{Controller: "c1", Epoch: c.epoch}, journal.Limits{})
	c.hosts, c.commits = map[actors.Address]*host{}, map[journal.Ticket]*commit{}
	c.requests = map[actors.RequestID]func(proto.Message){}
	c.host(actors.Registry)
	c.host(actors.Placer)
	c.catalog.Partitions(func(_ *messages.Topic, p *messages.Partition) bool {
		c.host(actors.Partition(p.ID))
		return true
	})
}

// host brings up an actor; nil if it cannot be loaded.
func (c *controller) host(a actors.Address) *host {
	if h := c.hosts[a]; h != nil {
		return h
	}
	h := &host{address: a, body: newBody(a.Kind)}
	if h.body == nil || h.body.load(c.env(), a) != nil {
		return nil
	}
	c.hosts[a] = h
	c.post(h, actors.Activated{})
	return h
}

func (c *controller) env() actors.Env {
	return actors.Env{Now: c.w.now, WallUnixMs: c.w.now.Milliseconds(), Random: [2]uint64{c.w.rng.Uint64(), c.w.rng.Uint64()},
		Applied: c.catalog.Applied(), Controller: c.epoch, Cluster: c.catalog}
}

// tell delivers a message of an actor or of the edge.
func (c *controller) tell(a actors.Address, msg actors.Message) bool {
	if a == actors.Topics {
		c.topics(msg)
		return true
	}
	h := c.hosts[a]
	if h == nil && a.Kind == actors.KindOutbox && c.catalog.Brokers()[a.Broker] != nil {
		h = c.host(a)
	}
	if h == nil {
		return false
	}
	c.post(h, msg)
	return true
}

// topics starts and ends the actors of a topic.
func (c *controller) topics(msg actors.Message) {
	switch m := msg.(type) {
	case actors.EnsureTopic:
		c.catalog.PartitionsOfTopic(m.Topic, func(p *messages.Partition) bool {
			c.host(actors.Partition(p.ID))
			return true
		})
	case actors.DropTopic:
		for i := range int32(64) {
			c.tell(actors.Partition(messages.PartitionID{Topic: m.Topic, Index: i}), actors.TopicDeleted{})
		}
	}
}

func (c *controller) post(h *host, msg actors.Message) {
	h.queue = append(h.queue, msg)
	c.plan(h)
}

func (c *controller) plan(h *host) {
	if h.running || h.held || len(h.queue) == 0 {
		return
	}
	h.running = true
	c.timer(c.w.between(0, 200*time.Microsecond), "turn", func() { c.turn(h) })
}

// turn lets an actor decide on its next message.
func (c *controller) turn(h *host) {
	h.running = false
	if h.held || len(h.queue) == 0 || c.hosts[h.address] != h {
		return
	}
	msg := h.queue[0]
	h.queue = h.queue[1:]
	fx := h.body.step(c.env(), msg)
	c.w.sabotageRecords(fx.Records)
	if len(fx.Records) == 0 {
		c.release(h, fx)
		c.plan(h)
		return
	}
	c.tickets++
	if err := c.committer.Propose(c.tickets, fx.Records); err != nil {
		c.w.violated("the journal refuses what %v proposes: %v", h.address, err)
		return
	}
	fx.Records = nil
	if c.w.cfg.Faults.ReleaseBeforeCommit {
		c.release(h, fx)
		fx = actors.Effects{}
	}
	h.held = true
	c.commits[c.tickets] = &commit{h, fx}
	c.pump()
}

// pump gives the committer's next order to the store.
func (c *controller) pump() {
	var stamp journal.Stamp
	for i := range stamp.ID {
		stamp.ID[i] = byte(c.w.rng.Uint32())
	}
	stamp.WallUnixMs = c.w.now.Milliseconds()
	o, ok := c.committer.Next(stamp)
	if !ok {
		return
	}
	c.timer(o.Pause(), "order", func() { c.w.store.carryOut(&c.process, o, c.stored) })
}

// stored takes in an answer of the store: the catalog first, then what waited.
func (c *controller) stored(r journal.Result) {
	c.committer.Done(r)
	for _, done := range c.committer.Committed() {
		c.catalog.ApplyAt(done.At(), done.Records)
		w := c.commits[done.Ticket]
		if w == nil {
			continue
		}
		delete(c.commits, done.Ticket)
		w.host.held = false
		c.release(w.host, w.effects)
		c.plan(w.host)
	}
	if err := c.committer.Err(); err != nil {
		c.w.violated("the only controller was deposed: %v", err)
		return
	}
	c.pump()
}

// release lets the effects of a step out.
func (c *controller) release(h *host, fx actors.Effects) {
	for _, r := range fx.Replies {
		c.w.check.replied(r.Body)
		if done := c.requests[r.To]; done != nil {
			delete(c.requests, r.To)
			done(r.Body)
		}
	}
	for _, t := range fx.Tells {
		c.tell(t.To, t.Msg)
	}
	for _, b := range fx.Broadcast {
		c.catalog.PartitionsOf(b.Broker, func(p *messages.Partition) bool {
			c.tell(actors.Partition(p.ID), b.Msg)
			return true
		})
	}
	for _, p := range fx.Publish {
		c.publish(p)
	}
	for _, wake := range fx.Wakes {
		c.timer(wake.After, "wake", func() {
			if c.hosts[h.address] == h {
				c.post(h, wake.Msg)
			}
		})
	}
	if fx.Stop {
		delete(c.hosts, h.address)
	}
}

func (c *controller) publish(p actors.Publication) {
	switch p := p.(type) {
	case actors.PublishLeadership:
		c.w.check.published(p)
		for _, client := range c.w.clients {
			c.w.send(&c.process, &client.process, "leadership", func() { client.learn(p.Partition) })
		}
	case actors.PublishAssignments:
		for _, a := range p.Assignments {
			c.w.check.assigned(a)
		}
		for _, b := range c.w.brokers {
			if b.id == p.Broker {
				seen := &pb.Seen{ControllerEpoch: uint64(c.epoch), Sequence: uint64(c.catalog.Applied())}
				c.w.send(&c.process, &b.process, "assignments", func() { b.feedBatch(p, seen) })
			}
		}
	}
}
