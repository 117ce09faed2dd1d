package sim

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/actors/registry"
	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// model is the world of an exploration. Nothing in it happens by itself.
type model struct {
	e           Exploration
	used        Misfortunes
	log         *journal.Memory
	check       *checker
	controllers []*contender
	brokers     []*explored
	wire        []*wired
	acked       map[messages.Offset]string
	ledBy       map[messages.LeaderEpoch]string
	found       string
}

// wired is a message on its way. Body is what the fingerprint sees of it.
type wired struct {
	label  string
	to     string // a process, or the store
	life   int    // of the receiver, -1 for whichever
	body   any
	arrive func()
}

func (m *wired) content() any { return []any{m.label, m.to, m.life, m.body} }

func (w *model) send(m wired) { w.wire = append(w.wire, &m) }

func (w *model) deliver(i int) {
	m := w.wire[i]
	w.wire = slices.Delete(w.wire, i, i+1)
	m.arrive()
}

// drop forgets what is on its way to a life that has ended.
func (w *model) drop(to string) {
	w.wire = slices.DeleteFunc(w.wire, func(m *wired) bool { return m.to == to })
}

func (w *model) bad(format string, args ...any) {
	if w.found == "" {
		w.found = fmt.Sprintf(format, args...)
	}
}

// violation is the first that was seen.
func (w *model) violation() string {
	w.check.follow()
	if v := w.check.w.result.Violations; len(v) > 0 && w.found == "" {
		w.found = v[0]
	}
	return w.found
}

// settle lets every follower that can ask its leader.
func (w *model) settle() {
	for _, b := range w.brokers {
		b.fetch()
	}
}

func (w *model) fingerprint() uint64 {
	last := w.check.truth.at
	parts := []any{w.used, last.Last, last.Chain, w.acked, w.ledBy}
	var sum uint64 // the order of what is on its way says nothing
	for _, m := range w.wire {
		sum += fingerprintOf(m.content())
	}
	parts = append(parts, sum)
	for _, c := range w.controllers {
		parts = append(parts, c.active, c.at, c.now, c.waiting, c.committer, c.catalog.Applied(), len(c.asked))
		for _, a := range []actors.Address{actors.Registry, actors.Partition(thePartition)} {
			if h := c.hosts[a]; h != nil {
				parts = append(parts, h.body, h.queue, h.held)
			}
		}
		for _, t := range c.order() {
			parts = append(parts, t, c.commits[t].effects)
		}
	}
	for _, b := range w.brokers {
		parts = append(parts, b.up, b.life, b.epoch, b.registering, b.seen, b.now, b.fetching, b.proposed, b.disk, b.r, b.tickets, b.told, len(b.parked))
		for _, q := range b.parked {
			parts = append(parts, q.follower, q.epoch, q.positions)
		}
	}
	return fingerprintOf(parts...)
}

// contender is a controller.
type contender struct {
	w         *model
	name      string
	life      int
	now       time.Duration
	catalog   *journal.Catalog
	at        journal.Position
	committer *journal.Committer // of its claim or its term, nil of a standby
	active    bool
	epoch     messages.ControllerEpoch
	claimed   messages.Sequence
	waiting   uint64 // the order that is out
	hosts     map[actors.Address]*host
	commits   map[journal.Ticket]*commit
	tickets   journal.Ticket
	asked     map[actors.RequestID]func(proto.Message)
	requests  actors.RequestID
}

func (c *contender) held() bool {
	h := c.hosts[actors.Registry]
	return h == nil || h.held
}

// order has the tickets that wait, in order.
func (c *contender) order() []journal.Ticket {
	out := make([]journal.Ticket, 0, len(c.commits))
	for t := range c.commits {
		out = append(out, t)
	}
	slices.Sort(out)
	return out
}

// stand makes it a standby that has read nothing.
func (c *contender) stand() {
	c.catalog, c.at, c.committer, c.active, c.waiting = journal.NewCatalog(), journal.Position{}, nil, false, 0
	c.hosts, c.commits, c.asked = map[actors.Address]*host{}, map[journal.Ticket]*commit{}, map[actors.RequestID]func(proto.Message){}
	c.tickets, c.requests = 0, 0
	c.w.drop(c.name)
	c.life++
}

func (c *contender) crash() { c.stand() }

