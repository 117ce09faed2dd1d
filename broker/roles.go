package broker

import (
	"context"
	"sync"
	"time"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// roles drives a Handler. For each partition it keeps what is wanted and what the handler has acknowledged; a goroutine
// exists for a partition only while the two differ.
type roles struct {
	id      messages.BrokerID
	handler Handler
	slots   chan struct{} // bounds the handler's calls at once
	s       *session
	workers sync.WaitGroup

	mu      sync.Mutex
	ctx     context.Context // of the registration
	cancel  context.CancelCauseFunc
	epoch   uint64 // counts registrations
	parts   map[messages.PartitionID]*part
	missing []messages.TopicID
}

// part is one partition of this broker.
type part struct {
	p        Partition
	want     Assignment
	removing bool
	retired  bool
	working  bool
	added    bool
	progress Progress
	// acted is the leader epoch that the handler has acknowledged a role in, in which registration, and the role.
	acted     messages.LeaderEpoch
	actedIn   uint64
	actedLead bool
	lead      *Leadership
}

func newRoles(id messages.BrokerID, h Handler, concurrency int) *roles {
	return &roles{id: id, handler: h, slots: make(chan struct{}, concurrency), parts: map[messages.PartitionID]*part{}}
}

func (r *roles) attach(s *session) { r.s = s }
func (r *roles) wait()             { r.workers.Wait() }

func (r *roles) registered(registration) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ctx, r.cancel = context.WithCancelCause(context.Background())
	r.epoch++
	return nil
}

func (r *roles) ended(cause error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if cause == nil {
		cause = ErrClosed
	}
	for _, p := range r.parts {
		p.depose(cause)
	}
	r.cancel(cause)
}

// depose ends a leadership.
func (p *part) depose(cause error) {
	if p.lead != nil {
		p.lead.end(cause)
		p.lead = nil
	}
}

func (r *roles) assigned(a Assignment) {
	r.mu.Lock()
	defer r.mu.Unlock()
	id := a.Partition.ID
	p := r.parts[id]
	if p == nil {
		p = &part{p: a.Partition, acted: messages.NoLeaderEpoch - 1}
		r.parts[id] = p
	}
	if p.removing {
		return
	}
	p.want, p.retired = a, false
	switch l := p.lead; {
	case l == nil:
	case a.LeaderEpoch == l.epoch && a.Leads(r.id):
		l.update(a)
		switch {
		case a.wire.GetResign() || l.resigned.Load():
			l.handOver()
		case !a.LeaderProven && p.acted == l.epoch:
			l.ready(nil) // the controller has not heard of it yet
		}
	default:
		p.depose(ErrNotLeader)
	}
	r.work(p)
}

func (r *roles) retired(id messages.PartitionID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.parts[id]; p != nil {
		p.depose(ErrNotLeader)
		p.retired = true
	}
}

func (r *roles) removed(order removal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	none := true
	for id, p := range r.parts {
		if id.Topic == order.topic && order.covers(id.Index, p.want.Epoch) {
			none = false
			p.depose(ErrNotLeader)
			p.removing = true
			r.work(p)
		}
	}
	if none {
		r.s.confirmRemoved(order.topic)
	}
}

// work starts the partition's goroutine unless it runs. The caller holds mu.
func (r *roles) work(p *part) {
	if p.working {
		return
	}
	p.working = true
	r.workers.Add(1)
	go func() {
		defer r.workers.Done()
		pauses := backoff{first: 50 * time.Millisecond, limit: 5 * time.Second}
		for {
			call, ctx := r.next(p)
			if call == nil {
				return
			}
			r.slots <- struct{}{}
			err := call(ctx)
			<-r.slots
			if err == nil {
				pauses.reset()
				continue
			}
			r.s.log.Warn().Err(err).Stringer("partition", p.p.ID).Msg("a handler call failed")
			if !pauses.wait(ctx) {
				r.mu.Lock()
				p.working = false
				r.mu.Unlock()
				return
			}
		}
	}()
}

// next decides what the handler has to do for a partition; nil when it has done all.
func (r *roles) next(p *part) (func(context.Context) error, context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a, ctx := p.want, r.ctx
	a.Reported = p.progress
	switch {
	case ctx.Err() != nil || p.retired && !p.removing:
	case p.removing:
		return func(ctx context.Context) error { return r.remove(ctx, p) }, ctx
	case !p.added:
		return func(ctx context.Context) error { return r.add(ctx, p, a) }, ctx
	case p.acted == a.LeaderEpoch && p.actedLead == a.Leads(r.id) && p.actedIn == r.epoch:
	case a.Leads(r.id):
		l := r.newLeadership(p, a)
		return func(context.Context) error { r.becomeLeader(l, p); return nil }, l.ctx
	default:
		epoch := r.epoch
		return func(ctx context.Context) error { return r.follow(ctx, p, a, epoch) }, ctx
	}
	p.working = false
	return nil, nil
}

