package placement

import (
	"bytes"
	"cmp"
	"math/rand/v2"
	"slices"

	"github.com/highwater-io/highwater/messages"
)

// A planner holds a view in numbers while one proposal is made. Brokers are counted in the order of their ids; those that
// partitions name but nobody has registered come behind and are gone.
type planner struct {
	rules   Rules
	brokers []Broker
	known   int // registered brokers
	index   map[messages.BrokerID]int32
	tree    *domains // the registered brokers
	depth   int
	domain  []int32 // depth ids for each broker, the highest level first; -1 for a broker whose replicas count for nothing
	open    []bool  // takes replicas

	now      []holding // what the brokers have with the moves so far
	before   []holding
	ties     []uint32
	racks    []rack
	rackOf   []int32 // of each broker; -1 outside the racks
	place    []int32 // of each broker in the heap of its rack; -1 if it is not offered
	parts    []part
	skipped  []Skip
	warnings []string
	forced   int   // copies that no plan can do without
	toll     int64 // their bytes
	work     int
	random   *rand.Rand
	best     []evenness // cached: best[n] for n replicas on open brokers
	usable   *domains
}

// holding is what a broker has. leaders counts the first replicas.
type holding struct {
	replicas, leaders int
	bytes             int64
}

// part is a partition with what is proposed for it.
type part struct {
	Partition
	from, to []int32
	reason   Reason
	live     int
}

// newPlanner reads a view. With whole, the partitions are all there are and the loads are counted from them; else the
// loads are those that the brokers come with. keep says which partitions matter, nil means all of them.
func newPlanner(v View, whole bool, keep func(p *Partition) bool) (*planner, error) {
	p := &planner{rules: v.Rules, index: make(map[messages.BrokerID]int32, len(v.Brokers))}
	p.brokers = slices.Clone(v.Brokers)
	slices.SortFunc(p.brokers, func(a, b Broker) int { return cmp.Compare(a.ID, b.ID) })
	p.known = len(p.brokers)
	for i := range p.brokers {
		b := &p.brokers[i]
		if b.Weight < 1 {
			b.Weight = DefaultWeight
		}
		p.index[b.ID] = int32(i)
		p.now = append(p.now, holding{b.Replicas, b.Leaders, b.Bytes})
		p.open = append(p.open, b.Refusal() == "")
	}
	p.tree = newDomains(p.brokers[:p.known:p.known], 0)
	p.depth = p.tree.depth
	if d := v.Rules.Distinct; d < 0 || d > p.depth && p.known > 0 {
		return nil, messages.Errorf(messages.CodeInvalidRequest,
			"level %d of the racks is required to be distinct, but the rack labels have %s", d, plural(p.depth, "level"))
	}
	p.random = rand.New(rand.NewPCG(v.Seed[0], v.Seed[1]))
	p.read(v, whole, keep)
	p.ties = make([]uint32, len(p.brokers))
	for i := range p.ties {
		p.ties[i] = p.random.Uint32()
	}
	p.before = slices.Clone(p.now)
	p.layOut()
	return p, nil
}

// read takes the partitions in and sorts them.
func (p *planner) read(v View, whole bool, keep func(p *Partition) bool) {
	if whole {
		for i := range p.now {
			p.now[i] = holding{}
		}
	}
	if v.Partitions != nil {
		for in := range v.Partitions {
			if len(in.Replicas) == 0 || keep != nil && !keep(&in) {
				continue
			}
			p.work += len(in.Replicas)
			p.parts = append(p.parts, part{Partition: in, from: p.indices(in.Replicas)})
		}
	}
	slices.SortFunc(p.parts, func(a, b part) int { return comparePartitions(a.ID, b.ID) })
	for i := range p.parts {
		x := &p.parts[i]
		x.to = x.from
		x.live = p.liveCopies(x)
		if !whole {
			continue
		}
		p.now[x.from[0]].leaders++
		for _, b := range x.from {
			p.now[b].replicas++
			p.now[b].bytes += x.Bytes
		}
	}
}

func comparePartitions(a, b messages.PartitionID) int {
	return cmp.Or(bytes.Compare(a.Topic[:], b.Topic[:]), cmp.Compare(a.Index, b.Index))
}

