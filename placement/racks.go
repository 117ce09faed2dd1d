package placement

import (
	"fmt"
	"slices"

	"github.com/highwater-io/highwater/messages"
)

// cached bounds the replication factors whose best spread Racks computes once.
const cached = 8

// Racks judges replica sets against the racks of one snapshot. It is immutable: many may ask at once.
type Racks struct {
	registered *domains
	usable     *domains
	index      map[messages.BrokerID]int32
	best       []evenness // best[n] for n replicas on usable brokers
}

// RackStatus is the judgement on one replica set.
type RackStatus struct {
	// Violated: two replicas share a rack, or a domain of a higher level has more of them than its share, or the usable
	// brokers allow a better spread. Never true while no broker has a rack label.
	Violated bool
	// Avoidable: the usable brokers allow a better spread than this one, so that a repair has somewhere to go.
	Avoidable bool
	// Detail says what is wrong, for people; empty if nothing is.
	Detail string
}

// NewRacks takes the racks of all registered brokers.
func NewRacks(s Snapshot) *Racks {
	usable, refused := s.divided()
	r := &Racks{
		registered: newDomains(slices.Concat(usable, refused), 0),
		index:      map[messages.BrokerID]int32{},
	}
	r.usable = newDomains(usable, r.registered.depth)
	for i := range r.registered.brokers {
		r.index[r.registered.brokers[i].ID] = int32(i)
	}
	for n := 0; n <= min(cached, len(usable)); n++ {
		r.best = append(r.best, r.usable.best(n))
	}
	return r
}

// Check judges one replica set. Replicas on brokers that are not registered count for nothing.
func (r *Racks) Check(replicas []messages.BrokerID) RackStatus {
	if r.registered.depth == 0 {
		return RackStatus{}
	}
	known := make([]int32, 0, 8)
	for _, id := range replicas {
		if b, ok := r.index[id]; ok {
			known = append(known, b)
		}
	}
	var is evenness
	status := RackStatus{}
	for level := 1; level <= r.registered.depth; level++ {
		in := r.domainsOf(known, level)
		for _, id := range in {
			count := countOf(in, id)
			is[level-1] += count // count times count, over all of the domain's replicas
			if status.Detail == "" && count > r.fair(known, id) {
				status.Detail = fmt.Sprintf("%d of %d replicas are in rack %s", count, len(replicas), r.registered.path(id))
			}
		}
	}
	status.Violated = status.Detail != ""
	if len(known) <= len(r.usable.brokers) && r.bestOf(len(known)).compare(is) < 0 {
		status.Violated, status.Avoidable = true, true
		if status.Detail == "" {
			status.Detail = fmt.Sprintf("%d replicas could be spread better", len(replicas))
		}
	}
	return status
}

// fair is how many of the replicas a domain should have at most: a rack one, a domain of a higher level its part of
// what the domain above it has.
func (r *Racks) fair(known []int32, id int32) int {
	n := &r.registered.nodes[id]
	if n.level == r.registered.depth {
		return 1
	}
	above := countOf(r.domainsOf(known, n.level-1), n.parent)
	siblings := len(r.registered.nodes[n.parent].children)
	return (above + siblings - 1) / siblings
}

func (r *Racks) domainsOf(known []int32, level int) []int32 {
	in := make([]int32, len(known))
	for i, b := range known {
		in[i] = r.registered.at(b, level)
	}
	return in
}

// bestOf returns the best evenness of that many replicas on usable brokers.
func (r *Racks) bestOf(n int) evenness {
	if n < len(r.best) {
		return r.best[n]
	}
	return r.usable.best(n)
}

func countOf(in []int32, id int32) int {
	n := 0
	for _, x := range in {
		if x == id {
			n++
		}
	}
	return n
}
