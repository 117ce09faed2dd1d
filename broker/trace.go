package broker

import (
	"time"

	"github.com/highwater-io/highwater/messages"
)

// Lines for debugging that say when this broker may act as a leader, with the machine's monotonic clock, so that what
// several processes on one machine say can be held against each other: nobody else may lead at the same time. What is begun is
// said afterwards and what is ended before, so that what is said is never more than what was so.
const (
	traceLeads       = "leads"
	traceLeadsNoMore = "leads no more"
	traceLeased      = "leased"
	traceLeaseEnded  = "lease ended"
)

// traceLease says until when the lease runs, or that it ends.
func (s *session) traceLease(until time.Time) {
	e := s.log.Debug()
	if !e.Enabled() {
		return
	}
	now := machineClock()
	if until.IsZero() {
		e.Int64("at_ns", now).Msg(traceLeaseEnded)
		return
	}
	e.Int64("at_ns", now).Int64("until_ns", now+int64(time.Until(until))).Msg(traceLeased)
}

// traceRole says that the role of leader has begun or is about to end.
func (s *session) traceRole(what string, p Partition, epoch messages.LeaderEpoch) {
	s.log.Debug().Int64("at_ns", machineClock()).Str("topic", string(p.Topic)).Stringer("partition", p.ID).
		Int64("leader_epoch", int64(epoch)).Msg(what)
}
