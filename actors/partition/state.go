package partition

import (
	"time"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
)

// Machine is the machine of one partition. It has no fields: everything is in State. The zero value is ready.
type Machine struct{}

var _ actors.Machine[*State] = Machine{}

// State is what a partition's actor knows: the committed record and, beside it, what may be forgotten with the actor.
type State struct {
	id     messages.PartitionID
	topic  messages.TopicName
	record *messages.Partition

	// reported is the highest mark that a rightful leader has told and that no record holds yet.
	reported messages.Offset
	// shown: the leader of epoch shownIn has told a mark that is not below the known one, so it holds all below that.
	shown   bool
	shownIn messages.LeaderEpoch
	// leaderBroker is the broker epoch under which the leader has its leader epoch. Another one in the catalog means that
	// the process which was made leader is gone, even if its successor has the same id.
	leaderBroker messages.BrokerEpoch
	// timeouts counts how often a replica has led without proving itself, since a leader last did.
	timeouts map[messages.BrokerID]int
	deadline deadline
	// handover is the planned change of leaders that waits for the present one to resign; nil if there is none.
	handover *handover
}

// handover is a planned move of the lead. The leader of that epoch is asked to give it up, and the move is made when it has.
type handover struct {
	epoch messages.LeaderEpoch
	to    messages.BrokerID
	why   string
}

// deadline is the time until which an unproven leader is waited for. One wake-up is under way for each that is set.
type deadline struct {
	set   bool
	epoch messages.LeaderEpoch
	at    time.Duration
	wait  time.Duration
}

// Partition returns the partition as it is after the last step. It must not be changed.
func (s *State) Partition() *messages.Partition { return s.record }

// Load reads the partition from the committed state. It returns INVALID_REQUEST for an address that is no partition's,
// UNKNOWN_TOPIC_ID and UNKNOWN_PARTITION for one that is not in the catalog (any more).
func (Machine) Load(env actors.Env, self actors.Address) (*State, error) {
	if self.Kind != actors.KindPartition {
		return nil, messages.Errorf(messages.CodeInvalidRequest, "an actor of kind %d is no partition", self.Kind)
	}
	topic, ok := env.Cluster.Topic(self.Partition.Topic)
	if !ok {
		return nil, messages.Errorf(messages.CodeUnknownTopicID, "no topic has the id %s", self.Partition.Topic)
	}
	record, ok := env.Cluster.Partition(self.Partition)
	if !ok {
		return nil, messages.Errorf(messages.CodeUnknownPartition, "topic %s has no partition %d", topic.Name, self.Partition.Index)
	}
	s := &State{id: self.Partition, topic: topic.Name, record: record}
	if b := env.Cluster.Brokers()[record.Leader]; b != nil {
		s.leaderBroker = b.Epoch
	}
	return s, nil
}

// settings returns the cluster's settings, the defaults where the cluster has none.
func settings(env actors.Env) messages.Settings {
	s := messages.DefaultSettings()
	if c := env.Cluster.Identity(); c != nil && c.Settings.LeaderReady > 0 {
		s = c.Settings
	}
	return s
}
