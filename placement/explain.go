package placement

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/highwater-io/highwater/messages"
)

// Bounds of what a report lists before it says "and N more".
const (
	maxListed         = 8  // names in a line
	maxBrokerLines    = 20 // brokers with what they get
	maxRefusedLines   = 20 // brokers that get nothing, with the reason
	maxPartitionLines = 3
	maxImbalances     = 5
)

// report writes what a person may ask about a proposal.
type report struct {
	snapshot Snapshot
	domains  *domains
	refused  []Broker
	topic    NewTopic
	proposal *Proposal
	seed     [2]uint64
}

func (r *report) warnings() []string {
	var out []string
	if s := NewRacks(r.snapshot).Check(r.proposal.Replicas[0]); s.Violated {
		out = append(out, fmt.Sprintf("rack_violation: in every partition; in the first, %s; no better spread is possible with %s",
			s.Detail, r.racks()))
	}
	out = append(out, r.imbalances()...)
	if lost := r.domains.unlabelled(); len(lost) > 0 && r.domains.depth > 0 {
		out = append(out, fmt.Sprintf("unlabelled: no rack label on %s; all of them count as one rack", listBrokers(lost)))
	}
	return out
}

// racks tells which racks there are, usable or not.
func (r *report) racks() string {
	var usable, gone []string
	has := map[messages.RackPath]bool{}
	for _, id := range r.domains.level(r.domains.depth) {
		usable = append(usable, r.domains.path(id))
	}
	for i := range r.domains.brokers {
		has[r.domains.brokers[i].Rack] = true
	}
	for i := range r.refused {
		if rack := r.refused[i].Rack; rack != "" && !has[rack] {
			has[rack] = true
			gone = append(gone, string(rack))
		}
	}
	text := fmt.Sprintf("%s (%s)", plural(len(usable), "usable rack"), list(usable))
	if len(gone) > 0 {
		text += fmt.Sprintf("; no usable broker in %s", list(gone))
	}
	return text
}

// imbalances names the brokers that take clearly more of the topic than their capacity's part of it, though they have
// no less than their part already: not because they are behind, but because their rack is small.
func (r *report) imbalances() []string {
	type excess struct {
		broker int
		ratio  float64
	}
	var over []excess
	added := float64(r.topic.Partitions * r.topic.ReplicationFactor)
	all := added
	for i := range r.domains.brokers {
		all += float64(r.domains.brokers[i].Replicas)
	}
	weight := float64(r.domains.totalWeight())
	for i := range r.domains.brokers {
		b, gets := &r.domains.brokers[i], float64(r.proposal.Shares[i].Replicas)
		part := float64(b.Weight) / weight
		if gets >= added*part+1 && gets > 1.2*added*part && float64(b.Replicas)+gets > 1.2*all*part {
			over = append(over, excess{i, gets / (added * part)})
		}
	}
	slices.SortStableFunc(over, func(a, b excess) int { return cmp.Compare(b.ratio, a.ratio) })
	var out []string
	for n, e := range over {
		if n == maxImbalances {
			out = append(out, fmt.Sprintf("imbalance: and %s more", plural(len(over)-n, "broker")))
			break
		}
		b := &r.domains.brokers[e.broker]
		out = append(out, fmt.Sprintf("imbalance: broker %s takes %d of %.0f replicas, its capacity's part is %.1f: "+
			"%s", b.ID, r.proposal.Shares[e.broker].Replicas, added, added*float64(b.Weight)/weight, r.cause(e.broker)))
	}
	return out
}

// cause tells what forces more on a broker than its capacity's part.
func (r *report) cause(broker int) string {
	if r.domains.depth == 0 {
		return "the replicas of a partition need distinct brokers"
	}
	rack := r.domains.at(int32(broker), r.domains.depth)
	return fmt.Sprintf("the spread asks for rack %s, which has %s", r.domains.path(rack),
		plural(r.domains.nodes[rack].size, "usable broker"))
}

func (r *report) explanation() []string {
	d := r.domains
	out := []string{fmt.Sprintf("%s × %s on %s of %d registered, in %s; seed %x-%x",
		plural(r.topic.Partitions, "partition"), plural(r.topic.ReplicationFactor, "replica"),
		plural(len(d.brokers), "usable broker"), len(r.snapshot.Brokers), r.racks(), r.seed[0], r.seed[1])}
	for level := 1; level <= d.depth; level++ {
		out = append(out, r.spreadLine(level))
	}
	out = append(out, r.brokerLines()...)
	for i := range r.refused {
		if i == maxRefusedLines {
			out = append(out, fmt.Sprintf("not used: %s more", plural(len(r.refused)-i, "broker")))
			break
		}
		b := &r.refused[i]
		out = append(out, fmt.Sprintf("not used: broker %s (rack %s): %s", b.ID, b.rack(), b.Refusal()))
	}
	return append(out, r.partitionLines()...)
}

