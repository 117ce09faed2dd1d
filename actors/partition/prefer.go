package partition

import (
	"fmt"
	"slices"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
)

// prefer moves the leadership to the broker that the placer would rather see lead, or changes nothing at all: a second
// best is never chosen.
func (t *turn) prefer(m actors.PreferLeader) {
	if why := t.unpreferable(m.To); why != "" {
		t.event(PreferenceRefused{To: m.To, Reason: why})
		return
	}
	why := fmt.Sprintf("broker %s is preferred", m.To)
	if m.Reason != "" {
		why += ": " + clip(m.Reason)
	}
	t.decide(change{prefer: m.To, why: why})
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
