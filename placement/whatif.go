package placement

import (
	"fmt"
	"slices"
	"strings"

	"github.com/highwater-io/highwater/messages"
)

// Change is what WhatIf imagines.
type Change struct {
	LoseBrokers []messages.BrokerID
	// LoseRacks are domains of any level: eu/a, or eu with all that is in it. "" are the brokers without a label.
	LoseRacks []messages.RackPath
	Add       []Broker
}

// Outcome is what a change would lead to.
type Outcome struct {
	Lost []messages.BrokerID
	// Leaders are the elections and what the brokers lead before and after.
	Leaders *LeaderPlan
	// Offline partitions have no ISR member left that may lead; NoCopy those of them that have no replica left at all;
	// UnderMinISR are led but take no acks=all any more. Only what the change does is listed, not what is so already. All in
	// the order of partitions.
	Offline, NoCopy, UnderMinISR []messages.PartitionID
	// Repair rebuilds what is lost, on the added brokers too. Addition fills the added brokers, nil if there are none.
	Repair, Addition *Plan
	// Before and After count the partitions whose spread is violated, as they are and with the repair carried out.
	ViolatedBefore, ViolatedAfter int
	Explanation                   []string
}

// WhatIf says what the loss of brokers and racks, or new brokers, would lead to. With the partitions of one broker and only
// that broker lost, it is also the answer to whether it is safe to stop it: if Offline and UnderMinISR are empty.
//
// The view has to yield the partitions concerned; all of them if brokers are added.
//
// Errors: UNKNOWN_BROKER and INVALID_RACK for what there is not; BROKER_ID_IN_USE for an added broker that there is; as for
// Repair.
func WhatIf(v View, c Change) (*Outcome, error) {
	lost, err := c.lost(v.Brokers)
	if err != nil {
		return nil, err
	}
	for _, b := range c.Add {
		if slices.ContainsFunc(v.Brokers, func(x Broker) bool { return x.ID == b.ID }) {
			return nil, messages.Errorf(messages.CodeBrokerIDInUse, "broker %s is registered already", b.ID)
		}
	}
	var parts []Partition
	if v.Partitions != nil {
		parts = slices.SortedFunc(v.Partitions, func(a, b Partition) int { return comparePartitions(a.ID, b.ID) })
	}
	v.Partitions = slices.Values(parts)
	out := &Outcome{Lost: lost}
	before, err := SpreadDebt(v)
	if err != nil {
		return nil, err
	}
	out.ViolatedBefore = before.Violated
	if out.Leaders, err = Successors(v, lost...); err != nil {
		return nil, err
	}
	out.judge(v.Brokers, parts)
	v.Brokers = slices.Concat(v.Brokers, c.Add)
	for i := range v.Brokers {
		if slices.Contains(lost, v.Brokers[i].ID) {
			v.Brokers[i].Fenced, v.Brokers[i].Gone = true, true
		}
	}
	if out.Repair, err = Repair(v); err != nil {
		return nil, err
	}
	v.Partitions = slices.Values(carriedOut(parts, out.Repair))
	after, err := SpreadDebt(v)
	if err != nil {
		return nil, err
	}
	out.ViolatedAfter = after.Violated
	if len(c.Add) > 0 {
		var ids []messages.BrokerID
		for _, b := range c.Add {
			ids = append(ids, b.ID)
		}
		if out.Addition, err = Add(v, ids...); err != nil {
			return nil, err
		}
	}
	out.explain(len(parts))
	return out, nil
}

// lost returns the brokers that are lost, in the order of ids.
func (c Change) lost(brokers []Broker) ([]messages.BrokerID, error) {
	var out []messages.BrokerID
	for _, id := range c.LoseBrokers {
		if !slices.ContainsFunc(brokers, func(b Broker) bool { return b.ID == id }) {
			return nil, messages.Errorf(messages.CodeUnknownBroker, "broker %q is not registered", id)
		}
		out = append(out, id)
	}
	for _, rack := range c.LoseRacks {
		n := len(out)
		for _, b := range brokers {
			if b.Rack == rack || rack != "" && strings.HasPrefix(string(b.Rack), string(rack)+"/") {
				out = append(out, b.ID)
			}
		}
		if len(out) == n {
			return nil, messages.Errorf(messages.CodeInvalidRack, "no broker is in rack %q", rack)
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// judge finds the partitions that the loss hurts.
func (o *Outcome) judge(brokers []Broker, parts []Partition) {
	there := map[messages.BrokerID]bool{}
	for _, b := range brokers {
		there[b.ID] = !b.Gone && !b.Fenced
	}
	count := func(ids []messages.BrokerID) (now, then int) {
		for _, id := range ids {
			if there[id] {
				now++
				if !slices.Contains(o.Lost, id) {
					then++
				}
			}
		}
		return now, then
	}
	for i := range parts {
		p := &parts[i]
		now, then := count(p.ISR)
		copies, left := count(p.Replicas)
		least := max(1, min(p.MinISR, len(p.Replicas)))
		switch {
		case now > 0 && then == 0 || copies > 0 && left == 0:
			o.Offline = append(o.Offline, p.ID)
			if left == 0 {
				o.NoCopy = append(o.NoCopy, p.ID)
			}
		case now >= least && then < least:
			o.UnderMinISR = append(o.UnderMinISR, p.ID)
		}
	}
}

// carriedOut returns the partitions after a plan, all its new replicas in sync.
func carriedOut(parts []Partition, plan *Plan) []Partition {
	to := make(map[messages.PartitionID]*Move, len(plan.Moves))
	for i := range plan.Moves {
		to[plan.Moves[i].Partition] = &plan.Moves[i]
	}
	out := slices.Clone(parts)
	for i := range out {
		if m := to[out[i].ID]; m != nil {
			out[i].Replicas, out[i].ISR = m.To, m.To
		}
	}
	return out
}

func (o *Outcome) explain(parts int) {
	names := make([]string, len(o.Lost))
	for i, id := range o.Lost {
		names[i] = string(id)
	}
	lost := list(names)
	if lost == "" {
		lost = "nobody"
	}
	o.Explanation = []string{
		fmt.Sprintf("lost: %s; of %s, %d get another leader, %d go offline (%d without any copy), %d fall below min ISR", lost,
			plural(parts, "partition"), len(o.Leaders.Changes), len(o.Offline), len(o.NoCopy), len(o.UnderMinISR)),
		fmt.Sprintf("to rebuild: %d replicas, %d bytes; %s cannot be made whole", o.Repair.Copies, o.Repair.Bytes,
			plural(len(o.Repair.Skipped), "partition")),
		fmt.Sprintf("spread violated: %d now, %d after the repair", o.ViolatedBefore, o.ViolatedAfter),
	}
	if o.Addition != nil {
		o.Explanation = append(o.Explanation, fmt.Sprintf("to fill the added brokers: %d replicas, %d bytes", o.Addition.Copies,
			o.Addition.Bytes))
	}
}
