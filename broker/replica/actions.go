package replica

import (
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// Ticket is the host's name for one waiting producer request.
type Ticket uint64

// Action is something that the host has to do, in the order given. Kinds: Write, Truncate, Appended,
// HighWatermarkMoved, Ack, Fail, Propose, Report, RequestSnapshot, Faulted.
type Action interface{ action() }

// Write is a change of the log. The host stores it behind all earlier ones and calls Written when it is durable.
// Several writes may be outstanding; one call of Written may cover them all.
type Write struct {
	// Batches go to the log's end, dense with it. None if only the mark or an epoch is to be stored.
	Batches []*pb.StoredBatch
	// HighWatermark is the mark to store; -1 leaves the stored one.
	HighWatermark messages.Offset
	// Epoch, if set, is recorded as starting at the log's end before the batches.
	Epoch *EpochStart
}

// Truncate removes every record at and above To. All writes given before come first. The host calls Truncated with what
// the storage then holds. No write is given until then.
type Truncate struct{ To messages.Offset }

// Appended says that everything below End is durable here: on a leader, followers that wait may read up to there.
type Appended struct{ End messages.Offset }

// HighWatermarkMoved says that consumers may read below To, and on a leader that followers are to be told.
type HighWatermarkMoved struct{ To messages.Offset }

// Ack answers a producer. With Protected the records are committed and survive failover; without it they are only
// stored here, and the host has to check its lease before it passes the answer on.
type Ack struct {
	Ticket      Ticket
	BaseOffset  messages.Offset
	LeaderEpoch messages.LeaderEpoch
	Duplicate   bool
	Protected   bool
}

// Fail answers a producer with an error. OUTCOME_UNKNOWN is used where the batch is stored, so that it may yet be
// committed; every other code means that nothing was appended.
type Fail struct {
	Ticket Ticket
	Err    *messages.Error
}

// Propose asks the controller for a new ISR. The answer, or that there was none, goes to ProposalAnswer with the ID.
type Propose struct {
	ID       uint64
	Proposal *pb.IsrProposal
}

// Report tells the controller that this leader is ready, or declines.
type Report struct{ Report *pb.LeaderReport }

// RequestSnapshot asks the host for the current assignment of this partition: the controller's state is newer.
type RequestSnapshot struct{}

// Faulted says that this replica has stopped for good: it holds something that contradicts what it is told, or its
// storage failed. Nothing is deleted. It declines to lead and fetches no more until it is opened anew.
type Faulted struct{ Err *messages.Error }

func (Write) action()              {}
func (Truncate) action()           {}
func (Appended) action()           {}
func (HighWatermarkMoved) action() {}
func (Ack) action()                {}
func (Fail) action()               {}
func (Propose) action()            {}
func (Report) action()             {}
func (RequestSnapshot) action()    {}
func (Faulted) action()            {}
