package placement

import "slices"

// Preference. The first replica of a partition is to lead it, so evening out the leaders means choosing who is first. That
// copies nothing.

// orderReplaced evens out the leaders of those partitions whose first replica has been replaced, and of no others.
func (p *planner) orderReplaced() {
	p.order(func(x *part) bool { return x.to[0] != x.from[0] })
}

// order chooses who is first in the partitions that may change, among open brokers.
func (p *planner) order(may func(x *part) bool) {
	m := newMatching(p)
	for b := range p.brokers {
		m.load[b] = int64(p.now[b].leaders)
		m.takes[b] = p.open[b]
	}
	var of []*part
	for _, i := range p.random.Perm(len(p.parts)) {
		x := &p.parts[i]
		if x.Reassigning || len(x.to) < 2 || !p.open[x.to[0]] || !may(x) {
			continue
		}
		m.add(item{size: 1, at: x.to[0], choices: x.to})
		of = append(of, x)
	}
	m.even()
	p.work += m.work
	for i, x := range of {
		first := m.items[i].at
		if first == x.to[0] {
			continue
		}
		why := because(ReasonEvenLeaders, "from", p.name(x.to[0]), "to", p.name(first))
		p.now[x.to[0]].leaders--
		p.now[first].leaders++
		x.to = slices.Concat([]int32{first}, without(x.to, first))
		x.because(why)
	}
}
