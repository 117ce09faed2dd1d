package placement

import (
	"cmp"
	"slices"
)

// A matching gives every item to one of the brokers that it may choose, as evenly for their weights as the choices allow.
// Items are leaderships. What it minimizes is the sum of load²/weight, which falls with every change, so it comes to rest;
// and with items of one size, no further chain of changes can improve it.
type matching struct {
	items  []item
	load   []int64 // of each broker, items and all else
	weight []int64
	takes  []bool    // may get more
	held   [][]int32 // items of each broker
	// stop and active are nil unless there is a threshold: only active brokers give, and only down to their stop, and nobody
	// takes beyond its stop.
	stop   []int64
	active []bool
	unit   bool // all items are of size 1
	clock  int
	work   int
}

type item struct {
	size    int64
	at      int32
	choices []int32
	moved   int // when, on the clock; 0 is never
}

func newMatching(p *planner) *matching {
	m := &matching{
		load: make([]int64, len(p.brokers)), weight: make([]int64, len(p.brokers)), takes: make([]bool, len(p.brokers)),
		held: make([][]int32, len(p.brokers)), unit: true,
	}
	for b := range p.brokers {
		m.weight[b] = int64(p.brokers[b].Weight)
	}
	return m
}

func (m *matching) add(it item) {
	m.held[it.at] = append(m.held[it.at], int32(len(m.items)))
	m.items = append(m.items, it)
	m.unit = m.unit && it.size == 1
}

// improves says whether moving so much from s to t makes the loads more even.
func (m *matching) improves(size int64, s, t int32) bool {
	return (2*m.load[t]+size)*m.weight[s] < (2*m.load[s]-size)*m.weight[t]
}

func (m *matching) allows(size int64, s, t int32) bool {
	return m.takes[t] && m.improves(size, s, t) && (m.stop == nil || m.load[t]+size <= m.stop[t])
}

func (m *matching) gives(s int32) bool {
	return m.stop == nil || m.active[s] && m.load[s] > m.stop[s]
}

func (m *matching) move(i, t int32) {
	it := &m.items[i]
	at := slices.Index(m.held[it.at], i)
	m.held[it.at] = slices.Delete(m.held[it.at], at, at+1)
	m.held[t] = append(m.held[t], i)
	m.load[it.at] -= it.size
	m.load[t] += it.size
	m.clock++
	it.at, it.moved = t, m.clock
}

// even changes the matching until nothing improves it any more.
func (m *matching) even() {
	for {
		for m.pass() {
		}
		if !m.unit || !m.chains() {
			return
		}
	}
}

// sources returns the brokers that hold items, the one that gains most by giving one first.
func (m *matching) sources() []int32 {
	var out []int32
	for b := range int32(len(m.load)) {
		if len(m.held[b]) > 0 && m.gives(b) {
			out = append(out, b)
		}
	}
	slices.SortStableFunc(out, func(a, b int32) int { return cmp.Compare((2*m.load[b]-1)*m.weight[a], (2*m.load[a]-1)*m.weight[b]) })
	return out
}

// pass moves items to better choices, the large ones first, and says whether there were any.
func (m *matching) pass() bool {
	moved := false
	for _, s := range m.sources() {
		items := slices.Clone(m.held[s])
		if !m.unit {
			slices.SortStableFunc(items, func(a, b int32) int { return cmp.Compare(m.items[b].size, m.items[a].size) })
		}
		for _, i := range items {
			if !m.gives(s) {
				break
			}
			if t := m.better(i); t >= 0 {
				m.move(i, t)
				moved = true
			}
		}
	}
	return moved
}

// better returns the choice that improves the matching most; -1 if none does.
func (m *matching) better(i int32) int32 {
	it, best := &m.items[i], int32(-1)
	for _, t := range it.choices {
		m.work++
		if t == it.at || !m.allows(it.size, it.at, t) {
			continue
		}
		if best < 0 || (2*m.load[t]+it.size)*m.weight[best] < (2*m.load[best]+it.size)*m.weight[t] {
			best = t
		}
	}
	return best
}

// chains improves the matching by several changes at once: what one broker gives, the next passes on. It says whether it
// found any.
func (m *matching) chains() bool {
	found := false
	dead := make([]bool, len(m.load)) // from there nothing can be reached
	for _, s := range m.sources() {
		for !dead[s] && m.gives(s) && m.chain(s, dead) {
			found = true
		}
	}
	return found
}

func (m *matching) chain(s int32, dead []bool) bool {
	via := map[int32]int32{s: -1} // the item by which a broker is reached
	queue := []int32{s}
	for head := 0; head < len(queue); head++ {
		for _, i := range m.held[queue[head]] {
			for _, t := range m.items[i].choices {
				m.work++
				if _, ok := via[t]; ok || !m.takes[t] || dead[t] {
					continue
				}
				via[t] = i
				if !m.allows(1, s, t) {
					queue = append(queue, t)
					continue
				}
				for t != s {
					i, from := via[t], m.items[via[t]].at
					m.move(i, t)
					t = from
				}
				return true
			}
		}
	}
	for _, b := range queue {
		dead[b] = true
	}
	return false
}
