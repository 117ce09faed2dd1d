package broker

import (
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/broker/replica"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// partition is one replica of a Server: the pure machine, and around it what the machine's actions are done with. mu is
// held for work in memory only. Locks are taken in the order partition, fetch session or fetcher, writer; whatever needs
// another partition or the session is put off until the lock is released (effects).
type partition struct {
	srv   *Server
	id    messages.PartitionID
	topic messages.TopicName
	first bool // made for the first snapshot of this process

	mu      sync.Mutex
	want    *pb.Assignment // newest
	machine *replica.Replica
	opening bool
	failed  *messages.Error // it could not be opened
	retired bool            // not assigned to this broker any more
	removed bool            // ordered away

	queued  bool // on the writer's list
	pending pendingWrite
	later   []replica.Write // writes that do not fit into pending
	durable messages.Offset
	tail    tail

	leaderEpoch messages.LeaderEpoch // that is served; only meaningful while serving
	serving     *subscription
	traced      bool // that it leads
	waiting     []*waitingFetch
	watches     []*watch // followers that have fetched

	fetcher       *fetcher // of the leader that is followed
	followedEpoch messages.LeaderEpoch

	tickets    map[replica.Ticket]produceWait
	lastTicket replica.Ticket
}

// produceWait is a producer that waits for its answer.
type produceWait struct {
	reply string
	bytes int64
}

// effects is what a call of the machine leads to outside of the partition's lock.
type effects struct {
	replies []reply
	after   []func()
}

type reply struct {
	to   string
	body proto.Message
}

func (fx *effects) reply(to string, body proto.Message) {
	if to != "" {
		fx.replies = append(fx.replies, reply{to, body})
	}
}

func (fx *effects) do(f func()) { fx.after = append(fx.after, f) }

func (s *Server) carryOut(fx *effects) {
	for _, r := range fx.replies {
		s.respond(r.to, r.body)
	}
	for _, f := range fx.after {
		f()
	}
}

// update runs one call of the machine, looks whether the role changed, and carries out what follows.
func (p *partition) update(f func(now time.Duration) []replica.Action) {
	var fx effects
	p.mu.Lock()
	if p.machine != nil {
		p.apply(f(p.srv.now()), &fx)
		p.settle(&fx)
	}
	p.mu.Unlock()
	p.srv.carryOut(&fx)
}

// apply does the machine's actions in their order. The caller holds mu.
func (p *partition) apply(actions []replica.Action, fx *effects) {
	for _, a := range actions {
		switch a := a.(type) {
		case replica.Write:
			p.queueWrite(a)
		case replica.Truncate:
			if p.removed {
				continue
			}
			to := a.To
			p.pending.truncate = &to
			p.srv.writer.enqueue(p)
		case replica.Appended:
			p.durable = a.End
			p.tail.trim(p.durable, p.srv.cfg.limits.TailBytes)
		case replica.HighWatermarkMoved:
			p.wakeFollowers(false)
			p.wakeConsumers(a.To, fx)
		case replica.Ack:
			p.ack(a, fx)
		case replica.Fail:
			p.answer(a.Ticket, &pb.ProduceResponse{Error: a.Err.Proto()}, fx)
		case replica.Propose:
			fx.do(func() { p.propose(a) })
		case replica.Report:
			fx.do(func() {
				p.srv.s.readies.submit(&item{key: p.id, body: a.Report, done: p.reported})
			})
		case replica.RequestSnapshot:
			p.srv.s.requestSnapshot(p.id, messages.PartitionEpoch(p.want.GetPartitionEpoch()))
		case replica.Faulted:
			p.srv.log.Error().Str("topic", string(p.topic)).Int32("partition", p.id.Index).Err(a.Err).Msg("replica has stopped")
		}
	}
}

// queueWrite hands a write to the writer.
func (p *partition) queueWrite(a replica.Write) {
	if p.removed {
		return // the storage may not know it any more, and would seem to refuse work
	}
	if len(p.later) > 0 || !p.pending.add(p.id, a) {
		p.later = append(p.later, a)
	}
	if p.serving != nil {
		for _, b := range a.Batches {
			p.tail.append(b)
		}
		if len(a.Batches) > 0 {
			p.wakeFollowers(true) // they store it while this broker does
		}
	}
	p.srv.writer.enqueue(p)
}

// takeJob gives the writer what this partition wants of the storage. A truncation comes with the last of the writes.
func (p *partition) takeJob() (job, int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.pending
	p.queued, p.pending = false, pendingWrite{}
	j := job{p: p, write: w.write, end: w.end, truncate: w.truncate, remove: w.remove}
	if !w.any {
		j.write, j.end = Write{Partition: p.id, HighWatermark: -1}, -1
	}
	n := 0
	for n < len(p.later) && p.pending.add(p.id, p.later[n]) {
		n++
	}
	if n > 0 {
		p.later = append(p.later[:0], p.later[n:]...)
		p.pending.truncate, p.pending.remove = j.truncate, j.remove
		j.truncate, j.remove = nil, false
		p.srv.writer.enqueue(p)
	}
	return j, w.bytes
}

func (p *partition) written(end messages.Offset, err error) {
	p.update(func(now time.Duration) []replica.Action { return p.machine.Written(now, end, err) })
	p.settled()
}

func (p *partition) truncated(l replica.LogState, err error) {
	p.update(func(now time.Duration) []replica.Action { return p.machine.Truncated(now, l, err) })
	p.settled()
}

// settled tells the fetcher that the storage has done what the last answer asked for.
func (p *partition) settled() {
	p.mu.Lock()
	f := p.fetcher
	p.mu.Unlock()
	if f != nil {
		f.settled(p)
	}
}

func (p *partition) propose(a replica.Propose) {
	p.srv.s.proposals.submit(&item{key: p.id, body: a.Proposal, done: func(r *pb.IsrResult) {
		p.update(func(now time.Duration) []replica.Action {
			if c := r.GetCurrent(); c.GetPartitionEpoch() > p.want.GetPartitionEpoch() {
				p.want = c
			}
			return p.machine.ProposalAnswer(now, a.ID, r)
		})
	}})
}

// ack answers a producer. What is not committed is only promised under a lease: without one another leader may have
// begun, whose log does not have the batch.
func (p *partition) ack(a replica.Ack, fx *effects) {
	if !a.Protected && !p.leased() {
		p.answer(a.Ticket, &pb.ProduceResponse{Error: noLease().Proto()}, fx)
		return
	}
	p.answer(a.Ticket, &pb.ProduceResponse{BaseOffset: int64(a.BaseOffset), LeaderEpoch: int64(a.LeaderEpoch),
		Duplicate: a.Duplicate, Protected: a.Protected}, fx)
}

// reported takes the state that the controller answers to a report: it knows now who leads.
func (p *partition) reported(r *pb.IsrResult) {
	w := r.GetCurrent()
	if w == nil || r.GetError() != nil {
		return
	}
	p.update(func(now time.Duration) []replica.Action {
		if w.GetPartitionEpoch() >= p.want.GetPartitionEpoch() {
			p.want = w
		}
		return p.machine.Assign(now, w, p.srv.brokerEpoch())
	})
}

// leased reports whether this broker may do what must not be done under two leaders: it leads, the controller knows that, and
// the lease holds. The caller holds mu.
func (p *partition) leased() bool { return p.machine.Confirmed() && p.srv.s.lease.valid(time.Now()) }

func noLease() *messages.Error {
	return messages.Errorf(messages.CodeNoLease, "the leader holds no valid lease at the moment")
}

func (p *partition) answer(t replica.Ticket, r *pb.ProduceResponse, fx *effects) {
	w, ok := p.tickets[t]
	if !ok {
		return
	}
	delete(p.tickets, t)
	p.srv.produceBytes.Add(-w.bytes)
	fx.reply(w.reply, r)
}

// settle brings what this partition serves and follows in line with its role. The caller holds mu.
func (p *partition) settle(fx *effects) {
	defer p.traceLead()
	role := p.machine.Role()
	if role == replica.RoleLeader == (p.serving != nil) && role == replica.RoleFollower == (p.fetcher != nil) &&
		!p.retired && !p.removed && p.followedEpoch == p.assignedEpoch() {
		return
	}
	active := !p.retired && !p.removed && p.srv.active.Load()
	epoch := p.assignedEpoch()
	if p.serving != nil && (role != replica.RoleLeader || !active || p.leaderEpoch != epoch) {
		p.stopServing(fx)
	}
	if p.serving == nil && role == replica.RoleLeader && active {
		p.startServing(epoch)
	}
	if p.fetcher != nil && (role != replica.RoleFollower || !active || p.followedEpoch != epoch) {
		p.fetcher.drop(p)
		p.fetcher = nil
	}
	if p.fetcher == nil && role == replica.RoleFollower && active {
		p.fetcher = p.srv.fetcherOf(messages.BrokerID(p.want.GetLeader()))
		p.fetcher.add(p)
	}
	p.followedEpoch = epoch
}

// assignedEpoch is the leader epoch of the newest assignment, which the machine has taken.
func (p *partition) assignedEpoch() messages.LeaderEpoch {
	return messages.LeaderEpoch(p.want.GetLeaderEpoch())
}

// startServing opens the subject of this epoch. The machine has checked the log against the floor.
func (p *partition) startServing(epoch messages.LeaderEpoch) {
	sub, err := p.srv.serve(p, epoch)
	if err != nil {
		p.srv.log.Error().Err(err).Stringer("partition", p.id).Msg("cannot subscribe to the data subject")
		return
	}
	p.serving, p.leaderEpoch = sub, epoch
}

// traceLead says once that this broker leads and that the controller knows it. The caller holds mu.
func (p *partition) traceLead() {
	if p.serving != nil && !p.traced && p.machine.Confirmed() {
		p.traced = true
		p.srv.s.traceRole(traceLeads, Partition{ID: p.id, Topic: p.topic}, p.leaderEpoch)
	}
}

// stopServing closes it and answers whoever waits there.
func (p *partition) stopServing(fx *effects) {
	if p.traced {
		p.traced = false
		p.srv.s.traceRole(traceLeadsNoMore, Partition{ID: p.id, Topic: p.topic}, p.leaderEpoch)
	}
	p.serving.close()
	p.serving = nil
	p.tail.clear()
	for _, w := range p.waiting {
		p.srv.fetchesWaiting.Add(-1)
		fx.reply(w.reply, &pb.FetchResponse{Error: notLeading(p).Proto()})
	}
	p.waiting = nil
	p.wakeFollowers(true) // they learn it from the answer
}

func notLeading(p *partition) *messages.Error {
	return messages.Errorf(messages.CodeNotLeader, "the leader is %q in epoch %d", p.want.GetLeader(), p.want.GetLeaderEpoch())
}

// assign takes the controller's newest state, opening the replica first if need be.
func (p *partition) assign(w *pb.Assignment) {
	p.mu.Lock()
	p.retired = false
	if p.want == nil || w.GetPartitionEpoch() >= p.want.GetPartitionEpoch() {
		p.want = w
	}
	open := p.machine != nil
	if !open && !p.opening && !p.removed {
		p.opening = true
		p.srv.open(p)
	}
	p.mu.Unlock()
	if open {
		p.update(func(now time.Duration) []replica.Action { return p.machine.Assign(now, w, p.srv.brokerEpoch()) })
	}
}

// opened gives the partition its machine, or says that there will be none.
func (p *partition) opened(m *replica.Replica, err *messages.Error) {
	p.mu.Lock()
	p.opening = false
	w := p.want
	if err != nil {
		p.failed = err
		p.mu.Unlock()
		p.srv.log.Error().Err(err).Stringer("partition", p.id).Msg("replica cannot be opened")
		p.decline(w, err)
		return
	}
	if p.removed {
		p.pending.remove = true
		p.srv.writer.enqueue(p)
		p.mu.Unlock()
		return
	}
	p.machine = m
	st := m.Status()
	p.durable = st.LogEnd
	p.mu.Unlock()
	p.update(func(now time.Duration) []replica.Action { return p.machine.Assign(now, p.want, p.srv.brokerEpoch()) })
}

// decline gives up a leadership that cannot begin because the replica cannot be opened.
func (p *partition) decline(w *pb.Assignment, err *messages.Error) {
	if w.GetLeader() != string(p.srv.id) {
		return
	}
	p.srv.s.readies.submit(&item{key: p.id, done: func(*pb.IsrResult) {}, body: &pb.LeaderReport{TopicId: p.id.Topic.Bytes(),
		Partition: p.id.Index, LeaderEpoch: w.GetLeaderEpoch(), Declined: true, Reason: err.Error()}})
}

// suspend stops what the partition does for others: its registration is over, or it is not assigned any more.
func (p *partition) suspend(retire bool) {
	var fx effects
	p.mu.Lock()
	p.retired = p.retired || retire
	if p.serving != nil {
		p.stopServing(&fx)
	}
	if p.fetcher != nil {
		p.fetcher.drop(p)
		p.fetcher = nil
	}
	p.mu.Unlock()
	p.srv.carryOut(&fx)
}

// remove orders the replica away. It is gone from the storage when removedFromStorage is called.
func (p *partition) remove() {
	p.mu.Lock()
	p.removed = true
	p.mu.Unlock()
	p.suspend(true)
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.opening {
		p.pending.remove = true
		p.srv.writer.enqueue(p)
	}
}

func (p *partition) removedFromStorage(err error) {
	if err != nil {
		p.srv.log.Error().Err(err).Stringer("partition", p.id).Msg("replica cannot be removed")
		return
	}
	p.srv.forget(p)
}