// newLeadership makes the role of a leader epoch. The caller holds mu.
func (r *roles) newLeadership(p *part, a Assignment) *Leadership {
	p.depose(ErrStaleEpoch)
	l := &Leadership{s: r.s, id: a.Partition.ID, epoch: a.LeaderEpoch, current: a, progress: p.progress, changed: make(chan struct{})}
	l.ctx, l.cancel = context.WithCancelCause(r.ctx)
	p.lead = l
	l.confirm(a)
	p.acted, p.actedLead, p.actedIn = a.LeaderEpoch-1, true, r.epoch // not acknowledged yet
	return l
}

func (r *roles) add(ctx context.Context, p *part, a Assignment) error {
	if err := r.handler.AddReplica(ctx, a); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	p.added = true
	return nil
}

func (r *roles) becomeLeader(l *Leadership, p *part) {
	err := r.handler.BecomeLeader(l.ctx, l)
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.lead == l || p.lead == nil && p.want.LeaderEpoch == l.epoch {
		p.acted, p.actedLead, p.actedIn = l.epoch, true, r.epoch
	}
	if l.Current() {
		l.ready(err)
	}
}

func (r *roles) follow(ctx context.Context, p *part, a Assignment, epoch uint64) error {
	if err := r.handler.BecomeFollower(ctx, a); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	p.acted, p.actedLead, p.actedIn = a.LeaderEpoch, false, epoch
	return nil
}

func (r *roles) remove(ctx context.Context, p *part) error {
	if p.added {
		if err := r.handler.RemoveReplica(ctx, p.p); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.parts, p.p.ID)
	p.removing, p.retired = false, true
	for id := range r.parts {
		if id.Topic == p.p.ID.Topic {
			return nil
		}
	}
	r.s.confirmRemoved(p.p.ID.Topic)
	return nil
}

func (r *roles) report(id messages.PartitionID, progress Progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.parts[id]; p != nil {
		p.progress = progress
		if p.lead != nil {
			p.lead.Report(progress)
		}
	}
}

func (r *roles) reports() []*pb.OffsetReport {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*pb.OffsetReport
	for id, p := range r.parts {
		if l := p.lead; l != nil && p.acted == l.epoch && l.Current() {
			l.mu.Lock()
			out = append(out, &pb.OffsetReport{TopicId: id.Topic.Bytes(), Partition: id.Index, LeaderEpoch: int64(l.epoch),
				HighWatermark: int64(l.progress.HighWatermark), LogEnd: int64(l.progress.LogEnd)})
			l.mu.Unlock()
		}
	}
	return out
}

// copies describes nothing: what such a broker stores, only its program knows.
func (r *roles) copies() ([]*pb.HeldReplica, int) { return nil, 0 }

func (r *roles) held() []*pb.HeldTopic {
	r.mu.Lock()
	defer r.mu.Unlock()
	ids := make([]Partition, 0, len(r.parts))
	for _, p := range r.parts {
		if p.added {
			ids = append(ids, p.p)
		}
	}
	return heldTopics(ids)
}

// heldTopics groups partitions by topic.
func heldTopics(list []Partition) []*pb.HeldTopic {
	by := map[messages.TopicID]*pb.HeldTopic{}
	var out []*pb.HeldTopic
	for _, p := range list {
		h := by[p.ID.Topic]
		if h == nil {
			h = &pb.HeldTopic{TopicId: p.ID.Topic.Bytes(), Topic: string(p.Topic)}
			by[p.ID.Topic] = h
			out = append(out, h)
		}
		h.Partitions = append(h.Partitions, p.ID.Index)
	}
	return out
}

func (r *roles) snapshotApplied(unknown []messages.TopicID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.missing = unknown
}

func (r *roles) storageFailed() bool { return false }
func (r *roles) ready() bool         { return true }

func (r *roles) count(st *State) {
	r.mu.Lock()
	defer r.mu.Unlock()
	st.Partitions, st.Unknown = len(r.parts), r.missing
	for _, p := range r.parts {
		if p.lead != nil && p.lead.Current() {
			st.Leading++
		}
	}
}
