package registry

import (
	"slices"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
)

// Reasons on record for a broker that is fenced, besides silence and closed connections.
const (
	reasonRegistered    = "registered, not ready yet"
	reasonStopped       = "stopped in order"
	reasonStorageFailed = "its storage refuses work"
)

// fence takes lease and leaderships from a broker: first the record, then every partition makes its own change.
func (t *step) fence(b *messages.Broker, reason string) {
	c := *b
	c.Fenced, c.FencedReason = true, reason
	t.record(&c)
	t.broadcast(b.ID, actors.BrokerChanged{Broker: b.ID})
	t.event(BrokerFenced{Broker: b.ID, Epoch: b.Epoch, Reason: reason})
}

// unfence lets a ready broker lead and be in sync, unless partitions hold it back. It returns whether it did.
func (t *step) unfence(ses *session, b *messages.Broker) bool {
	if t.heldBack(ses, b) {
		return false
	}
	ses.held, ses.unfenced = false, uint64(t.env.Applied)+1
	c := *b
	c.Fenced, c.Suspect, c.FencedReason = false, false, ""
	t.record(&c)
	t.broadcast(b.ID, actors.BrokerChanged{Broker: b.ID})
	t.event(BrokerUnfenced{Broker: b.ID, Epoch: b.Epoch})
	return true
}

// heldBack reports whether some partition has not taken note yet that the broker was fenced: one that it still leads by the
// record, so that it would go on in a leader epoch of before; or, if it is suspect, one that has it in ISR or eligible set.
// Those are told again, in case the first message was lost with a panic. A partition that does not decide at all holds an
// honest broker back for LeaderReady only; a suspect one for as long as it takes.
func (t *step) heldBack(ses *session, b *messages.Broker) bool {
	waiting := t.holdouts(b)
	if len(waiting) == 0 {
		return false
	}
	if !ses.held {
		ses.held, ses.heldSince = true, t.env.Now
	}
	if !b.Suspect && t.env.Now-ses.heldSince >= t.settings.LeaderReady {
		return false
	}
	var msg actors.Message = actors.BrokerChanged{Broker: b.ID}
	if b.Suspect {
		msg = actors.BrokerRestarted{Broker: b.ID, Epoch: b.Epoch}
	}
	for _, p := range waiting {
		t.tell(actors.Partition(p), msg)
	}
	t.event(UnfencingHeld{Broker: b.ID, Partitions: len(waiting), First: waiting[0]})
	return true
}

// holdouts returns up to maxHoldouts partitions that hold the broker back.
func (t *step) holdouts(b *messages.Broker) []messages.PartitionID {
	if _, leads := t.env.Cluster.Load(b.ID); leads == 0 && !b.Suspect {
		return nil
	}
	var out []messages.PartitionID
	t.env.Cluster.PartitionsOf(b.ID, func(p *messages.Partition) bool {
		if p.Leader == b.ID || b.Suspect && (slices.Contains(p.ISR, b.ID) || slices.Contains(p.Eligible, b.ID)) {
			out = append(out, p.ID)
		}
		return len(out) < maxHoldouts
	})
	return out
}

// idle reports whether a broker leads nothing and is in no ISR.
func (t *step) idle(b messages.BrokerID) bool {
	if _, leads := t.env.Cluster.Load(b); leads > 0 {
		return false
	}
	idle := true
	t.env.Cluster.PartitionsOf(b, func(p *messages.Partition) bool {
		idle = !slices.Contains(p.ISR, b)
		return idle
	})
	return idle
}
