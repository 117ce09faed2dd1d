package placement

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/highwater-io/highwater/messages"
)

// LeaderRules say when leaders are balanced, and how fast.
type LeaderRules struct {
	// ByWriteRate balances the write rates of the partitions, which have to be known; else the numbers of leaders.
	ByWriteRate bool
	// Threshold, in percent: a broker gives leaders away only if it leads more than its part by so much, and then until it
	// is half of that above. Nobody is given more than that either. 0: as even as it can be.
	Threshold int
	// Max bounds the changes of one proposal; 0 does not.
	Max int
}

// LeaderChange proposes another leader, who is in the ISR.
type LeaderChange struct {
	Partition messages.PartitionID
	From, To  messages.BrokerID // From may be ""
	Reason    Reason
}

// LeaderLoad is what a broker leads before and after: a number, or bytes per second. Part is what its weight asks for. Reason
// says, where it leads more than that afterwards, why it does not give more away.
type LeaderLoad struct {
	Broker        messages.BrokerID
	Before, After int64
	Part          int64
	Reason        Reason
}

// LeaderPlan proposes changes of leaders, in the order in which they should be made. It changes nothing and copies nothing.
type LeaderPlan struct {
	Changes []LeaderChange
	// Wanted counts the changes with those that Max has kept back; these are in Skipped too.
	Wanted      int
	Loads       []LeaderLoad // in the order of broker ids
	Skipped     []Skip       // in the order of partitions
	Explanation []string
	Considered  int // as in Plan
}

// PreferLeaders proposes that partitions are led by their first replica again, where it is in the ISR on a broker that is
// ready to lead and has settled. Where it is not, Skipped says why. At most max are proposed, 0 for no bound, by turns from
// the brokers that lead now, so that a returning broker's leaderships come back in waves.
//
// The view has to yield only the partitions to look at; those that are led as preferred are passed over. The loads are by
// the snapshot. Errors: as for Repair.
func PreferLeaders(v View, most int) (*LeaderPlan, error) {
	p, err := newPlanner(v, false, func(x *Partition) bool { return x.Leader != x.Replicas[0] })
	if err != nil {
		return nil, err
	}
	l := newLeading(p, false)
	for i := range p.parts {
		x := &p.parts[i]
		if why := p.cannotLead(x, x.from[0]); why.Code != "" {
			p.skip(x, why)
			continue
		}
		l.want(x, x.from[0], because(ReasonPreferredLeader, "broker", p.name(x.from[0])))
	}
	turn, nth := map[messages.BrokerID]int{}, map[messages.PartitionID]int{}
	for _, c := range l.wanted {
		turn[c.From]++
		nth[c.Partition] = turn[c.From]
	}
	slices.SortStableFunc(l.wanted, func(a, b LeaderChange) int { return cmp.Compare(nth[a.Partition], nth[b.Partition]) })
	return l.plan("preferred leaders", most), nil
}

// BalanceLeaders proposes changes that make what the brokers lead even for their weights, among ISR members on brokers that
// are ready to lead and have settled; a draining broker is to lead nothing. Once carried out, with the same loads, nothing
// more is proposed.
//
// The view has to yield all partitions; the loads are counted from them. Errors: as for Repair.
func BalanceLeaders(v View, r LeaderRules) (*LeaderPlan, error) {
	p, err := newPlanner(v, true, nil)
	if err != nil {
		return nil, err
	}
	l := newLeading(p, r.ByWriteRate)
	of := l.fill(func(x *part) (at int32, ok bool) {
		b, ok := p.index[x.Leader]
		if x.Cooling {
			p.skip(x, because(ReasonCooling))
			return b, false
		}
		return b, ok && !x.Reassigning && int(b) < p.known && !p.brokers[b].Gone && !p.brokers[b].Fenced
	})
	for i := range l.items {
		if it := &l.items[i]; p.brokers[it.at].Draining {
			if t := l.leastLoaded(it); t >= 0 {
				l.move(int32(i), t)
			}
		}
	}
	l.limit(r.Threshold)
	l.even()
	l.collect(of, func(x *part, to int32) Reason {
		if from := p.index[x.Leader]; p.brokers[from].Draining {
			return because(ReasonBrokerDraining, "broker", string(x.Leader), "to", p.name(to))
		}
		return because(ReasonEvenLeaders, "from", string(x.Leader), "to", p.name(to))
	})
	return l.plan("leaders", r.Max), nil
}

