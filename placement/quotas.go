package placement

import (
	"container/heap"
	"math/rand/v2"
)

// quotas says how many replicas and leaders of a new topic each node of the tree gets.
type quotas struct {
	replicas []int
	leaders  []int
}

// newQuotas computes the quotas of a topic on a tree whose spread is bound.
//
// Replicas come first: each goes to the broker with the fewest replicas for its weight of those that the spread allows,
// so that the sum over all partitions stays within [partitions·lo, partitions·hi] in every domain. As with the spread
// itself, one by one is optimal. Then the leaders: each goes to the broker with the fewest leaders for its weight of
// those with a replica left to lead, but no broker gets more than its part of the topic plus one.
//
// A broker that ends no higher than the lowest of those that get replicas may lead one partition more than that, at the
// cost of one replica's difference: without it, topics of one partition would leave the leaders to chance. And where a
// few brokers are to get most of the replicas, being new and empty, the partitions that these may not lead go to the
// others. In both cases the replicas are divided again around the leaders.
func newQuotas(d *domains, partitions, factor int, random *rand.Rand) quotas {
	q := quotas{replicas: make([]int, len(d.nodes)), leaders: make([]int, len(d.nodes))}
	ties := make([]uint32, len(d.brokers))
	for i := range ties {
		ties[i] = random.Uint32()
	}
	newFiller(d, partitions, q.replicas, ties).fill(partitions * factor)
	leaders := leaderQuotas(d, partitions, q.replicas, ties)
	fits := true
	for b, n := range leaders {
		d.addUp(q.leaders, b, n)
		fits = fits && n <= q.replicas[d.leaf[b]]
	}
	if !fits {
		copy(q.replicas, q.leaders)
		newFiller(d, partitions, q.replicas, ties).fill(partitions * factor)
	}
	return q
}

// leaderQuotas returns how many leaders each broker gets, given how many replicas each node could get.
func leaderQuotas(d *domains, partitions int, replicas []int, ties []uint32) []int {
	h := &leaderHeap{d: d, ties: ties, quota: make([]int, len(d.brokers))}
	part, limit := make([]int, len(d.brokers)), make([]int, len(d.brokers))
	total, lowest := d.totalWeight(), d.lowest(replicas)
	for b := range d.brokers {
		part[b] = partitions*d.brokers[b].Weight/total + 1 // in sum more than there are partitions
		limit[b] = replicas[d.leaf[b]]
		if shareOf(d.brokers[b].Replicas+limit[b], d.brokers[b].Weight).compare(lowest) <= 0 {
			limit[b]++
		}
		limit[b] = min(limit[b], part[b])
	}
	h.fill(h.fill(partitions, limit), part)
	return h.quota
}

// lowest returns the share of the broker that ends lowest of those that get replicas.
func (d *domains) lowest(replicas []int) share {
	var low share
	for b := range d.brokers {
		gets := replicas[d.leaf[b]]
		if s := shareOf(d.brokers[b].Replicas+gets, d.brokers[b].Weight); gets > 0 && (low.weight == 0 || s.compare(low) < 0) {
			low = s
		}
	}
	return low
}

// addUp adds n to the sums of a broker and of all domains that it is in.
func (d *domains) addUp(sums []int, broker, n int) {
	for id := d.leaf[broker]; id >= 0; id = d.nodes[id].parent {
		sums[id] += n
	}
}

// share is a load for a weight: what the broker would have, counted to the middle of its next unit, so that rounding
// favours neither the large nor the small.
type share struct {
	load, weight int
}

func shareOf(count, weight int) share { return share{load: 2*count + 1, weight: weight} }

func (s share) compare(o share) int { return s.load*o.weight - o.load*s.weight }

// leaderHeap has the brokers that may lead more of the topic, the one to lead next on top.
type leaderHeap struct {
	d     *domains
	ties  []uint32
	quota []int
	items []int32
}

func (h *leaderHeap) Len() int      { return len(h.items) }
func (h *leaderHeap) Swap(i, j int) { h.items[i], h.items[j] = h.items[j], h.items[i] }
func (h *leaderHeap) Push(x any)    { h.items = append(h.items, x.(int32)) }

func (h *leaderHeap) Pop() any {
	last := h.items[len(h.items)-1]
	h.items = h.items[:len(h.items)-1]
	return last
}

func (h *leaderHeap) Less(i, j int) bool {
	a, b := h.items[i], h.items[j]
	x, y := &h.d.brokers[a], &h.d.brokers[b]
	if c := shareOf(x.Leaders+h.quota[a], x.Weight).compare(shareOf(y.Leaders+h.quota[b], y.Weight)); c != 0 {
		return c < 0
	}
	if c := shareOf(x.Replicas+h.quota[a], x.Weight).compare(shareOf(y.Replicas+h.quota[b], y.Weight)); c != 0 {
		return c < 0
	}
	return h.ties[a] < h.ties[b]
}

