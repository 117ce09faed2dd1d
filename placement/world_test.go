package placement_test

import (
	"fmt"
	"slices"
	"strings"

	"pgregory.net/rapid"

	"github.com/highwater-io/highwater/messages"
	"github.com/highwater-io/highwater/placement"
)

// world is a cluster with partitions, on which plans are made and carried out.
type world struct {
	brokers []placement.Broker
	parts   []placement.Partition
	rules   placement.Rules
	seed    uint64
}

func partitionID(i int) messages.PartitionID { return messages.PartitionID{Index: int32(i)} }

// worldOf reads brokers as cluster does, and partitions as replica lists with "," between brokers. All replicas on brokers
// that are not fenced are in the ISR, and the first of them leads.
func worldOf(brokers, lists string) *world {
	w := &world{brokers: cluster(brokers).Brokers, seed: 1}
	for _, list := range strings.Fields(lists) {
		var ids []messages.BrokerID
		for _, id := range strings.Split(list, ",") {
			ids = append(ids, messages.BrokerID(id))
		}
		w.add(ids)
	}
	return w
}

func (w *world) add(ids []messages.BrokerID) {
	p := placement.Partition{ID: partitionID(len(w.parts)), Replicas: ids, MinISR: 2, Bytes: int64(100 + len(w.parts)%7)}
	for _, id := range ids {
		if b := w.broker(id); b != nil && !b.Fenced && !b.Gone && !b.Stopping {
			p.ISR = append(p.ISR, id)
		}
	}
	if len(p.ISR) > 0 {
		p.Leader = p.ISR[0]
	}
	w.parts = append(w.parts, p)
}

func (w *world) broker(id messages.BrokerID) *placement.Broker {
	for i := range w.brokers {
		if w.brokers[i].ID == id {
			return &w.brokers[i]
		}
	}
	return nil
}

// fill places a topic on the brokers as they are.
func (w *world) fill(t failer, partitions, factor int) {
	t.Helper()
	s := w.view().Snapshot
	for _, ids := range place(t, &s, partitions, factor, w.seed).Replicas {
		w.add(ids)
	}
}

// view counts the loads, and yields the partitions that keep is true for.
func (w *world) view(keep ...func(p placement.Partition) bool) placement.View {
	v := placement.View{Rules: w.rules, Seed: [2]uint64{w.seed, 7}}
	v.Brokers = slices.Clone(w.brokers)
	for i := range v.Brokers {
		b := &v.Brokers[i]
		b.Replicas, b.Leaders, b.Bytes = 0, 0, 0
		for _, p := range w.parts {
			if slices.Contains(p.Replicas, b.ID) {
				b.Replicas++
				b.Bytes += p.Bytes
			}
			if p.Leader == b.ID {
				b.Leaders++
			}
		}
	}
	v.Partitions = func(yield func(placement.Partition) bool) {
		for _, p := range w.parts {
			if (len(keep) == 0 || keep[0](p)) && !yield(p) {
				return
			}
		}
	}
	return v
}

// on yields the partitions with a replica on one of some brokers.
func (w *world) on(ids ...messages.BrokerID) placement.View {
	return w.view(func(p placement.Partition) bool {
		return slices.ContainsFunc(p.Replicas, func(id messages.BrokerID) bool { return slices.Contains(ids, id) })
	})
}

func (w *world) part(id messages.PartitionID) *placement.Partition { return &w.parts[id.Index] }

