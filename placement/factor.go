package placement

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/highwater-io/highwater/messages"
)

// ChangeFactor proposes how the partitions of a topic get another number of replicas. New ones go where they cost the spread
// least, and to the least loaded of these brokers, at the end of the order of preference. Those that are given up are, in
// this order: on gone brokers, outside the ISR, on brokers that take no replicas, crowding a domain, on loaded brokers; the
// leader never.
//
// The view has to yield only the topic's partitions.
//
// Errors: INVALID_REPLICATION_FACTOR below 1, or where more are asked for than brokers take replicas; INVALID_REQUEST as
// for Repair.
func ChangeFactor(v View, factor int) (*Plan, error) {
	p, err := newPlanner(v, false, nil)
	if err != nil {
		return nil, err
	}
	if factor < 1 || slices.ContainsFunc(p.parts, func(x part) bool { return len(x.from) < factor }) {
		usable, refused := v.divided()
		if err := (NewTopic{Partitions: 1, ReplicationFactor: factor}).check(usable, refused); err != nil {
			return nil, err
		}
	}
	p.offerOpen()
	strict := 0
	for _, x := range p.byDanger() {
		if x.MinISR > factor {
			strict++
		}
		p.changeFactor(x, factor)
	}
	if strict > 0 {
		p.warnings = append(p.warnings, fmt.Sprintf("min_isr: %s asks for more in-sync replicas than the %d there will be; %d count",
			plural(strict, "partition"), factor, factor))
	}
	p.orderReplaced()
	return p.plan("replication factor " + strconv.Itoa(factor)), nil
}

func (p *planner) changeFactor(x *part, factor int) {
	switch {
	case len(x.to) == factor:
		return
	case x.Reassigning:
		p.skip(x, because(ReasonMoveInProgress))
		return
	case x.live == 0:
		p.skip(x, because(ReasonNoLiveCopy))
		return
	}
	from, to := strconv.Itoa(len(x.from)), strconv.Itoa(factor)
	for len(x.to) < factor {
		t, clash := p.choose(x.to, x.to, anyToll)
		if t < 0 {
			p.skip(x, p.noTarget(factor, clash))
			return
		}
		p.replace(x, -1, t, because(ReasonFactorRaised, "from", from, "to", to))
		p.forced++
		p.toll += x.Bytes
	}
	for len(x.to) > factor {
		p.replace(x, p.dispensable(x), -1, because(ReasonFactorLowered, "from", from, "to", to))
	}
}

// dispensable returns the replica that a partition should give up.
func (p *planner) dispensable(x *part) int32 {
	best := x.to[0]
	for _, b := range x.to[1:] {
		v, w := p.worth(x, b), p.worth(x, best)
		if v != w {
			if v < w {
				best = b
			}
			continue
		}
		by := p.crowd(without(x.to, b)).compare(p.crowd(without(x.to, best)))
		if by < 0 || by == 0 && p.dearer(x, best, b) {
			best = b
		}
	}
	return best
}

// AddPartitions proposes the replicas of the partitions that make a topic grow to total, as Place does for a new topic: by
// the racks, and by what the brokers hold already. The replication factor is that of the topic's partitions, the highest if
// they differ. Partitions that exist are not touched.
//
// The view has to yield the topic's partitions; the brokers come with what they hold in all.
//
// Errors: INVALID_PARTITIONS if the topic would not grow, or by more than MaxReplicas; as for Place.
func AddPartitions(v View, total int) (*Proposal, error) {
	have, factor := 0, 0
	for p := range v.Partitions {
		have++
		factor = max(factor, len(p.Replicas))
	}
	if total <= have {
		return nil, messages.Errorf(messages.CodeInvalidPartitions,
			"the topic has %d partitions and %d are asked for: it can only grow", have, total)
	}
	return Place(v.Snapshot, NewTopic{Partitions: total - have, ReplicationFactor: factor, Distinct: v.Rules.Distinct}, v.Seed)
}
