package sim

import (
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// settings are shorter than the defaults, so that more happens in less time; their order is the same.
var settings = messages.Settings{
	Heartbeat: 300e6, Session: 1500e6, DisconnectGrace: 100e6, LeaderReady: 3e9, ReplicaLag: 3e9, Checkpoint: 1e9,
	DefaultReplicationFactor: 3, DefaultMinISR: 2, MaxPartitionsPerTopic: 16,
}

// ask sends a request to the subject of the active controller, which everybody hears who takes himself for that one, and
// calls done with the first answer, or with nil after a while. done is called exactly once, if the sender lives.
func (w *world) ask(from *process, label string, handle func(t *term, reply func(proto.Message)), done func(proto.Message)) {
	life, answered := from.life, false
	finish := func(m proto.Message) {
		if !answered {
			answered = true
			done(m)
		}
	}
	for _, c := range w.controllers {
		w.send(from, &c.process, label, func() {
			if c.term != nil && !c.term.closed {
				handle(c.term, func(m proto.Message) {
					w.answer(&c.process, from, label+" reply", life, func() { finish(m) })
				})
			}
		})
	}
	from.timer(requestTimeout, label+" timeout", func() { finish(nil) })
}

const requestTimeout = 700e6

// request registers who waits for an answer.
func (t *term) request(done func(proto.Message)) actors.RequestID {
	t.asked++
	t.requests[t.asked] = done
	return t.asked
}

// toRegistry hands a request of a broker or an operator to the registry.
func (t *term) toRegistry(principal string, body proto.Message, done func(proto.Message)) {
	t.tell(actors.Registry, actors.Request{ID: t.request(done), Principal: principal, Body: body})
}

// toPartition hands a request about one partition to its actor.
func (t *term) toPartition(id messages.PartitionID, done func(proto.Message), msg func(actors.RequestID) actors.Message) {
	r := t.request(done)
	if !t.tell(actors.Partition(id), msg(r)) {
		delete(t.requests, r)
		code := messages.CodeUnknownTopicID
		if _, there := t.catalog.Topic(id.Topic); there {
			code = messages.CodeUnavailable
		}
		done(&pb.IsrResult{TopicId: id.Topic.Bytes(), Partition: id.Index, Error: messages.Errorf(code, "no actor").Proto()})
	}
}

// snapshot answers with everything that concerns a broker. The feed's position is taken first, then the catalog is read.
func (t *term) snapshot(q *pb.SnapshotRequest, done func(proto.Message)) {
	id := messages.BrokerID(q.GetBroker())
	r := t.request(func(m proto.Message) { done(t.page(q, m.(*pb.FeedPosition))) })
	if !t.tell(actors.Outbox(id), actors.FeedStart{Request: r}) {
		delete(t.requests, r)
		done(&pb.SnapshotResponse{Error: messages.Errorf(messages.CodeUnknownBroker, "not registered").Proto()})
	}
}

func (t *term) page(q *pb.SnapshotRequest, feed *pb.FeedPosition) *pb.SnapshotResponse {
	id := messages.BrokerID(q.GetBroker())
	out := &pb.SnapshotResponse{Feed: feed, Seen: &pb.Seen{ControllerEpoch: uint64(t.epoch), Sequence: uint64(t.catalog.Applied())}}
	if b := t.catalog.Brokers()[id]; b == nil || uint64(b.Epoch) != q.GetBrokerEpoch() {
		out.Error = messages.Errorf(messages.CodeStaleBrokerEpoch, "register again").Proto()
		return out
	}
	t.catalog.PartitionsOf(id, func(p *messages.Partition) bool {
		topic, _ := t.catalog.Topic(p.ID.Topic)
		a := messages.AssignmentOf(topic.Name, p)
		t.w.check.assigned(a)
		out.Assignments = append(out.Assignments, a)
		return true
	})
	slices.SortFunc(out.Assignments, func(a, b *pb.Assignment) int {
		return comparePartitions(partitionOf(a.TopicId, a.Partition), partitionOf(b.TopicId, b.Partition))
	})
	for _, h := range q.GetHeld() {
		topic, _ := messages.ParseTopicID(h.GetTopicId())
		if d, ending := t.catalog.Deletion(topic); ending {
			epochs := make([]int64, len(d.Epochs))
			for i, e := range d.Epochs {
				epochs[i] = int64(e)
			}
			out.Removals = append(out.Removals, &pb.Removal{TopicId: topic.Bytes(), PartitionEpochs: epochs})
		} else if _, known := t.catalog.Topic(topic); !known {
			out.Unknown = append(out.Unknown, topic.Bytes())
		}
	}
	return out
}

func partitionOf(topic []byte, index int32) messages.PartitionID {
	id, _ := messages.ParseTopicID(topic)
	return messages.PartitionID{Topic: id, Index: index}
}

func comparePartitions(a, b messages.PartitionID) int {
	if c := slices.Compare(a.Topic[:], b.Topic[:]); c != 0 {
		return c
	}
	return int(a.Index - b.Index)
}