// follow reads the whole journal.
func (c *contender) follow() {
	var err error
	if c.at, _, err = journal.Follow(ctxNone, c.w.log, c.catalog, c.at); err != nil {
		c.w.bad("%s cannot follow the journal: %v", c.name, err)
	}
}

func (c *contender) claim() {
	c.follow()
	if c.w.e.Faults.ReuseEpoch {
		last := c.catalog.Claimed()
		last.Epoch--
		c.catalog.ApplyAt(c.at, []messages.Record{&last})
	}
	m, err := journal.NewClaim(c.catalog, c.at, c.name)
	if err != nil {
		c.w.bad("%s cannot claim: %v", c.name, err)
		return
	}
	c.committer = m
	c.pump()
}

// stamp gives an entry an id that depends on nothing but who writes it where.
func (c *contender) stamp() journal.Stamp {
	var s journal.Stamp
	h := sha256.New()
	h.Write([]byte(c.name))
	_ = binary.Write(h, binary.BigEndian, []uint64{uint64(c.committer.Writer().Epoch), uint64(c.committer.Position().Last), uint64(c.life), c.waiting, uint64(c.tickets)})
	copy(s.ID[:], h.Sum(nil))
	return s
}

// pump sends the next order to the store. What is there to be read is read at once.
func (c *contender) pump() {
	for {
		o, ok := c.committer.Next(c.stamp())
		if !ok {
			return
		}
		c.waiting = o.Number
		if o.At != 0 {
			c.committer.Done(journal.Do(ctxNone, c.w.log, o))
			c.waiting = 0
			if c.took(); c.committer == nil {
				return
			}
			continue
		}
		life := c.life
		c.w.send(wired{label: c.name + " appends", to: "store", life: -1, body: []any{life, o.Expected, o.Payload}, arrive: func() {
			if c.w.e.Faults.AppendAnywhere {
				o.Expected, _ = c.w.log.Last(ctxNone)
			}
			r := journal.Do(ctxNone, c.w.log, o)
			if c.life == life {
				c.w.send(wired{label: "the store answers " + c.name, to: c.name, life: life, body: []any{r.Number, r.Sequence, fmt.Sprint(r.Err)},
					arrive: func() { c.answered(r) }})
			}
		}})
		return
	}
}

// answered takes the store's answer.
func (c *contender) answered(r journal.Result) {
	if c.committer == nil || r.Number != c.waiting {
		return
	}
	c.waiting = 0
	c.committer.Done(r)
	if c.took(); c.committer != nil {
		c.pump()
	}
}

// took lets out what is committed, and begins or ends a term.
func (c *contender) took() {
	for _, done := range c.committer.Committed() {
		c.catalog.ApplyAt(done.At(), done.Records)
		c.at = done.At()
		if w := c.commits[done.Ticket]; w != nil && c.active {
			delete(c.commits, done.Ticket)
			w.host.held = false
			c.release(w.effects)
		}
	}
	switch {
	case c.committer.Err() != nil:
		c.stand()
		return
	case !c.active && c.committer.Idle():
		c.reign()
	}
	c.run()
}

func (c *contender) reign() {
	c.active, c.epoch, c.claimed = true, c.committer.Writer().Epoch, c.at.Last
	c.committer = journal.NewCommitter(c.at, journal.Writer{Controller: c.name, Epoch: c.epoch}, journal.Limits{})
	for _, a := range []actors.Address{actors.Registry, actors.Partition(thePartition)} {
		h := &host{address: a, body: newBody(a.Kind, registry.Machine{})}
		if err := h.body.load(c.env(), a); err != nil {
			c.w.bad("%s cannot load %v: %v", c.name, a, err)
		}
		c.hosts[a] = h
		h.queue = append(h.queue, actors.Activated{})
	}
}

func (c *contender) env() actors.Env {
	return actors.Env{Now: c.now, Applied: c.catalog.Applied(), Controller: c.epoch, Claimed: c.claimed, Cluster: c.catalog}
}

// run lets the actors decide until all of them wait.
func (c *contender) run() {
	for again := true; again && c.active; {
		again = false
		for _, a := range []actors.Address{actors.Registry, actors.Partition(thePartition)} {
			h := c.hosts[a]
			for h != nil && len(h.queue) > 0 && !h.held {
				again = true
				msg := h.queue[0]
				h.queue = h.queue[1:]
				c.step(h, msg)
			}
		}
	}
	if c.active && c.waiting == 0 {
		c.pump()
	}
}

