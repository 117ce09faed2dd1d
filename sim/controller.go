package sim

import (
	"context"
	"errors"
	"time"

	"github.com/highwater-io/highwater/controller/activation"
	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/messages"
)

// Times of controllers, which are shorter than the defaults by about half, as the brokers' are.
const (
	beatEvery     = 125 * time.Millisecond
	suspicion     = 750 * time.Millisecond
	standbyLook   = 50 * time.Millisecond
	followQuiet   = 500 * time.Millisecond
	grantValidity = 2 * time.Second
	idleTick      = 500 * time.Millisecond
	appendLimit   = 6 * time.Second
	claimLimit    = 10 * time.Second
	gapPatience   = 4 * time.Second
	stopGrace     = 2 * time.Second
)

// controller is one controller process: a standby, which follows the journal and claims it when activation.Watch suspects
// the active one, or the active one, which has a term.
type controller struct {
	process
	watch   *activation.Watch
	phase   int // counts its roles; what was begun in an earlier one is dropped
	catalog *journal.Catalog
	at      journal.Position
	gap     time.Duration // since when the journal seems to lack entries, 0 if it does not
	tried   time.Duration // last look at the journal
	busy    bool          // it reads or claims
	leaving bool          // it hands over
	term    *term         // of the active one
}

// boot starts the process.
func (c *controller) boot() {
	c.begin()
	c.w.say("%s starts", c.name)
	c.watch = activation.New(activation.Config{Name: c.name, Suspicion: suspicion + c.w.between(0, suspicion/8)}, c.local())
	c.term, c.leaving, c.gap = nil, false, 0
	c.recover(false)
	c.speak()
}

func (c *controller) bootUnlessUp() {
	if !c.up {
		c.boot()
	}
}

// die ends the process at once; the others may notice that its connections are closed.
func (c *controller) die() {
	if !c.up {
		return
	}
	c.w.say("%s dies", c.name)
	c.end()
	c.term = nil
	for _, o := range c.w.controllers {
		if o != c && c.w.chance(0.8) {
			c.w.after(c.w.between(time.Millisecond, 20*time.Millisecond), "end of "+c.name, func() { o.lose(c) })
		}
	}
}

// lose notes the end of another's connection, unless that lets new ones in.
func (c *controller) lose(o *controller) {
	c.enter(c.life, func() {
		if !o.up || c.w.net.cuts(c.name, o.name) || c.w.net.cuts(o.name, c.name) {
			c.watch.Lose(o.name)
			c.news()
		}
	})
}

// alone reports whether nobody else can be active.
func (c *controller) alone() bool { return len(c.w.controllers) == 1 }

// speak says again and again who this is.
func (c *controller) speak() {
	c.say()
	c.timer(beatEvery, "beat", c.speak)
}

func (c *controller) say() {
	b := activation.Beat{Name: c.name, Role: activation.Standby, Applied: c.catalog.Applied(), Epoch: c.catalog.Claimed().Epoch}
	if c.term != nil {
		b.Role, b.Epoch = activation.Active, c.term.epoch
	}
	for _, o := range c.w.controllers {
		if o != c {
			c.w.send(&c.process, &o.process, "beat", func() { o.hear(b) })
		}
	}
}

func (c *controller) hear(b activation.Beat) {
	c.watch.Hear(c.local(), b)
	if c.term != nil && c.watch.Deposed(c.term.epoch) {
		c.w.say("%s hears that it is deposed", c.name)
		c.endTerm(false)
		return
	}
	c.news()
}

// recover rebuilds the catalog from the newest good snapshot and the journal behind it, and then stands by.
func (c *controller) recover(steppedDown bool) {
	c.phase++
	c.busy, c.catalog, c.at = true, journal.NewCatalog(), journal.Position{}
	phase := c.phase
	c.w.store.read(&c.process, func(log journal.Log, err error) {
		if c.phase != phase {
			return
		}
		catalog := journal.NewCatalog()
		var from journal.Recovery
		if err == nil {
			from, err = journal.RecoverFrom(context.Background(), log, c.w.store.kept, catalog)
		}
		if err = c.judge(err); err != nil {
			if isBroken(err) {
				c.refuse(err)
				return
			}
			c.timer(200*time.Millisecond, "recover again", func() {
				if c.phase == phase {
					c.recover(steppedDown)
				}
			})
			return
		}
		if from.From.Pieces > 0 {
			c.w.result.FromSnapshot++
		}
		c.w.result.Unusable += len(from.Unusable)
		c.catalog, c.at = catalog, from.At
		c.w.sabotageCatalog(c.catalog)
		c.stand(steppedDown)
	})
}

