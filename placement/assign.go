package placement

import (
	"math"
	"math/rand/v2"
	"slices"

	"github.com/highwater-io/highwater/messages"
)

// sample bounds how many equals are looked at for one choice.
const sample = 8

// An assigner turns quotas into the replica lists of the partitions, one after another. In each domain it keeps what
// the children are still to get, and for each partition it obeys three rules:
//
//   - The leader comes from the child with the most leaders left.
//   - A child that needs a replica of every partition that is left gets one of this.
//   - The other replicas go to children that have followers left: to those with the most left, or one less, and of
//     these to the one that has followed this leader least. That is what scatters the followers.
//
// The first two keep what is left feasible: no child ever needs more partitions than there are, so the quotas come out,
// but for a rare replica beside in deep and uneven trees. Distinct brokers and the bounds of the spread do not even depend
// on that: a child is chosen at most once for one partition, and with a count in its interval.
type assigner struct {
	d      *domains
	pools  []pool
	slot   []int32 // of a node among the children in its parent's pool
	random *rand.Rand

	left    int // partitions, this one included
	leader  int32
	chosen  []int32 // replicas of this partition
	visited []int32 // domains that have some of them

	pairs      map[pair]int32 // how often a leader has a follower, or a replica in a domain
	firstPairs map[pair]int32 // how often a follower is the first of a leader
	firsts     []int          // how often a broker is the first follower
}

type pair struct{ leader, node int32 }

// pool is what is left for the children of one domain. The children whose interval is open come first; all of these
// have the same lo.
type pool struct {
	kids   []int32
	open   int // so many kids have an open interval
	base   int // their lo
	sure   int // sum of lo of all kids
	extra  ranking
	follow ranking // followers left; empty unless base is 0
	lead   ranking
	head   int32   // the kid that holds the leader of this partition, or -1
	picked []int32 // open kids that get base+1 of this partition
}

func newAssigner(d *domains, q quotas, partitions int, random *rand.Rand) *assigner {
	a := &assigner{
		d: d, pools: make([]pool, len(d.nodes)), slot: make([]int32, len(d.nodes)), random: random, left: partitions,
		pairs: map[pair]int32{}, firstPairs: map[pair]int32{}, firsts: make([]int, len(d.brokers)),
	}
	for id := range d.nodes {
		if d.nodes[id].broker < 0 {
			a.fillPool(int32(id), q, partitions)
		}
	}
	return a
}

func (a *assigner) fillPool(id int32, q quotas, partitions int) {
	p := &a.pools[id]
	for _, c := range a.d.nodes[id].children {
		if k := &a.d.nodes[c]; k.lo < k.hi {
			p.kids = append(p.kids, c)
			p.base = k.lo
		}
	}
	p.open = len(p.kids)
	for _, c := range a.d.nodes[id].children {
		k := &a.d.nodes[c]
		p.sure += k.lo
		if k.lo == k.hi && k.lo > 0 {
			p.kids = append(p.kids, c)
		}
	}
	extra, follow, lead := make([]int, p.open), make([]int, p.open), make([]int, len(p.kids))
	for i, c := range p.kids {
		a.slot[c] = int32(i)
		lead[i] = q.leaders[c]
		if i < p.open {
			extra[i] = q.replicas[c] - partitions*p.base
			follow[i] = q.replicas[c] - q.leaders[c]
		}
	}
	p.extra, p.lead = newRanking(extra, a.random), newRanking(lead, a.random)
	if p.base == 0 {
		p.follow = newRanking(follow, a.random)
	}
}

// next returns the replicas of the next partition.
func (a *assigner) next(factor int, into []messages.BrokerID) []messages.BrokerID {
	a.chosen, a.visited = a.chosen[:0], a.visited[:0]
	a.chooseLeader()
	a.place(0, factor, true, 0)
	a.reconsiderLeader()
	for _, id := range a.visited {
		a.pools[id].settle()
	}
	a.left--
	followers := a.orderFollowers()
	into = append(into, a.d.brokers[a.leader].ID)
	for i, f := range followers {
		if i == 0 {
			a.firstPairs[pair{a.leader, f}]++
			a.firsts[f]++
		}
		for id := a.d.leaf[f]; id > 0; id = a.d.nodes[id].parent {
			a.pairs[pair{a.leader, id}]++
		}
		into = append(into, a.d.brokers[f].ID)
	}
	return into
}

// chances returns of how many partitions that are left some child of the domain gets more than its lo; extra is how
// many the domain itself gets beyond its lo.
func (a *assigner) chances(id int32, extra int) int {
	if a.pools[id].sure < a.d.nodes[id].lo {
		return a.left
	}
	return extra
}

// chooseLeader walks down from the root to the broker that leads the next partition.
func (a *assigner) chooseLeader() {
	id, extra := int32(0), 0
	for a.d.nodes[id].broker < 0 {
		p := &a.pools[id]
		p.head = p.chooseHead(a.chances(id, extra))
		if extra = 0; int(p.head) < p.open {
			extra = p.extra.count[p.head]
		}
		id = p.kids[p.head]
	}
	a.leader = a.d.nodes[id].broker
}

// chooseHead returns the child with the most leaders left, but one that cannot do without this partition goes first.
func (p *pool) chooseHead(chances int) int32 {
	for _, i := range p.extra.order {
		if chances == 0 || p.extra.count[i] < chances {
			break
		}
		if p.lead.count[i] > 0 {
			return i
		}
	}
	return p.lead.order[0]
}

