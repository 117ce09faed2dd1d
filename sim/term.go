package sim

import (
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

// term is the active time of a controller: it hosts the machines as the supervisor does. An actor handles one message at
// a time, and none while its records are on the way to the journal; effects leave only after that.
type term struct {
	*controller
	committer  *journal.Committer
	epoch      messages.ControllerEpoch
	claimed    messages.Sequence // where its claim is
	grantUntil time.Duration     // by its own clock; 0 is without end
	hosts      map[actors.Address]*host
	commits    map[journal.Ticket]*commit
	tickets    journal.Ticket
	requests   map[actors.RequestID]func(proto.Message)
	asked      actors.RequestID
	waits      int           // counts the times that something began to wait for the journal
	patient    bool          // something waits
	beginning  bool          // the actors of a takeover are being made
	quiet      bool          // nothing was proposed since the last idle tick
	settled    time.Duration // from then on no predecessor can be granting anything
	closed     bool          // nothing more is admitted
	over       bool          // nothing more is decided
	shots      snapshotter
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

func newBody(k actors.Kind, sessions registry.Machine) body {
	switch k {
	case actors.KindRegistry:
		return &machine[*registry.State]{m: sessions}
	case actors.KindPlacer:
		return &machine[*placer.State]{m: placer.Machine{}}
	case actors.KindPartition:
		return &machine[*partition.State]{m: partition.Machine{}}
	case actors.KindOutbox:
		return &machine[*outbox.State]{m: outbox.Machine{}}
	}
	return nil
}

func newTerm(c *controller, epoch messages.ControllerEpoch) *term {
	return &term{controller: c, epoch: epoch, claimed: c.at.Last, hosts: map[actors.Address]*host{}, commits: map[journal.Ticket]*commit{},
		requests:  map[actors.RequestID]func(proto.Message){},
		committer: journal.NewCommitter(c.at, journal.Writer{Controller: c.name, Epoch: epoch}, journal.Limits{})}
}

// on reports whether this is still the term that its process is in.
func (t *term) on() bool { return t.controller.term == t }

// later plans something in this term.
func (t *term) later(d time.Duration, label string, run func()) {
	t.timer(d, label, func() {
		if t.on() {
			run()
		}
	})
}

// start builds the actors.
func (t *term) start(sent time.Duration, handed bool) {
	sessions := registry.Machine{}
	if !t.alone() {
		t.granted(sent)
		t.settled = t.local()
		if !handed && !t.w.cfg.Faults.FenceAtOnce {
			sessions.GrantValidity = grantValidity
		}
		if !handed && t.epoch > 1 && !t.w.cfg.Faults.HandOverAtOnce {
			t.settled += registry.Wait(grantValidity)
		}
		t.idle()
	}
	t.beginning = true
	t.host(actors.Registry, sessions)
	t.host(actors.Placer, sessions)
	t.catalog.Partitions(func(_ *messages.Topic, p *messages.Partition) bool {
		t.host(actors.Partition(p.ID), sessions)
		return true
	})
	t.beginning = false
	t.adopt()
}

// granted notes that the journal took an entry that was sent at a time of this process's clock.
func (t *term) granted(sent time.Duration) {
	if !t.alone() && !t.w.cfg.Faults.EndlessGrants {
		t.grantUntil = max(t.grantUntil, 1, sent+grantValidity)
	}
}

// idle has an empty entry appended when nothing else was for a while.
func (t *term) idle() {
	if t.quiet && t.committer.Idle() && !t.over {
		t.tickets++
		if t.committer.ProposeUrgent(t.tickets, nil) == nil {
			t.pump()
		}
	}
	t.quiet = true
	t.later(idleTick, "idle", t.idle)
}

// host brings up an actor; nil if it cannot be loaded.
func (t *term) host(a actors.Address, sessions registry.Machine) *host {
	if h := t.hosts[a]; h != nil {
		return h
	}
	h := &host{address: a, body: newBody(a.Kind, sessions)}
	if h.body == nil || h.body.load(t.env(), a) != nil {
		return nil
	}
	t.hosts[a] = h
	t.post(h, actors.Activated{Takeover: t.beginning})
	return h
}

func (t *term) env() actors.Env {
	return actors.Env{Now: t.local(), WallUnixMs: t.w.now.Milliseconds(), Random: [2]uint64{t.w.rng.Uint64(), t.w.rng.Uint64()},
		Applied: t.catalog.Applied(), Controller: t.epoch, Claimed: t.claimed, Cluster: t.catalog, GrantUntil: t.grantUntil}
}

// tell delivers a message of an actor or of the edge.
func (t *term) tell(a actors.Address, msg actors.Message) bool {
	if a == actors.Topics {
		t.topics(msg)
		return true
	}
	h := t.hosts[a]
	if h == nil && a.Kind == actors.KindOutbox && t.catalog.Brokers()[a.Broker] != nil {
		h = t.host(a, registry.Machine{})
	}
	if h == nil {
		return false
	}
	t.post(h, msg)
	return true
}

// topics starts and ends the actors of a topic.
func (t *term) topics(msg actors.Message) {
	switch m := msg.(type) {
	case actors.EnsureTopic:
		t.catalog.PartitionsOfTopic(m.Topic, func(p *messages.Partition) bool {
			t.host(actors.Partition(p.ID), registry.Machine{})
			return true
		})
	case actors.DropTopic:
		for i := range int32(64) {
			t.tell(actors.Partition(messages.PartitionID{Topic: m.Topic, Index: i}), actors.TopicDeleted{})
		}
	}
}

func (t *term) post(h *host, msg actors.Message) {
	h.queue = append(h.queue, msg)
	t.plan(h)
}

func (t *term) plan(h *host) {
	if h.running || h.held || len(h.queue) == 0 {
		return
	}
	h.running = true
	t.later(t.w.between(0, 200*time.Microsecond), "turn", func() { t.turn(h) })
}

// turn lets an actor decide on its next message.
func (t *term) turn(h *host) {
	h.running = false
	if h.held || len(h.queue) == 0 || t.hosts[h.address] != h || t.over {
		return
	}
	msg := h.queue[0]
	h.queue = h.queue[1:]
	fx := h.body.step(t.env(), msg)
	t.w.sabotageRecords(fx.Records)
	if len(fx.Records) == 0 {
		t.release(h, fx)
		t.plan(h)
		return
	}
	t.tickets++
	t.quiet = false
	if err := t.committer.Propose(t.tickets, fx.Records); err != nil {
		t.w.violated("the journal refuses what %v proposes: %v", h.address, err)
		return
	}
	fx.Records = nil
	if t.w.cfg.Faults.ReleaseBeforeCommit {
		t.release(h, fx)
		fx = actors.Effects{}
	}
	h.held = true
	t.commits[t.tickets] = &commit{h, fx}
	t.pump()
}

// pump gives the committer's next order to the store.
func (t *term) pump() {
	o, ok := t.committer.Next(t.stamp())
	if !ok {
		return
	}
	if !t.patient {
		t.patient = true
		t.waits++
		wait := t.waits
		t.later(appendLimit, "patience", func() {
			if t.patient && wait == t.waits {
				t.w.say("%s has waited for the journal for too long", t.name)
				t.endTerm(false)
			}
		})
	}
	t.later(o.Pause(), "order", func() {
		sent := t.local()
		t.w.store.carryOut(&t.process, o, func(r journal.Result) {
			if t.on() {
				if r.Err == nil && o.At == 0 {
					t.granted(sent)
				}
				t.stored(r)
			}
		})
	})
}

// stored takes in an answer of the store: the catalog first, then what waited.
func (t *term) stored(r journal.Result) {
	t.committer.Done(r)
	for _, done := range t.committer.Committed() {
		t.catalog.ApplyAt(done.At(), done.Records)
		t.at = done.At()
		if done.Ticket != 0 {
			t.patient = false
		}
		w := t.commits[done.Ticket]
		if w == nil {
			continue
		}
		delete(t.commits, done.Ticket)
		w.host.held = false
		t.release(w.host, w.effects)
		t.plan(w.host)
	}
	if err := t.committer.Err(); err != nil {
		t.ended(err)
		return
	}
	t.snapshotWhenDue()
	t.pump()
}

// ended is the end of a term of which the journal takes nothing more.
func (t *term) ended(err error) {
	t.w.say("%s: %v", t.name, err)
	if t.alone() {
		t.w.violated("the only controller was deposed: %v", err)
		return
	}
	t.w.result.Depositions++
	t.endTerm(false)
}

// release lets the effects of a step out.
func (t *term) release(h *host, fx actors.Effects) {
	for _, r := range fx.Replies {
		t.w.check.replied(r.Body)
		if done := t.requests[r.To]; done != nil {
			delete(t.requests, r.To)
			done(r.Body)
		}
	}
	for _, x := range fx.Tells {
		t.tell(x.To, x.Msg)
	}
	for _, b := range fx.Broadcast {
		t.catalog.PartitionsOf(b.Broker, func(p *messages.Partition) bool {
			t.tell(actors.Partition(p.ID), b.Msg)
			return true
		})
	}
	for _, p := range fx.Publish {
		t.publish(p)
	}
	for _, wake := range fx.Wakes {
		t.later(wake.After, "wake", func() {
			if t.hosts[h.address] == h {
				t.post(h, wake.Msg)
			}
		})
	}
	if fx.Stop {
		delete(t.hosts, h.address)
	}
}

func (t *term) publish(p actors.Publication) {
	switch p := p.(type) {
	case actors.PublishLeadership:
		t.w.check.published(p)
		for _, client := range t.w.clients {
			t.w.send(&t.process, &client.process, "leadership", func() { client.learn(p.Partition) })
		}
	case actors.PublishAssignments:
		for _, a := range p.Assignments {
			t.w.check.assigned(a)
		}
		for _, b := range t.w.brokers {
			if b.id == p.Broker {
				seen := &pb.Seen{ControllerEpoch: uint64(t.epoch), Sequence: uint64(t.catalog.Applied())}
				t.w.send(&t.process, &b.process, "assignments", func() { b.feedBatch(p, seen) })
			}
		}
	}
}
