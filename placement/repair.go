package placement

import (
	"cmp"
	"math"
	"slices"

	"github.com/highwater-io/highwater/messages"
)

// Repair proposes what makes partitions whole: replicas on gone brokers are rebuilt on others, the partitions with the
// fewest live copies first; then partitions that are spread worse over the racks than the usable brokers allow are spread
// better, as far as one replaced replica after another gets there.
//
// The view has to yield only the partitions to look at: those with a replica on a gone broker, or with spread debt; others
// get no move. A partition whose every copy is away is left alone (NO_LIVE_COPY): there is nothing to rebuild it from. The
// cost is about partitions times racks, however many partitions the cluster has.
//
// Errors: INVALID_REQUEST if the rules ask for a level that the rack labels do not have.
func Repair(v View) (*Plan, error) {
	p, err := newPlanner(v, false, nil)
	if err != nil {
		return nil, err
	}
	p.offerOpen()
	for _, x := range p.byDanger() {
		p.refill(x, func(b int32) bool { return p.brokers[b].Gone })
		p.respread(x)
	}
	p.orderReplaced()
	return p.plan("repair"), nil
}

// Drain proposes how brokers are emptied: each of their replicas goes to the broker that suits the spread best and is least
// loaded for its weight. The named brokers need not be marked as draining yet; without names, those that are marked are
// emptied. Nothing goes to any of them, and nothing else moves, so copies are as few as they can be.
//
// The view has to yield only partitions with a replica on these brokers. A replica that has nowhere to go stays, with
// NO_TARGET or LEVEL_REQUIRED in Skipped; while there are some, the broker cannot be decommissioned.
//
// Errors: UNKNOWN_BROKER; INVALID_REQUEST as for Repair.
func Drain(v View, brokers ...messages.BrokerID) (*Plan, error) {
	v.Brokers = slices.Clone(v.Brokers)
	for _, id := range brokers {
		i := slices.IndexFunc(v.Brokers, func(b Broker) bool { return b.ID == id })
		if i < 0 {
			return nil, messages.Errorf(messages.CodeUnknownBroker, "broker %q is not registered", id)
		}
		v.Brokers[i].Draining = true
	}
	leaves := func(b *Broker) bool { return b.Draining && (len(brokers) == 0 || slices.Contains(brokers, b.ID)) }
	p, err := newPlanner(v, false, nil)
	if err != nil {
		return nil, err
	}
	p.offerOpen()
	for _, x := range p.byDanger() {
		p.refill(x, func(b int32) bool { return leaves(&p.brokers[b]) })
	}
	p.orderReplaced()
	return p.plan("drain"), nil
}

// byDanger returns the partitions, those with the fewest live copies first.
func (p *planner) byDanger() []*part {
	out := make([]*part, len(p.parts))
	for i := range p.parts {
		out[i] = &p.parts[i]
	}
	slices.SortStableFunc(out, func(a, b *part) int { return cmp.Compare(a.live, b.live) })
	return out
}

// refill replaces the replicas of a partition on brokers that are to go.
func (p *planner) refill(x *part, goes func(b int32) bool) {
	var going, others []int32
	for _, b := range x.to {
		if goes(b) {
			going = append(going, b)
		} else {
			others = append(others, b)
		}
	}
	switch {
	case len(going) == 0:
		return
	case x.Reassigning:
		p.skip(x, because(ReasonMoveInProgress))
		return
	case x.live == 0:
		p.skip(x, because(ReasonNoLiveCopy))
		return
	}
	for _, b := range going {
		t, clash := p.choose(others, x.to, anyToll)
		if t < 0 {
			p.skip(x, p.noTarget(len(x.to), clash))
			return
		}
		why := ReasonBrokerDraining
		if p.brokers[b].Gone {
			why = ReasonBrokerGone
		}
		p.replace(x, b, t, because(why, "broker", p.name(b), "to", p.name(t)))
		others = append(others, t)
		p.forced++
		p.toll += x.Bytes
	}
}

// respread replaces replicas until the spread is as good as one exchange after another makes it; that is the best there is.
func (p *planner) respread(x *part) {
	if p.depth == 0 {
		return
	}
	for p.indebted(x.to) {
		s, t := p.exchange(x)
		if s < 0 {
			return
		}
		if x.Reassigning || x.live == 0 {
			why := ReasonMoveInProgress
			if !x.Reassigning {
				why = ReasonNoLiveCopy
			}
			p.skip(x, because(why))
			return
		}
		p.replace(x, s, t, because(ReasonRackSpread, "from", p.name(s), "to", p.name(t)))
		p.forced++
		p.toll += x.Bytes
	}
}

// crowd is crowding with the level that is required to be distinct put first.
type crowd [messages.MaxRackDepth + 1]int

func (c crowd) compare(o crowd) int { return slices.Compare(c[:], o[:]) }

func (p *planner) crowd(set []int32) (c crowd) {
	e := p.crowding(set)
	copy(c[1:], e[:])
	if p.rules.Distinct > 0 {
		c[0] = e[p.rules.Distinct-1]
	}
	return c
}

// indebted says whether the open brokers allow a better spread than that of a set.
func (p *planner) indebted(set []int32) bool {
	n := p.counted(set)
	p.work += n
	if n < 2 {
		return false
	}
	if n > p.usable.nodes[0].size {
		return true // the replicas stand on more brokers than are open: nothing is known
	}
	for len(p.best) <= n {
		p.best = append(p.best, p.usable.best(len(p.best)))
	}
	var least crowd
	for level := range p.depth {
		least[level+1] = (p.best[n][level] - n) / 2
	}
	if p.rules.Distinct > 0 {
		least[0] = least[p.rules.Distinct]
	}
	return p.crowd(set).compare(least) > 0
}

// exchange returns the replica and the broker in its place that improve the spread most; -1 if none does. Among equals it
// spares the ISR, then the leader, then the first in the order of preference.
func (p *planner) exchange(x *part) (s, t int32) {
	s, t = -1, -1
	least := p.crowd(x.to)
	for _, b := range x.to {
		if int(b) >= p.known || p.brokers[b].Gone {
			continue
		}
		others := without(x.to, b)
		most := p.tollAt(b, others)
		if p.clashes(most) {
			most = anyToll
		} else if most == 0 {
			continue
		} else {
			most--
		}
		c, _ := p.choose(others, x.to, most)
		if c < 0 {
			continue
		}
		with := p.crowd(append(others, c))
		if by := with.compare(least); by < 0 || by == 0 && s >= 0 && p.dearer(x, s, b) {
			s, t, least = b, c, with
		}
	}
	return s, t
}

// dearer says whether a partition should rather keep its replica on a than that on b, the spread being the same.
func (p *planner) dearer(x *part, a, b int32) bool {
	by := cmp.Or(cmp.Compare(p.worth(x, a), p.worth(x, b)),
		shareOf(p.now[b].replicas, p.brokers[b].Weight).compare(shareOf(p.now[a].replicas, p.brokers[a].Weight)),
		cmp.Compare(slices.Index(x.to, b), slices.Index(x.to, a)))
	return by > 0
}

// worth is what a replica is worth to its partition.
func (p *planner) worth(x *part, b int32) int {
	id := p.brokers[b].ID
	switch {
	case int(b) >= p.known || p.brokers[b].Gone:
		return 0
	case id == x.Leader:
		return math.MaxInt
	case !slices.Contains(x.ISR, id):
		return 1
	case !p.open[b]:
		return 2
	}
	return 3
}
