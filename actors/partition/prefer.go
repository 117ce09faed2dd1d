package partition

import (
	"fmt"
	"slices"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
)

// prefer moves the leadership to the broker that the placer would rather see lead, or changes nothing at all: a second
// best is never chosen. The present leader is asked to resign first: it is heard, so its lease does not end by itself, and
// two brokers must not hold one for the same partition. A leader that has not proven itself yet has no lease to give up.
func (t *turn) prefer(m actors.PreferLeader) {
	if why := t.unpreferable(m.To); why != "" {
		t.event(PreferenceRefused{To: m.To, Reason: why})
		return
	}
	why := fmt.Sprintf("broker %s is preferred", m.To)
	if m.Reason != "" {
		why += ": " + clip(m.Reason)
	}
	if t.unproven() || t.leaderRestarted() || !t.mayLead(t.record.Leader) {
		t.decide(change{prefer: m.To, why: why})
		return
	}
	asked := t.handover != nil && t.handover.epoch == t.record.LeaderEpoch
	t.handover = &handover{epoch: t.record.LeaderEpoch, to: m.To, why: why}
	if asked {
		return // the latest hint counts
	}
	t.assign([]messages.BrokerID{t.record.Leader})
	t.fx.Wakes = append(t.fx.Wakes, actors.Wake{After: settings(t.env).LeaderReady, Msg: actors.HandoverDeadline{Epoch: t.record.LeaderEpoch}})
}

// resignation moves the lead on from a leader that has given it up: to the one for whose sake it was asked, if that still may
// lead, or else to the best, which may be itself again in a new leader epoch.
func (t *turn) resignation(mark messages.Offset) {
	t.event(LeaderResigned{Leader: t.record.Leader, Epoch: t.record.LeaderEpoch})
	t.learnMark(t.record.Leader, mark)
	c := change{resigned: true, unseat: true, why: fmt.Sprintf("leader %s has resigned", t.record.Leader)}
	if h := t.handover; h != nil && h.epoch == t.record.LeaderEpoch && t.unpreferable(h.to) == "" {
		c.prefer, c.why = h.to, h.why
	}
	t.handover = nil
	t.decide(c)
}

// handoverDeadline gives up a planned move for which the leader has not resigned. Should it do so later, the lead moves on
// all the same.
func (t *turn) handoverDeadline(m actors.HandoverDeadline) {
	h := t.handover
	if h == nil || h.epoch != m.Epoch {
		return
	}
	t.handover = nil
	if m.Epoch != t.record.LeaderEpoch {
		return
	}
	t.event(PreferenceRefused{To: h.to, Reason: fmt.Sprintf("leader %s has not resigned in time", t.record.Leader)})
	t.assign([]messages.BrokerID{t.record.Leader}) // which takes the request back
}

// unpreferable says why a broker is not made the leader by a hint, "" if it is.
func (t *turn) unpreferable(b messages.BrokerID) string {
	known := t.brokers[b]
	switch {
	case b != "" && b == t.record.Leader:
		return "it leads already"
	case !slices.Contains(t.record.ISR, b):
		return "it is not in the ISR"
	case !t.mayLead(b):
		return "it may not lead"
	case known.Draining:
		return "it is being drained"
	case t.timeouts[b] > 0:
		return "it has led without proving itself"
	}
	return ""
}
