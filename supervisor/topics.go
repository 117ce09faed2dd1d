package supervisor

import (
	"strconv"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
)

// topicsActor supervises one supervisor for each topic.
type topicsActor struct {
	tree    *Tree
	mailbox mailbox
	nursery *nursery
	serial  int
	waiting []messages.TopicID // to be started
	running map[messages.TopicID]*topicActor
	byPID   map[string]messages.TopicID
	token   token
}

// spawnMore is a supervisor's message to itself: go on with the next slice.
type spawnMore struct{}

func newTopicsActor(t *Tree, all []messages.TopicID) *topicsActor {
	a := &topicsActor{tree: t, waiting: all, running: map[messages.TopicID]*topicActor{}, byPID: map[string]messages.TopicID{}}
	a.mailbox.dispatch = t.apart
	a.nursery = newNursery(t)
	a.token = t.starting.token()
	return a
}

// Receive handles one message.
func (a *topicsActor) Receive(ctx actor.Context) {
	defer a.tree.kernel("topics")
	switch m := ctx.Message().(type) {
	case *actor.Started, spawnMore:
		a.spawn(ctx)
	case actors.EnsureTopic:
		a.ensure(ctx, m.Topic)
	case actors.DropTopic:
		if topic := a.running[m.Topic]; topic != nil {
			topic.mailbox.post(laneOrdinary, dropTopic{m.Deletion}, 0)
		}
	case *actor.Terminated:
		if id, known := a.byPID[m.Who.Id]; known {
			delete(a.byPID, m.Who.Id)
			delete(a.running, id)
			a.tree.directory.removeTopic(id)
		}
	case *actor.Stopped:
		a.token.release()
		a.mailbox.close()
	}
}

// spawn starts the next slice of the topics that were there when the tree began.
func (a *topicsActor) spawn(ctx actor.Context) {
	n := min(len(a.waiting), a.tree.limits.Slice)
	for _, id := range a.waiting[:n] {
		a.ensure(ctx, id)
	}
	if a.waiting = a.waiting[n:]; len(a.waiting) > 0 {
		a.mailbox.post(laneOrdinary, spawnMore{}, 0)
		return
	}
	a.token.release()
}

// ensure starts a topic's supervisor, or tells the running one to look for partitions that have no actor.
func (a *topicsActor) ensure(ctx actor.Context, id messages.TopicID) {
	if running := a.running[id]; running != nil {
		running.mailbox.post(laneOrdinary, spawnMore{}, 0)
		return
	}
	if _, known := a.tree.catalog.Topic(id); !known || a.tree.refusal() != nil {
		return // deleted meanwhile
	}
	a.serial++
	topic := newTopicActor(a.tree, id, 0, a.token)
	a.running[id] = topic
	pid := a.nursery.spawn(ctx, strconv.FormatInt(int64(a.serial), 36), topic, &topic.mailbox)
	a.byPID[pid.Id] = id
}

// topicActor supervises the partitions of one topic with the indexes from first to first + Limits.Children. The one with
// first 0 belongs to the topic as a whole; it has the groups with the higher indexes below it, as far as they are needed.
type topicActor struct {
	tree     *Tree
	mailbox  mailbox
	nursery  *nursery
	topic    messages.TopicID
	first    int
	next     int // the first partition that was not looked at yet
	groups   []*topicActor
	hosts    []*host
	dropping *messages.TopicDeletion // nil while the topic exists
	token    token
}

// dropTopic tells a topic's supervisor that the topic is deleted.
type dropTopic struct{ deletion *messages.TopicDeletion }

func newTopicActor(t *Tree, id messages.TopicID, first int, parent token) *topicActor {
	a := &topicActor{tree: t, topic: id, first: first, next: first, token: parent.another()}
	a.mailbox.dispatch = t.apart
	a.nursery = newNursery(t)
	return a
}

// Receive handles one message.
func (a *topicActor) Receive(ctx actor.Context) {
	defer a.tree.kernel("topic")
	switch m := ctx.Message().(type) {
	case *actor.Started, spawnMore:
		a.spawn(ctx)
	case dropTopic:
		a.drop(ctx, m.deletion)
	case *actor.Terminated:
		a.leaveWhenEmpty(ctx)
	case *actor.Stopped:
		a.token.release()
		a.mailbox.close()
	}
}

// spawn starts the next slice of the partitions that the catalog has.
func (a *topicActor) spawn(ctx actor.Context) {
	topic, known := a.tree.catalog.Topic(a.topic)
	if !known || a.dropping != nil || a.tree.refusal() != nil {
		return
	}
	last := min(topic.Partitions, a.first+a.tree.limits.Children)
	end := min(last, a.next+a.tree.limits.Slice)
	for ; a.next < end; a.next++ {
		a.spawnPartition(ctx, messages.PartitionID{Topic: a.topic, Index: int32(a.next)})
	}
	if a.next < last {
		a.mailbox.post(laneOrdinary, spawnMore{}, 0)
		return
	}
	if a.first == 0 {
		a.spawnGroups(ctx, topic.Partitions)
	}
	a.token.release()
}

func (a *topicActor) spawnPartition(ctx actor.Context, id messages.PartitionID) {
	if _, committed := a.tree.catalog.Partition(id); !committed {
		a.tree.logger.Error().Stringer("partition", id).Msg("the topic's partition has no record; it gets no actor")
		return
	}
	h := newHost(a.tree, actors.Partition(id), a.tree.machines[actors.KindPartition])
	if !a.tree.directory.addPartition(h) {
		return
	}
	h.expectFrom(a.token)
	a.hosts = append(a.hosts, h)
	h.pid = a.nursery.spawn(ctx, strconv.Itoa(int(id.Index)), h, &h.mailbox)
}

// spawnGroups starts the groups that are missing and lets the others look for new partitions.
func (a *topicActor) spawnGroups(ctx actor.Context, partitions int) {
	size := a.tree.limits.Children
	for _, g := range a.groups {
		g.mailbox.post(laneOrdinary, spawnMore{}, 0)
	}
	for first := size * (len(a.groups) + 1); first < partitions; first += size {
		g := newTopicActor(a.tree, a.topic, first, a.token)
		a.groups = append(a.groups, g)
		a.nursery.spawn(ctx, "g"+strconv.Itoa(first/size), g, &g.mailbox)
	}
}

// drop tells every partition that its topic is gone, upon which it says so and stops. One that has failed could not listen:
// it is stopped, and the word is said for it.
func (a *topicActor) drop(ctx actor.Context, d *messages.TopicDeletion) {
	if a.dropping != nil {
		return
	}
	a.dropping = d
	a.token.release()
	for _, g := range a.groups {
		g.mailbox.post(laneOrdinary, dropTopic{d}, 0)
	}
	for _, h := range a.hosts {
		h.dropping = d
		h.offer(actors.TopicDeleted{})
		if h.failed.Load() {
			ctx.Stop(h.pid)
			a.tree.lastWord(d, h.address.Partition)
		}
	}
	a.hosts = nil
	a.leaveWhenEmpty(ctx)
}

// leaveWhenEmpty ends the supervisor of a deleted topic when nothing is left below it.
func (a *topicActor) leaveWhenEmpty(ctx actor.Context) {
	if a.dropping != nil && len(ctx.Children()) == 0 {
		ctx.Stop(ctx.Self())
	}
}
