package registry

import (
	"fmt"
	"time"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
)

// Facts about brokers.
type (
	// BrokerRegistered says that a broker has a new epoch and is fenced until it is ready. Trusted: it holds what it has
	// acknowledged. Known: the id was registered before.
	BrokerRegistered struct {
		Broker      messages.BrokerID
		Epoch       messages.BrokerEpoch
		Incarnation messages.IncarnationID
		Known       bool
		Trusted     bool
	}

	// BrokerAmended says that a registered incarnation has changed what it says of itself.
	BrokerAmended struct{ Broker messages.BrokerID }

	// BrokerFenced says that a broker lost its lease and every leadership, and why.
	BrokerFenced struct {
		Broker messages.BrokerID
		Epoch  messages.BrokerEpoch
		Reason string
	}

	// BrokerUnfenced says that a broker may lead and be in sync again.
	BrokerUnfenced struct {
		Broker messages.BrokerID
		Epoch  messages.BrokerEpoch
	}

	// BrokerStopping says that a broker has begun a controlled stop.
	BrokerStopping struct{ Broker messages.BrokerID }

	// UnfencingHeld says that a ready broker stays fenced because partitions have not let go of it yet. First is one of
	// them.
	UnfencingHeld struct {
		Broker     messages.BrokerID
		Partitions int // at least; the count stops at a limit
		First      messages.PartitionID
	}

	// SessionEnded says that a fenced broker is not heard any more.
	SessionEnded struct{ Broker messages.BrokerID }

	// PositionAhead says that somebody has seen more than the journal holds: the store went back in time, or another
	// controller is active.
	PositionAhead struct {
		Broker     messages.BrokerID
		Seen       messages.Seen
		Registered bool // then nothing is decided any more until ClaimEnded
		Reason     string
	}

	// ClaimEnded says that a broker of a PositionAhead is not heard any more, or is forgotten.
	ClaimEnded struct{ Broker messages.BrokerID }
)

// Facts about topics, and about the registry itself.
type (
	// TopicCreated says that a topic exists.
	TopicCreated struct {
		Topic      messages.TopicID
		Name       messages.TopicName
		Partitions int
	}

	// TopicDeleted says that a topic is gone, and how many brokers still have to delete its data.
	TopicDeleted struct {
		Topic   messages.TopicID
		Name    messages.TopicName
		Pending int
	}

	// TopicDeletionFinished says that no broker holds anything of a deleted topic any more.
	TopicDeletionFinished struct {
		Topic messages.TopicID
		Name  messages.TopicName
	}

	// ControllerStalled says that the registry's clock came late, so that everyone was given a fresh session.
	ControllerStalled struct{ Late time.Duration }

	// UpgradeFinalized says that the version of the cluster has been raised.
	UpgradeFinalized struct{ From, To messages.Version }

	// BrokerForgotten says that a registration has ended for good.
	BrokerForgotten struct{ Broker messages.BrokerID }

	// MessageIgnored says that a message came that the registry does not know.
	MessageIgnored struct{ Kind string }
)

// EventName returns "broker.registered".
func (BrokerRegistered) EventName() string { return "broker.registered" }

// EventName returns "broker.amended".
func (BrokerAmended) EventName() string { return "broker.amended" }

// EventName returns "broker.fenced".
func (BrokerFenced) EventName() string { return "broker.fenced" }

// EventName returns "broker.unfenced".
func (BrokerUnfenced) EventName() string { return "broker.unfenced" }

// EventName returns "broker.stopping".
func (BrokerStopping) EventName() string { return "broker.stopping" }

// EventName returns "broker.unfencing_held".
func (UnfencingHeld) EventName() string { return "broker.unfencing_held" }

// EventName returns "broker.session_ended".
func (SessionEnded) EventName() string { return "broker.session_ended" }

// EventName returns "broker.position_ahead".
func (PositionAhead) EventName() string { return "broker.position_ahead" }

// EventName returns "broker.claim_ended".
func (ClaimEnded) EventName() string { return "broker.claim_ended" }

// EventName returns "topic.created".
func (TopicCreated) EventName() string { return "topic.created" }

// EventName returns "topic.deleted".
func (TopicDeleted) EventName() string { return "topic.deleted" }

// EventName returns "topic.deletion_finished".
func (TopicDeletionFinished) EventName() string { return "topic.deletion_finished" }

// EventName returns "controller.stalled".
func (ControllerStalled) EventName() string { return "controller.stalled" }

// EventName returns "upgrade.finalized".
func (UpgradeFinalized) EventName() string { return "upgrade.finalized" }

// EventName returns "broker.forgotten".
func (BrokerForgotten) EventName() string { return "broker.forgotten" }

// EventName returns "message.ignored".
func (MessageIgnored) EventName() string { return "message.ignored" }

func kindOf(msg actors.Message) string { return fmt.Sprintf("%T", msg) }
