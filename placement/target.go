package placement

import (
	"math"
	"slices"
	"strconv"
)

// A rack holds the brokers that are offered replicas in one domain of the lowest level, the least loaded on top. All of
// them cost a partition the same spread, so a choice looks at the racks and not at the brokers.
type rack struct {
	domain []int32 // of each level, the highest first
	heap   []int32
}

// toll is what one more replica costs the spread of a partition: the counts of its replicas in the domains on the way
// down, eight bits a level, so that the toll of the better choice is the smaller number.
type toll uint64

const anyToll = toll(math.MaxUint64)

// tollOf returns the toll of a domain path for a partition that has replicas on others.
func (p *planner) tollOf(path []int32, others []int32) toll {
	var t toll
	for level, id := range path {
		n := toll(0)
		for _, b := range others {
			if p.domain[int(b)*p.depth+level] == id {
				n++
			}
		}
		t |= min(n, 255) << (8 * (7 - level))
	}
	return t
}

// tollAt returns the toll of a registered broker.
func (p *planner) tollAt(b int32, others []int32) toll {
	return p.tollOf(p.racks[p.rackOf[b]].domain, others)
}

// clashes says whether a replica at that toll would break the rule of distinct domains.
func (p *planner) clashes(t toll) bool {
	return p.rules.Distinct > 0 && t>>(8*(8-p.rules.Distinct))&255 > 0
}

// choose returns the best offered broker for one more replica beside those on others, outside held, at no higher toll
// than most. The spread decides first, then the load. Without any: -1, and clash if the rule of distinct domains is all
// that was in the way.
func (p *planner) choose(others, held []int32, most toll) (best int32, clash bool) {
	best = -1
	var price toll
	for i := range p.racks {
		r := &p.racks[i]
		if len(r.heap) == 0 {
			continue
		}
		p.work++
		t := p.tollOf(r.domain, others)
		if t > most || best >= 0 && t > price {
			continue
		}
		b := p.top(r, held)
		if b < 0 {
			continue
		}
		if p.clashes(t) {
			clash = true
			continue
		}
		if best < 0 || t < price || p.lighter(b, best) {
			best, price = b, t
		}
	}
	return best, clash && best < 0
}

// top returns the least loaded broker of a rack that is not held; -1 if there is none. Held ones are few.
func (p *planner) top(r *rack, held []int32) int32 {
	if b := r.heap[0]; !slices.Contains(held, b) {
		return b
	}
	var room [16]int
	border := append(room[:0], 0)
	for len(border) > 0 {
		first := 0
		for i := range border {
			if p.lighter(r.heap[border[i]], r.heap[border[first]]) {
				first = i
			}
		}
		at := border[first]
		p.work++
		if !slices.Contains(held, r.heap[at]) {
			return r.heap[at]
		}
		border[first] = border[len(border)-1]
		border = border[:len(border)-1]
		for child := 2*at + 1; child <= 2*at+2 && child < len(r.heap); child++ {
			border = append(border, child)
		}
	}
	return -1
}

// lighter says whether a should take the next replica rather than b.
func (p *planner) lighter(a, b int32) bool {
	x, y := &p.now[a], &p.now[b]
	v, w := p.brokers[a].Weight, p.brokers[b].Weight
	if c := shareOf(x.replicas, v).compare(shareOf(y.replicas, w)); c != 0 {
		return c < 0
	}
	if f, g := float64(x.bytes)*float64(w), float64(y.bytes)*float64(v); f != g {
		return f < g
	}
	if p.ties[a] != p.ties[b] {
		return p.ties[a] < p.ties[b]
	}
	return a < b
}

// settle restores the heap of a broker's rack after its load has changed.
func (p *planner) settle(b int32) {
	if p.place[b] < 0 {
		return
	}
	r := &p.racks[p.rackOf[b]]
	i := int(p.place[b])
	for i > 0 && p.lighter(r.heap[i], r.heap[(i-1)/2]) {
		p.swap(r, i, (i-1)/2)
		i = (i - 1) / 2
	}
	p.sink(r, i)
}

// withdraw ends an offer.
func (p *planner) withdraw(b int32) {
	i := int(p.place[b])
	if i < 0 {
		return
	}
	r := &p.racks[p.rackOf[b]]
	last := len(r.heap) - 1
	p.swap(r, i, last)
	r.heap = r.heap[:last]
	p.place[b] = -1
	if i < last {
		p.settle(r.heap[i])
	}
}

func (p *planner) swap(r *rack, i, j int) {
	r.heap[i], r.heap[j] = r.heap[j], r.heap[i]
	p.place[r.heap[i]], p.place[r.heap[j]] = int32(i), int32(j)
}

func (p *planner) sink(r *rack, i int) {
	for {
		child := 2*i + 1
		if child >= len(r.heap) {
			return
		}
		if child+1 < len(r.heap) && p.lighter(r.heap[child+1], r.heap[child]) {
			child++
		}
		if !p.lighter(r.heap[child], r.heap[i]) {
			return
		}
		p.swap(r, i, child)
		i = child
	}
}

// noTarget says why choose has found nobody.
func (p *planner) noTarget(replicas int, clash bool) Reason {
	if clash {
		return because(ReasonLevelRequired, "level", strconv.Itoa(p.rules.Distinct))
	}
	usable := 0
	for b := range p.known {
		if p.open[b] {
			usable++
		}
	}
	return because(ReasonNoTarget, "replicas", strconv.Itoa(replicas), "usable", strconv.Itoa(usable))
}

// without returns the list without one broker.
func without(list []int32, b int32) []int32 {
	out := make([]int32, 0, len(list))
	for _, x := range list {
		if x != b {
			out = append(out, x)
		}
	}
	return out
}

// crowding returns how uneven the replicas are, level by level: the pairs that share a domain. It is evenness without what
// all sets of that size have in common.
func (p *planner) crowding(set []int32) (e evenness) {
	for i, a := range set {
		for _, b := range set[:i] {
			for level := range p.depth {
				x := p.domain[int(a)*p.depth+level]
				if x < 0 || x != p.domain[int(b)*p.depth+level] {
					break
				}
				e[level]++
			}
		}
	}
	return e
}

// counted returns how many of a set count for the spread.
func (p *planner) counted(set []int32) int {
	n := 0
	for _, b := range set {
		if int(b) < p.known && !p.brokers[b].Gone {
			n++
		}
	}
	return n
}
