package supervisor

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
)

// host is one actor: a machine with its state, its mailbox, and what is on the way. All of it but the mailbox and the
// atomic fields is touched only while a message is delivered, so by one goroutine at a time.
type host struct {
	mailbox mailbox
	tree    *Tree
	address actors.Address
	body    body

	// incarnation counts the loads. Results and wake-ups of an older incarnation are ignored.
	incarnation uint64
	// current is the message at hand, nil once it is answered. inside: the tree counts this host among those at work.
	current actors.Message
	inside  bool
	// pending is the step whose records are on the way to the journal.
	pending *proposal

	// failed: too many restarts; requests are refused until an activation succeeds.
	failed atomic.Bool
	// starting: Start waits for this actor.
	starting atomic.Bool

	// pid and dropping belong to the supervisor above; record to its strategy.
	pid      *actor.PID
	dropping *messages.TopicDeletion // of its topic; nil while that exists
	record   *record
}

// Messages of this package to a host, all by the urgent lane but wake.
type (
	// activate ends the pause after a failure: load and go on.
	activate struct{}
	// outcome is the journal's answer to a proposal.
	outcome struct {
		incarnation uint64
		at          messages.Sequence
		err         *messages.Error
	}
	// wake is a message that a machine has sent to its later self.
	wake struct {
		incarnation uint64
		msg         actors.Message
	}
)

// crash is what a host panics with: its supervisor's strategy decides what comes next.
type crash struct {
	host   *host
	reason any
}

// errLoad wraps the error of a machine that could not be loaded, errCommit of records that were refused: failures with a
// reason of their own, for which the stack says nothing.
type errLoad struct{ error }
type errCommit struct{ why *messages.Error }

func (e errCommit) Error() string { return "the journal refuses the records: " + e.why.Error() }

func newHost(t *Tree, address actors.Address, f Factory) *host {
	h := &host{tree: t, address: address, body: f.make()}
	h.mailbox.dispatch = t.pool
	h.mailbox.express = address.Kind == actors.KindRegistry || address.Kind == actors.KindPlacer
	return h
}

// offer puts a message into the mailbox, or says why not. It never blocks.
func (h *host) offer(msg actors.Message) *messages.Error {
	limit := 0
	if refusable(msg) {
		if h.failed.Load() {
			return h.unavailable()
		}
		limit = h.tree.limits.Mailbox
	}
	switch h.mailbox.post(laneOrdinary, msg, limit) {
	case full:
		return errBusy("too many requests wait for this actor")
	case closed:
		return h.gone()
	}
	return nil
}

func (h *host) unavailable() *messages.Error {
	e := messages.Errorf(messages.CodeUnavailable, "the actor %q has failed repeatedly and is tried again once a minute",
		addressName(h.address))
	e.RetryAfterMs = uint32(h.tree.limits.RestartWindow / time.Millisecond)
	return e.WithHint("see the controller's log for the cause; nothing was changed")
}

// gone says why an actor that has stopped takes no message.
func (h *host) gone() *messages.Error {
	if e := h.tree.refusal(); e != nil {
		return e
	}
	if h.address.Kind == actors.KindPartition {
		return messages.Errorf(messages.CodeUnknownTopicID, "the topic %s has been deleted", h.address.Partition.Topic)
	}
	return messages.Errorf(messages.CodeUnavailable, "the actor %q has stopped", addressName(h.address))
}

// Receive handles one message. A panic of the machine, or of this package, ends the incarnation.
func (h *host) Receive(ctx actor.Context) {
	defer func() {
		if reason := recover(); reason != nil {
			h.crash(reason)
		}
	}()
	switch m := ctx.Message().(type) {
	case *actor.Started, activate:
		h.activate(ctx)
	case outcome:
		h.settle(ctx, m)
	case *actor.Stopped:
		h.end()
	case actor.AutoReceiveMessage, actor.SystemMessage: // nothing to do while stopping, and no children
	case wake:
		if m.incarnation == h.incarnation {
			h.handle(ctx, m.msg)
		}
	default:
		h.handle(ctx, m)
	}
}

// activate loads the committed state and lets the machine look at it.
func (h *host) activate(ctx actor.Context) {
	if !h.enter(nil) {
		h.settled()
		return
	}
	h.incarnation++
	if err := h.body.load(h.tree.env(), h.address); err != nil {
		panic(errLoad{err})
	}
	h.step(ctx, actors.Activated{Restarted: h.incarnation > 1, Takeover: h.incarnation == 1 && h.starting.Load()})
}

func (h *host) handle(ctx actor.Context, msg actors.Message) {
	if h.enter(msg) {
		h.step(ctx, msg)
	}
}

// enter makes msg the message at hand. When the tree is ending, the message is refused instead.
func (h *host) enter(msg actors.Message) bool {
	if refusal := h.tree.enter(); refusal != nil {
		h.tree.refuse(msg, refusal)
		return false
	}
	h.inside, h.current = true, msg
	return true
}

