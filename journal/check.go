package journal

import (
	"math"
	"slices"

	"github.com/highwater-io/highwater/messages"
)

// maxPartitions bounds the partitions of one topic whatever the cluster's settings say: a topic is one entry, and no entry
// has room for more.
const maxPartitions = 1 << 20

func broken(at messages.Sequence, d Defect, format string, args ...any) *Broken {
	return &Broken{At: at, Defect: d, Detail: messages.Errorf("", format, args...).Message}
}

// check says what is wrong with a record that no machine could work with. The same rules hold before a record is written
// and after it was read: what is stored is applied, always.
func check(r messages.Record) error {
	switch r := r.(type) {
	case *messages.Cluster:
		return r.Name.Validate()
	case *messages.Broker:
		return r.ID.Validate()
	case *messages.BrokerForgotten:
		return r.ID.Validate()
	case *messages.Topic:
		return checkTopic(r)
	case *messages.Partition:
		return checkPartition(r)
	case *messages.TopicDeletion:
		return checkTopicID(r.ID)
	case *messages.TopicDeletionDone:
		return checkTopicID(r.ID)
	case *messages.UnknownRecord:
		return r.Validate()
	case *messages.ControllerClaimed:
		if r.Epoch == 0 {
			return invalid("a claim has controller epoch 0")
		}
		if r.Successor != "" && !r.Released {
			return invalid("a claim names a successor")
		}
	}
	return nil
}

func invalid(format string, args ...any) *messages.Error {
	return messages.Errorf(messages.CodeInvalidRequest, format, args...)
}

func checkTopicID(id messages.TopicID) error {
	if id.IsZero() {
		return invalid("the topic id is all zero")
	}
	return nil
}

func checkTopic(t *messages.Topic) error {
	if err := checkTopicID(t.ID); err != nil {
		return err
	}
	if t.Partitions < 1 || t.Partitions > maxPartitions {
		return invalid("the topic has %d partitions, allowed are 1 to %d", t.Partitions, maxPartitions)
	}
	if t.MinISR < 0 || t.ReplicationFactor < 0 || t.MinISR > math.MaxInt32 || t.ReplicationFactor > math.MaxInt32 {
		return invalid("the topic has min ISR %d and replication factor %d", t.MinISR, t.ReplicationFactor)
	}
	return t.Name.Validate()
}

func checkPartition(p *messages.Partition) error {
	if err := checkTopicID(p.ID.Topic); err != nil {
		return err
	}
	if p.ID.Index < 0 || p.MinISR < 0 || p.MinISR > math.MaxInt32 {
		return invalid("the partition has index %d and min ISR %d", p.ID.Index, p.MinISR)
	}
	for _, set := range [][]messages.BrokerID{p.Replicas, p.ISR, p.Eligible} {
		for i, b := range set {
			if slices.Contains(set[:i], b) || b == "" || !slices.Contains(p.Replicas, b) {
				return invalid("broker %q stands twice, or is no replica: replicas %q, ISR %q, eligible %q",
					b, p.Replicas, p.ISR, p.Eligible)
			}
		}
	}
	for _, b := range p.Eligible {
		if slices.Contains(p.ISR, b) {
			return invalid("broker %q is both in the ISR and eligible", b)
		}
	}
	if p.Leader != "" && !slices.Contains(p.ISR, p.Leader) {
		return invalid("the leader %q is not in the ISR %q", p.Leader, p.ISR)
	}
	return nil
}