// apply carries a plan out step by step. After each step it checks that the partition is no worse spread than it was or is
// to be. In the end the first replica leads.
func (w *world) apply(t failer, plan *placement.Plan) {
	t.Helper()
	seen := map[messages.PartitionID]bool{}
	for _, m := range plan.Moves {
		p := w.part(m.Partition)
		if seen[m.Partition] || !slices.Equal(p.Replicas, m.From) || slices.Equal(m.From, m.To) {
			t.Fatalf("move %v is of a partition that has moved, or is %v, or changes nothing", m, p.Replicas)
		}
		seen[m.Partition] = true
		set := slices.Clone(p.Replicas)
		worst := w.cost(m.From)
		if to := w.cost(m.To); len(m.To) >= len(m.From) && slices.Compare(to, worst) > 0 {
			worst = to
		}
		for _, s := range m.Steps {
			if s.Add != "" {
				set = append(set, s.Add)
			}
			if s.Remove != "" {
				set = slices.DeleteFunc(set, func(id messages.BrokerID) bool { return id == s.Remove })
			}
			if len(m.From) == len(m.To) && slices.Compare(w.cost(set), worst) > 0 {
				t.Fatalf("move %v: at %v the replicas are spread worse than before and after", m, set)
			}
		}
		slices.Sort(set)
		if to := slices.Sorted(slices.Values(m.To)); !slices.Equal(set, to) || len(slices.Compact(to)) != len(m.To) {
			t.Fatalf("move %v: the steps end at %v", m, set)
		}
		q := *p
		q.Replicas = m.To
		w.parts[m.Partition.Index] = q
		p = w.part(m.Partition)
		p.ISR = nil
		for _, id := range m.To {
			if b := w.broker(id); b != nil && !b.Fenced && !b.Gone && !b.Stopping {
				p.ISR = append(p.ISR, id)
			}
		}
		p.Leader = ""
		if len(p.ISR) > 0 {
			p.Leader = p.ISR[0]
		}
	}
}

// cost is the spread of the replicas whose brokers are registered and not gone.
func (w *world) cost(ids []messages.BrokerID) []int {
	var set []placement.Broker
	for _, id := range ids {
		if b := w.broker(id); b != nil && !b.Gone {
			set = append(set, *b)
		}
	}
	// Gone replicas count as if each had a rack of its own, so that sets of one size can be compared.
	cost := costOf(set)
	for i := range cost {
		cost[i] += len(ids) - len(set)
	}
	return cost
}

func (w *world) avoidable() int {
	racks := placement.NewRacks(placement.Snapshot{Brokers: w.brokers})
	n := 0
	for _, p := range w.parts {
		if racks.Check(p.Replicas).Avoidable {
			n++
		}
	}
	return n
}

// drawWorld draws a cluster of mixed racks and weights with partitions on it: placed well, or anyhow.
func drawWorld(t *rapid.T, most int) *world {
	s := drawCluster(t, most)
	w := &world{brokers: s.Brokers, seed: rapid.Uint64().Draw(t, "seed")}
	usable := len(usableOf(s))
	for range rapid.IntRange(1, 3).Draw(t, "topics") {
		factor := rapid.IntRange(1, min(usable, 5)).Draw(t, "factor")
		partitions := rapid.IntRange(1, 30).Draw(t, "partitions")
		if rapid.Bool().Draw(t, "placed") {
			w.fill(t, partitions, factor)
			continue
		}
		for range partitions {
			var ids []messages.BrokerID
			for _, b := range rapid.Permutation(s.Brokers).Draw(t, "list")[:factor] {
				ids = append(ids, b.ID)
			}
			w.add(ids)
		}
	}
	return w
}

// drawEven draws a cluster of equal racks of equal brokers with one well placed topic of at least as many
// partitions as there are brokers and a new one in each rack.
func drawEven(t *rapid.T) *world {
	racks, size := rapid.IntRange(1, 6).Draw(t, "racks"), rapid.IntRange(1, 5).Draw(t, "size")
	w := &world{brokers: racksOf(slices.Repeat([]int{size}, racks)...).Brokers, seed: rapid.Uint64().Draw(t, "seed")}
	most := min(racks, 4) // or the racks would not be equal for the replicas
	if racks == 1 {
		most = min(size, 4)
	}
	w.fill(t, rapid.IntRange(36, 150).Draw(t, "partitions"), rapid.IntRange(1, most).Draw(t, "factor"))
	return w
}

func planned(t failer, v placement.View, propose func(placement.View) (*placement.Plan, error)) *placement.Plan {
	t.Helper()
	plan, err := propose(v)
	if err != nil {
		t.Fatalf("no plan: %v", err)
	}
	return plan
}

func rebalance(t failer, w *world) *placement.Plan {
	t.Helper()
	return planned(t, w.view(), placement.Rebalance)
}

func drain(ids ...messages.BrokerID) func(placement.View) (*placement.Plan, error) {
	return func(v placement.View) (*placement.Plan, error) { return placement.Drain(v, ids...) }
}

func describe(plan *placement.Plan) string {
	return fmt.Sprintf("%d moves, %d copies, at least %d, %d in order only\n%s", len(plan.Moves), plan.Copies,
		plan.FewestCopies, plan.Reordered, strings.Join(plan.Explanation, "\n"))
}