// leave ends the work on a message.
func (h *host) leave() {
	h.current, h.pending = nil, nil
	if h.inside {
		h.inside = false
		h.tree.leave()
	}
}

// step lets the machine decide. Without records its effects leave at once. With records they wait for the journal, and
// so does every further message: the new state is only a proposal, and nobody may build on it.
//
// So no message can make the machine panic while a commit is pending. The one thing that could, a fault of this package
// in settle, happens after the commit.
func (h *host) step(ctx actor.Context, msg actors.Message) {
	h.current = msg
	env := h.tree.env()
	effects := h.body.step(env, msg)
	if len(effects.Records) == 0 {
		h.release(ctx, &effects, messages.Seen{Controller: env.Controller, Sequence: env.Applied})
		return
	}
	h.pending = &proposal{host: h, incarnation: h.incarnation, effects: effects}
	h.mailbox.hold(true)
	h.tree.journal.propose(h.pending)
}

// settle acts on the journal's answer. The catalog has the records already.
func (h *host) settle(ctx actor.Context, o outcome) {
	if h.pending == nil || o.incarnation != h.incarnation {
		return
	}
	p := h.pending
	h.pending = nil
	h.mailbox.hold(false)
	if o.err == nil {
		h.release(ctx, &p.effects, messages.Seen{Controller: h.tree.epoch, Sequence: o.at})
		return
	}
	if h.tree.refusal() != nil {
		h.tree.refuse(h.current, o.err)
		h.body.discard()
		h.leave()
		h.settled()
		return
	}
	panic(errCommit{o.err}) // the state rests on something that is not committed
}

// release lets the effects out, in the order that Effects promises. What the edge does wrong is contained there.
func (h *host) release(ctx actor.Context, effects *actors.Effects, seen messages.Seen) {
	_, first := h.current.(actors.Activated)
	h.current = nil
	t := h.tree
	for _, r := range effects.Replies {
		t.reply(r)
	}
	for _, m := range effects.Tells {
		t.deliver(m.To, m.Msg)
	}
	for _, b := range effects.Broadcast {
		t.broadcast(b)
	}
	if len(effects.Publish) > 0 {
		t.publish(effects.Publish, seen)
	}
	for _, w := range effects.Wakes {
		msg := wake{incarnation: h.incarnation, msg: w.Msg}
		time.AfterFunc(w.After, func() { h.mailbox.post(laneOrdinary, msg, 0) })
	}
	if len(effects.Events) > 0 {
		t.observe(h.address, effects.Events)
	}
	h.leave()
	if first {
		h.serve()
	}
	if effects.Stop {
		t.directory.remove(h)
		ctx.Stop(ctx.Self())
	}
}

// serve notes that an activation has succeeded.
func (h *host) serve() {
	if h.failed.CompareAndSwap(true, false) {
		h.tree.forgive(h)
	}
	h.settled()
}

// settled tells Start, if it waits, that this actor serves, or will not for now.
func (h *host) settled() {
	if h.starting.CompareAndSwap(true, false) {
		h.tree.starting.done()
	}
}

// crash ends the incarnation: it answers the request at hand, forgets the state, and hands over to the supervisor. What
// waits in the mailbox stays there for the next incarnation.
func (h *host) crash(reason any) {
	answer := messages.Errorf(messages.CodeInternal, "the actor %q has failed while it handled this", addressName(h.address))
	var refused errCommit
	if err, is := reason.(error); is && errors.As(err, &refused) {
		answer = refused.why
	}
	h.tree.logCrash(h, reason)
	if h.current != nil {
		h.tree.refuse(h.current, answer)
	}
	h.body.discard()
	h.mailbox.hold(false)
	h.leave()
	panic(&crash{host: h, reason: reason})
}

// fail marks the actor failed and refuses what may be refused of what waits. Called by the strategy.
func (h *host) fail() {
	h.failed.Store(true)
	h.tree.giveUp(h)
	for _, msg := range h.mailbox.take(func(m any) bool { return refusable(m) }) {
		h.tree.refuse(msg, h.unavailable())
	}
	h.settled()
}

// end answers everything that is still open when the actor stops. It must not panic: the library would take that for a
// reason to start the actor again.
func (h *host) end() {
	defer func() {
		if reason := recover(); reason != nil {
			h.tree.logCrash(h, reason)
		}
	}()
	h.tree.directory.remove(h)
	left := h.mailbox.close()
	if h.current != nil {
		h.tree.refuse(h.current, messages.Errorf(messages.CodeOutcomeUnknown,
			"the controller stopped before the store answered").WithHint("ask again; what was stored stays stored"))
	}
	h.leave()
	h.body.discard()
	for _, msg := range left {
		h.tree.refuse(msg, h.gone())
	}
	if h.failed.CompareAndSwap(true, false) {
		h.tree.forgive(h)
	}
	h.settled()
}
