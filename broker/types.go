package broker

import (
	"slices"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// ID names a broker.
type ID = messages.BrokerID

// Partition names one partition. Identity is the ID; the topic's name is for people and subjects.
type Partition struct {
	ID    messages.PartitionID
	Topic messages.TopicName
}

// Assignment is a partition as this broker must see it: the committed state of the controller. It is immutable.
type Assignment struct {
	Partition   Partition
	Replicas    []ID
	ISR         []ID
	Leader      ID // "" = none
	LeaderEpoch messages.LeaderEpoch
	Epoch       messages.PartitionEpoch
	MinISR      int // effective: at most the number of replicas
	// Floor is the highest high-water mark that the controller knows: a new leader must hold everything below it.
	Floor messages.Offset
	// LeaderProven: the leader of LeaderEpoch has shown that it holds everything below the floor.
	LeaderProven bool
	// Reported is where this broker's own replica was when it last called Member.Report; zero in Serve.
	Reported Progress

	wire *pb.Assignment
}

// Progress is where a replica stands.
type Progress struct {
	LogEnd        messages.Offset // next offset to write; everything below it is stored
	HighWatermark messages.Offset // everything below it is committed
}

// Has reports whether a broker is one of the replicas.
func (a Assignment) Has(b ID) bool { return slices.Contains(a.Replicas, b) }

// InSync reports whether a broker is in the ISR.
func (a Assignment) InSync(b ID) bool { return slices.Contains(a.ISR, b) }

// Leads reports whether a broker leads.
func (a Assignment) Leads(b ID) bool { return b != "" && a.Leader == b }

// assignmentFromProto reads an assignment and refuses one that breaks the invariants of a partition.
func assignmentFromProto(p *pb.Assignment) (Assignment, error) {
	topic, err := messages.ParseTopicID(p.GetTopicId())
	if err != nil {
		return Assignment{}, err
	}
	name := messages.TopicName(p.GetTopic())
	if err := name.Validate(); err != nil {
		return Assignment{}, err
	}
	a := Assignment{
		Partition: Partition{ID: messages.PartitionID{Topic: topic, Index: p.GetPartition()}, Topic: name},
		Replicas:  messages.BrokerIDs(p.GetReplicas()), ISR: messages.BrokerIDs(p.GetIsr()), Leader: ID(p.GetLeader()),
		LeaderEpoch: messages.LeaderEpoch(p.GetLeaderEpoch()), Epoch: messages.PartitionEpoch(p.GetPartitionEpoch()),
		MinISR: int(p.GetMinIsr()), Floor: messages.Offset(p.GetFloor()), LeaderProven: p.GetLeaderProven(), wire: p,
	}
	for _, m := range a.ISR {
		if !a.Has(m) {
			return Assignment{}, messages.Errorf(messages.CodeInvalidRequest, "%s: ISR member %q is no replica", a.Partition.ID, m)
		}
	}
	if a.Leader != "" && !a.InSync(a.Leader) {
		return Assignment{}, messages.Errorf(messages.CodeInvalidRequest, "%s: leader %q is not in the ISR", a.Partition.ID, a.Leader)
	}
	if a.Partition.ID.Index < 0 || a.LeaderEpoch < 0 && a.Leader != "" || a.Floor < 0 {
		return Assignment{}, messages.Errorf(messages.CodeInvalidRequest, "%s: an index, epoch or floor is negative", a.Partition.ID)
	}
	return a, nil
}

// removal is the journaled order to delete what the broker holds of a topic id.
type removal struct {
	topic  messages.TopicID
	name   messages.TopicName
	epochs []messages.PartitionEpoch
}

func removalFromProto(p *pb.Removal) (removal, error) {
	topic, err := messages.ParseTopicID(p.GetTopicId())
	if err != nil {
		return removal{}, err
	}
	r := removal{topic: topic, name: messages.TopicName(p.GetTopic()), epochs: make([]messages.PartitionEpoch, len(p.GetPartitionEpochs()))}
	for i, e := range p.GetPartitionEpochs() {
		r.epochs[i] = messages.PartitionEpoch(e)
	}
	return r, nil
}

// covers reports whether the order includes a replica whose newest known epoch is e. An order of an older life of the
// partition does not.
func (r removal) covers(index int32, e messages.PartitionEpoch) bool {
	return index >= 0 && int(index) < len(r.epochs) && e <= r.epochs[index]
}
