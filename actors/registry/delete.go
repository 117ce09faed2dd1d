package registry

import (
	"slices"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// deleteTopic ends a topic at once, and orders every broker with a replica to delete what it holds. Brokers that are away
// do it when they return; the deletion stays on record until all have confirmed. The answer's revision is a lower bound
// of the position of the change, or what a dry run was decided from.
func (t *step) deleteTopic(r *pb.DeleteTopicRequest) (*pb.DeleteTopicResponse, *messages.Error) {
	topic, err := t.topicNamed(r)
	if err != nil {
		return nil, err
	}
	if r.GetDryRun() {
		return &pb.DeleteTopicResponse{TopicId: topic.ID.Bytes(), Revision: uint64(t.env.Applied)}, nil
	}
	if err := t.doubt(); err != nil {
		return nil, err
	}
	if t.state.unfinished >= maxUnfinished {
		return nil, busy("%d deletions wait for brokers that have not confirmed them", t.state.unfinished)
	}
	d := &messages.TopicDeletion{ID: topic.ID, Name: topic.Name, Partitions: topic.Partitions}
	d.Epochs, d.Pending = t.epochsOf(topic)
	t.record(d)
	t.event(TopicDeleted{Topic: d.ID, Name: d.Name, Pending: len(d.Pending)})
	t.state.unfinished++
	if len(d.Pending) == 0 {
		t.finishDeletion(d)
	}
	t.tell(actors.Topics, actors.DropTopic{Topic: topic.ID, Deletion: d})
	removal := removalOf(d)
	for _, b := range d.Pending {
		t.tell(actors.Outbox(b), actors.Remove{Removal: removal})
	}
	return &pb.DeleteTopicResponse{TopicId: topic.ID.Bytes(), Revision: uint64(t.env.Applied) + 1}, nil
}

// topicNamed finds the topic of a request by its name, and by its id if one is given as a guard.
func (t *step) topicNamed(r *pb.DeleteTopicRequest) (*messages.Topic, *messages.Error) {
	name := messages.TopicName(r.GetName())
	if err := name.Validate(); err != nil {
		return nil, messages.AsError(err)
	}
	topic, ok := t.env.Cluster.TopicByName(name)
	if len(r.GetTopicId()) > 0 {
		id, err := messages.ParseTopicID(r.GetTopicId())
		if err != nil {
			return nil, messages.AsError(err)
		}
		if ok && topic.ID != id {
			return nil, messages.Errorf(messages.CodeUnknownTopicID, "topic %s has id %s now, not %s", name, topic.ID, id)
		}
	}
	if !ok {
		return nil, messages.Errorf(messages.CodeUnknownTopic, "there is no topic %s", name)
	}
	return topic, nil
}

// epochsOf returns the partition epochs that a deletion covers, and the registered brokers that have a replica. A change of
// a partition may be on its way to the journal while the deletion is decided, and reach brokers before the order does: the
// room lets the order cover it. Nothing later can be meant, because a topic id is never used again.
func (t *step) epochsOf(topic *messages.Topic) ([]messages.PartitionEpoch, []messages.BrokerID) {
	epochs := make([]messages.PartitionEpoch, topic.Partitions)
	holders := map[messages.BrokerID]struct{}{}
	for i := range epochs {
		epochs[i] = epochRoom
		p, ok := t.env.Cluster.Partition(messages.PartitionID{Topic: topic.ID, Index: int32(i)})
		if !ok {
			continue
		}
		epochs[i] += p.Epoch
		for _, b := range p.Replicas {
			if t.brokers[b] != nil {
				holders[b] = struct{}{}
			}
		}
	}
	if len(holders) == 0 {
		return epochs, nil
	}
	return epochs, sortedKeys(holders)
}

func removalOf(d *messages.TopicDeletion) *pb.Removal {
	epochs := make([]int64, len(d.Epochs))
	for i, e := range d.Epochs {
		epochs[i] = int64(e)
	}
	return &pb.Removal{TopicId: d.ID.Bytes(), Topic: string(d.Name), PartitionEpochs: epochs}
}

// strike takes brokers out of a deletion, which ends with the last one.
func (t *step) strike(d *messages.TopicDeletion, gone func(messages.BrokerID) bool) {
	c := *d
	c.Pending = slices.DeleteFunc(slices.Clone(d.Pending), gone)
	switch {
	case len(c.Pending) == 0:
		t.finishDeletion(d)
	case len(c.Pending) < len(d.Pending):
		t.record(&c)
	}
}

func (t *step) finishDeletion(d *messages.TopicDeletion) {
	t.record(&messages.TopicDeletionDone{ID: d.ID})
	t.state.unfinished--
	t.event(TopicDeletionFinished{Topic: d.ID, Name: d.Name})
}

// strikeEmpty takes a broker whose storage is new out of the deletions: it holds nothing of them. What is too much for one
// entry the broker confirms itself, after its snapshot.
func (t *step) strikeEmpty(b messages.BrokerID) {
	t.strikeWhere(func(pending messages.BrokerID) bool { return pending == b })
}

// resumeDeletions counts the deletions, and takes out of them who is not registered any more.
func (t *step) resumeDeletions() {
	t.state.unfinished = 0
	t.env.Cluster.Deletions(func(*messages.TopicDeletion) bool { t.state.unfinished++; return true })
	t.strikeWhere(func(pending messages.BrokerID) bool { return t.brokers[pending] == nil })
}

func (t *step) strikeWhere(gone func(messages.BrokerID) bool) {
	budget := maxEpochsRewritten
	t.env.Cluster.Deletions(func(d *messages.TopicDeletion) bool {
		if slices.ContainsFunc(d.Pending, gone) {
			t.strike(d, gone)
			budget -= len(d.Epochs) + 1
		}
		return budget > 0
	})
}
