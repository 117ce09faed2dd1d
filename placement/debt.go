package placement

import (
	"fmt"
	"slices"

	"github.com/highwater-io/highwater/messages"
)

// Debt is what the spread over the racks lacks.
type Debt struct {
	// Violated counts the partitions whose replicas share a rack or are otherwise not spread as they should be; Avoidable
	// those of them that the usable brokers allow to be spread better. RackStatus defines both.
	Violated, Avoidable int
	Partitions          []DebtOf            // in the order of partitions
	Unlabelled          []messages.BrokerID // brokers without a label, where others have one
}

// DebtOf is the debt of one partition.
type DebtOf struct {
	Partition messages.PartitionID
	Avoidable bool
	// Required: the level that the rules require to be distinct is not.
	Required bool
	Detail   string // for people
}

// SpreadDebt measures the spread of the partitions that the view yields. Errors: as for Repair.
func SpreadDebt(v View) (*Debt, error) {
	p, err := newPlanner(v, false, nil)
	if err != nil {
		return nil, err
	}
	out := &Debt{}
	if p.depth == 0 {
		return out, nil
	}
	for _, b := range p.tree.unlabelled() {
		out.Unlabelled = append(out.Unlabelled, b.ID)
	}
	racks := NewRacks(v.Snapshot)
	for i := range p.parts {
		x := &p.parts[i]
		status := racks.Check(x.Replicas)
		required := p.rules.Distinct > 0 && p.crowd(x.from)[0] > 0
		if !status.Violated && !required {
			continue
		}
		d := DebtOf{Partition: x.ID, Avoidable: p.indebted(x.from), Required: required, Detail: status.Detail}
		if required && d.Detail == "" {
			d.Detail = because(ReasonLevelRequired, "level", fmt.Sprint(p.rules.Distinct)).Text()
		}
		out.Violated++
		if d.Avoidable {
			out.Avoidable++
		}
		out.Partitions = append(out.Partitions, d)
	}
	return out, nil
}

// Verdict is why a broker has, or has not, a replica or the lead of a partition.
type Verdict struct {
	Broker messages.BrokerID
	Rack   messages.RackPath
	Reason Reason
}

// ExplainReplicas says of each registered broker, in the order of ids, why it holds no replica of a partition: BROKER_… if it
// takes none; WORSE_SPREAD or LEVEL_REQUIRED if that is what keeps it from relieving a fuller one; MORE_LOADED or TIE compared
// with the replica that it could replace best. The others hold one: HOLDS_REPLICA, or BROKER_GONE and BROKER_DRAINING for one that is to go. RACK_SPREAD and EVEN_REPLICAS mean
// that it would be better there than another. The brokers come with what they hold. Errors: as for Repair.
func ExplainReplicas(s Snapshot, rules Rules, of Partition) ([]Verdict, error) {
	p, err := newPlanner(View{Snapshot: s, Rules: rules, Partitions: slices.Values([]Partition{of})}, false, nil)
	if err != nil || len(p.parts) == 0 {
		return nil, err
	}
	var out []Verdict
	for b := range int32(p.known) {
		out = append(out, Verdict{p.brokers[b].ID, p.brokers[b].Rack, p.whyNoReplica(&p.parts[0], b)})
	}
	return out, nil
}