// judge forgives a gap for a while: of several servers of the journal one may know more than another.
func (c *controller) judge(err error) error {
	c.tried = c.local()
	var broken *journal.Broken
	switch {
	case err == nil:
		c.gap = 0
	case errors.As(err, &broken) && broken.Defect == journal.DefectGap:
		if c.gap == 0 {
			c.gap = c.local()
		}
		if c.local()-c.gap < gapPatience {
			return messages.Errorf(messages.CodeUnavailable, "the journal's servers do not agree yet: %s", broken.Detail)
		}
	}
	return err
}

func isBroken(err error) bool {
	var broken *journal.Broken
	return errors.As(err, &broken)
}

// refuse ends a process that does not trust the journal. Somebody starts it again and again.
func (c *controller) refuse(err error) {
	c.w.say("%s ends: %v", c.name, err)
	if c.w.store.back == 0 {
		c.w.violated("%s refuses a journal that nobody has damaged: %v", c.name, err)
	}
	c.w.result.Refusals++
	c.die()
	c.w.after(c.w.between(time.Second, 3*time.Second), "restart "+c.name, c.bootUnlessUp)
}

// stand begins a term as a standby.
func (c *controller) stand(steppedDown bool) {
	c.phase++
	c.busy, c.leaving = false, false
	c.w.say("%s stands by at %d", c.name, c.at.Last)
	if c.alone() {
		c.claim("alone")
		return
	}
	c.watch.Stand(c.local(), steppedDown)
	c.lookLoop(c.phase)
}

func (c *controller) lookLoop(phase int) {
	if c.phase != phase {
		return
	}
	c.news()
	c.timer(standbyLook, "look", func() { c.lookLoop(phase) })
}

// news lets a standby look at what it knows.
func (c *controller) news() {
	if c.busy || c.term != nil {
		return
	}
	c.watch.Look(c.local())
	suspected := c.watch.Suspicion(c.local(), c.catalog.Claimed()) != ""
	if !suspected && !c.watch.News(c.at.Last) && c.local()-c.tried < followQuiet {
		c.consider(false)
		return
	}
	c.busy = true
	phase := c.phase
	c.w.store.read(&c.process, func(log journal.Log, err error) {
		if c.phase != phase {
			return
		}
		c.busy = false
		if c.follow(log, err) {
			c.consider(suspected)
		}
	})
}

// follow reads on; false if this role has ended with it.
func (c *controller) follow(log journal.Log, err error) bool {
	if err == nil {
		c.at, _, err = journal.Follow(context.Background(), log, c.catalog, c.at)
	}
	err = c.judge(err)
	if c.gap != 0 {
		if kept, _ := c.w.store.kept.List(context.Background()); len(kept) > 0 && kept[0].At > c.at.Last {
			c.w.say("%s begins anew with a snapshot: the journal was cut", c.name)
			c.recover(false)
			return false
		}
	}
	if err != nil && isBroken(err) {
		c.refuse(err)
		return false
	}
	return true
}

// consider claims the journal if whoever it names is to be replaced.
func (c *controller) consider(suspected bool) {
	why := ""
	if suspected && c.gap == 0 {
		why = c.watch.Suspicion(c.local(), c.catalog.Claimed())
	}
	if why == "" {
		c.watch.Awake(c.local())
		return
	}
	c.claim(why)
}

