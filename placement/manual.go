package placement

import "github.com/highwater-io/highwater/messages"

// CheckAssignment checks replica lists that a person has written, one a partition. A broker that is fenced or stopping may
// be named, since it may come back, but in each partition one must be able to lead at once. A draining broker may not.
//
// The error is INVALID_REPLICA_ASSIGNMENT and names the first partition that is wrong. The warning, empty if there is
// none, tells a rack violation.
func CheckAssignment(s Snapshot, assignment [][]messages.BrokerID) (warning string, err error) {
	if len(assignment) == 0 {
		return "", messages.Errorf(messages.CodeInvalidAssignment, "the assignment has no partitions")
	}
	brokers := make(map[messages.BrokerID]*Broker, len(s.Brokers))
	for i := range s.Brokers {
		brokers[s.Brokers[i].ID] = &s.Brokers[i]
	}
	violations := 0
	racks, first := NewRacks(s), ""
	for p, replicas := range assignment {
		if len(replicas) == 0 || len(replicas) != len(assignment[0]) {
			return "", messages.Errorf(messages.CodeInvalidAssignment,
				"partition %d has %d replicas and partition 0 has %d; all need the same number, at least 1",
				p, len(replicas), len(assignment[0]))
		}
		if err := checkReplicas(p, replicas, brokers); err != nil {
			return "", err
		}
		if status := racks.Check(replicas); status.Violated {
			if violations++; violations == 1 {
				first = status.Detail
			}
		}
	}
	if violations > 0 {
		warning = "rack_violation: in " + plural(violations, "partition") + " of the assignment; for example, " + first
	}
	return warning, nil
}

func checkReplicas(p int, replicas []messages.BrokerID, brokers map[messages.BrokerID]*Broker) error {
	live := false
	seen := make(map[messages.BrokerID]bool, len(replicas))
	for _, id := range replicas {
		b, ok := brokers[id]
		switch {
		case !ok:
			return messages.Errorf(messages.CodeInvalidAssignment, "partition %d names broker %q, which is not registered", p, id)
		case seen[id]:
			return messages.Errorf(messages.CodeInvalidAssignment, "partition %d names broker %s twice", p, id)
		case b.Draining:
			return messages.Errorf(messages.CodeInvalidAssignment, "partition %d names broker %s, which is draining", p, id)
		}
		seen[id] = true
		live = live || !b.Fenced && !b.Stopping
	}
	if !live {
		return messages.Errorf(messages.CodeInvalidAssignment,
			"partition %d has no replica on a broker that can lead now: all are fenced or stopping", p)
	}
	return nil
}
