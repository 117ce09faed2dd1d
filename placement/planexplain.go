package placement

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/highwater-io/highwater/messages"
)

// maxMoveLines bounds the moves that an explanation tells one by one.
const maxMoveLines = 10

// explanation tells a plan to people.
func (p *planner) explanation(what string, out *Plan) []string {
	open := 0
	for _, o := range p.open {
		if o {
			open++
		}
	}
	lines := []string{fmt.Sprintf("%s: %s looked at, %s registered, %d of them take replicas", what,
		plural(len(p.parts), "partition"), plural(p.known, "broker"), open)}
	if len(out.Moves) == 0 {
		lines = append(lines, "nothing moves: "+because(ReasonNothingBetter).Text())
	} else {
		lines = append(lines, fmt.Sprintf("%s: %d copied replicas (at least %d), %d bytes (at least %d), %d changed only in order",
			plural(len(out.Moves), "move"), out.Copies, out.FewestCopies, out.Bytes, out.FewestBytes, out.Reordered))
	}
	lines = append(lines, loadLines(out.Loads)...)
	for i := range out.Moves {
		if i == maxMoveLines {
			lines = append(lines, fmt.Sprintf("%s more by the same rules", plural(len(out.Moves)-i, "move")))
			break
		}
		m := &out.Moves[i]
		lines = append(lines, fmt.Sprintf("%s: %s → %s: %s", partitionName(m.Partition), idList(m.From), idList(m.To), m.Reason.Text()))
	}
	lines = append(lines, skipLines(out.Skipped)...)
	for b := range p.known {
		if len(lines) > 80 {
			return append(lines, "and more")
		}
		if why := p.brokers[b].Refusal(); why != "" {
			lines = append(lines, fmt.Sprintf("no target: broker %s (rack %s): %s", p.brokers[b].ID, p.brokers[b].rack(), why))
		}
	}
	return lines
}

// loadLines tells the brokers whose load changes, those with the largest change first.
func loadLines(loads []Load) []string {
	changed := slices.DeleteFunc(slices.Clone(loads), func(l Load) bool {
		return l.ReplicasBefore == l.ReplicasAfter && l.LeadersBefore == l.LeadersAfter
	})
	slices.SortStableFunc(changed, func(a, b Load) int {
		return cmp.Compare(abs(b.ReplicasAfter-b.ReplicasBefore), abs(a.ReplicasAfter-a.ReplicasBefore))
	})
	var lines []string
	for i, l := range changed {
		if i == maxBrokerLines {
			lines = append(lines, fmt.Sprintf("%s more change by less", plural(len(changed)-i, "broker")))
			break
		}
		lines = append(lines, fmt.Sprintf("broker %s (weight %d): %d → %d replicas, %d → %d first replicas", l.Broker, l.Weight,
			l.ReplicasBefore, l.ReplicasAfter, l.LeadersBefore, l.LeadersAfter))
	}
	return lines
}

// skipLines tells what is left out, by reason.
func skipLines(skipped []Skip) []string {
	var order []string
	count, first := map[string]int{}, map[string]messages.PartitionID{}
	for _, s := range skipped {
		text := s.Reason.Text()
		if count[text]++; count[text] == 1 {
			order, first[text] = append(order, text), s.Partition
		}
	}
	var lines []string
	for i, text := range order {
		if i == maxMoveLines {
			lines = append(lines, fmt.Sprintf("left out: for %d more reasons", len(order)-i))
			break
		}
		lines = append(lines, fmt.Sprintf("left out: %s, the first is %s: %s", plural(count[text], "partition"),
			partitionName(first[text]), text))
	}
	return lines
}

func partitionName(id messages.PartitionID) string { return fmt.Sprintf("%s-%d", id.Topic, id.Index) }

func idList(ids []messages.BrokerID) string {
	names := make([]string, len(ids))
	for i, id := range ids {
		names[i] = string(id)
	}
	return "[" + strings.Join(names, " ") + "]"
}

func abs(n int) int { return max(n, -n) }
