package placement

import (
	"fmt"
	"slices"

	"github.com/highwater-io/highwater/messages"
)

// MaxTargets bounds the partitions of a plan that a person has written.
const MaxTargets = 100_000

// Target is what a person wants one partition to have.
type Target struct {
	Partition messages.PartitionID
	Replicas  []messages.BrokerID // in order of preference
	// Expect is what the partition had when the plan was written; nil if that is not known. If it has something else now, the
	// plan is stale.
	Expect []messages.BrokerID
}

// CheckPlan checks a plan that a person has written and makes moves of it. Brokers that are fenced or stopping may be named,
// since they may come back, but one replica must be there to lead at once. A draining or gone broker may be named only
// where it has a replica already. Targets that are met already are in Skipped, with NO_CHANGE. A partition that is being
// reassigned is allowed: the new target replaces the old one, and a warning says so.
//
// The view has to yield only the partitions that are named. All of the plan is checked or none of it is proposed.
//
// Errors: TOO_LARGE above MaxTargets; UNKNOWN_PARTITION; STALE_PARTITION_EPOCH if a partition is not as expected;
// INVALID_REPLICA_ASSIGNMENT for no replicas, unknown or repeated brokers, a partition named twice, or a level that must be
// distinct. Each names the first partition that is wrong.
func CheckPlan(v View, targets []Target) (*Plan, error) {
	if len(targets) > MaxTargets {
		return nil, messages.Errorf(messages.CodeTooLarge, "the plan names %d partitions, the limit is %d", len(targets), MaxTargets)
	}
	want := make(map[messages.PartitionID]*Target, len(targets))
	for i := range targets {
		t := &targets[i]
		if want[t.Partition] != nil {
			return nil, messages.Errorf(messages.CodeInvalidAssignment, "partition %s is in the plan twice", partitionName(t.Partition))
		}
		want[t.Partition] = t
	}
	p, err := newPlanner(v, false, func(x *Partition) bool { return want[x.ID] != nil })
	if err != nil {
		return nil, err
	}
	known := make(map[messages.PartitionID]*part, len(p.parts))
	running := 0
	for i := range p.parts {
		known[p.parts[i].ID] = &p.parts[i]
		if p.parts[i].Reassigning {
			running++
		}
	}
	for i := range targets {
		if err := p.aim(known[targets[i].Partition], &targets[i]); err != nil {
			return nil, err
		}
	}
	if running > 0 {
		p.warnings = append(p.warnings, fmt.Sprintf("in_progress: %s being reassigned, and the plan takes the place of that",
			plural(running, "partition")))
	}
	return p.plan("manual plan"), nil
}

// aim checks one target and takes it over.
func (p *planner) aim(x *part, t *Target) error {
	name := partitionName(t.Partition)
	switch {
	case x == nil:
		return messages.Errorf(messages.CodeUnknownPartition, "there is no partition %s", name)
	case t.Expect != nil && !slices.Equal(t.Expect, x.Replicas):
		return messages.Errorf(messages.CodeStalePartitionEpoch, "the plan was made for partition %s with replicas %s, and it has %s",
			name, idList(t.Expect), idList(x.Replicas)).WithHint("make the plan anew")
	case len(t.Replicas) == 0:
		return messages.Errorf(messages.CodeInvalidAssignment, "partition %s is to have no replicas", name)
	}
	live := false
	for i, id := range t.Replicas {
		b, ok := p.index[id]
		holds := slices.Contains(x.Replicas, id)
		switch n := (*Broker)(nil); {
		case !ok || int(b) >= p.known:
			return messages.Errorf(messages.CodeInvalidAssignment, "partition %s names broker %q, which is not registered", name, id)
		case slices.Contains(t.Replicas[:i], id):
			return messages.Errorf(messages.CodeInvalidAssignment, "partition %s names broker %s twice", name, id)
		default:
			if n = &p.brokers[b]; !holds && (n.Draining || n.Gone) {
				return messages.Errorf(messages.CodeInvalidAssignment, "partition %s names broker %s, which is %s", name, id, n.Refusal())
			}
			live = live || !n.Fenced && !n.Stopping && !n.Gone
		}
	}
	to := p.indices(t.Replicas)
	switch {
	case !live:
		return messages.Errorf(messages.CodeInvalidAssignment,
			"partition %s would have no replica on a broker that can lead now: all are fenced or stopping", name)
	case p.rules.Distinct > 0 && p.crowd(to)[0] > 0:
		return messages.Errorf(messages.CodeInvalidAssignment, "partition %s: replicas %s are not in distinct domains at level %d",
			name, idList(t.Replicas), p.rules.Distinct)
	}
	p.turnInto(x, to)
	return nil
}

// turnInto gives a partition its target.
func (p *planner) turnInto(x *part, to []int32) {
	if slices.Equal(x.from, to) {
		p.skip(x, because(ReasonNoChange))
		return
	}
	for _, b := range to {
		if !slices.Contains(x.from, b) {
			p.now[b].replicas++
			p.now[b].bytes += x.Bytes
			p.forced++
			p.toll += x.Bytes
		}
	}
	for _, b := range x.from {
		if !slices.Contains(to, b) {
			p.now[b].replicas--
			p.now[b].bytes -= x.Bytes
		}
	}
	p.now[x.from[0]].leaders--
	p.now[to[0]].leaders++
	x.to = to
	x.because(because(ReasonRequested))
}
