package actors

import (
	pb "github.com/highwater-io/highwater/messages/highwaterpb"

	"github.com/highwater-io/highwater/messages"
)

// Messages of the host to every actor.
type (
	// Activated is the first message after Load. Restarted says that the actor was loaded again after a panic. Takeover says that
	// it begins together with the whole controller, after which every leadership is published and every broker takes a snapshot:
	// what is committed already need not be said by the actor.
	Activated struct{ Restarted, Takeover bool }
)

// Bodies of requests to partition actors: one item of a batched wire message with the sender that the edge has checked
// against the subject. Each is answered with one *pb.IsrResult.
type (
	// ISRProposal is a leader's proposal of a new ISR.
	ISRProposal struct {
		Request     RequestID
		Broker      messages.BrokerID
		BrokerEpoch messages.BrokerEpoch
		Proposal    *pb.IsrProposal
	}

	// LeaderReport is LeaderReady or LeaderDeclined.
	LeaderReport struct {
		Request     RequestID
		Broker      messages.BrokerID
		BrokerEpoch messages.BrokerEpoch
		Report      *pb.LeaderReport
	}

	// OffsetReport is a leader's mark at the checkpoint interval. Nobody waits for an answer.
	OffsetReport struct {
		Broker      messages.BrokerID
		BrokerEpoch messages.BrokerEpoch
		Report      *pb.OffsetReport
	}
)

// Messages of the registry to partitions, always by Broadcast after the broker's new record is committed.
type (
	// BrokerChanged says that a broker was fenced, unfenced, or began or ended a controlled stop. The partition looks at
	// Env.Cluster.Brokers for what it is now.
	BrokerChanged struct{ Broker messages.BrokerID }

	// BrokerRestarted says that a broker was registered again and that its replicas cannot be taken to hold what they
	// held: an unclean restart without fsync, or a new storage. The partition takes it out of ISR and eligible set.
	// Empty says that the storage is new and holds nothing.
	BrokerRestarted struct {
		Broker messages.BrokerID
		Epoch  messages.BrokerEpoch
		Empty  bool
	}
)

// Messages to partitions from elsewhere.
type (
	// PreferLeader is the placer's hint: lead from To if it is in the ISR and may lead. No change otherwise. A leader that is
	// well is asked to resign first.
	PreferLeader struct {
		To     messages.BrokerID
		Reason string
	}

	// LeaderDeadline is a partition's own wake-up: the leader of that epoch should have proven itself by now.
	LeaderDeadline struct{ Epoch messages.LeaderEpoch }

	// HandoverDeadline is another one: the leader of that epoch should have resigned by now.
	HandoverDeadline struct{ Epoch messages.LeaderEpoch }

	// TopicDeleted ends a partition's actor. The deletion is committed.
	TopicDeleted struct{}
)

// Messages between registry and placer.
type (
	// PlaceTopic asks for replicas of a new topic. The placer answers with Placement, and counts what it has answered as
	// taken until PlacementSettled.
	PlaceTopic struct {
		Ticket            uint64
		Name              messages.TopicName
		Partitions        int
		ReplicationFactor int
	}

	// Placement answers PlaceTopic. Replicas has one list a partition, in order of preference, the first to lead.
	Placement struct {
		Ticket      uint64
		Replicas    [][]messages.BrokerID
		Explanation []string
		Warnings    []string
		Err         *messages.Error
	}

	// PlacementSettled says that the topic of the ticket is committed, or given up.
	PlacementSettled struct{ Ticket uint64 }
)

// Messages to the supervisor of topics.
type (
	// EnsureTopic starts the actors of a committed topic that are not running yet.
	EnsureTopic struct{ Topic messages.TopicID }
	// DropTopic ends the actors of a deleted topic. Deletion is what is committed of that; its epochs are above all that was
	// ever said of the partitions.
	DropTopic struct {
		Topic    messages.TopicID
		Deletion *messages.TopicDeletion
	}
)

// Messages of the edge to the registry besides requests.
type (
	// Disconnected says that NATS has seen the end of a client connection. Abrupt: by end-of-file or reset, so the
	// process is gone or its network is; not by the server's own doing (stale, slow consumer, shutdown, lame duck).
	Disconnected struct {
		Connection *pb.Connection
		Abrupt     bool
		Reason     string
	}

	// Opened says that from now on brokers can be heard: the controller's subjects are open. It comes once, after the activation.
	Opened struct{}

	// FinalizeUpgrade asks that the version of the cluster be raised, and says which controllers there are. It is answered with
	// a *pb.FinalizeUpgradeResponse.
	FinalizeUpgrade struct {
		Request     RequestID
		Body        *pb.FinalizeUpgradeRequest
		Controllers []messages.ControllerView
	}

	// Tick is the registry's clock, a wake-up of its own.
	Tick struct{}

	// GraceEnded is the registry's wake-up after a disconnect.
	GraceEnded struct {
		Broker     messages.BrokerID
		Epoch      messages.BrokerEpoch
		Connection *pb.Connection
	}
)

// Messages to outboxes.
type (
	// Assign puts one partition's assignment into a broker's outbox; the newest of a partition replaces older ones.
	Assign struct{ Assignment *pb.Assignment }

	// Remove puts the order to delete a topic's data into a broker's outbox.
	Remove struct{ Removal *pb.Removal }

	// Flush is an outbox's message to itself: publish what has gathered.
	Flush struct{}

	// FeedStart asks an outbox for the position that a snapshot taken from now on includes. Answered with
	// *pb.FeedPosition as the body of the reply. It is sent by the edge before it reads the catalog for the snapshot.
	FeedStart struct{ Request RequestID }
)

// PublishAssignments sends a batch to one broker: hw.<cluster>.asg.v1.<broker>.
type PublishAssignments struct {
	Broker      messages.BrokerID
	Feed        messages.Sequence // id of the feed: new with every life of the outbox
	Position    uint64
	Assignments []*pb.Assignment
	Removals    []*pb.Removal
}

func (PublishAssignments) publication() {}