func (p *planner) whyNoReplica(x *part, b int32) Reason {
	n := &p.brokers[b]
	holds := slices.Contains(x.from, b)
	switch id := string(n.ID); {
	case n.Gone:
		return because(ReasonBrokerGone, "broker", id)
	case n.Draining:
		return because(ReasonBrokerDraining, "broker", id)
	case holds:
		return because(ReasonHoldsReplica)
	case n.Fenced:
		return because(ReasonBrokerFenced, "broker", id)
	case n.Stopping:
		return because(ReasonBrokerStopping, "broker", id)
	}
	worse := Reason{}
	for _, s := range p.byLoad(x.from) {
		if int(s) >= p.known {
			continue
		}
		others := without(x.from, s)
		was, is := p.tollAt(s, others), p.tollAt(b, others)
		switch {
		case is > was || p.clashes(is):
			if worse.Code != "" || p.byWeight(b, s).Code != ReasonEvenReplicas {
				continue
			}
			worse = p.worseSpread(b, s, others)
			if p.clashes(is) {
				worse = because(ReasonLevelRequired, "level", fmt.Sprint(p.rules.Distinct))
			}
		case is < was:
			return because(ReasonRackSpread, "from", p.name(s), "to", p.name(b))
		default:
			if why := p.byWeight(b, s); why.Code == ReasonEvenReplicas || worse.Code == "" {
				return why
			}
			return worse
		}
	}
	if worse.Code == "" {
		worse = because(ReasonNothingBetter)
	}
	return worse
}

// byLoad returns brokers in descending order of their load for their weight.
func (p *planner) byLoad(list []int32) []int32 {
	out := slices.Clone(list)
	slices.SortStableFunc(out, func(a, b int32) int {
		return shareOf(p.now[b].replicas, p.brokers[b].Weight).compare(shareOf(p.now[a].replicas, p.brokers[a].Weight))
	})
	return out
}

// worseSpread names the domain that would be fuller with b than it is with s.
func (p *planner) worseSpread(b, s int32, others []int32) Reason {
	for level := range p.depth {
		in := func(x int32) (n int) {
			for _, o := range others {
				if p.domain[int(o)*p.depth+level] == p.domain[int(x)*p.depth+level] {
					n++
				}
			}
			return n
		}
		if n := in(b); n > in(s) {
			return because(ReasonWorseSpread, "domain", p.tree.path(p.domain[int(b)*p.depth+level]), "replicas", fmt.Sprint(n))
		}
	}
	return because(ReasonNothingBetter)
}

// byWeight compares b with the replica on s that it could replace at no cost of spread.
func (p *planner) byWeight(b, s int32) Reason {
	x, y, v, w := p.now[b].replicas, p.now[s].replicas, p.brokers[b].Weight, p.brokers[s].Weight
	if (2*x+1)*w < (2*y-1)*v {
		return because(ReasonEvenReplicas, "from", p.name(s), "to", p.name(b))
	}
	if x*w <= y*v {
		return because(ReasonTie, "chosen", p.name(s))
	}
	return because(ReasonMoreLoaded, "load", fmt.Sprint(x), "weight", fmt.Sprint(v), "chosen", p.name(s),
		"chosen_load", fmt.Sprint(y), "chosen_weight", fmt.Sprint(w))
}

// ExplainLeader says of each replica, in the order of preference, why it leads or why not: ALREADY_LEADS, PREFERRED_LEADER for
// the first one that may and does not, BROKER_…, NOT_IN_ISR, MOVE_IN_PROGRESS, or NOT_PREFERRED. Errors: as for Repair.
func ExplainLeader(s Snapshot, of Partition) ([]Verdict, error) {
	p, err := newPlanner(View{Snapshot: s, Partitions: slices.Values([]Partition{of})}, false, nil)
	if err != nil || len(p.parts) == 0 {
		return nil, err
	}
	x, preferred := &p.parts[0], ""
	var out []Verdict
	for i, b := range x.from {
		why := p.cannotLead(x, b)
		switch {
		case p.brokers[b].ID == x.Leader:
			why = because(ReasonAlreadyLeads, "broker", p.name(b))
		case why.Code != "":
		case i == 0:
			why = because(ReasonPreferredLeader, "broker", p.name(b))
		default:
			why = because(ReasonNotPreferred, "preferred", preferred)
		}
		if preferred == "" && (why.Code == ReasonAlreadyLeads || why.Code == ReasonPreferredLeader) {
			preferred = p.name(b)
		}
		if why.Code == ReasonNotPreferred && preferred == "" {
			why = because(ReasonNotPreferred, "preferred", p.name(x.from[0]))
		}
		out = append(out, Verdict{p.brokers[b].ID, p.brokers[b].Rack, why})
	}
	return out, nil
}
