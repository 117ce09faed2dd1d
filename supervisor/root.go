package supervisor

import (
	"strconv"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/highwater-io/highwater/messages"
)

// nursery spawns the children of one supervisor. It has one set of properties for all of them, which saves some hundred
// bytes for each, and hands the library the child that was made beforehand.
//
// The library would ask it again for a restart; the strategy never orders one.
type nursery struct {
	props   *actor.Props
	child   actor.Actor
	mailbox actor.Mailbox
}

func newNursery(t *Tree) *nursery {
	n := &nursery{}
	n.props = actor.PropsFromProducer(func() actor.Actor { return n.child },
		actor.WithMailbox(func() actor.Mailbox { return n.mailbox }), actor.WithSupervisor(t.strategy))
	return n
}

// spawn starts an actor. It panics when the name is taken, which is a fault of the supervisor, and ends the tree.
func (n *nursery) spawn(ctx actor.SpawnerContext, name string, child actor.Actor, mailbox actor.Mailbox) *actor.PID {
	n.child, n.mailbox = child, mailbox
	pid, err := ctx.SpawnNamed(n.props, name)
	n.child, n.mailbox = nil, nil
	if err != nil {
		panic(messages.Errorf(messages.CodeInternal, "cannot spawn %q: %v", name, err))
	}
	return pid
}

// rootActor supervises what there is one of.
type rootActor struct {
	tree    *Tree
	mailbox mailbox
	nursery *nursery
}

func newRootActor(t *Tree) *rootActor {
	a := &rootActor{tree: t, nursery: newNursery(t)}
	a.mailbox.dispatch = t.apart
	return a
}

// Receive handles one message.
func (a *rootActor) Receive(ctx actor.Context) {
	defer a.tree.kernel("root")
	t := a.tree
	switch ctx.Message().(type) {
	case *actor.Started:
		a.nursery.spawn(ctx, "journal", t.journal, &t.journal.mailbox)
		if h := t.directory.registry; h != nil {
			h.pid = a.nursery.spawn(ctx, "registry", h, &h.mailbox)
		}
		if h := t.directory.placer; h != nil {
			h.pid = a.nursery.spawn(ctx, "placer", h, &h.mailbox)
		}
		a.nursery.spawn(ctx, "outboxes", t.outboxes, &t.outboxes.mailbox)
		a.nursery.spawn(ctx, "topics", t.topics, &t.topics.mailbox)
	case *actor.Stopped:
		a.mailbox.close()
		close(t.stopped)
	}
}

// outboxesActor supervises the outboxes of the brokers.
type outboxesActor struct {
	tree    *Tree
	mailbox mailbox
	nursery *nursery
	serial  int
}

// spawnOutbox asks for the start of an outbox that is in the directory, and has its first message, already.
type spawnOutbox struct{ host *host }

func newOutboxesActor(t *Tree) *outboxesActor {
	a := &outboxesActor{tree: t, nursery: newNursery(t)}
	a.mailbox.dispatch = t.apart
	return a
}

// Receive handles one message.
func (a *outboxesActor) Receive(ctx actor.Context) {
	defer a.tree.kernel("outboxes")
	switch m := ctx.Message().(type) {
	case spawnOutbox:
		if a.tree.refusal() != nil { // a child that is made while its supervisor stops would never be told to
			m.host.end()
			return
		}
		a.serial++ // a name is free again only after its last owner has stopped
		m.host.pid = a.nursery.spawn(ctx, strconv.FormatInt(int64(a.serial), 36), m.host, &m.host.mailbox)
	case *actor.Stopped:
		for _, m := range a.mailbox.close() {
			if never, is := m.(spawnOutbox); is {
				never.host.end()
			}
		}
	}
}
