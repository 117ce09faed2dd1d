package placement

import (
	"cmp"
	"fmt"
	"slices"
)

// plan turns what the planner has decided into a plan.
func (p *planner) plan(what string) *Plan {
	out := &Plan{Skipped: p.skipped, Warnings: p.warnings}
	for i := range p.parts {
		x := &p.parts[i]
		if slices.Equal(x.from, x.to) {
			continue
		}
		m := Move{
			Partition: x.ID, From: p.ids(x.from), To: p.ids(x.to), Steps: p.steps(x), LiveCopies: x.live, Reason: x.reason,
		}
		copies := m.Copies()
		m.Bytes = int64(copies) * x.Bytes
		if len(m.Steps) == 0 {
			out.Reordered++
		}
		out.Copies += copies
		out.Bytes += m.Bytes
		out.Moves = append(out.Moves, m)
	}
	slices.SortStableFunc(out.Moves, func(a, b Move) int {
		return cmp.Or(cmp.Compare(rank(&a), rank(&b)), cmp.Compare(a.LiveCopies, b.LiveCopies))
	})
	slices.SortStableFunc(out.Skipped, func(a, b Skip) int { return comparePartitions(a.Partition, b.Partition) })
	for b := range p.brokers {
		was, is := p.before[b], p.now[b]
		out.Loads = append(out.Loads, Load{
			Broker: p.brokers[b].ID, Weight: p.brokers[b].Weight, ReplicasBefore: was.replicas, ReplicasAfter: is.replicas,
			LeadersBefore: was.leaders, LeadersAfter: is.leaders, BytesBefore: was.bytes, BytesAfter: is.bytes,
		})
	}
	slices.SortFunc(out.Loads, func(a, b Load) int { return cmp.Compare(a.Broker, b.Broker) })
	out.FewestCopies = p.fewestCopies()
	out.FewestBytes = p.toll + p.fewestBytes(out.FewestCopies-p.forced)
	out.Warnings = append(out.Warnings, p.spreadWarnings(out)...)
	out.Explanation = p.explanation(what, out)
	out.Considered = p.work
	return out
}

// rank orders the moves: what makes partitions whole, what spreads them, what empties brokers, what evens out, and last
// what copies nothing.
func rank(m *Move) int {
	if len(m.Steps) == 0 {
		return 9
	}
	switch m.Reason.Code {
	case ReasonBrokerGone:
		return 0
	case ReasonFactorRaised:
		return 1
	case ReasonRackSpread:
		return 2
	case ReasonBrokerDraining:
		return 3
	}
	return 4
}

// steps puts the replaced replicas of a partition in an order on which the spread never gets worse than at the start or at
// the end: always the exchange that leaves the best spread. Additions come first, so that nothing is removed before there
// is one more.
func (p *planner) steps(x *part) []Step {
	var add, remove []int32
	for _, b := range x.to {
		if !slices.Contains(x.from, b) {
			add = append(add, b)
		}
	}
	for _, b := range x.from {
		if !slices.Contains(x.to, b) {
			remove = append(remove, b)
		}
	}
	set := slices.Clone(x.from)
	var out []Step
	for len(add) > 0 || len(remove) > 0 {
		s, t := p.nextStep(set, add, remove)
		step := Step{}
		if t >= 0 {
			step.Add = p.brokers[t].ID
			add, set = without(add, t), append(set, t)
		}
		if s >= 0 {
			step.Remove = p.brokers[s].ID
			remove, set = without(remove, s), without(set, s)
		}
		out = append(out, step)
	}
	return out
}

// nextStep returns the exchange with the best spread; -1 where there is nothing to add or to remove. While more have to be
// added than removed, one is only added, and while more have to be removed, the last are only removed.
func (p *planner) nextStep(set, add, remove []int32) (s, t int32) {
	s, t = -1, -1
	if len(add) == 0 {
		return remove[0], -1
	}
	if len(remove) < len(add) {
		remove = []int32{-1}
	}
	var best crowd
	for _, r := range remove {
		for _, a := range add {
			with := p.crowd(append(without(set, r), a))
			if t < 0 || with.compare(best) < 0 {
				s, t, best = r, a, with
			}
		}
	}
	return s, t
}

// spreadWarnings tells what a plan leaves spread worse than it should be.
func (p *planner) spreadWarnings(out *Plan) []string {
	if p.depth == 0 {
		return nil
	}
	racks := NewRacks(Snapshot{Brokers: p.brokers[:p.known]})
	n, first := 0, ""
	for i := range out.Moves {
		if status := racks.Check(out.Moves[i].To); status.Violated {
			if n++; n == 1 {
				first = status.Detail
				if !status.Avoidable {
					first += "; no better spread is possible with the brokers that take replicas"
				}
			}
		}
	}
	if n == 0 {
		return nil
	}
	return []string{fmt.Sprintf("rack_violation: in %s that the plan moves; for example, %s", plural(n, "partition"), first)}
}