// indices turns ids into numbers, and makes up a broker that is gone for an id that is not registered.
func (p *planner) indices(ids []messages.BrokerID) []int32 {
	out := make([]int32, len(ids))
	for i, id := range ids {
		b, ok := p.index[id]
		if !ok {
			b = int32(len(p.brokers))
			p.index[id] = b
			p.brokers = append(p.brokers, Broker{ID: id, Weight: DefaultWeight, Gone: true, Fenced: true})
			p.now = append(p.now, holding{})
			p.open = append(p.open, false)
		}
		out[i] = b
	}
	return out
}

func (p *planner) ids(brokers []int32) []messages.BrokerID {
	out := make([]messages.BrokerID, len(brokers))
	for i, b := range brokers {
		out[i] = p.brokers[b].ID
	}
	return out
}

func (p *planner) name(b int32) string { return string(p.brokers[b].ID) }

// liveCopies counts the ISR members on brokers that are there.
func (p *planner) liveCopies(x *part) int {
	n := 0
	for _, id := range x.ISR {
		if b, ok := p.index[id]; ok && !p.brokers[b].Gone && !p.brokers[b].Fenced {
			n++
		}
	}
	return n
}

// layOut divides the brokers into racks, and notes the domains of each.
func (p *planner) layOut() {
	n := len(p.brokers)
	p.domain = make([]int32, n*p.depth)
	p.rackOf, p.place = make([]int32, n), make([]int32, n)
	numbers := map[int32]int32{}
	for b := range n {
		p.rackOf[b], p.place[b] = -1, -1
		for level := range p.depth {
			p.domain[b*p.depth+level] = -1
			if b < p.known && !p.brokers[b].Gone {
				p.domain[b*p.depth+level] = p.tree.at(int32(b), level+1)
			}
		}
		if b >= p.known {
			continue
		}
		id := p.tree.at(int32(b), p.depth)
		r, ok := numbers[id]
		if !ok {
			r = int32(len(p.racks))
			numbers[id] = r
			levels := make([]int32, p.depth)
			for level := range levels {
				levels[level] = p.tree.at(int32(b), level+1)
			}
			p.racks = append(p.racks, rack{domain: levels})
		}
		p.rackOf[b] = r
	}
	var usable []Broker
	for b := range p.known {
		if p.open[b] {
			usable = append(usable, p.brokers[b])
		}
	}
	p.usable = newDomains(usable, p.depth)
	p.usable.require(p.rules.Distinct)
}

// offer makes brokers candidates for replicas, and nobody else.
func (p *planner) offer(candidate func(b int32) bool) {
	for i := range p.racks {
		p.racks[i].heap = p.racks[i].heap[:0]
	}
	for b := range int32(p.known) {
		p.place[b] = -1
		if candidate(b) {
			r := &p.racks[p.rackOf[b]]
			p.place[b] = int32(len(r.heap))
			r.heap = append(r.heap, b)
		}
	}
	for i := range p.racks {
		r := &p.racks[i]
		for j := len(r.heap)/2 - 1; j >= 0; j-- {
			p.sink(r, j)
		}
	}
}

// offerOpen makes all open brokers candidates.
func (p *planner) offerOpen() { p.offer(func(b int32) bool { return p.open[b] }) }

// replace puts broker t where s is in a partition; either may be -1. It counts both, and gives the reason if it is the
// partition's first change.
func (p *planner) replace(x *part, s, t int32, why Reason) {
	at := slices.Index(x.to, s)
	to := slices.Clone(x.to)
	switch {
	case s < 0:
		to = append(to, t)
	case t < 0:
		to = slices.Delete(to, at, at+1)
	default:
		to[at] = t
	}
	if s >= 0 {
		p.now[s].replicas--
		p.now[s].bytes -= x.Bytes
		p.settle(s)
	}
	if t >= 0 {
		p.now[t].replicas++
		p.now[t].bytes += x.Bytes
		p.settle(t)
	}
	if x.to[0] != to[0] {
		p.now[x.to[0]].leaders--
		p.now[to[0]].leaders++
	}
	x.to = to
	x.because(why)
}

// because keeps the first reason.
func (x *part) because(why Reason) {
	if x.reason.Code == "" {
		x.reason = why
	}
}

func (p *planner) skip(x *part, why Reason) {
	p.skipped = append(p.skipped, Skip{Partition: x.ID, Reason: why})
}
