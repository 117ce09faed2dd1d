package placement

import (
	"cmp"
	"slices"
)

// Lower bounds. Whoever ends with the same number of replicas on each broker as a plan, with no partition fuller in a rack
// than the best spread allows, copies at least: what has to be replaced; what brokers gain; and into each rack what it
// gains beyond what has to leave it.

// fewestCopies returns the largest of these bounds.
func (p *planner) fewestCopies() int {
	gained := make([]int, len(p.racks)+1) // by rack, the sum of what its brokers gain
	net := make([]int, len(p.racks)+1)
	for b := range p.now {
		r := len(p.racks)
		if p.rackOf[b] >= 0 {
			r = int(p.rackOf[b])
		}
		n := p.now[b].replicas - p.before[b].replicas
		gained[r] += max(0, n)
		net[r] += n
	}
	sum := 0
	for r, leaves := range p.leaves() {
		sum += max(gained[r], net[r]+leaves)
	}
	return max(sum+gained[len(p.racks)], p.forced)
}

// leaves returns how many replicas have to leave each rack: those of partitions that have more there than a best spread has,
// and more than they end with. Only partitions whose replicas are all on open brokers count, for their best spread is known.
func (p *planner) leaves() []int {
	out := make([]int, len(p.racks))
	if p.depth == 0 {
		return out
	}
	most := map[int][]int{}
	was, is := make([]int, len(p.racks)), make([]int, len(p.racks))
	for i := range p.parts {
		x := &p.parts[i]
		if slices.Equal(x.from, x.to) || len(x.from) != len(x.to) || slices.ContainsFunc(x.from, func(b int32) bool { return !p.open[b] }) {
			continue
		}
		if most[len(x.to)] == nil {
			most[len(x.to)] = p.mostInRacks(len(x.to))
		}
		for j, b := range x.from {
			was[p.rackOf[b]]++
			is[p.rackOf[x.to[j]]]++
		}
		for _, b := range x.from {
			r := p.rackOf[b]
			out[r] += max(0, was[r]-max(is[r], most[len(x.to)][r]))
			was[r] = 0
		}
		for _, b := range x.to {
			is[p.rackOf[b]] = 0
		}
	}
	return out
}

// mostInRacks returns how many of count replicas a rack has at most in a best spread on open brokers.
func (p *planner) mostInRacks(count int) []int {
	out := make([]int, len(p.racks))
	d := *p.usable
	if count > d.nodes[0].size {
		for r := range out {
			out[r] = count
		}
		return out
	}
	d.nodes = slices.Clone(d.nodes)
	d.bound(0, count, count)
	for b := range d.brokers {
		out[p.rackOf[p.index[d.brokers[b].ID]]] = d.nodes[d.at(int32(b), d.depth)].hi
	}
	return out
}

// fewestBytes returns the least that so many copies can have: those of the smallest partitions.
func (p *planner) fewestBytes(copies int) int64 {
	if copies <= 0 {
		return 0
	}
	order := make([]int32, len(p.parts))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(i, j int32) int { return cmp.Compare(p.parts[i].Bytes, p.parts[j].Bytes) })
	var sum int64
	for _, i := range order {
		n := min(copies, len(p.parts[i].to))
		sum += int64(n) * p.parts[i].Bytes
		if copies -= n; copies == 0 {
			break
		}
	}
	return sum
}