func (c *contender) step(h *host, msg actors.Message) {
	fx := h.body.step(c.env(), msg)
	c.w.check.w.sabotageRecords(fx.Records)
	if len(fx.Records) == 0 {
		c.release(fx)
		return
	}
	c.tickets++
	if err := c.committer.Propose(c.tickets, fx.Records); err != nil {
		c.w.bad("the journal refuses what %v proposes: %v", h.address, err)
		return
	}
	fx.Records = nil
	if c.w.e.Faults.ReleaseBeforeCommit {
		c.release(fx)
		fx = actors.Effects{}
	}
	h.held = true
	c.commits[c.tickets] = &commit{h, fx}
}

// release lets the effects of a step out. Clocks do not run, so wakes do not come.
func (c *contender) release(fx actors.Effects) {
	for _, r := range fx.Replies {
		if done := c.asked[r.To]; done != nil {
			delete(c.asked, r.To)
			c.w.check.follow()
			done(r.Body)
		}
	}
	for _, x := range fx.Tells {
		c.tell(x)
	}
	for _, b := range fx.Broadcast {
		c.catalog.PartitionsOf(b.Broker, func(p *messages.Partition) bool {
			c.tell(actors.Tell{To: actors.Partition(p.ID), Msg: b.Msg})
			return true
		})
	}
	for _, p := range fx.Publish {
		if l, ok := p.(actors.PublishLeadership); ok {
			c.w.check.follow()
			c.w.check.published(l)
		}
	}
}

func (c *contender) tell(t actors.Tell) {
	if h := c.hosts[t.To]; h != nil {
		h.queue = append(h.queue, t.Msg)
		return
	}
	if t.To.Kind != actors.KindOutbox {
		return
	}
	for _, b := range c.w.brokers {
		if b.id != t.To.Broker {
			continue
		}
		if a, ok := t.Msg.(actors.Assign); ok {
			c.assign(b, a.Assignment)
		} else {
			c.snapshot(b)
		}
	}
}

// snapshot sends a broker what the catalog says.
func (c *contender) snapshot(b *explored) {
	if p, ok := c.catalog.Partition(thePartition); ok {
		c.assign(b, messages.AssignmentOf("t", p))
	}
}

func (c *contender) assign(b *explored, a *pb.Assignment) {
	epoch := c.epoch
	c.w.check.follow()
	c.w.check.assigned(a)
	c.w.send(wired{label: fmt.Sprintf("an assignment of %s reaches %s", c.name, b.id), to: string(b.id), life: b.life, body: []any{epoch, a},
		arrive: func() { b.assigned(epoch, a) }})
}

// request has an actor answer a request.
func (c *contender) request(to actors.Address, msg func(actors.RequestID) actors.Message, done func(proto.Message)) {
	h := c.hosts[to]
	if !c.active || h == nil {
		return
	}
	c.requests++
	c.asked[c.requests] = done
	h.queue = append(h.queue, msg(c.requests))
	c.run()
}

// heartbeat hands the registry one of a broker, whose answer does not matter here.
func (c *contender) heartbeat(b *explored, ready bool) {
	q := &pb.HeartbeatRequest{Broker: string(b.id), Incarnation: b.incarnation(), BrokerEpoch: uint64(b.epoch), Ready: ready,
		Feed: &pb.FeedPosition{}, Seen: &pb.Seen{ControllerEpoch: uint64(b.seen)}}
	c.request(actors.Registry, func(id actors.RequestID) actors.Message {
		return actors.Request{ID: id, Principal: string(b.id), Body: q}
	}, func(proto.Message) {})
}

// silent lets a session pass in which one broker, and whoever is down, is not heard.
func (c *contender) silent(b *explored) {
	for range 8 {
		c.now += settings.Session / 6
		for _, o := range c.w.brokers {
			if o != b && o.up && o.epoch != 0 {
				c.heartbeat(o, false)
			}
		}
		if h := c.hosts[actors.Registry]; c.active && h != nil && !h.held {
			h.queue = append(h.queue, actors.Tick{})
			c.run()
		}
	}
}
