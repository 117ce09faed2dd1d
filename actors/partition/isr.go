package partition

import (
	"fmt"
	"slices"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// proposeISR decides on a leader's proposal. The ISR that is in force already is a success without a record, unless the
// leader asks for a new partition epoch.
func (t *turn) proposeISR(m actors.ISRProposal) {
	t.replaceRestarted()
	isr, err := t.checkProposal(m)
	if err != nil {
		t.refuse(m.Request, m.Broker, err)
		return
	}
	t.learnMark(m.Broker, messages.Offset(m.Proposal.GetHighWatermark()))
	t.decide(change{isr: isr, renew: m.Proposal.GetRenew(), why: fmt.Sprintf("proposed by leader %s", m.Broker)})
	t.answer(m.Request)
}

// checkProposal returns the proposed ISR, or why it is refused. The order of the checks is part of the protocol: what
// comes first decides what the sender does next.
func (t *turn) checkProposal(m actors.ISRProposal) ([]messages.BrokerID, *messages.Error) {
	if err := t.checkSender(m.Broker, m.BrokerEpoch); err != nil {
		return nil, err
	}
	p := m.Proposal
	if p == nil {
		return nil, messages.Errorf(messages.CodeInvalidRequest, "the proposal is empty")
	}
	epoch := messages.PartitionEpoch(p.GetPartitionEpoch())
	if epoch > t.record.Epoch {
		return nil, messages.Errorf(messages.CodeNotActiveController,
			"partition epoch %d is newer than %d, the newest known here", epoch, t.record.Epoch)
	}
	if err := t.checkLeader(m.Broker, messages.LeaderEpoch(p.GetLeaderEpoch())); err != nil {
		return nil, err
	}
	if epoch < t.record.Epoch {
		return nil, messages.Errorf(messages.CodeStalePartitionEpoch,
			"the proposal was made at partition epoch %d, the partition is at %d", epoch, t.record.Epoch)
	}
	if p.GetHighWatermark() < 0 {
		return nil, messages.Errorf(messages.CodeInvalidRequest, "the high-water mark %d is negative", p.GetHighWatermark())
	}
	return t.checkMembers(m.Broker, p.GetIsr())
}

// checkMembers checks that the members are a distinct subset of the replicas with the leader in it, and that each may
// be in the ISR under the broker epoch that the leader knows it by.
func (t *turn) checkMembers(leader messages.BrokerID, members []*pb.IsrMember) ([]messages.BrokerID, *messages.Error) {
	isr := make([]messages.BrokerID, 0, len(t.record.Replicas))
	for _, m := range members {
		b := messages.BrokerID(m.GetBroker())
		if !slices.Contains(t.record.Replicas, b) {
			return nil, messages.Errorf(messages.CodeInvalidRequest, "proposed member %q is not a replica", b)
		}
		if slices.Contains(isr, b) {
			return nil, messages.Errorf(messages.CodeInvalidRequest, "proposed member %s is named twice", b)
		}
		isr = append(isr, b)
	}
	if !slices.Contains(isr, leader) {
		return nil, messages.Errorf(messages.CodeInvalidRequest, "the proposed ISR lacks its leader %s", leader)
	}
	for _, m := range members {
		if err := t.checkMember(messages.BrokerID(m.GetBroker()), messages.BrokerEpoch(m.GetBrokerEpoch())); err != nil {
			return nil, err
		}
	}
	return isr, nil
}

func (t *turn) checkMember(b messages.BrokerID, epoch messages.BrokerEpoch) *messages.Error {
	known := t.brokers[b]
	switch {
	case known == nil:
		return messages.Errorf(messages.CodeIneligibleReplica, "broker %s is not registered", b)
	case epoch == 0 || epoch != known.Epoch:
		return messages.Errorf(messages.CodeIneligibleReplica, "broker %s has epoch %d, the proposal names %d", b, known.Epoch, epoch)
	case known.Fenced || known.Suspect:
		return messages.Errorf(messages.CodeIneligibleReplica, "broker %s is fenced", b)
	case known.Stopping:
		return messages.Errorf(messages.CodeIneligibleReplica, "broker %s is stopping", b)
	}
	return nil
}

// checkSender checks that a sender speaks under the registration that is in force.
func (t *turn) checkSender(b messages.BrokerID, epoch messages.BrokerEpoch) *messages.Error {
	known := t.brokers[b]
	if known == nil {
		return messages.Errorf(messages.CodeStaleBrokerEpoch, "broker %q is not registered", b)
	}
	if epoch != known.Epoch {
		return messages.Errorf(messages.CodeStaleBrokerEpoch, "broker %s has epoch %d, the request has %d", b, known.Epoch, epoch)
	}
	return nil
}

// checkLeader checks that a sender is the leader of the present leader epoch.
func (t *turn) checkLeader(b messages.BrokerID, epoch messages.LeaderEpoch) *messages.Error {
	switch {
	case epoch > t.record.LeaderEpoch:
		return messages.Errorf(messages.CodeNotActiveController,
			"leader epoch %d is newer than %d, the newest known here", epoch, t.record.LeaderEpoch)
	case epoch < t.record.LeaderEpoch:
		return messages.Errorf(messages.CodeFencedLeaderEpoch, "leader epoch %d has ended, the present one is %d", epoch, t.record.LeaderEpoch)
	case t.record.Leader == "":
		return messages.Errorf(messages.CodeNotLeader, "the partition has no leader")
	case b != t.record.Leader:
		return messages.Errorf(messages.CodeNotLeader, "the leader is %s", t.record.Leader)
	}
	return nil
}