// claim appends the claim right behind what this standby has read.
func (c *controller) claim(why string) {
	var also []messages.Record
	if c.catalog.Identity() == nil {
		also = append(also, &messages.Cluster{Name: "sim", ID: "sim-1", Settings: settings})
	}
	if c.w.cfg.Faults.ReuseEpoch && c.catalog.Claimed().Epoch > 1 {
		last := c.catalog.Claimed()
		last.Epoch--
		c.catalog.ApplyAt(c.at, []messages.Record{&last})
	}
	m, err := journal.NewClaim(c.catalog, c.at, c.name, also...)
	if err != nil {
		c.w.violated("%s cannot claim: %v", c.name, err)
		return
	}
	c.w.say("%s claims behind %d: %s", c.name, c.at.Last, why)
	c.busy = true
	sent, handed := c.local(), c.catalog.Claimed().Released
	c.drive(m, claimLimit, func(err error) {
		c.busy = false
		if err == nil {
			c.at = m.Position()
			c.w.check.activated(c)
			c.reign(m.Writer().Epoch, sent, handed)
			return
		}
		c.w.result.Refused++
		c.w.say("%s: the claim is not accepted: %v", c.name, err)
		if isBroken(err) {
			c.refuse(err)
			return
		}
		c.watch.Refused(c.local())
		if c.alone() {
			c.recover(false)
		}
	})
}

// drive carries out a committer's orders until nothing is pending.
func (c *controller) drive(m *journal.Committer, limit time.Duration, done func(error)) {
	phase, until := c.phase, c.local()+limit
	var next func()
	next = func() {
		o, ok := m.Next(c.stamp())
		if !ok {
			done(m.Err())
			return
		}
		c.timer(o.Pause(), "order", func() {
			if c.phase != phase {
				return
			}
			c.w.store.carryOut(&c.process, o, func(r journal.Result) {
				if c.phase != phase {
					return
				}
				m.Done(r)
				for _, x := range m.Committed() {
					c.catalog.ApplyAt(x.At(), x.Records)
				}
				if c.local() > until && !m.Idle() && m.Err() == nil {
					done(errNoAnswer)
					return
				}
				next()
			})
		})
	}
	next()
}

func (c *controller) stamp() journal.Stamp {
	var s journal.Stamp
	for i := range s.ID {
		s.ID[i] = byte(c.w.rng.Uint32())
	}
	s.WallUnixMs = c.w.now.Milliseconds()
	return s
}

// reign begins an active term.
func (c *controller) reign(epoch messages.ControllerEpoch, sent time.Duration, handed bool) {
	c.phase++
	c.w.result.Terms++
	c.w.say("%s is active with epoch %d at %d, handed over %v", c.name, epoch, c.at.Last, handed)
	c.term = newTerm(c, epoch)
	c.term.start(sent, handed)
	c.say()
}

// endTerm ends an active term and stands by again, on a catalog of its own.
func (c *controller) endTerm(steppedDown bool) {
	c.w.say("the term of %s with epoch %d ends", c.name, c.term.epoch)
	c.term = nil
	c.recover(steppedDown)
}

// stepDown hands over: nothing more is admitted, what is pending is committed, and then the journal is released.
func (c *controller) stepDown(then func()) {
	t := c.term
	if t == nil || c.leaving {
		return
	}
	successor := c.watch.Successor(c.local())
	c.w.say("%s is to hand over to %q", c.name, successor)
	c.leaving, t.closed = true, true
	c.whenIdle(t, c.local()+stopGrace, func(idle bool) {
		m, err := journal.NewRelease(c.catalog, successor)
		if !idle || c.local() < t.settled || err != nil || m.Writer().Epoch != t.epoch {
			c.handedOver(t, errNoAnswer, then)
			return
		}
		c.drive(m, stopGrace, func(err error) { c.handedOver(t, err, then) })
	})
}

func (c *controller) handedOver(t *term, err error, then func()) {
	if c.term != t {
		return
	}
	if c.leaving = false; err == nil {
		c.w.result.HandOvers++
		c.w.say("%s has handed over", c.name)
	}
	c.say()
	c.endTerm(true)
	then()
}

// whenIdle waits until nothing is pending.
func (c *controller) whenIdle(t *term, until time.Duration, then func(bool)) {
	if c.term != t {
		return
	}
	if idle := t.committer.Idle() && len(t.commits) == 0; idle || c.local() > until {
		t.over = true
		then(idle)
		return
	}
	c.timer(5*time.Millisecond, "drain", func() { c.whenIdle(t, until, then) })
}
