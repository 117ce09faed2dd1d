package placement

import (
	"iter"

	"github.com/highwater-io/highwater/messages"
)

// Partition is one partition as planning sees it.
type Partition struct {
	ID       messages.PartitionID
	Replicas []messages.BrokerID // in order of preference
	ISR      []messages.BrokerID
	Leader   messages.BrokerID // "" = none
	MinISR   int               // the setting; what counts is at most the number of replicas
	// Bytes is the size of one replica, and WriteRate what is written to the leader in bytes per second. 0 where nobody
	// knows.
	Bytes     int64
	WriteRate int64
	// Cooling: balancing has changed its leader a short while ago, so it does not do it again yet. Where balancing goes in
	// waves, that keeps a later wave from taking back what an earlier one did.
	Cooling bool
	// Reassigning: a move is under way, so no proposal touches it.
	Reassigning bool
}

// PartitionOf returns a partition without size and rate.
func PartitionOf(p *messages.Partition) Partition {
	return Partition{ID: p.ID, Replicas: p.Replicas, ISR: p.ISR, Leader: p.Leader, MinISR: p.MinISR}
}

// Rules are what an operator may ask of every proposal.
type Rules struct {
	// Distinct is the level of the rack labels, 1 the most significant, at which the replicas of a partition must be in
	// different domains. What cannot have that is refused, with LEVEL_REQUIRED. 0: nothing is a must; the replicas are
	// spread as well as they can be.
	Distinct int
}

// View is the cluster at one moment. Partitions is read once, and neither it nor the brokers have an order that means
// anything. Which partitions it has to yield is said with each proposal: all of the cluster, or only those it is about;
// in the latter case the brokers' Replicas, Leaders and Bytes say what they have in all.
type View struct {
	Snapshot
	Partitions iter.Seq[Partition]
	Rules      Rules
	Seed       [2]uint64 // decides ties, and nothing else
}
