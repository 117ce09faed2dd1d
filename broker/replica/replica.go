package replica

import (
	"slices"
	"time"

	"github.com/highwater-io/highwater/messages"
)

// Role is what a replica is at the moment.
type Role uint8

// The roles. A leader proves that it holds everything below the floor before it serves.
const (
	RoleNone      Role = iota // no assignment yet, or no leader, or not one of the replicas
	RoleFollower              // copies from the leader
	RoleProving               // is to lead, but its storage is still busy with what came before
	RoleLeader                // leads and serves
	RoleDeclined              // was to lead but does not hold what it must
	RoleWithdrawn             // is named as leader of an epoch that it has resigned, or an earlier life may have led: waits for a later one
	RoleFaulted               // has stopped for good
)

var roleNames = [...]string{"none", "follower", "proving", "leader", "declined", "withdrawn", "faulted"}

// String returns the role's name.
func (r Role) String() string { return roleNames[r] }

// Config is what a replica is made of.
type Config struct {
	Self      messages.BrokerID
	Partition messages.PartitionID
	// Log is what the storage holds, after the replica was created in it.
	Log LogState
	// ReplicaLag is how long a follower may be behind before the leader proposes to drop it; 0 means 10 s.
	ReplicaLag time.Duration
	// Checkpoint is the pause between two writes of a moved mark that no other write has carried; 0 means 5 s.
	Checkpoint time.Duration
	// FirstSnapshot says that the replica is opened for the first snapshot that this process has taken. A broker is
	// fenced until then, so whatever leadership that snapshot names is one of an earlier life and has ended or will; it
	// must not be taken up again, because what that life had written may be lost (on storage that does not fsync).
	FirstSnapshot bool
	// SendUnstored lets followers fetch what this leader has appended but not stored yet, so that both store it at the
	// same time. The mark counts what each has stored, so nothing is committed earlier; a leader that loses such records
	// in a crash has lost its epoch too. The host must keep what is not stored in memory and wake waiting followers
	// after a Write with batches.
	SendUnstored bool
}

// Replica is the state of one replica of one partition. It is not safe for concurrent use. The actions that a method
// returns are valid until the next call.
type Replica struct {
	cfg Config
	out []Action

	role  Role
	fault *messages.Error

	// The assignment, and the epoch of this broker's registration.
	known       bool
	brokerEpoch messages.BrokerEpoch
	leader      messages.BrokerID
	leaderEpoch messages.LeaderEpoch
	epoch       messages.PartitionEpoch
	replicas    []messages.BrokerID
	isr         []messages.BrokerID
	minISR      int
	floor       messages.Offset
	confirmed   bool // the controller knows that this replica leads in leaderEpoch
	resigned    bool // this replica has given leaderEpoch up

	// The log: [start, durable) is stored, [durable, end) is on its way.
	start, durable, end messages.Offset
	mark                messages.Offset // the high-water mark
	markStored          messages.Offset // the last one that a Write carried
	markStoredAt        time.Duration
	epochs              Epochs
	producers           *Producers
	truncating          bool
	loadedEpoch         messages.LeaderEpoch // newest epoch of the log when it was opened

	following following
	leading   leading
	proposals uint64 // ids of proposals given so far
}

// New opens a replica. It has no role until Assign.
func New(cfg Config) *Replica {
	if cfg.ReplicaLag <= 0 {
		cfg.ReplicaLag = 10 * time.Second
	}
	if cfg.Checkpoint <= 0 {
		cfg.Checkpoint = 5 * time.Second
	}
	r := &Replica{cfg: cfg, leaderEpoch: messages.NoLeaderEpoch, epoch: -1}
	r.load(cfg.Log)
	r.loadedEpoch = r.epochs.Last()
	r.mark = min(max(cfg.Log.HighWatermark, r.start), r.end)
	r.markStored = r.mark
	return r
}

// load takes over what the storage holds. The mark is not among it: it never falls.
func (r *Replica) load(l LogState) {
	r.start, r.durable, r.end = l.Start, l.End, l.End
	r.epochs = normalEpochs(l.Epochs, l.Start)
	r.producers = NewProducers(l.Producers)
}

// Status is a replica as seen from outside.
type Status struct {
	Role           Role
	Leader         messages.BrokerID
	LeaderEpoch    messages.LeaderEpoch
	PartitionEpoch messages.PartitionEpoch
	ISR            []messages.BrokerID // as committed
	MinISR         int
	LogStart       messages.Offset
	LogEnd         messages.Offset // durable
	HighWatermark  messages.Offset
	EpochStart     messages.Offset // leader: its log end when its epoch began
	Proposed       []messages.BrokerID
	Fault          *messages.Error
}

// Confirmed reports whether this replica leads and the controller has taken note of it. Until then the controller may give the
// lead to another without a word to this one, so whatever needs a lease has to wait. From then on it takes the lead away only
// from a broker that it does not hear, or that has resigned.
func (r *Replica) Confirmed() bool { return r.serving() && r.confirmed }

