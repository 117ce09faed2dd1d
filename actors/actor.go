package actors

import (
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/messages"
)

// Machine decides for one actor. S is its state; a machine may keep maps and pointers in it, because the host never uses
// an old state after Step returned a new one.
type Machine[S any] interface {
	// Load builds the state from what is committed, at the start of an actor and after a panic. Soft state (sessions,
	// reports, deadlines) starts empty. The host sends Activated as the first message after Load.
	Load(env Env, self Address) (S, error)
	// Step decides on one message. It panics only on a broken invariant.
	Step(env Env, state S, msg Message) (S, Effects)
}

// Message is what an actor receives: a Request from outside or one of the messages of messages.go.
type Message any

// Env is everything that a machine may know besides its state and the message.
type Env struct {
	// Now is the monotonic time since an origin that is fixed for the process. Only differences mean anything.
	Now time.Duration
	// WallUnixMs is for records that people read; nothing is decided from it.
	WallUnixMs int64
	// Random seeds whatever the step draws; it is new for each step.
	Random [2]uint64
	// Applied is the last journal position in Cluster. Position Applied+1 is higher than every one that any broker has
	// seen in a committed record.
	Applied messages.Sequence
	// Claimed is the journal position of the claim that this activation began with; 0 where it is not known.
	Claimed messages.Sequence
	// Controller is the epoch of this activation.
	Controller messages.ControllerEpoch
	// GrantUntil is the time, on the scale of Now, up to which leases may be granted: as long as that, no successor takes
	// over in silence. It moves on with every entry that the journal takes. 0 is without end.
	GrantUntil time.Duration
	// Cluster is the committed state. What it returns is immutable.
	Cluster Cluster
}

// Cluster is the committed state as machines read it. Everything returned is shared and must not be changed.
type Cluster interface {
	BrokerLoad

	Identity() *messages.Cluster
	// Brokers returns all registered brokers, a snapshot.
	Brokers() map[messages.BrokerID]*messages.Broker
	Topic(id messages.TopicID) (*messages.Topic, bool)
	TopicByName(name messages.TopicName) (*messages.Topic, bool)
	Partition(id messages.PartitionID) (*messages.Partition, bool)
	// Deletion returns the unfinished deletion of a topic id; Deletions calls f for all of them.
	Deletion(id messages.TopicID) (*messages.TopicDeletion, bool)
	Deletions(f func(*messages.TopicDeletion) bool)
}

// BrokerLoad is what brokers carry, by the committed state.
type BrokerLoad interface {
	// Load returns how many replicas a broker has, and how many of the partitions it leads.
	Load(b messages.BrokerID) (replicas, leaders int)
	// PartitionsOf calls f for each partition with a replica on b, until f returns false.
	PartitionsOf(b messages.BrokerID, f func(*messages.Partition) bool)
}

// Kind names what an actor is.
type Kind uint8

// The kinds of actors.
const (
	KindNone Kind = iota
	KindRegistry
	KindPlacer
	KindTopics // the supervisor of topics: EnsureTopic, DropTopic
	KindPartition
	KindOutbox
)

// Address names one actor of the tree.
type Address struct {
	Kind      Kind
	Partition messages.PartitionID // KindPartition
	Broker    messages.BrokerID    // KindOutbox
}

// Addresses of the actors of which there is one.
var (
	Registry = Address{Kind: KindRegistry}
	Placer   = Address{Kind: KindPlacer}
	Topics   = Address{Kind: KindTopics}
)

// Partition returns the address of a partition's actor.
func Partition(id messages.PartitionID) Address { return Address{Kind: KindPartition, Partition: id} }

// Outbox returns the address of a broker's outbox actor.
func Outbox(b messages.BrokerID) Address { return Address{Kind: KindOutbox, Broker: b} }

// RequestID names a request from outside that waits for a reply; 0 means that nobody waits.
type RequestID uint64

// Request is a message from outside. The edge has checked that the body can be read and that the principal may speak on
// that subject; everything else is the machine's business. Exactly one reply belongs to each request.
type Request struct {
	ID        RequestID
	Principal string
	// Body is a wire message: *highwaterpb.RegisterRequest, …, or one item of a batched request (see messages.go).
	Body proto.Message
}

// Reply answers a request. Body is the wire message of the answer, with its error field set where it failed.
type Reply struct {
	To   RequestID
	Body proto.Message
}

// Tell is a message to another actor.
type Tell struct {
	To  Address
	Msg Message
}

// Broadcast is a message to every partition that has a replica on a broker, by the committed state after this step.
type Broadcast struct {
	Broker messages.BrokerID
	Msg    Message
}

// Wake is a message to the actor itself after a delay. It is lost when the actor is loaded anew; Activated then sets it again.
type Wake struct {
	After time.Duration
	Msg   Message
}

// Effects is what a step wants done, in this order: commit Records; then, if that succeeded, everything else.
type Effects struct {
	Records   []messages.Record
	Replies   []Reply
	Tells     []Tell
	Broadcast []Broadcast
	Publish   []Publication
	Wakes     []Wake
	// Events are typed facts for logs, metrics and transcripts; they decide nothing.
	Events []Event
	// Stop ends the actor after the effects: its thing is gone.
	Stop bool
}

// Publication is something for everybody or for one broker. Kinds: PublishLeadership, PublishAssignments.
type Publication interface{ publication() }

// PublishLeadership announces the committed leadership of a partition; Deleted says that its topic is gone.
type PublishLeadership struct {
	Topic     messages.TopicName
	Partition *messages.Partition
	Deleted   bool
}

func (PublishLeadership) publication() {}

// Event is a typed fact. Name is past tense, "noun.event".
type Event interface{ EventName() string }

// Response is an event that tells whether a broker has answered in time to being made a leader. It decides nothing; monitors
// are told of brokers that do not.
type Response interface {
	Event
	Response() (b messages.BrokerID, inTime bool)
}
