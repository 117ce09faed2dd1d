package placement

import (
	"cmp"
	"slices"

	"github.com/highwater-io/highwater/messages"
)

// Evening out replicas. First the quotas: how many replicas each open broker should have, by the exact method of quotas.go,
// those that have more already being favoured by ties. Then replicas go from brokers above their quota to brokers below
// it, each move counting for the lower bound; a replica moves only where the spread of its partition gets no worse. What
// is stuck then is tried by chains, where a third broker takes one and gives another. Every step lowers the sum of
// load²/weight, so it comes to rest, and whether a step exists depends on nothing but the state: the next plan is empty.
const (
	maxRounds = 16
	// chainWork bounds the search for chains of one round, in brokers looked at.
	chainWork = 20_000_000
)

// Rebalance proposes what makes the whole cluster whole, well spread and even: what Repair does, then what Drain does for
// brokers that are marked as draining, then replicas in proportion to weight, then leaders by the order of preference. No
// partition gets a worse spread, on no step. Applied, it leaves nothing to do: the next Rebalance is empty.
//
// The view has to yield all partitions; the brokers' loads are counted from them.
//
// Errors: INVALID_REQUEST as for Repair.
func Rebalance(v View) (*Plan, error) {
	p, err := newPlanner(v, true, nil)
	if err != nil {
		return nil, err
	}
	p.offerOpen()
	for _, x := range p.byDanger() {
		p.refill(x, func(b int32) bool { return p.brokers[b].Gone || p.brokers[b].Draining })
		p.respread(x)
	}
	p.even()
	p.order(func(*part) bool { return true })
	return p.plan("rebalance"), nil
}

// Add proposes how brokers that are new, or too empty, get their part of all replicas: as many as their weight asks for, and
// none moves between the others. Then the leaders are evened out by the order of preference, which copies nothing. With
// equal brokers added to an even cluster, the copies are exactly the lower bound and the next Rebalance is empty.
//
// The view has to yield all partitions; the brokers' loads are counted from them.
//
// Errors: UNKNOWN_BROKER; INVALID_REQUEST if no broker is named or one takes no replicas, and as for Repair.
func Add(v View, brokers ...messages.BrokerID) (*Plan, error) {
	p, err := newPlanner(v, true, nil)
	if err != nil {
		return nil, err
	}
	if len(brokers) == 0 {
		return nil, messages.Errorf(messages.CodeInvalidRequest, "no broker to add is named")
	}
	added := map[int32]bool{}
	for _, id := range brokers {
		b, ok := p.index[id]
		if !ok || int(b) >= p.known {
			return nil, messages.Errorf(messages.CodeUnknownBroker, "broker %q is not registered", id)
		}
		if why := p.brokers[b].Refusal(); why != "" {
			return nil, messages.Errorf(messages.CodeInvalidRequest, "broker %s takes no replicas: %s", id, why)
		}
		added[b] = true
	}
	e := newEvening(p)
	e.direct(func(t int32) bool { return added[t] && e.lacks(t) })
	e.chains(false)
	e.relax(func(t int32) bool { return added[t] && e.lacks(t) })
	p.order(func(*part) bool { return true })
	return p.plan("add"), nil
}

func (p *planner) even() {
	for range maxRounds {
		e := newEvening(p)
		e.direct(e.lacks)
		e.chains(false)
		e.relax(e.lacks)
		e.chains(true)
		e.relax(func(t int32) bool { return p.open[t] })
		if !e.moved {
			return
		}
	}
}

// evening is one round of making replicas even.
type evening struct {
	*planner
	quota []int
	lists [][]int32 // partitions with a replica on each broker that may move
	moved bool
}

func newEvening(p *planner) *evening {
	e := &evening{planner: p, quota: make([]int, len(p.brokers)), lists: make([][]int32, len(p.brokers))}
	for _, i := range p.random.Perm(len(p.parts)) {
		if p.parts[i].Reassigning || p.parts[i].live == 0 {
			continue
		}
		for _, b := range p.parts[i].to {
			e.lists[b] = append(e.lists[b], int32(i))
		}
	}
	e.fillQuotas()
	return e
}

// fillQuotas computes what each open broker should have. Partitions with the same number of replicas on open brokers are
// alike for that.
func (e *evening) fillQuotas() {
	d := e.usable
	if len(d.brokers) == 0 {
		return
	}
	numbers := make([]int32, len(d.brokers))
	usable := slices.Clone(d.brokers)
	for i := range usable {
		numbers[i] = e.index[usable[i].ID]
		usable[i].Replicas, usable[i].Leaders = 0, 0
	}
	tree := *d
	tree.brokers, tree.nodes = usable, slices.Clone(d.nodes)
	least, most := make([]int, len(d.nodes)), make([]int, len(d.nodes))
	total := 0
	for count, partitions := range e.sizes() {
		count = min(count, d.nodes[0].size)
		tree.bound(0, count, count)
		for id := range tree.nodes {
			least[id] += partitions * tree.nodes[id].lo
			most[id] += partitions * tree.nodes[id].hi
		}
		total += partitions * count
	}
	quota := make([]int, len(d.nodes))
	newFillerWithin(&tree, [2][]int{least, most}, quota, e.favour(numbers)).fill(total)
	for i, b := range numbers {
		e.quota[b] = quota[tree.leaf[i]]
	}
}

// sizes counts the partitions by their replicas on open brokers.
func (e *evening) sizes() map[int]int {
	out := map[int]int{}
	for i := range e.parts {
		n := 0
		for _, b := range e.parts[i].to {
			if e.open[b] {
				n++
			}
		}
		out[n]++
	}
	return out
}