// InSync reports whether a broker is in the committed ISR.
func (r *Replica) InSync(b messages.BrokerID) bool { return slices.Contains(r.isr, b) }

// Status returns the state. Nothing in it is shared.
func (r *Replica) Status() Status {
	s := Status{Role: r.role, Leader: r.leader, LeaderEpoch: r.leaderEpoch, PartitionEpoch: r.epoch, ISR: slices.Clone(r.isr),
		MinISR: r.minISR, LogStart: r.start, LogEnd: r.durable, HighWatermark: r.mark, Fault: r.fault}
	if r.role == RoleLeader {
		s.EpochStart = r.leading.epochStart
		if p := r.leading.proposal; p != nil {
			s.Proposed = slices.Clone(p.members)
		}
	}
	return s
}

// Role returns the role.
func (r *Replica) Role() Role { return r.role }

// Leader returns who leads as this replica knows, "" for nobody.
func (r *Replica) Leader() messages.BrokerID { return r.leader }

// LeaderEpoch returns the leader epoch that this replica is in.
func (r *Replica) LeaderEpoch() messages.LeaderEpoch { return r.leaderEpoch }

// Busy reports whether the storage has not yet answered to everything that was given to it.
func (r *Replica) Busy() bool { return r.busy() }

// HighWatermark returns the mark as this replica knows it.
func (r *Replica) HighWatermark() messages.Offset { return r.mark }

// begin starts the list of actions of one call, take ends it.
func (r *Replica) begin()          { r.out = r.out[:0] }
func (r *Replica) do(a Action)     { r.out = append(r.out, a) }
func (r *Replica) take() []Action  { return r.out }
func (r *Replica) serving() bool   { return r.role == RoleLeader }
func (r *Replica) busy() bool      { return r.truncating || r.durable < r.end }
func (r *Replica) isFaulted() bool { return r.role == RoleFaulted }

// failed ends the replica.
func (r *Replica) failed(err *messages.Error) {
	if r.isFaulted() {
		return
	}
	r.dropWaiting("the replica has stopped: " + err.Message)
	r.role, r.fault = RoleFaulted, err
	r.leading = leading{}
	r.do(Faulted{Err: err})
}

// raiseMark moves the mark up, never down and never above what is durable here.
func (r *Replica) raiseMark(to messages.Offset) {
	if to = min(to, r.durable); to <= r.mark {
		return
	}
	r.mark = to
	r.do(HighWatermarkMoved{To: to})
	r.ackCommitted()
}

// Written says that the storage holds everything below end, or that it failed. An end that is not above the known one
// changes nothing.
func (r *Replica) Written(now time.Duration, end messages.Offset, err error) []Action {
	r.begin()
	switch {
	case r.isFaulted():
	case err != nil:
		r.failed(messages.Errorf(messages.CodeStorageFailed, "the log cannot be written: %v", err))
	case end > r.durable && end <= r.end && !r.truncating:
		before := r.durable
		r.durable = end
		r.do(Appended{End: end})
		r.afterWrite(now, before)
	}
	return r.take()
}

func (r *Replica) afterWrite(now time.Duration, before messages.Offset) {
	switch r.role {
	case RoleLeader:
		r.ledLogGrew(now, before)
	case RoleFollower:
		r.raiseMark(r.following.mark)
	case RoleProving:
		r.prove(now)
	}
}

// Truncated says what the storage holds after a Truncate, or that it failed.
func (r *Replica) Truncated(now time.Duration, l LogState, err error) []Action {
	r.begin()
	switch {
	case r.isFaulted() || !r.truncating:
	case err != nil:
		r.failed(messages.Errorf(messages.CodeStorageFailed, "the log cannot be truncated: %v", err))
	case l.End < r.mark:
		r.failed(messages.Errorf(messages.CodeInternal, "the storage truncated to %d, below the mark %d", l.End, r.mark))
	default:
		r.truncating = false
		r.load(l)
		if r.role == RoleProving {
			r.prove(now)
		}
	}
	return r.take()
}

// Tick is the replica's clock; call it every 100 ms or so.
func (r *Replica) Tick(now time.Duration) []Action {
	r.begin()
	if r.isFaulted() {
		return r.take()
	}
	r.expireWaiting(now)
	if r.serving() {
		r.considerISR(now)
	}
	if r.mark > r.markStored && !r.truncating && now-r.markStoredAt >= r.cfg.Checkpoint {
		r.write(now, nil, nil)
	}
	return r.take()
}

// write gives out a write with the current mark.
func (r *Replica) write(now time.Duration, w *Write, e *EpochStart) {
	out := Write{HighWatermark: -1, Epoch: e}
	if w != nil {
		out = *w
	}
	if mark := max(r.mark, out.HighWatermark); mark > r.markStored {
		out.HighWatermark, r.markStored, r.markStoredAt = mark, mark, now
	}
	r.do(out)
}
