package partition

import (
	"slices"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
)

// change is what a message asks for, besides that brokers which may not lead leave the ISR, as in every decision.
type change struct {
	// isr is the proposed ISR; nil keeps the present one.
	isr []messages.BrokerID
	// distrust names a broker that cannot be taken to hold what it held: it leaves ISR and eligible set.
	distrust messages.BrokerID
	// prefer leads if it is in the ISR, before the present leader.
	prefer messages.BrokerID
	// unseat: another ISR member leads, if there is one that may.
	unseat bool
	// resigned: the present leader has given up its epoch. It is as good as before, but needs a new one.
	resigned bool
	// renew: a new partition epoch is wanted, even if nothing else changes.
	renew bool
	// why goes on record as the reason if the leader changes, and into the event if the ISR does. Empty: the states of the
	// brokers say why.
	why string
}

// decision is the making of the next record out of the present one: membership, then the leader, then the epochs. All of
// it goes into one write.
type decision struct {
	*turn
	change
	next *messages.Partition
	// newStint: the leader epoch ends with this decision.
	newStint bool
	// left says why the ISR or the eligible set changes.
	left string
	// absent is the last answer of absence.
	absent struct {
		broker messages.BrokerID
		why    string
	}
}

// decide makes the next record and everything that follows from it. It reports whether there is any difference.
func (t *turn) decide(c change) bool {
	d := &decision{turn: t, change: c, next: clone(t.record)}
	d.next.Replicas = distinct(t.record.Replicas)
	d.next.MinISR = t.minISR()
	d.formISR()
	d.elect()
	if !d.seal() {
		return false
	}
	before := t.record
	t.commit(d.next)
	d.announce(before)
	return true
}

// formISR takes everyone out of the ISR who may not be in it.
func (d *decision) formISR() {
	target := d.record.ISR
	if d.isr != nil {
		target = d.isr
	}
	d.setISR(slices.DeleteFunc(inOrder(d.next.Replicas, target), func(b messages.BrokerID) bool { return !d.mayStay(b) }))
}

// setISR sets the ISR and what follows for the eligible set: below min ISR, whoever leaves the ISR stays eligible, unless
// it is distrusted; from min ISR on nobody outside the ISR is.
func (d *decision) setISR(isr []messages.BrokerID) {
	d.next.ISR, d.next.Eligible = isr, nil
	if len(isr) >= messages.EffectiveMinISR(d.next.MinISR, len(d.next.Replicas)) {
		return
	}
	outside := inOrder(d.next.Replicas, slices.Concat(d.record.Eligible, d.record.ISR))
	d.next.Eligible = slices.DeleteFunc(outside, func(b messages.BrokerID) bool {
		return slices.Contains(isr, b) || d.distrusts(b)
	})
}

// seal sets the epochs and reports whether the record differs from the present one at all. A mark alone is no difference:
// it is written by checkpoints and along with other changes. A renewal is one.
func (d *decision) seal() bool {
	if d.newStint {
		d.next.LeaderEpoch++
		d.next.LeaderProven = false
		d.next.Reason = d.reason()
		d.next.LastLeader = ""
		if d.next.Leader == "" {
			d.next.LastLeader = d.record.Leader
		}
	}
	if !d.renew && !d.newStint && d.next.MinISR == d.record.MinISR && slices.Equal(d.next.Replicas, d.record.Replicas) &&
		sameMembers(d.next.ISR, d.record.ISR) && sameMembers(d.next.Eligible, d.record.Eligible) {
		return false
	}
	d.next.Epoch++
	d.left = d.departures()
	return true
}

// commit makes a record the partition's state, with the highest mark that is known. A mark that the leader of this very
// epoch has raised is as good a proof as its report: without that, a report from before it would be below the floor.
func (t *turn) commit(next *messages.Partition) {
	next.HighWatermark = max(next.HighWatermark, t.reported, 0)
	if t.shown && t.shownIn == next.LeaderEpoch && !next.LeaderProven {
		t.believe(next)
	}
	t.record = next
	t.fx.Records = append(t.fx.Records, next)
}