// spreadLine tells how many replicas of each partition the domains of a level get.
func (r *report) spreadLine(level int) string {
	type interval struct{ lo, hi int }
	groups := map[interval][]string{}
	var order []interval
	for _, id := range r.domains.level(level) {
		n := &r.domains.nodes[id]
		in := interval{n.lo, n.hi}
		if groups[in] == nil {
			order = append(order, in)
		}
		groups[in] = append(groups[in], r.domains.path(id))
	}
	slices.SortFunc(order, func(a, b interval) int { return cmp.Or(b.hi-a.hi, b.lo-a.lo) })
	parts := make([]string, len(order))
	for i, in := range order {
		count := fmt.Sprint(in.lo)
		if in.hi > in.lo {
			count = fmt.Sprintf("%d or %d", in.lo, in.hi)
		}
		parts[i] = fmt.Sprintf("%s in each of %s", count, list(groups[in]))
		if len(groups[in]) == 1 {
			parts[i] = fmt.Sprintf("%s in %s", count, groups[in][0])
		}
	}
	return fmt.Sprintf("level %d, replicas of a partition: %s", level, strings.Join(parts, "; "))
}

// brokerLines tells what the brokers get, those with the most first where there are too many to list.
func (r *report) brokerLines() []string {
	order := make([]int, len(r.domains.brokers))
	for i := range order {
		order[i] = i
	}
	if len(order) > maxBrokerLines {
		slices.SortStableFunc(order, func(a, b int) int {
			return r.proposal.Shares[b].Replicas - r.proposal.Shares[a].Replicas
		})
	}
	var out []string
	for n, i := range order {
		if n == maxBrokerLines {
			least := r.proposal.Shares[order[len(order)-1]].Replicas
			out = append(out, fmt.Sprintf("%s more get %d to %d replicas each", plural(len(order)-n, "broker"),
				least, r.proposal.Shares[i].Replicas))
			break
		}
		b, s := &r.domains.brokers[i], &r.proposal.Shares[i]
		out = append(out, fmt.Sprintf("broker %s (rack %s, weight %d): gets %s and leads %d of them; had %d and %d",
			b.ID, b.rack(), b.Weight, plural(s.Replicas, "replica"), s.Leaders, b.Replicas, b.Leaders))
	}
	return out
}

// partitionLines tells the choices of the first partitions.
func (r *report) partitionLines() []string {
	index := make(map[messages.BrokerID]int, len(r.domains.brokers))
	for i := range r.domains.brokers {
		index[r.domains.brokers[i].ID] = i
	}
	var out []string
	for p, replicas := range r.proposal.Replicas {
		if p == maxPartitionLines {
			out = append(out, fmt.Sprintf("%s more by the same rules", plural(len(r.proposal.Replicas)-p, "partition")))
			break
		}
		leader := index[replicas[0]]
		line := fmt.Sprintf("partition %d: %s (rack %s) leads, as it does in %d of %d", p, replicas[0],
			r.domains.brokers[leader].rack(), r.proposal.Shares[leader].Leaders, r.topic.Partitions)
		for i, id := range replicas[1:min(len(replicas), maxListed)] {
			b := &r.domains.brokers[index[id]]
			if i == 0 {
				line += fmt.Sprintf("; %s (rack %s) follows and is next to lead", id, b.rack())
			} else {
				line += fmt.Sprintf("; %s (rack %s) follows", id, b.rack())
			}
		}
		out = append(out, line)
	}
	return out
}

// listRefused lists refused brokers with the reason.
func listRefused(refused []Broker) string {
	names := make([]string, len(refused))
	for i := range refused {
		names[i] = fmt.Sprintf("%s (%s)", refused[i].ID, refused[i].Refusal())
	}
	return list(names)
}

func listBrokers(brokers []Broker) string {
	names := make([]string, len(brokers))
	for i := range brokers {
		names[i] = string(brokers[i].ID)
	}
	return list(names)
}

// list joins names, at most maxListed of them.
func list(names []string) string {
	if len(names) <= maxListed {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:maxListed], ", "), len(names)-maxListed)
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
