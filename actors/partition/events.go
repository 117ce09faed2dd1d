package partition

import (
	"time"

	"github.com/highwater-io/highwater/messages"
)

// Facts about one partition. Whoever observes them knows from which actor they come.
type (
	// LeaderChanged says that a leader epoch has begun; To is empty if nobody leads in it.
	LeaderChanged struct {
		From, To messages.BrokerID
		Epoch    messages.LeaderEpoch
		Reason   string
	}

	// ISRChanged says that the ISR or the eligible set is another one. Reason is empty where replicas only came back.
	ISRChanged struct {
		Before, After, Eligible []messages.BrokerID
		Epoch                   messages.PartitionEpoch
		Reason                  string
	}

	// Offline says that nobody may lead; Eligible are those of whom one is enough.
	Offline struct {
		LastLeader messages.BrokerID
		Eligible   []messages.BrokerID
		Reason     string
	}

	// Recovered says that a partition which had no leader has one.
	Recovered struct {
		Leader messages.BrokerID
		Epoch  messages.LeaderEpoch
	}

	// LeaderProven says that a leader has shown that it holds everything below the floor.
	LeaderProven struct {
		Leader        messages.BrokerID
		Epoch         messages.LeaderEpoch
		HighWatermark messages.Offset
	}

	// LeaderUnproven says that a leader has let its time pass.
	LeaderUnproven struct {
		Leader messages.BrokerID
		Epoch  messages.LeaderEpoch
		Waited time.Duration
	}

	// LeaderDeclined says that a leader cannot lead: it said so, or its log ends below the floor.
	LeaderDeclined struct {
		Leader        messages.BrokerID
		Epoch         messages.LeaderEpoch
		LogEnd, Floor messages.Offset
	}

	// LeaderResigned says that a leader has given up its epoch, as it was asked to.
	LeaderResigned struct {
		Leader messages.BrokerID
		Epoch  messages.LeaderEpoch
	}

	// HighWatermarkRegression is evidence of a fault: a leader told a lower mark than one that was told before.
	HighWatermarkRegression struct {
		Leader          messages.BrokerID
		Epoch           messages.LeaderEpoch
		Known, Reported messages.Offset
	}

	// PreferenceRefused says why the placer's hint was not followed.
	PreferenceRefused struct {
		To     messages.BrokerID
		Reason string
	}

	// RequestRefused says what a broker asked in vain.
	RequestRefused struct {
		Broker  messages.BrokerID
		Code    messages.Code
		Message string
	}

	// StateRepaired says what was wrong with the stored record.
	StateRepaired struct{ Faults []string }

	// Ended says that the topic is deleted.
	Ended struct{}
)

// Response says that the leader has answered.
func (e LeaderProven) Response() (messages.BrokerID, bool) { return e.Leader, true }

// Response says that the leader has not answered in time.
func (e LeaderUnproven) Response() (messages.BrokerID, bool) { return e.Leader, false }

// Response says that the leader has answered, although not as one would wish.
func (e LeaderDeclined) Response() (messages.BrokerID, bool) { return e.Leader, true }

// EventName returns partition.leader_changed.
func (LeaderChanged) EventName() string { return "partition.leader_changed" }

// EventName returns partition.isr_changed.
func (ISRChanged) EventName() string { return "partition.isr_changed" }

// EventName returns partition.offline.
func (Offline) EventName() string { return "partition.offline" }

// EventName returns partition.recovered.
func (Recovered) EventName() string { return "partition.recovered" }

// EventName returns partition.leader_proven.
func (LeaderProven) EventName() string { return "partition.leader_proven" }

// EventName returns partition.leader_unproven.
func (LeaderUnproven) EventName() string { return "partition.leader_unproven" }

// EventName returns partition.leader_declined.
func (LeaderDeclined) EventName() string { return "partition.leader_declined" }

// EventName returns partition.leader_resigned.
func (LeaderResigned) EventName() string { return "partition.leader_resigned" }

// EventName returns partition.hwm_regression.
func (HighWatermarkRegression) EventName() string { return "partition.hwm_regression" }

// EventName returns partition.preference_refused.
func (PreferenceRefused) EventName() string { return "partition.preference_refused" }

// EventName returns partition.request_refused.
func (RequestRefused) EventName() string { return "partition.request_refused" }

// EventName returns partition.state_repaired.
func (StateRepaired) EventName() string { return "partition.state_repaired" }

// EventName returns partition.ended.
func (Ended) EventName() string { return "partition.ended" }
