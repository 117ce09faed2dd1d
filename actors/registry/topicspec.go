package registry

import (
	"maps"
	"slices"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// topicSpec is a topic as it was asked for, with the defaults filled in.
type topicSpec struct {
	name              messages.TopicName
	partitions        int
	replicationFactor int
	minISR            int
	labels            map[string]string
	// manual has the replicas of each partition if they are placed by hand.
	manual [][]messages.BrokerID
	dryRun bool
}

// specify reads a request. Names that differ only in '.', '_' and '-' are different topics: subjects and stores keep them
// apart. So is a name from one that was deleted, even while brokers still hold its data.
func (t *step) specify(r *pb.CreateTopicRequest) (*topicSpec, *messages.Error) {
	spec := &topicSpec{name: messages.TopicName(r.GetName()), labels: maps.Clone(r.GetLabels()), dryRun: r.GetDryRun()}
	if err := spec.name.Validate(); err != nil {
		return nil, messages.AsError(err)
	}
	if err := t.checkFree(spec.name); err != nil {
		return nil, err
	}
	if _, ok := t.state.names[spec.name]; ok {
		return nil, messages.Errorf(messages.CodeTopicExists, "topic %s is being created", spec.name)
	}
	size := t.sizeByHand
	if len(r.GetAssignment()) == 0 {
		size = t.size
	}
	if err := size(spec, r); err != nil {
		return nil, err
	}
	if n := spec.partitions * spec.replicationFactor; n > maxTopicReplicas {
		return nil, messages.Errorf(messages.CodeInvalidPartitions, "the topic has %d replicas in all, the limit is %d",
			n, maxTopicReplicas)
	}
	if err := t.chooseMinISR(spec, r.GetMinIsr()); err != nil {
		return nil, err
	}
	return spec, checkLabels(spec.labels)
}

func (t *step) checkFree(name messages.TopicName) *messages.Error {
	if old, ok := t.env.Cluster.TopicByName(name); ok {
		return messages.Errorf(messages.CodeTopicExists, "topic %s exists, with id %s", name, old.ID)
	}
	return nil
}

// size sets the numbers of a topic that the placer places.
func (t *step) size(spec *topicSpec, r *pb.CreateTopicRequest) *messages.Error {
	if n := r.GetPartitions(); n < 1 || uint64(n) > uint64(t.settings.MaxPartitionsPerTopic) {
		return messages.Errorf(messages.CodeInvalidPartitions, "%d partitions were asked for, allowed are 1 to %d",
			n, t.settings.MaxPartitionsPerTopic)
	}
	spec.partitions = int(r.GetPartitions())
	factor := uint64(r.GetReplicationFactor())
	if factor == 0 {
		factor = uint64(max(t.settings.DefaultReplicationFactor, 1))
	}
	usable := 0
	for _, b := range t.brokers {
		if b.CanLead() && !b.Draining {
			usable++
		}
	}
	if factor > maxReplicationFactor {
		return messages.Errorf(messages.CodeInvalidReplicationFactor, "the replication factor is %d, the limit is %d",
			factor, maxReplicationFactor)
	}
	if factor > uint64(usable) {
		return messages.Errorf(messages.CodeInvalidReplicationFactor,
			"the replication factor is %d, and %d of %d brokers can take replicas",
			factor, usable, len(t.brokers))
	}
	spec.replicationFactor = int(factor)
	return nil
}

// sizeByHand takes over an assignment made by hand: one list for each partition, of equal length, of distinct registered
// brokers, one of which can lead.
func (t *step) sizeByHand(spec *topicSpec, r *pb.CreateTopicRequest) *messages.Error {
	lists := r.GetAssignment()
	if len(lists) > t.settings.MaxPartitionsPerTopic {
		return messages.Errorf(messages.CodeInvalidPartitions, "the assignment has %d partitions, allowed are 1 to %d",
			len(lists), t.settings.MaxPartitionsPerTopic)
	}
	if n := r.GetPartitions(); n != 0 && uint64(n) != uint64(len(lists)) {
		return badAssignment("%d partitions were asked for, and the assignment has %d", n, len(lists))
	}
	factor := len(lists[0].GetBrokers())
	if factor < 1 || factor > maxReplicationFactor {
		return badAssignment("partition 0 has %d replicas, allowed are 1 to %d", factor, maxReplicationFactor)
	}
	if n := r.GetReplicationFactor(); n != 0 && uint64(n) != uint64(factor) {
		return badAssignment("replication factor %d was asked for, and partition 0 has %d replicas", n, factor)
	}
	spec.partitions, spec.replicationFactor = len(lists), factor
	spec.manual = make([][]messages.BrokerID, len(lists))
	for i, l := range lists {
		if len(l.GetBrokers()) != factor {
			return badAssignment("partition %d has %d replicas and partition 0 has %d: all need the same number",
				i, len(l.GetBrokers()), factor)
		}
		spec.manual[i] = messages.BrokerIDs(l.GetBrokers())
		if err := t.checkReplicas(i, spec.manual[i]); err != nil {
			return err
		}
	}
	return nil
}

func (t *step) checkReplicas(partition int, replicas []messages.BrokerID) *messages.Error {
	canLead := false
	for i, id := range replicas {
		b := t.brokers[id]
		switch {
		case b == nil:
			return badAssignment("partition %d names broker %.80q, which is not registered", partition, id)
		case slices.Contains(replicas[:i], id):
			return badAssignment("partition %d names broker %s twice", partition, id)
		case b.Draining:
			return badAssignment("partition %d names broker %s, which is draining and takes no replicas", partition, id)
		}
		canLead = canLead || b.CanLead()
	}
	if !canLead {
		return badAssignment("partition %d would have no leader: all of %v are fenced or stopping", partition, replicas)
	}
	return nil
}

func (t *step) chooseMinISR(spec *topicSpec, asked uint32) *messages.Error {
	if asked == 0 {
		spec.minISR = messages.EffectiveMinISR(t.settings.DefaultMinISR, spec.replicationFactor)
		return nil
	}
	if uint64(asked) > uint64(spec.replicationFactor) {
		return messages.Errorf(messages.CodeInvalidMinISR, "min ISR %d is above the replication factor %d",
			asked, spec.replicationFactor)
	}
	spec.minISR = int(asked)
	return nil
}

func checkLabels(labels map[string]string) *messages.Error {
	if len(labels) > maxLabels {
		return invalid("the topic has %d labels, the limit is %d", len(labels), maxLabels)
	}
	for key, value := range labels {
		if err := checkText("key of a label", key, 1, maxLabelKey); err != nil {
			return err
		}
		if err := checkText("value of a label", value, 0, maxLabelValue); err != nil {
			return err
		}
	}
	return nil
}

func badAssignment(format string, args ...any) *messages.Error {
	return messages.Errorf(messages.CodeInvalidAssignment, format, args...)
}
