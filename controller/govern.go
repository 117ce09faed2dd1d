package controller

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/messages"
)

// order ends an active term from outside of its tree.
type order uint8

const (
	orderDeposed  order = iota + 1 // a later controller was heard
	orderStepDown                  // an operator wants another one
)

// order gives an order to the active term; a second one before the first is carried out is dropped.
func (c *Controller) order(o order) {
	select {
	case c.orders <- o:
	default:
	}
}

// govern is the life of a process that shares its journal: standby, active, and standby again, until it is stopped or a
// fault needs a person.
func (c *Controller) govern(s *standby, t *term) {
	defer close(c.governed)
	steppedDown := false
	for {
		by, err := s.stand(c.life, steppedDown)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(c.life), stopGrace)
		c.enter(&term{catalog: s.catalog, store: c.store}) // so that nobody asks an edge that is closed
		if closing := t.end(ctx); closing != nil {
			c.log.Warn().Err(closing).Msg("the standby did not end in order")
		}
		cancel()
		if errors.Is(err, errCut) {
			c.log.Info().Uint64("revision", uint64(s.at.Last)).Msg("the journal was cut behind a newer snapshot; beginning with that")
			if s, t, err = c.standAgain(); err != nil {
				c.failUnlessStopping(err)
				return
			}
			continue
		}
		if err != nil {
			c.failUnlessStopping(err)
			return
		}
		if steppedDown, err = c.reign(s.catalog, by); err != nil {
			c.failUnlessStopping(err)
			return
		}
		if c.life.Err() != nil {
			return
		}
		if s, t, err = c.standAgain(); err != nil {
			c.failUnlessStopping(err)
			return
		}
	}
}

func (c *Controller) failUnlessStopping(err error) {
	if c.life.Err() == nil {
		c.fail(err)
	}
}

// standAgain begins a standby's term on a catalog of its own.
func (c *Controller) standAgain() (*standby, *term, error) {
	s := c.newStandby()
	if err := s.recover(c.life); err != nil {
		return nil, nil, err
	}
	c.refresh(c.life)
	if err := c.remember(s.catalog); err != nil {
		return nil, nil, err
	}
	t, err := c.watchAsStandby(c.life, s)
	if err != nil {
		return nil, nil, err
	}
	c.enter(t)
	c.log.Info().Uint64("revision", uint64(s.at.Last)).Msg("standing by")
	return s, t, nil
}

// reign is one active term, from a claim on. It returns whether this process has stepped down of its own accord, or an
// error that ends the process.
func (c *Controller) reign(catalog *journal.Catalog, by claimed) (steppedDown bool, err error) {
	began := time.Now()
	c.claimed.Store(uint64(by.epoch))
	defer c.claimed.Store(0)
	c.members.say() // the others are not to wait for silence while this one is busy
	for len(c.orders) > 0 {
		<-c.orders // of an earlier term
	}
	t, err := c.begin(c.life, catalog, by)
	if err != nil {
		if fatal(err) || c.life.Err() != nil {
			return false, err
		}
		c.log.Error().Err(err).Msg("the active term could not begin")
		return true, nil
	}
	c.enter(t)
	c.log.Info().Uint64("controller_epoch", uint64(by.epoch)).Uint64("revision", uint64(catalog.Applied())).
		Bool("handed_over", by.handed).Dur("took", time.Since(began)).Msg("controller is active")
	steps, err := c.conns.edge.Subscribe(messages.NewSubjects(c.cfg.Cluster).ControlWildcard("controller", "step-down"), c.stepDown)
	if err != nil {
		c.log.Error().Err(err).Msg("step-down cannot be asked for")
	}
	c.members.say()
	leader, endLeader := context.WithCancel(c.life)
	go c.keepApart(leader)
	go c.unblock(leader)
	willing := false
	select {
	case <-c.life.Done():
		willing = true
	case o := <-c.orders:
		willing = o == orderStepDown
	case <-t.tree.Done():
		c.log.Warn().Err(t.tree.Err()).Msg("the active term ends")
	}
	endLeader()
	if steps != nil {
		_ = steps.Unsubscribe() // nobody is to be told that it worked when it does not
	}
	return willing, c.abdicate(t, willing)
}

// abdicate ends an active term: in order, with a last entry for the successor, or at once because there is one already.
func (c *Controller) abdicate(t *term, willing bool) error {
	successor := c.members.successor()
	patience := stopGrace
	if !willing {
		patience = time.Second
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.life), patience)
	defer cancel()
	err := t.end(ctx)
	c.claimed.Store(0)
	c.enter(&term{catalog: t.catalog, store: t.store})
	if !willing {
		return nil // it was cut off in the middle; what was open has been answered
	}
	if err != nil {
		c.log.Warn().Err(err).Msg("the active term did not end in order; the others wait for the silence")
		return nil
	}
	if c.now() < t.settled {
		// One that was active before may still be granting leases, cut off from here. The word that nothing is granted any more
		// would have the successor fence at once.
		c.log.Info().Msg("the active term was too short to hand over; the others take over by themselves")
		c.members.say()
		return nil
	}
	if err = journal.Release(ctx, c.store, t.catalog, successor); err != nil {
		c.log.Warn().Err(err).Msg("the end of the active term could not be written; the others wait for the silence")
		return nil
	}
	c.log.Info().Str("successor", successor).Msg("handed over")
	c.members.say() // that there is news in the journal
	_ = c.conns.edge.FlushWithContext(ctx)
	return nil
}

// stepDown answers an operator who wants another controller to be the active one.
func (c *Controller) stepDown(m *nats.Msg) {
	out := map[string]any{"from": c.cfg.Name}
	answer := nats.NewMsg(m.Reply)
	if s := c.members.successor(); s != "" {
		out["to"] = s
		c.order(orderStepDown)
	} else {
		e := messages.Errorf(messages.CodeUnavailable, "there is no standby that could take over").Proto()
		out = map[string]any{"error": map[string]any{"code": e.GetCode(), "message": e.GetMessage()}}
		answer.Header.Set("Nats-Service-Error-Code", e.GetCode())
		answer.Header.Set("Nats-Service-Error", e.GetMessage())
	}
	answer.Header.Set("Content-Type", "application/json")
	answer.Data, _ = json.Marshal(out) // strings can be written
	if m.Reply != "" {
		_ = c.conns.edge.PublishMsg(answer) // the asker asks again, or looks who is active
	}
}