// place chooses count replicas of this partition in a domain, the leader among them or not. extra is of how many
// partitions that are left the domain gets more than its lo, this one included.
func (a *assigner) place(id int32, count int, lead bool, extra int) {
	n := &a.d.nodes[id]
	if n.broker >= 0 {
		a.chosen = append(a.chosen, n.broker)
		return
	}
	a.visited = append(a.visited, id)
	p := &a.pools[id]
	if !lead {
		p.head = -1
	}
	a.pick(p, count-p.sure, a.chances(id, extra))
	first := 0
	if p.base == 0 {
		first = p.open // open kids that are not picked get nothing
	}
	for slot := int32(first); int(slot) < len(p.kids); slot++ {
		if !slices.Contains(p.picked, slot) {
			a.place(p.kids[slot], a.d.nodes[p.kids[slot]].lo, slot == p.head, p.extraOf(slot))
		}
	}
	for _, slot := range p.picked {
		a.place(p.kids[slot], p.base+1, slot == p.head, p.extra.count[slot])
	}
}

// reconsiderLeader lets another replica lead if that one has nothing but leaders left and the chosen leader can follow.
func (a *assigner) reconsiderLeader() {
	if a.mustLead(a.leader) {
		return
	}
	for _, b := range a.chosen {
		if !a.mustLead(b) {
			continue
		}
		for id := a.d.leaf[a.leader]; id > 0; id = a.d.nodes[id].parent {
			a.pools[a.d.nodes[id].parent].head = -1
		}
		for id := a.d.leaf[b]; id > 0; id = a.d.nodes[id].parent {
			a.pools[a.d.nodes[id].parent].head = a.slot[id]
		}
		a.leader = b
		return
	}
}

func (a *assigner) mustLead(broker int32) bool {
	leaf := a.d.leaf[broker]
	p, slot := &a.pools[a.d.nodes[leaf].parent], a.slot[leaf]
	return int(slot) < p.open && p.follow.count[slot] <= 0 && p.lead.count[slot] > 0
}

// settle takes this partition off what is left for the kids.
func (p *pool) settle() {
	if p.head >= 0 {
		p.lead.fall(p.head)
	}
	for _, slot := range p.picked {
		p.extra.fall(slot)
		if p.base == 0 && slot != p.head {
			p.follow.fall(slot)
		}
	}
}

// extraOf returns of how many partitions that are left a kid gets more than its lo.
func (p *pool) extraOf(slot int32) int {
	if int(slot) < p.open {
		return p.extra.count[slot]
	}
	return 0
}

// pick chooses the open kids that get base+1 of this partition.
func (a *assigner) pick(p *pool, count, chances int) {
	p.picked = p.picked[:0]
	if count <= 0 {
		return
	}
	if p.head >= 0 && int(p.head) < p.open && (p.base == 0 || p.extra.count[p.head] > 0) {
		p.picked = append(p.picked, p.head)
	}
	for _, slot := range p.extra.order {
		if len(p.picked) == count || p.extra.count[slot] < max(1, chances) {
			break
		}
		if slot != p.head {
			p.picked = append(p.picked, slot)
		}
	}
	by := &p.follow
	if p.base > 0 {
		by = &p.extra
	}
	for len(p.picked) < count {
		p.picked = append(p.picked, a.scattered(p, by))
	}
}

// scattered returns the kid for one more replica: one with the most left or one less than that, and of a sample of
// these the one that has followed the leader least.
func (a *assigner) scattered(p *pool, by *ranking) int32 {
	start := by.after(p.picked)
	if by.at(start) < 1 {
		return p.extra.order[p.extra.after(p.picked)] // has only leaders left, so let it lead: see reconsiderLeader
	}
	n := max(1, by.end(max(1, by.at(start)-1))-start)
	step := max(1, n/sample)
	best, least := by.order[start], a.followed(p, by.order[start])
	at := a.random.IntN(n)
	for range min(n, sample) {
		slot := by.order[start+at]
		if n := a.followed(p, slot); n < least && !slices.Contains(p.picked, slot) {
			best, least = slot, n
		}
		at = (at + step) % n
	}
	return best
}

// followed returns how often a kid has followed the leader. One that has fewer followers left than it would need comes
// last.
func (a *assigner) followed(p *pool, slot int32) int32 {
	kid := p.kids[slot]
	if p.base > 0 && a.pools[kid].follow.end(1) <= p.base {
		return math.MaxInt32
	}
	return a.pairs[pair{a.leader, kid}]
}

// orderFollowers returns the followers of this partition in order: first the one that would take over from this leader
// least often so far, and from all leaders least often for its weight.
func (a *assigner) orderFollowers() []int32 {
	at := slices.Index(a.chosen, a.leader)
	a.chosen[0], a.chosen[at] = a.chosen[at], a.chosen[0]
	followers := a.chosen[1:]
	if len(followers) < 2 {
		return followers
	}
	first := a.random.IntN(len(followers))
	for i, f := range followers {
		if a.takesOverLess(f, followers[first]) {
			first = i
		}
	}
	followers[0], followers[first] = followers[first], followers[0]
	return followers
}

func (a *assigner) takesOverLess(f, g int32) bool {
	x, y := a.firstPairs[pair{a.leader, f}], a.firstPairs[pair{a.leader, g}]
	if x != y {
		return x < y
	}
	return a.firsts[f]*a.d.brokers[g].Weight < a.firsts[g]*a.d.brokers[f].Weight
}
