package messages

// The four counters of the protocol and the positions. Each is a type of its own, so that none can be taken for another.
type (
	// LeaderEpoch rises whenever a partition's leader changes, also to none, and whenever a replica leaves the set. The
	// first leader of a partition has epoch 0; -1 means "no epoch".
	LeaderEpoch int64

	// PartitionEpoch rises by one with every change of a partition's record.
	PartitionEpoch int64

	// BrokerEpoch is drawn from the journal's sequence at registration: unique and rising for one broker, 0 means "none".
	BrokerEpoch uint64

	// ControllerEpoch rises with every claim; 0 means "none".
	ControllerEpoch uint64

	// Sequence is a position in the journal; the first entry has 1, 0 means "nothing yet".
	Sequence uint64

	// Offset is a position in a partition's log. LogStartOffset is inclusive; LogEndOffset (next to write) and
	// HighWatermark (committed records are those below it) are exclusive.
	Offset int64
)

// NoLeaderEpoch is the epoch before the first leader.
const NoLeaderEpoch LeaderEpoch = -1

// Seen is a journal position, with the epoch of the controller that spoke of it; or the highest of each that somebody has
// heard of.
type Seen struct {
	Controller ControllerEpoch
	Sequence   Sequence
}

// Before reports whether s is older than other.
func (s Seen) Before(other Seen) bool {
	if s.Controller != other.Controller {
		return s.Controller < other.Controller
	}
	return s.Sequence < other.Sequence
}

// With returns the highest epoch and the highest position of two. A position that was seen is not forgotten when a later
// controller speaks of a lower one: that controller's journal has lost something.
func (s Seen) With(other Seen) Seen {
	return Seen{Controller: max(s.Controller, other.Controller), Sequence: max(s.Sequence, other.Sequence)}
}