// announce tells replicas and everyone else of a change, and the events that belong to it.
func (d *decision) announce(before *messages.Partition) {
	d.assign(d.record.Replicas)
	d.publish()
	if d.newStint {
		d.leaderBroker = d.brokerEpoch(d.record.Leader)
		d.event(LeaderChanged{From: before.Leader, To: d.record.Leader, Epoch: d.record.LeaderEpoch, Reason: d.record.Reason})
	}
	if !sameMembers(d.record.ISR, before.ISR) || !sameMembers(d.record.Eligible, before.Eligible) {
		d.event(ISRChanged{Before: before.ISR, After: d.record.ISR, Eligible: d.record.Eligible, Epoch: d.record.Epoch, Reason: d.left})
	}
	switch {
	case before.Leader != "" && d.record.Leader == "":
		d.event(d.offline())
	case before.Leader == "" && d.record.Leader != "":
		d.event(Recovered{Leader: d.record.Leader, Epoch: d.record.LeaderEpoch})
	}
}

func (t *turn) offline() Offline {
	return Offline{LastLeader: t.record.LastLeader, Eligible: t.record.Eligible, Reason: t.record.Reason}
}

// assign puts the partition into the outboxes of replicas; a broker that is not registered any more has none. They all get
// the same assignment, which nobody changes.
func (t *turn) assign(replicas []messages.BrokerID) {
	a := messages.AssignmentOf(t.topic, t.record)
	a.Resign = t.handover != nil && t.handover.epoch == t.record.LeaderEpoch
	if t.fx.Tells == nil {
		t.fx.Tells = make([]actors.Tell, 0, len(replicas))
	}
	for _, b := range replicas {
		if t.brokers[b] != nil {
			t.fx.Tells = append(t.fx.Tells, actors.Tell{To: actors.Outbox(b), Msg: actors.Assign{Assignment: a}})
		}
	}
}

func (t *turn) publish() {
	t.fx.Publish = append(t.fx.Publish, actors.PublishLeadership{Topic: t.topic, Partition: t.record})
}

// minISR returns the topic's setting, in the partition's record unless the two mean the same for this many replicas.
func (t *turn) minISR() int {
	topic, ok := t.env.Cluster.Topic(t.id.Topic)
	n := len(t.record.Replicas)
	if !ok || topic.MinISR < 1 || messages.EffectiveMinISR(topic.MinISR, n) == messages.EffectiveMinISR(t.record.MinISR, n) {
		return t.record.MinISR
	}
	return topic.MinISR
}

// brokerEpoch returns the registered epoch of a broker, 0 if it is not registered.
func (t *turn) brokerEpoch(b messages.BrokerID) messages.BrokerEpoch {
	if known := t.brokers[b]; known != nil {
		return known.Epoch
	}
	return 0
}

func clone(p *messages.Partition) *messages.Partition {
	c := *p
	return &c
}

// distinct returns the ids in their order, each once and none empty: the list itself if it is so.
func distinct(ids []messages.BrokerID) []messages.BrokerID {
	same := len(ids) > 0
	for i, b := range ids {
		same = same && b != "" && !slices.Contains(ids[:i], b)
	}
	if same {
		return ids
	}
	out := make([]messages.BrokerID, 0, len(ids))
	for _, b := range ids {
		if b != "" && !slices.Contains(out, b) {
			out = append(out, b)
		}
	}
	return orNil(out)
}

// orNil returns nil for an empty list, as one is read back from the journal.
func orNil(ids []messages.BrokerID) []messages.BrokerID {
	if len(ids) == 0 {
		return nil
	}
	return ids
}

// inOrder returns the replicas that are in a set, in the order of the replicas.
func inOrder(replicas, set []messages.BrokerID) []messages.BrokerID {
	out := make([]messages.BrokerID, 0, len(replicas))
	for _, b := range replicas {
		if slices.Contains(set, b) {
			out = append(out, b)
		}
	}
	return orNil(out)
}

// sameMembers reports whether two lists hold the same ids, in whatever order; a has no duplicates.
func sameMembers(a, b []messages.BrokerID) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(x messages.BrokerID) bool { return !slices.Contains(b, x) })
}