// favour ranks brokers for ties: who has more keeps it.
func (e *evening) favour(numbers []int32) []uint32 {
	order := make([]int, len(numbers))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int {
		return cmp.Compare(e.now[numbers[j]].replicas, e.now[numbers[i]].replicas)
	})
	ties := make([]uint32, len(numbers))
	for rank, i := range order {
		ties[i] = uint32(rank)
	}
	return ties
}

func (e *evening) lacks(b int32) bool { return e.open[b] && e.now[b].replicas < e.quota[b] }

// improves says whether a replica more on t instead of s makes the loads more even.
func (e *evening) improves(s, t int32) bool {
	return (2*e.now[t].replicas+1)*e.brokers[s].Weight < (2*e.now[s].replicas-1)*e.brokers[t].Weight
}

// givers returns the open brokers with replicas, the fullest first.
func (e *evening) givers() []int32 {
	var out []int32
	for b := range int32(e.known) {
		if e.open[b] && len(e.lists[b]) > 0 {
			out = append(out, b)
		}
	}
	slices.SortStableFunc(out, func(a, b int32) int {
		return cmp.Compare((2*e.now[b].replicas-1)*e.brokers[a].Weight, (2*e.now[a].replicas-1)*e.brokers[b].Weight)
	})
	return out
}

// move moves a replica and keeps the lists.
func (e *evening) move(i, s, t int32) {
	at := slices.Index(e.lists[s], i)
	e.lists[s] = slices.Delete(e.lists[s], at, at+1)
	e.lists[t] = append(e.lists[t], i)
	e.replace(&e.parts[i], s, t, because(ReasonEvenReplicas, "from", e.name(s), "to", e.name(t)))
	e.moved = true
}

// direct moves replicas from brokers above their quota to those that want some.
func (e *evening) direct(wants func(t int32) bool) {
	e.offer(wants)
	for _, s := range e.givers() {
		for _, i := range slices.Clone(e.lists[s]) {
			if e.now[s].replicas <= e.quota[s] {
				break
			}
			e.give(i, s, wants)
		}
	}
}

// relax moves replicas wherever it helps, whatever the quotas say: they may be out of reach.
func (e *evening) relax(wants func(t int32) bool) {
	e.offer(wants)
	for again := true; again; {
		again = false
		for _, s := range e.givers() {
			for _, i := range slices.Clone(e.lists[s]) {
				if !e.hopeful(s) {
					break
				}
				again = e.give(i, s, wants) || again
			}
		}
	}
}

// hopeful says whether anybody who is offered replicas would be better off with one of s.
func (e *evening) hopeful(s int32) bool {
	for i := range e.racks {
		e.work++
		if h := e.racks[i].heap; len(h) > 0 && e.improves(s, h[0]) {
			return true
		}
	}
	return false
}

func (e *evening) give(i, s int32, wants func(t int32) bool) bool {
	x := &e.parts[i]
	others := without(x.to, s)
	t, _ := e.choose(others, x.to, e.tollAt(s, others))
	if t < 0 || !e.improves(s, t) {
		return false
	}
	e.move(i, s, t)
	if !wants(t) {
		e.withdraw(t)
	}
	return true
}

// chains moves what direct could not: from a broker above its quota over others to one below it. At first the others pass on
// only what this plan has given them, so that no more is copied; with costly, then also what they had.
func (e *evening) chains(costly bool) {
	e.offerOpen()
	budget := e.work + chainWork
	dead := make([]bool, len(e.brokers))
	for _, s := range e.givers() {
		for e.now[s].replicas > e.quota[s] && !dead[s] && e.work < budget && (e.chain(s, nil) || costly && e.chain(s, dead)) {
		}
	}
}

// chain looks for the shortest one, breadth first, and makes its moves. Without dead, brokers on the way pass on only what
// this plan has given them, so that the chain copies no more than one replica.
func (e *evening) chain(s int32, dead []bool) bool {
	via := map[int32][2]int32{s: {-1, -1}} // from which broker, by which partition
	queue := []int32{s}
	budget := e.work + chainWork/4
	for head := 0; head < len(queue) && e.work < budget; head++ {
		from := queue[head]
		for _, i := range e.lists[from] {
			if dead == nil && from != s && slices.Contains(e.parts[i].from, from) {
				continue
			}
			for _, t := range e.reach(i, from, via) {
				via[t] = [2]int32{from, i}
				if dead == nil || !dead[t] {
					queue = append(queue, t)
				}
				if e.lacks(t) && e.improves(s, t) && e.follow(s, t, via) {
					return true
				}
			}
		}
	}
	if dead != nil {
		for _, b := range queue {
			dead[b] = true
		}
	}
	return false
}

// reach returns the brokers, not seen yet, that may take a replica of a partition from one.
func (e *evening) reach(i, from int32, seen map[int32][2]int32) []int32 {
	x := &e.parts[i]
	others := without(x.to, from)
	most := e.tollAt(from, others)
	var out []int32
	for r := range e.racks {
		e.work++
		t := e.tollOf(e.racks[r].domain, others)
		if t > most || e.clashes(t) {
			continue
		}
		for _, b := range e.racks[r].heap {
			e.work++
			if _, ok := seen[b]; !ok && !slices.Contains(x.to, b) {
				out = append(out, b)
			}
		}
	}
	return out
}

// follow makes the moves of a chain that ends at t, the last one first. It refuses one that has a partition twice, whose
// second move would have to be judged after the first.
func (e *evening) follow(s, t int32, via map[int32][2]int32) bool {
	var parts []int32
	for b := t; b != s; b = via[b][0] {
		if i := via[b][1]; slices.Contains(parts, i) {
			return false
		}
		parts = append(parts, via[b][1])
	}
	for b := t; b != s; b = via[b][0] {
		e.move(via[b][1], via[b][0], b)
	}
	return true
}
