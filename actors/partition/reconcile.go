package partition

import (
	"fmt"
	"slices"

	"github.com/highwater-io/highwater/messages"
)

// activate brings a partition in line with what its brokers have become while no actor watched. A new partition is
// announced, unless a takeover does that for all; one that is as it should be is not: brokers take a snapshot after a change of
// controllers.
func (t *turn) activate(takeover bool) {
	announced := takeover || t.record.Epoch > 0
	if announced && t.unchanged() {
		return
	}
	if faults := t.faults(); len(faults) > 0 {
		t.event(StateRepaired{Faults: faults})
	}
	wasOffline := t.record.Leader == ""
	if !t.decide(change{}) && !announced {
		t.assign(t.record.Replicas)
		t.publish()
	}
	if wasOffline && t.record.Leader == "" {
		t.event(t.offline())
	}
}

// unchanged reports, without making anything, that there is nothing to bring in line: the record is sound and has a leader, and
// everybody in its ISR may be there. It is what almost every partition finds when a controller takes over, which waits for
// all of them. Where it says no there may still be nothing to do.
func (t *turn) unchanged() bool {
	p := t.record
	n := len(p.Replicas)
	if p.Leader == "" || n == 0 || len(p.Eligible) > 0 || len(p.ISR) < messages.EffectiveMinISR(p.MinISR, n) || t.minISR() != p.MinISR {
		return false
	}
	for i, b := range p.Replicas {
		if b == "" || slices.Contains(p.Replicas[:i], b) {
			return false
		}
	}
	for i, b := range p.ISR {
		if !slices.Contains(p.Replicas, b) || slices.Contains(p.ISR[:i], b) || !t.mayLead(b) {
			return false
		}
	}
	return slices.Contains(p.ISR, p.Leader) && !t.leaderRestarted()
}

// reconcile looks at all brokers of the partition, not only at the one that a message named: the message that named
// another may be lost with an earlier controller.
func (t *turn) reconcile(c change) { t.decide(c) }

// replaceRestarted ends the stint of a leader whose process is not the one that was made leader. It runs before the
// new process is heard, so that two processes never speak under one leader epoch.
func (t *turn) replaceRestarted() {
	if t.leaderRestarted() {
		t.reconcile(change{})
	}
}

// faults lists what a stored record says that cannot be. Every decision makes a record without them.
func (t *turn) faults() []string {
	p := t.record
	var out []string
	fault := func(bad bool, format string, args ...any) {
		if bad {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	fault(len(p.Replicas) == 0, "there are no replicas")
	fault(len(distinct(p.Replicas)) != len(p.Replicas), "the replicas %v are not distinct", p.Replicas)
	fault(!sameMembers(inOrder(distinct(p.Replicas), p.ISR), p.ISR),
		"the ISR %v is not a distinct subset of the replicas %v", p.ISR, p.Replicas)
	fault(!sameMembers(inOrder(distinct(p.Replicas), p.Eligible), p.Eligible),
		"the eligible set %v is not a distinct subset of the replicas %v", p.Eligible, p.Replicas)
	both := slices.ContainsFunc(p.Eligible, func(b messages.BrokerID) bool { return slices.Contains(p.ISR, b) })
	fault(both, "ISR %v and eligible set %v overlap", p.ISR, p.Eligible)
	fault(p.Leader != "" && !slices.Contains(p.ISR, p.Leader), "the leader %s is not in the ISR %v", p.Leader, p.ISR)
	return out
}