// Successors proposes who leads when brokers are lost: for each of the partitions, which are those that they lead, an ISR
// member that is ready, so that what the lost ones led falls evenly on the others for what they lead already. Members that
// have not settled come second, those on draining brokers third. Without any, the partition is in Skipped with
// NO_LEADER_TO_ELECT. Partitions that others lead are passed over.
//
// The loads are by the snapshot. The cost is that of the partitions yielded. Errors: as for Repair.
func Successors(v View, lost ...messages.BrokerID) (*LeaderPlan, error) {
	p, err := newPlanner(v, false, func(x *Partition) bool { return slices.Contains(lost, x.Leader) })
	if err != nil {
		return nil, err
	}
	for _, id := range lost {
		if b, ok := p.index[id]; ok {
			p.brokers[b].Fenced = true
		}
	}
	l := newLeading(p, false)
	var of []*part
	for _, i := range p.random.Perm(len(p.parts)) {
		x := &p.parts[i]
		it := item{size: 1, choices: p.successors(x)}
		if len(it.choices) == 0 {
			p.skip(x, because(ReasonNoLeaderToElect))
			continue
		}
		it.at = it.choices[0]
		for _, b := range it.choices {
			if (2*l.load[b]+1)*l.weight[it.at] < (2*l.load[it.at]+1)*l.weight[b] {
				it.at = b
			}
		}
		l.load[it.at]++
		l.load[p.index[x.Leader]]--
		l.takes[it.at] = true
		l.add(it)
		of = append(of, x)
	}
	l.even()
	l.collect(of, func(x *part, _ int32) Reason { return because(ReasonLeaderLost, "broker", string(x.Leader)) })
	return l.plan("successors", 0), nil
}

// successors returns who may lead a partition, of the best kind that there is.
func (p *planner) successors(x *part) []int32 {
	var kinds [3][]int32
	for _, b := range x.from {
		p.work++
		n := &p.brokers[b]
		if int(b) >= p.known || n.Gone || n.Fenced || n.Stopping || !slices.Contains(x.ISR, n.ID) {
			continue
		}
		kind := 0
		if n.Draining {
			kind = 2
		} else if n.Unsettled {
			kind = 1
		}
		kinds[kind] = append(kinds[kind], b)
	}
	for _, k := range kinds {
		if len(k) > 0 {
			return k
		}
	}
	return nil
}

// cannotLead says why a replica should not be given the lead; the code is "" if it may.
func (p *planner) cannotLead(x *part, b int32) Reason {
	n := &p.brokers[b]
	code := ReasonCode("")
	switch {
	case int(b) >= p.known:
		code = ReasonBrokerUnknown
	case n.Gone:
		code = ReasonBrokerGone
	case n.Fenced:
		code = ReasonBrokerFenced
	case n.Stopping:
		code = ReasonBrokerStopping
	case n.Draining:
		code = ReasonBrokerDraining
	case n.Unsettled:
		code = ReasonBrokerUnsettled
	case !slices.Contains(x.ISR, n.ID):
		code = ReasonNotInISR
	case x.Reassigning:
		return because(ReasonMoveInProgress)
	default:
		return Reason{}
	}
	return because(code, "broker", string(n.ID))
}

// leading is a matching of leaderships with the changes that come of it.
type leading struct {
	*matching
	p       *planner
	byRate  bool
	before  []int64
	wanted  []LeaderChange
	percent int
}

// newLeading starts from the leaders that the snapshot counts.
func newLeading(p *planner, byRate bool) *leading {
	l := &leading{matching: newMatching(p), p: p, byRate: byRate, before: make([]int64, len(p.brokers))}
	for b := range p.brokers {
		n := &p.brokers[b]
		l.load[b] = int64(n.Leaders)
		l.takes[b] = b < p.known && n.Refusal() == "" && !n.Unsettled
	}
	copy(l.before, l.load)
	return l
}

// fill counts the loads anew from all partitions, and makes items of those that a broker leads.
func (l *leading) fill(leader func(x *part) (int32, bool)) (of []*part) {
	clear(l.load)
	for _, i := range l.p.random.Perm(len(l.p.parts)) {
		x := &l.p.parts[i]
		size := int64(1)
		if l.byRate {
			size = max(1, x.WriteRate)
		}
		if b, ok := l.p.index[x.Leader]; ok {
			l.load[b] += size
		}
		at, ok := leader(x)
		if !ok {
			continue
		}
		it := item{size: size, at: at, choices: []int32{at}}
		for _, b := range x.from {
			if b != at && l.p.cannotLead(x, b).Code == "" {
				it.choices = append(it.choices, b)
			}
		}
		if len(it.choices) > 1 {
			l.add(it)
			of = append(of, x)
		}
	}
	copy(l.before, l.load)
	return of
}

func (l *leading) leastLoaded(it *item) int32 {
	best := int32(-1)
	for _, b := range it.choices {
		if l.takes[b] && (best < 0 || l.load[b]*l.weight[best] < l.load[best]*l.weight[b]) {
			best = b
		}
	}
	return best
}

// parts returns what each broker's weight asks for, of what all lead.
func (l *leading) parts() []int64 {
	var load, weight int64
	for b := range l.load {
		load += l.before[b]
		if l.takes[b] {
			weight += l.weight[b]
		}
	}
	out := make([]int64, len(l.load))
	for b := range out {
		if l.takes[b] {
			out[b] = (load*l.weight[b] + weight - 1) / weight
		}
	}
	return out
}

