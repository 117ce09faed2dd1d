package broker

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// Leadership is the role of leader of one partition in one leader epoch. All methods may be called from any goroutine.
type Leadership struct {
	s      *session
	id     messages.PartitionID
	epoch  messages.LeaderEpoch
	ctx    context.Context
	cancel context.CancelCauseFunc

	// confirmed: the controller knows that this broker leads in this epoch. resigned: it has given the epoch up.
	confirmed, resigned atomic.Bool

	mu       sync.Mutex
	current  Assignment
	progress Progress
	changed  chan struct{}
}

// ISRMember is a member of a proposed ISR, in the registration that the leader has seen it in.
type ISRMember struct {
	Broker ID
	Epoch  messages.BrokerEpoch
}

// Context ends when the role ends. context.Cause says why.
func (l *Leadership) Context() context.Context { return l.ctx }

// Epoch returns the leader epoch.
func (l *Leadership) Epoch() messages.LeaderEpoch { return l.epoch }

// Partition returns the partition.
func (l *Leadership) Partition() Partition { return l.Assignment().Partition }

// Assignment returns the newest committed state of the partition in this leader epoch.
func (l *Leadership) Assignment() Assignment {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.current
}

// Changed is closed when the committed state changes within this leader epoch: the controller may take a fenced follower
// out of the ISR at any time. Ask again after reading Assignment.
func (l *Leadership) Changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

// Valid is the fence to ask before anything that must not happen under two leaders: this broker leads, the controller has
// confirmed that, and its lease holds, so no other broker's lease for this partition does. It is local and cheap. What takes
// long after it may end after the lease. It holds from shortly after BecomeLeader has returned, not while it runs.
func (l *Leadership) Valid() bool {
	return l.confirmed.Load() && l.Current() && l.s.lease.valid(time.Now())
}

// Current is the weaker question: this broker is not known to be deposed. It needs no clock and no lease.
func (l *Leadership) Current() bool { return l.ctx.Err() == nil }

// end ends the role, once.
func (l *Leadership) end(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Current() && l.confirmed.Load() {
		l.s.traceRole(traceLeadsNoMore, l.current.Partition, l.epoch)
	}
	l.cancel(cause)
}

// confirm notes that the controller knows of this leadership. The caller holds mu, or nobody else knows of l yet.
func (l *Leadership) confirm(a Assignment) {
	if a.LeaderEpoch == l.epoch && a.LeaderProven && l.Current() && !l.confirmed.Swap(true) {
		l.s.traceRole(traceLeads, a.Partition, l.epoch)
	}
}

// Report states where the leader's replica is. BecomeLeader calls it before it returns, as the proof that the log holds
// everything below the floor; later calls, or Member.Report, are reported at the checkpoints. It never blocks.
func (l *Leadership) Report(p Progress) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.progress = p
}

// ProposeISR asks the controller to make the members the ISR and returns the committed state. It tries until there is an
// answer, ctx ends or the role ends. ErrStaleEpoch: the partition has changed since; the state that comes with it is the
// one to propose against. INELIGIBLE_REPLICA: a member is fenced, stopping or registered anew.
func (l *Leadership) ProposeISR(ctx context.Context, members []ISRMember) (Assignment, error) {
	cur := l.Assignment()
	p := &pb.IsrProposal{TopicId: l.id.Topic.Bytes(), Partition: l.id.Index, LeaderEpoch: int64(l.epoch),
		PartitionEpoch: int64(cur.Epoch)}
	want := make([]ID, 0, len(members))
	for _, m := range members {
		epoch := m.Epoch
		if m.Broker == l.s.id && epoch == 0 {
			epoch = l.s.registration().epoch
		}
		p.Isr = append(p.Isr, &pb.IsrMember{Broker: string(m.Broker), BrokerEpoch: uint64(epoch)})
		want = append(want, m.Broker)
	}
	l.mu.Lock()
	p.HighWatermark = int64(l.progress.HighWatermark)
	l.mu.Unlock()
	pauses := backoff{first: 50 * time.Millisecond, limit: time.Second}
	for {
		answers := make(chan *pb.IsrResult, 1)
		l.s.proposals.submit(&item{key: l.id, body: p, done: func(r *pb.IsrResult) { answers <- r }})
		select {
		case <-ctx.Done():
			return l.Assignment(), context.Cause(ctx)
		case <-l.ctx.Done():
			return l.Assignment(), ErrNotLeader
		case r := <-answers:
			if r != nil {
				return l.proposed(r, want)
			}
		}
		if !pauses.wait(ctx) {
			return l.Assignment(), context.Cause(ctx)
		}
	}
}

// proposed reads the answer to a proposal. A state that has what was asked for is a success: an earlier try made it.
func (l *Leadership) proposed(r *pb.IsrResult, want []ID) (Assignment, error) {
	if r.GetCurrent() != nil {
		a, err := assignmentFromProto(r.GetCurrent())
		if err != nil {
			return l.Assignment(), err
		}
		l.update(a)
		if a.LeaderEpoch == l.epoch && len(a.ISR) == len(want) && !slices.ContainsFunc(want, func(b ID) bool { return !a.InSync(b) }) {
			return a, nil
		}
	}
	return l.Assignment(), withSentinel(messages.ErrorFromProto(r.GetError()))
}

// Resign gives the leadership up: the controller takes this replica out of the ISR and elects another.
func (l *Leadership) Resign(reason string) {
	l.end(ErrNotLeader)
	l.report(&pb.LeaderReport{Declined: true, Reason: reason})
}

// handOver gives the leadership up because the controller has asked for it. What the handler does under Valid ends with the
// role, before the controller hears of it.
func (l *Leadership) handOver() {
	l.resigned.Store(true)
	l.end(ErrNotLeader)
	l.report(&pb.LeaderReport{Resigned: true})
}

// update takes a newer committed state of the same leader epoch.
func (l *Leadership) update(a Assignment) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.confirm(a)
	if a.LeaderEpoch != l.epoch || a.Epoch <= l.current.Epoch {
		return
	}
	l.current = a
	close(l.changed)
	l.changed = make(chan struct{})
}

// ready tells the controller what became of BecomeLeader. A leader whose log is not shown to hold everything below the
// floor declines.
func (l *Leadership) ready(err error) {
	l.mu.Lock()
	end, floor := l.progress.LogEnd, l.current.Floor
	l.mu.Unlock()
	if err == nil && end < floor {
		err = messages.Errorf(messages.CodeInternal, "the log ends at %d, the floor is %d", end, floor)
	}
	if err != nil {
		l.end(err)
		l.report(&pb.LeaderReport{Declined: true, Reason: err.Error()})
		return
	}
	l.report(&pb.LeaderReport{})
}

func (l *Leadership) report(r *pb.LeaderReport) {
	l.mu.Lock()
	r.LogEnd, r.HighWatermark = int64(l.progress.LogEnd), int64(l.progress.HighWatermark)
	l.mu.Unlock()
	r.TopicId, r.Partition, r.LeaderEpoch = l.id.Topic.Bytes(), l.id.Index, int64(l.epoch)
	l.s.readies.submit(&item{key: l.id, body: r, done: func(r *pb.IsrResult) {
		if a, err := assignmentFromProto(r.GetCurrent()); r.GetCurrent() != nil && r.GetError() == nil && err == nil {
			l.update(a)
		}
	}})
}
