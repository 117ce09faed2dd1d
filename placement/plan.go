package placement

import "github.com/highwater-io/highwater/messages"

// A Move is what is proposed for one partition.
type Move struct {
	Partition messages.PartitionID
	// From is what the partition has, To what it is to have, both in order of preference. A plan whose From is not true any
	// more is stale.
	From, To []messages.BrokerID
	// Steps leads from the brokers of From to those of To, one at a time. On no step are the replicas spread worse than they
	// are at the start or at the end, whichever is worse. Empty if only the order changes.
	Steps []Step
	// Bytes is what is copied, 0 where nobody knows.
	Bytes int64
	// LiveCopies is how many ISR members are on brokers that are there; the fewer, the more urgent.
	LiveCopies int
	Reason     Reason
}

// Step replaces one replica by another. Either may be "": a replica is added, or removed.
type Step struct {
	Add, Remove messages.BrokerID
}

// Copies returns how many replicas have to be copied.
func (m *Move) Copies() int {
	n := 0
	for _, s := range m.Steps {
		if s.Add != "" {
			n++
		}
	}
	return n
}

// Load is what a broker has before and after a plan. Leaders are counted by preference: first replicas.
type Load struct {
	Broker                        messages.BrokerID
	Weight                        int
	ReplicasBefore, ReplicasAfter int
	LeadersBefore, LeadersAfter   int
	BytesBefore, BytesAfter       int64
}

// Skip is something that asked for a move or a change of leaders and gets none, with the reason.
type Skip struct {
	Partition messages.PartitionID
	Reason    Reason
}

// Plan proposes moves, in the order in which they should be made. It changes nothing.
type Plan struct {
	Moves []Move
	// Copies and Bytes are the sums over the moves. FewestCopies and FewestBytes are lower bounds: what any plan has to copy
	// that gives each broker as many replicas as this one, spreads as well, and replaces what has to be replaced.
	Copies, FewestCopies int
	Bytes, FewestBytes   int64
	// Reordered counts the moves that copy nothing: only the order of preference changes.
	Reordered int
	Loads     []Load // in the order of broker ids
	Skipped   []Skip // in the order of partitions
	// Warnings begin with a word that says what could not be met, as those of a Proposal do. Explanation is for people;
	// the number of its lines is bounded.
	Warnings    []string
	Explanation []string
	// Considered counts the brokers and replicas that were looked at. It is what planning costs, whatever the machine.
	Considered int
}
