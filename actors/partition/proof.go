package partition

import (
	"fmt"
	"slices"
	"time"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
)

// maxPatience bounds how far the time for a proof is stretched: to 2^maxPatience times the setting.
const maxPatience = 3

// report decides on a leader's answer to its assignment.
func (t *turn) report(m actors.LeaderReport) {
	t.replaceRestarted()
	if err := t.checkReport(m); err != nil {
		t.refuse(m.Request, m.Broker, err)
		return
	}
	r := m.Report
	end, floor := messages.Offset(r.GetLogEnd()), t.record.HighWatermark
	switch {
	case r.GetDeclined():
		why := fmt.Sprintf("leader %s declined with its log ending at %d, the floor is %d", m.Broker, end, floor)
		if r.GetReason() != "" {
			why += ": " + clip(r.GetReason())
		}
		t.decline(m.Broker, end, why)
		t.answer(m.Request)
	case r.GetResigned():
		t.resignation(messages.Offset(r.GetHighWatermark()))
		t.answer(m.Request)
	case end < floor && !t.record.LeaderProven: // else the report is older than a mark that this leader has told since
		t.decline(m.Broker, end, fmt.Sprintf("the log of leader %s ends at %d, below the floor %d", m.Broker, end, floor))
		t.refuse(m.Request, m.Broker, messages.Errorf(messages.CodeFencedLeaderEpoch,
			"the log ends at %d, below the floor %d; the leader epoch has ended", end, floor))
	default:
		t.prove(messages.Offset(r.GetHighWatermark()))
		t.answer(m.Request)
	}
}

// checkReport returns why a report is refused. A leader may decline whatever its own state is, but it can only be ready
// while it may lead.
func (t *turn) checkReport(m actors.LeaderReport) *messages.Error {
	if err := t.checkSender(m.Broker, m.BrokerEpoch); err != nil {
		return err
	}
	r := m.Report
	if r == nil {
		return messages.Errorf(messages.CodeInvalidRequest, "the report is empty")
	}
	if err := t.checkLeader(m.Broker, messages.LeaderEpoch(r.GetLeaderEpoch())); err != nil {
		return err
	}
	if r.GetDeclined() {
		return nil
	}
	if r.GetLogEnd() < 0 || r.GetHighWatermark() < 0 || r.GetHighWatermark() > r.GetLogEnd() {
		return messages.Errorf(messages.CodeInvalidRequest, "a log end of %d and a high-water mark of %d cannot be",
			r.GetLogEnd(), r.GetHighWatermark())
	}
	if !r.GetResigned() && !t.mayLead(m.Broker) {
		return messages.Errorf(messages.CodeBrokerFenced, "broker %s may not lead at the moment", m.Broker)
	}
	return nil
}

// prove takes a leader as one that holds everything below the floor. Only then its stint counts as begun, and whoever
// timed out before it is forgiven. Its own mark may be lower than the floor: a follower learns of the mark late.
func (t *turn) prove(mark messages.Offset) {
	t.reported = max(t.reported, mark)
	if t.record.LeaderProven {
		return
	}
	next := clone(t.record)
	t.believe(next)
	t.commit(next)
}

// believe marks the leader of a record that is about to be committed as proven.
func (t *turn) believe(next *messages.Partition) {
	next.LeaderProven = true
	t.timeouts, t.deadline.set = nil, false
	t.event(LeaderProven{Leader: next.Leader, Epoch: next.LeaderEpoch, HighWatermark: max(next.HighWatermark, t.reported)})
}

// decline takes a leader out that cannot lead. It is not eligible any more either: it may lack committed records.
func (t *turn) decline(leader messages.BrokerID, end messages.Offset, why string) {
	t.event(LeaderDeclined{Leader: leader, Epoch: t.record.LeaderEpoch, LogEnd: end, Floor: t.record.HighWatermark})
	t.decide(change{distrust: leader, why: why})
}

// leaderDeadline decides on a leader that has not proven itself in time: another ISR member is tried, if one may lead;
// else the leader is reminded, and waited for again.
func (t *turn) leaderDeadline(m actors.LeaderDeadline) {
	if !t.deadline.set || m.Epoch != t.deadline.epoch {
		return // of an earlier stint
	}
	if early := t.deadline.at - t.env.Now; early > 0 {
		t.fx.Wakes = append(t.fx.Wakes, actors.Wake{After: early, Msg: m})
		return
	}
	t.deadline.set = false
	if m.Epoch != t.record.LeaderEpoch || !t.unproven() {
		return
	}
	leader, waited := t.record.Leader, t.deadline.wait
	if t.timeouts == nil {
		t.timeouts = make(map[messages.BrokerID]int)
	}
	t.timeouts[leader]++
	t.event(LeaderUnproven{Leader: leader, Epoch: t.record.LeaderEpoch, Waited: waited})
	if !t.decide(change{unseat: true, why: fmt.Sprintf("leader %s did not prove itself within %v", leader, waited)}) {
		t.assign([]messages.BrokerID{leader})
	}
}

func (t *turn) unproven() bool { return t.record.Leader != "" && !t.record.LeaderProven }

// watchLeader sets a deadline for an unproven leader that has none. Each round in which every candidate has let its time
// pass doubles the time, so that replicas which are slow to start are not moved about for ever.
func (t *turn) watchLeader() {
	if t.fx.Stop || !t.unproven() || t.deadline.set && t.deadline.epoch == t.record.LeaderEpoch {
		return
	}
	t.wait(settings(t.env).LeaderReady << min(t.timeouts[t.record.Leader], maxPatience))
}

func (t *turn) wait(d time.Duration) {
	t.deadline = deadline{set: true, epoch: t.record.LeaderEpoch, at: t.env.Now + d, wait: d}
	t.fx.Wakes = append(t.fx.Wakes, actors.Wake{After: d, Msg: actors.LeaderDeadline{Epoch: t.record.LeaderEpoch}})
}

// clip bounds a text that a broker wrote to what a record should carry: 200 bytes of valid UTF-8.
func clip(s string) string {
	const limit = 200
	if len(s) > limit {
		s = s[:limit]
	}
	return string(slices.DeleteFunc([]rune(s), func(r rune) bool { return r == '\uFFFD' }))
}