// fill hands out count leaders, up to the limit of each broker, and returns how many nobody could take.
func (h *leaderHeap) fill(count int, limit []int) int {
	h.items = h.items[:0]
	for b := range limit {
		if h.quota[b] < limit[b] {
			h.items = append(h.items, int32(b))
		}
	}
	heap.Init(h)
	for ; count > 0 && len(h.items) > 0; count-- {
		b := h.items[0]
		h.quota[b]++
		if h.quota[b] >= limit[b] {
			heap.Pop(h)
		} else {
			heap.Fix(h, 0)
		}
	}
	return count
}

// filler hands out replicas one by one. Every node knows the best broker below it that may take another one, and each
// domain has its children in a heap by that.
type filler struct {
	d     *domains
	most  []int // partitions·hi
	least []int // partitions·lo
	quota []int
	ties  []uint32
	best  []int32   // broker, -1 if nobody below may take another one
	heaps [][]int32 // children, the best on top
	place []int32   // of a node in the heap of its parent
}

func newFiller(d *domains, partitions int, quota []int, ties []uint32) *filler {
	least, most := make([]int, len(d.nodes)), make([]int, len(d.nodes))
	for id := range d.nodes {
		least[id], most[id] = partitions*d.nodes[id].lo, partitions*d.nodes[id].hi
	}
	return newFillerWithin(d, [2][]int{least, most}, quota, ties)
}

// newFillerWithin takes the least and the most of each node.
func newFillerWithin(d *domains, bounds [2][]int, quota []int, ties []uint32) *filler {
	f := &filler{
		d: d, quota: quota, ties: ties, least: bounds[0], most: bounds[1],
		best: make([]int32, len(d.nodes)), heaps: make([][]int32, len(d.nodes)), place: make([]int32, len(d.nodes)),
	}
	for id := len(d.nodes) - 1; id >= 0; id-- { // children come after their parent
		n := &d.nodes[id]
		f.heaps[id] = append([]int32(nil), n.children...)
		for i, c := range f.heaps[id] {
			f.place[c] = int32(i)
		}
		for i := len(n.children)/2 - 1; i >= 0; i-- {
			f.sink(f.heaps[id], i)
		}
		f.settle(int32(id))
	}
	return f
}

// fill raises every domain to its least, the small ones first, and then the root to total.
func (f *filler) fill(total int) {
	f.least[0] = total
	for id := int32(len(f.d.nodes) - 1); id >= 0; id-- {
		for f.quota[id] < f.least[id] && f.best[id] >= 0 {
			f.add(f.best[id])
		}
	}
}

// add gives a broker one more replica. Nobody's place in a heap gets better by that.
func (f *filler) add(broker int32) {
	for id := f.d.leaf[broker]; id >= 0; id = f.d.nodes[id].parent {
		f.quota[id]++
		f.settle(id)
		if parent := f.d.nodes[id].parent; parent >= 0 {
			f.sink(f.heaps[parent], int(f.place[id]))
		}
	}
}

// settle finds the best broker of a node whose children are settled.
func (f *filler) settle(id int32) {
	switch n := &f.d.nodes[id]; {
	case f.quota[id] >= f.most[id]:
		f.best[id] = -1
	case n.broker >= 0:
		f.best[id] = n.broker
	default:
		f.best[id] = f.best[f.heaps[id][0]]
	}
}

func (f *filler) before(a, b int32) bool {
	x, y := f.best[a], f.best[b]
	if x < 0 || y < 0 {
		return x >= 0
	}
	if c := f.share(x).compare(f.share(y)); c != 0 {
		return c < 0
	}
	p, q := &f.d.brokers[x], &f.d.brokers[y]
	if c := shareOf(p.Leaders, p.Weight).compare(shareOf(q.Leaders, q.Weight)); c != 0 {
		return c < 0
	}
	return f.ties[x] < f.ties[y]
}

func (f *filler) share(broker int32) share {
	b := &f.d.brokers[broker]
	return shareOf(b.Replicas+f.quota[f.d.leaf[broker]], b.Weight)
}

func (f *filler) sink(h []int32, i int) {
	for {
		child := 2*i + 1
		if child >= len(h) {
			return
		}
		if child+1 < len(h) && f.before(h[child+1], h[child]) {
			child++
		}
		if !f.before(h[child], h[i]) {
			return
		}
		h[i], h[child] = h[child], h[i]
		f.place[h[i]], f.place[h[child]] = int32(i), int32(child)
		i = child
	}
}
