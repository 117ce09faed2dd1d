package placement

import (
	"slices"

	"github.com/highwater-io/highwater/messages"
)

// Spread. The replicas of one partition are spread best if their counts per domain are as even as the sizes of the
// domains allow at the highest level; of all such placements, as even as possible at the next level; and so on. "Even"
// is the sum of squares of the counts, so this is a convex cost over nested sets, and that has two consequences which
// everything here rests on:
//
//   - Adding replicas one by one, each where it costs least, is optimal. What the next replica costs in a domain is its
//     price: the counts that it finds on its way down.
//   - The optimal placements are exactly those whose count in every domain lies in an interval [lo, hi] of that domain,
//     and hi ≤ lo+1.
//
// So bound computes the intervals once, and whoever stays within them has the best spread.

// price is the cost of one more replica in a domain, level by level from the domain downwards; compare lexicographically.
type price [messages.MaxRackDepth + 1]int32

func (p price) compare(q price) int { return slices.Compare(p[:], q[:]) }

// below returns the price one level up, where the replica finds count in the child.
func (p price) below(count int) price {
	var q price
	q[0] = int32(count)
	copy(q[1:], p[:len(p)-1])
	return q
}

// water returns how count replicas divide among the children of a domain: each child gets base or, if it is smaller, as
// many as it has brokers; rest of the larger ones get one more.
func (d *domains) water(n *node, count int) (base, rest int) {
	filled := 0
	for {
		next := 0
		for _, c := range n.children {
			next += min(d.nodes[c].size, base+1)
		}
		if next > count || next == filled {
			return base, count - filled
		}
		base, filled = base+1, next
	}
}

// price returns what one more replica costs in a domain that has count already; count < size.
func (d *domains) price(id int32, count int) price {
	n := &d.nodes[id]
	if n.level > d.depth-1 {
		return price{} // a rack or a broker: any of the brokers that are left, and they find nothing
	}
	base, rest := d.water(n, count)
	return d.prices(n, base)[rest].below(base)
}

// prices returns, in ascending order, what one more costs in each child that has room above base.
func (d *domains) prices(n *node, base int) []price {
	open := make([]price, 0, len(n.children))
	for _, c := range n.children {
		if d.nodes[c].size > base {
			open = append(open, d.price(c, base))
		}
	}
	slices.SortFunc(open, price.compare)
	return open
}

// bounds returns the intervals of the children of a domain that has exactly count replicas.
func (d *domains) bounds(n *node, count int) (lo, hi []int) {
	base, rest := d.water(n, count)
	lo, hi = make([]int, len(n.children)), make([]int, len(n.children))
	var cut price
	free := false // those at the cut are more than the rest
	if rest > 0 {
		open := d.prices(n, base)
		cut = open[rest-1]
		free = rest < len(open) && open[rest] == cut
	}
	for i, c := range n.children {
		size := d.nodes[c].size
		if lo[i], hi[i] = min(size, base), min(size, base); size <= base || rest == 0 {
			continue
		}
		switch by := d.price(c, base).compare(cut); {
		case by < 0 || by == 0 && !free:
			lo[i], hi[i] = base+1, base+1
		case by == 0:
			hi[i] = base + 1
		}
	}
	return lo, hi
}

// bound sets the intervals of a domain and of everything below it.
func (d *domains) bound(id int32, lo, hi int) {
	n := &d.nodes[id]
	n.lo, n.hi = lo, hi
	if n.broker >= 0 {
		return
	}
	least, most := d.bounds(n, lo)
	if hi > lo {
		_, most = d.bounds(n, hi)
	}
	for i, c := range n.children {
		d.bound(c, least[i], most[i])
	}
}

// evenness is the cost of a placement: the sum of squares of the counts at each level, the highest first.
type evenness [messages.MaxRackDepth]int

func (e evenness) compare(o evenness) int { return slices.Compare(e[:], o[:]) }

// best returns the evenness of the best possible spread of count replicas, count ≤ brokers.
func (d *domains) best(count int) evenness {
	var e evenness
	d.fill(&d.nodes[0], count, &e)
	return e
}

func (d *domains) fill(n *node, count int, e *evenness) {
	if n.level >= d.depth {
		return
	}
	lo, hi := d.bounds(n, count)
	for i := range lo {
		count -= lo[i]
	}
	for i, c := range n.children {
		if hi[i] > lo[i] && count > 0 {
			lo[i]++
			count--
		}
		if lo[i] > 0 {
			e[n.level] += lo[i] * lo[i]
			d.fill(&d.nodes[c], lo[i], e)
		}
	}
}
