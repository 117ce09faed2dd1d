package supervisor

import (
	"runtime/debug"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
)

// The way out of the tree. What is behind Edge belongs to others; a panic there must neither undo what is committed nor
// take the actor down, so each call contains it.

func (t *Tree) reply(r actors.Reply) {
	defer t.contain("Reply")
	t.edge.Reply(r)
}

func (t *Tree) publish(p []actors.Publication, seen messages.Seen) {
	defer t.contain("Publish")
	t.edge.Publish(p, seen)
}

func (t *Tree) observe(a actors.Address, events []actors.Event) {
	defer t.contain("Observe")
	t.edge.Observe(a, events)
}

// lastWord says that a partition is gone, for an actor that cannot say it any more. Its epochs are above all that were ever
// said of it: a partition's leader epoch is never above its partition epoch.
func (t *Tree) lastWord(d *messages.TopicDeletion, id messages.PartitionID) {
	last := &messages.Partition{ID: id}
	if int(id.Index) < len(d.Epochs) {
		last.Epoch = d.Epochs[id.Index]
		last.LeaderEpoch = messages.LeaderEpoch(last.Epoch)
	}
	t.publish([]actors.Publication{actors.PublishLeadership{Topic: d.Name, Partition: last, Deleted: true}},
		messages.Seen{Controller: t.epoch, Sequence: t.catalog.Applied()})
}

// refuse answers a message that will not be handled, if it is a request that somebody waits for.
func (t *Tree) refuse(msg actors.Message, err *messages.Error) {
	if id, is := requestOf(msg); is && id != 0 {
		defer t.contain("Fail")
		t.edge.Fail(id, err)
	}
}

// deliver sends a message from one actor to another. One that cannot be delivered is dropped: its receiver is gone for
// good, and whatever took its place reads what is committed.
func (t *Tree) deliver(to actors.Address, msg actors.Message) {
	if err := t.route(to, msg); err != nil {
		t.refuse(msg, err)
	}
}

// broadcast sends a message to the partitions of a broker. One whose actor is not there yet will see the same in the
// catalog when it is activated: it is entered in the directory before it reads the catalog.
func (t *Tree) broadcast(b actors.Broadcast) {
	t.catalog.PartitionsOf(b.Broker, func(p *messages.Partition) bool {
		if h := t.directory.partition(p.ID); h != nil {
			if err := h.offer(b.Msg); err != nil {
				t.refuse(b.Msg, err)
			}
		}
		return true
	})
}

func (t *Tree) contain(call string) {
	if reason := recover(); reason != nil {
		t.logger.Error().Str("call", call).Any("reason", reason).Bytes("stack", debug.Stack()).Msg("the edge has failed")
	}
}