// limit sets the threshold.
func (l *leading) limit(percent int) {
	l.percent = percent
	if percent <= 0 {
		return
	}
	l.stop, l.active = l.parts(), make([]bool, len(l.load))
	for b, part := range l.stop {
		l.stop[b] = part + part*int64(percent)/200
		l.active[b] = l.load[b] > part+part*int64(percent)/100
	}
}

// collect turns the matching into changes, in the order in which it was made.
func (l *leading) collect(of []*part, why func(x *part, to int32) Reason) {
	order := make([]int, 0, len(of))
	for i, x := range of {
		if l.p.name(l.items[i].at) != string(x.Leader) {
			order = append(order, i)
		}
	}
	slices.SortFunc(order, func(i, j int) int { return cmp.Compare(l.items[i].moved, l.items[j].moved) })
	for _, i := range order {
		x, to := of[i], l.items[i].at
		l.wanted = append(l.wanted, LeaderChange{Partition: x.ID, From: x.Leader, To: l.p.brokers[to].ID, Reason: why(x, to)})
	}
}

func (l *leading) want(x *part, to int32, why Reason) {
	l.wanted = append(l.wanted, LeaderChange{Partition: x.ID, From: x.Leader, To: l.p.brokers[to].ID, Reason: why})
}

// plan takes the first of the changes.
func (l *leading) plan(what string, most int) *LeaderPlan {
	out := &LeaderPlan{Wanted: len(l.wanted), Changes: l.wanted}
	if most > 0 && len(l.wanted) > most {
		out.Changes = l.wanted[:most:most]
		for _, c := range l.wanted[most:] {
			l.p.skipped = append(l.p.skipped, Skip{c.Partition, because(ReasonRateLimited, "limit", strconv.Itoa(most))})
		}
	}
	out.Skipped = l.p.skipped
	slices.SortStableFunc(out.Skipped, func(a, b Skip) int { return comparePartitions(a.Partition, b.Partition) })
	l.loads(out)
	out.Explanation = l.explanation(what, out)
	out.Considered = l.p.work + l.work
	return out
}

// loads counts what the brokers lead after the changes that are proposed.
func (l *leading) loads(out *LeaderPlan) {
	after := slices.Clone(l.before)
	size := map[messages.PartitionID]int64{}
	if l.byRate {
		for i := range l.p.parts {
			size[l.p.parts[i].ID] = max(1, l.p.parts[i].WriteRate)
		}
	}
	for _, c := range out.Changes {
		n := int64(1)
		if l.byRate {
			n = size[c.Partition]
		}
		if from, ok := l.p.index[c.From]; ok {
			after[from] -= n
		}
		after[l.p.index[c.To]] += n
	}
	parts := l.parts()
	for b := range l.p.known {
		load := LeaderLoad{Broker: l.p.brokers[b].ID, Before: l.before[b], After: after[b], Part: parts[b]}
		if load.After > load.Part {
			switch {
			case out.Wanted > len(out.Changes):
				load.Reason = because(ReasonRateLimited, "limit", strconv.Itoa(len(out.Changes)))
			case l.stop != nil && load.Part > 0 && !l.active[b]:
				load.Reason = because(ReasonBelowThreshold, "load", fmt.Sprint(load.After), "part", fmt.Sprint(load.Part),
					"percent", strconv.Itoa(l.percent))
			default:
				load.Reason = because(ReasonNothingBetter)
			}
		}
		out.Loads = append(out.Loads, load)
	}
}

func (l *leading) explanation(what string, out *LeaderPlan) []string {
	lines := []string{fmt.Sprintf("%s: %s looked at, %d of %d wanted changes proposed", what,
		plural(len(l.p.parts), "partition"), len(out.Changes), out.Wanted)}
	told := 0
	for _, b := range out.Loads {
		if b.Before == b.After && b.Reason.Code == "" {
			continue
		}
		if told++; told > maxBrokerLines {
			lines = append(lines, "and more brokers")
			break
		}
		line := fmt.Sprintf("broker %s: leads %d → %d, its part is %d", b.Broker, b.Before, b.After, b.Part)
		if b.Reason.Code != "" {
			line += "; " + b.Reason.Text()
		}
		lines = append(lines, line)
	}
	for i, c := range out.Changes {
		if i == maxMoveLines {
			lines = append(lines, fmt.Sprintf("%s more by the same rules", plural(len(out.Changes)-i, "change")))
			break
		}
		lines = append(lines, fmt.Sprintf("%s: %s → %s: %s", partitionName(c.Partition), c.From, c.To, c.Reason.Text()))
	}
	return append(lines, skipLines(out.Skipped)...)
}
