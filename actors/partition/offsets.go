package partition

import (
	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
)

// offset decides on a leader's report of its mark. A higher one is checkpointed, in a record of the same partition epoch:
// nobody's view of the partition changes by it. Reports of anyone but the present leader are ignored.
func (t *turn) offset(m actors.OffsetReport) {
	r := m.Report
	if r == nil || t.checkSender(m.Broker, m.BrokerEpoch) != nil || t.leaderRestarted() ||
		t.checkLeader(m.Broker, messages.LeaderEpoch(r.GetLeaderEpoch())) != nil {
		return
	}
	mark := messages.Offset(r.GetHighWatermark())
	if mark < 0 || mark > messages.Offset(r.GetLogEnd()) {
		t.event(RequestRefused{Broker: m.Broker, Code: messages.CodeInvalidRequest,
			Message: "a high-water mark is negative, or beyond the log's end"})
		return
	}
	t.learnMark(m.Broker, mark)
	if t.reported > t.record.HighWatermark {
		t.commit(clone(t.record))
	}
}

// learnMark keeps a mark that the leader has told, for the next record. A lower one than is known is evidence of a fault;
// it is told and never adopted.
func (t *turn) learnMark(leader messages.BrokerID, mark messages.Offset) {
	if mark < t.record.HighWatermark {
		t.event(HighWatermarkRegression{Leader: leader, Epoch: t.record.LeaderEpoch, Known: t.record.HighWatermark, Reported: mark})
		return
	}
	t.reported = max(t.reported, mark)
	t.shown, t.shownIn = true, t.record.LeaderEpoch
}
