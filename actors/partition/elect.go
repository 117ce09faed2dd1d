package partition

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/highwater-io/highwater/messages"
)

// elect chooses the leader, in this order: the preferred one, if the decision is about one; the present leader, if it is
// still in the ISR; the best of the ISR; the best of the eligible set that may lead, with the ISR then being just it, which
// loses nothing; nobody.
func (d *decision) elect() {
	old := d.record.Leader
	stays := slices.Contains(d.next.ISR, old)
	candidates := d.next.ISR
	switch {
	case d.change.prefer != "" && slices.Contains(d.next.ISR, d.change.prefer):
		candidates = []messages.BrokerID{d.change.prefer}
	case stays && d.unseat && len(d.next.ISR) > 1:
		candidates = slices.DeleteFunc(slices.Clone(d.next.ISR), func(b messages.BrokerID) bool { return b == old })
	case stays && !d.resigned:
		return
	}
	d.next.Leader = d.best(candidates)
	if d.next.Leader == "" {
		d.next.Leader = d.best(slices.DeleteFunc(slices.Clone(d.next.Eligible), func(b messages.BrokerID) bool { return !d.mayLead(b) }))
		if d.next.Leader != "" {
			d.setISR([]messages.BrokerID{d.next.Leader})
		}
	}
	// A leader that does not stay and is chosen again begins a new epoch all the same.
	d.newStint = d.next.Leader != old || d.next.Leader != ""
}

// best returns the candidate that has timed out the least since a leader last proved itself, then one that is not
// being drained, then the first in the order of the replicas; "" without candidates.
func (t *turn) best(candidates []messages.BrokerID) messages.BrokerID {
	if len(candidates) == 0 {
		return ""
	}
	drained := func(b messages.BrokerID) int {
		if known := t.brokers[b]; known != nil && known.Draining {
			return 1
		}
		return 0
	}
	return slices.MinFunc(candidates, func(a, b messages.BrokerID) int { // of equal ones the first
		return cmp.Or(cmp.Compare(t.timeouts[a], t.timeouts[b]), cmp.Compare(drained(a), drained(b)))
	})
}

// mayLead reports whether a broker is registered, not fenced, not stopping, and not suspected to have lost records.
func (t *turn) mayLead(b messages.BrokerID) bool {
	known := t.brokers[b]
	return known.CanLead() && !known.Suspect
}

// distrusts reports whether a broker's copy may have lost what it held.
func (d *decision) distrusts(b messages.BrokerID) bool {
	known := d.brokers[b]
	return b == d.distrust || known != nil && known.Suspect
}

// mayStay reports whether a broker may be in the ISR.
func (d *decision) mayStay(b messages.BrokerID) bool {
	known := d.brokers[b]
	return known.CanLead() && !known.Suspect && b != d.distrust && (b != d.record.Leader || !d.leaderRestarted())
}

// absence says why a broker may not be in the ISR, "" if it may.
func (d *decision) absence(b messages.BrokerID) string {
	if d.mayStay(b) {
		return ""
	}
	if d.absent.broker != b { // most decisions are about one broker and say twice why
		d.absent.broker, d.absent.why = b, d.findAbsence(b)
	}
	return d.absent.why
}

func (d *decision) findAbsence(b messages.BrokerID) string {
	known, name := d.brokers[b], "broker "+string(b)
	switch {
	case b == d.distrust && d.why != "":
		return d.why
	case d.distrusts(b):
		return name + " may have lost records"
	case known == nil:
		return name + " is not registered"
	case known.Fenced && known.FencedReason != "":
		return name + " is fenced: " + known.FencedReason
	case known.Fenced:
		return name + " is fenced"
	case known.Stopping:
		return name + " is stopping"
	}
	return name + " was restarted"
}

// leaderRestarted reports whether the broker that leads has another registration than the one that was made leader.
func (t *turn) leaderRestarted() bool {
	return t.record.Leader != "" && t.brokers[t.record.Leader] != nil && t.brokerEpoch(t.record.Leader) != t.leaderBroker
}

// reason says why the leader changes.
func (d *decision) reason() string {
	old, why := d.record.Leader, d.why
	switch {
	case why != "":
	case old == "":
		why = fmt.Sprintf("broker %s can lead again", d.next.Leader)
	case !slices.Contains(d.record.ISR, old):
		why = fmt.Sprintf("the stored leader %s was not in the ISR", old)
	case !slices.Contains(d.next.Replicas, old):
		why = fmt.Sprintf("the stored leader %s was not a replica", old)
	default:
		why = d.absence(old)
	}
	if d.next.Leader == "" {
		return why + "; no other replica may lead"
	}
	if !slices.Contains(d.record.ISR, d.next.Leader) {
		why += "; elected from the eligible replicas"
	}
	return why
}

// departures says why the ISR or the eligible set changes.
func (d *decision) departures() string {
	if d.why != "" {
		return d.why
	}
	why := ""
	for _, b := range distinct(slices.Concat(d.record.ISR, d.record.Eligible)) {
		if slices.Contains(d.next.ISR, b) || slices.Contains(d.record.Eligible, b) && slices.Contains(d.next.Eligible, b) {
			continue
		}
		if reason := d.absence(b); why == "" {
			why = reason
		} else if reason != "" {
			why += ", " + reason
		}
	}
	return why
}
