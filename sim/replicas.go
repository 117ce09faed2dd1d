package sim

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/broker/replica"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// hosted is one replica on a broker.
type hosted struct {
	id       messages.PartitionID
	r        *replica.Replica
	waiting  map[replica.Ticket]*produce
	unstored []*pb.StoredBatch // given to the disk and not stored yet
	tickets  replica.Ticket

	reporting messages.LeaderEpoch // of the report that is on its way
	reportAt  time.Duration        // when a mark was last reported
	reported  messages.Offset
}

// produce is a request of a client that waits.
type produce struct {
	acks  pb.Acks
	batch *pb.StoredBatch
	reply func(*pb.ProduceResponse)
}

// assign hands an assignment to its replica, which is made if this broker is to have one.
func (b *broker) assign(a *pb.Assignment, first bool) {
	p := partitionOf(a.GetTopicId(), a.GetPartition())
	h := b.replicas[p]
	if h == nil {
		if b.dropped[p.Topic] || !slices.Contains(a.GetReplicas(), string(b.id)) {
			return
		}
		b.disk.create(p)
		h = &hosted{id: p, waiting: map[replica.Ticket]*produce{}, reporting: messages.NoLeaderEpoch,
			r: replica.New(replica.Config{Self: b.id, Partition: p, Log: b.disk.current[p].state(), ReplicaLag: settings.ReplicaLag,
				Checkpoint: settings.Checkpoint, FirstSnapshot: first, SendUnstored: b.w.sendUnstored})}
		b.replicas[p] = h
		b.order = append(b.order, p)
		slices.SortFunc(b.order, comparePartitions)
	}
	if b.w.cfg.Faults.SkipProof {
		a = proto.Clone(a).(*pb.Assignment)
		a.Floor = 0
	}
	before := h.r.Status()
	b.run(h, h.r.Assign(b.local(), a, b.epoch))
	if s := h.r.Status(); s.LeaderEpoch != before.LeaderEpoch {
		b.w.say("%s is %s of %s in leader epoch %d, log end %d, mark %d", b.incarnation, s.Role, short(p), s.LeaderEpoch, s.LogEnd, s.HighWatermark)
		b.w.check.leases()
	}
	b.wakeParked(p)
}

// run carries out actions.
func (b *broker) run(h *hosted, actions []replica.Action) {
	list := slices.Clone(actions)
	b.w.check.replica(b, h)
	for _, a := range list {
		switch a := a.(type) {
		case replica.Write:
			h.unstored = append(h.unstored, a.Batches...)
			b.disk.do(&b.process, operation{h.id, a, func() { b.written(h) }})
			if len(a.Batches) > 0 && b.w.sendUnstored {
				b.wakeParked(h.id)
			}
		case replica.Truncate:
			b.w.result.Truncations++
			b.w.say("%s truncates %s to %d", b.incarnation, short(h.id), a.To)
			b.disk.do(&b.process, operation{h.id, a, func() { b.truncated(h) }})
		case replica.Appended, replica.HighWatermarkMoved:
			b.wakeParked(h.id)
		case replica.Ack:
			b.ack(h, a)
		case replica.Fail:
			b.fail(h, a)
		case replica.Propose:
			b.propose(h, a)
		case replica.Report:
			b.report(h, a.Report)
		case replica.RequestSnapshot:
			b.snapshot()
		case replica.Faulted:
			b.w.violated("%s: replica of %s has stopped: %v", b.incarnation, short(h.id), a.Err)
		}
	}
}

func (b *broker) written(h *hosted) {
	if l := b.disk.current[h.id]; l != nil && b.replicas[h.id] == h {
		for len(h.unstored) > 0 && batchEnd(h.unstored[0]) <= l.end() {
			h.unstored = h.unstored[1:]
		}
		b.run(h, h.r.Written(b.local(), l.end(), nil))
		b.kick(h.r.Status().Leader)
	}
}

func (b *broker) truncated(h *hosted) {
	if l := b.disk.current[h.id]; l != nil && b.replicas[h.id] == h {
		if !b.disk.fsyncs {
			b.disk.flush()
		}
		b.run(h, h.r.Truncated(b.local(), l.state(), nil))
		b.kick(h.r.Status().Leader)
	}
}

// readAny returns whole batches of [from, limit), from the disk or on their way to it.
func (b *broker) readAny(h *hosted, from, limit messages.Offset) []*pb.StoredBatch {
	l := b.disk.current[h.id].clone()
	for _, x := range h.unstored {
		if messages.Offset(x.BaseOffset) == l.end() {
			l.batches = append(l.batches, x)
		}
	}
	return l.read(from, limit, 100)
}

// propose sends a proposal and gives exactly one answer.
func (b *broker) propose(h *hosted, a replica.Propose) {
	epoch := b.epoch
	if a.Proposal.Renew {
		b.w.result.Renewals++
	}
	b.w.say("%s proposes ISR %v of %s at %d, renewal %v", b.incarnation, memberNames(a.Proposal), short(h.id), a.Proposal.PartitionEpoch, a.Proposal.Renew)
	if f := b.w.cfg.Faults; f.CommitWithoutISR || a.Proposal.Renew && (f.TrustRefusals || f.ForgetLostAnswers) {
		b.run(h, h.r.ProposalAnswer(b.local(), a.ID, &pb.IsrResult{Current: b.pretend(h, a.Proposal)}))
		return
	}
	b.w.ask(&b.process, "isr", func(t *term, reply func(proto.Message)) {
		t.toPartition(h.id, reply, func(r actors.RequestID) actors.Message {
			return actors.ISRProposal{Request: r, Broker: b.id, BrokerEpoch: epoch, Proposal: a.Proposal}
		})
	}, func(m proto.Message) {
		result, _ := m.(*pb.IsrResult)
		if result != nil {
			b.w.say("%s: proposal of %s at %d is answered %q, now %d", b.incarnation, short(h.id), a.Proposal.PartitionEpoch,
				result.GetError().GetCode(), result.GetCurrent().GetPartitionEpoch())
		}
		if result == nil && b.w.cfg.Faults.ForgetLostAnswers {
			result = &pb.IsrResult{Error: messages.Errorf(messages.CodeIneligibleReplica, "not heard").Proto()}
		}
		if b.replicas[h.id] == h {
			b.run(h, h.r.ProposalAnswer(b.local(), a.ID, result))
			b.wakeParked(h.id)
		}
	})
}

// pretend makes the answer of a controller that has accepted a proposal.
func (b *broker) pretend(h *hosted, p *pb.IsrProposal) *pb.Assignment {
	s := h.r.Status()
	return &pb.Assignment{TopicId: h.id.Topic.Bytes(), Partition: h.id.Index, Leader: string(s.Leader), LeaderEpoch: int64(s.LeaderEpoch),
		PartitionEpoch: int64(s.PartitionEpoch) + 1, Isr: memberNames(p), Replicas: h.replicaNames(b), MinIsr: 1, LeaderProven: true}
}

func (h *hosted) replicaNames(b *broker) []string {
	var out []string
	for _, x := range b.w.brokers {
		if x.disk.current[h.id] != nil {
			out = append(out, string(x.id))
		}
	}
	return out
}

func memberNames(p *pb.IsrProposal) (out []string) {
	for _, m := range p.GetIsr() {
		out = append(out, m.GetBroker())
	}
	return out
}

// report tells the controller until it has heard, or the leader epoch is another one.
func (b *broker) report(h *hosted, r *pb.LeaderReport) {
	le := messages.LeaderEpoch(r.GetLeaderEpoch())
	epoch := b.epoch
	b.w.ask(&b.process, "ready", func(t *term, reply func(proto.Message)) {
		t.toPartition(h.id, reply, func(id actors.RequestID) actors.Message {
			return actors.LeaderReport{Request: id, Broker: b.id, BrokerEpoch: epoch, Report: r}
		})
	}, func(m proto.Message) {
		result, _ := m.(*pb.IsrResult)
		if result.GetCurrent() != nil && b.replicas[h.id] == h {
			b.assign(result.GetCurrent(), false)
		}
		if result == nil && b.replicas[h.id] == h && h.r.Status().LeaderEpoch == le && h.reporting != le {
			h.reporting = le
			b.timer(300*time.Millisecond, "ready again", func() {
				h.reporting = messages.NoLeaderEpoch
				if b.replicas[h.id] == h && h.r.Status().LeaderEpoch == le {
					b.report(h, r)
				}
			})
		}
	})
}

// checkpoint reports a mark that has moved.
func (b *broker) checkpoint(h *hosted) {
	r, leads := h.r.OffsetReport()
	if !leads || b.local()-h.reportAt < settings.Checkpoint || messages.Offset(r.GetHighWatermark()) == h.reported {
		return
	}
	h.reportAt, h.reported = b.local(), messages.Offset(r.GetHighWatermark())
	epoch := b.epoch
	b.w.ask(&b.process, "offsets", func(t *term, _ func(proto.Message)) {
		t.tell(actors.Partition(h.id), actors.OffsetReport{Broker: b.id, BrokerEpoch: epoch, Report: r})
	}, func(proto.Message) {})
}

// produce takes a batch of a client.
func (b *broker) produce(p messages.PartitionID, q *pb.ProduceRequest, reply func(*pb.ProduceResponse)) {
	refuse := func(err *messages.Error) { reply(&pb.ProduceResponse{Error: err.Proto()}) }
	h := b.replicas[p]
	if h == nil {
		refuse(messages.Errorf(messages.CodeNotLeader, "no replica here"))
		return
	}
	sealed, err := replica.Seal(q.GetBatch())
	if err != nil {
		refuse(err)
		return
	}
	if q.GetAcks() == pb.Acks_ACKS_LEADER && !b.leased(h) {
		refuse(messages.Errorf(messages.CodeNoLease, "no lease"))
		return
	}
	h.tickets++
	h.waiting[h.tickets] = &produce{acks: q.GetAcks(), batch: sealed, reply: reply}
	acks := q.GetAcks()
	if b.w.cfg.Faults.AckBeforeCommit {
		acks = pb.Acks_ACKS_LEADER
	}
	b.run(h, h.r.Produce(b.local(), replica.Append{Batch: sealed, Acks: acks, Ticket: h.tickets,
		Deadline: b.local() + time.Duration(q.GetTimeoutMs())*time.Millisecond}))
}

func (b *broker) ack(h *hosted, a replica.Ack) {
	w := h.waiting[a.Ticket]
	if w == nil {
		return // answered before
	}
	delete(h.waiting, a.Ticket)
	if w.acks == pb.Acks_ACKS_LEADER && !a.Protected {
		if !b.leased(h) {
			w.reply(&pb.ProduceResponse{Error: messages.Errorf(messages.CodeNoLease, "no lease").Proto()})
			return
		}
		b.w.check.leases()
	}
	if w.acks == pb.Acks_ACKS_ALL {
		b.w.check.committed(b, h, a.BaseOffset, w.batch)
	}
	w.reply(&pb.ProduceResponse{BaseOffset: int64(a.BaseOffset), LeaderEpoch: int64(a.LeaderEpoch), Duplicate: a.Duplicate,
		Protected: w.acks == pb.Acks_ACKS_ALL})
}

func (b *broker) fail(h *hosted, a replica.Fail) {
	if w := h.waiting[a.Ticket]; w != nil {
		delete(h.waiting, a.Ticket)
		w.reply(&pb.ProduceResponse{Error: a.Err.Proto()})
	}
}

func (b *broker) failWaiting(h *hosted) {
	for t := replica.Ticket(1); t <= h.tickets; t++ {
		b.fail(h, replica.Fail{Ticket: t, Err: messages.Errorf(messages.CodeUnknownTopicID, "deleted")})
	}
}

// consume reads for a client.
func (b *broker) consume(p messages.PartitionID, offset messages.Offset, reply func(*pb.FetchResponse)) {
	h := b.replicas[p]
	if h == nil {
		reply(&pb.FetchResponse{Error: messages.Errorf(messages.CodeNotLeader, "no replica here").Proto()})
		return
	}
	limit, err := h.r.Consume(offset)
	if err != nil {
		reply(&pb.FetchResponse{Error: err.Proto()})
		return
	}
	mark := h.r.HighWatermark()
	if b.w.cfg.Faults.ServeUncommitted {
		limit = h.r.Status().LogEnd
	}
	out := &pb.FetchResponse{HighWatermark: int64(mark), Batches: b.disk.current[p].read(offset, limit, 50)}
	b.w.check.served(b, h, out)
	reply(out)
}

func describe(s replica.Status) string {
	return fmt.Sprintf("%s epoch %d/%d isr %v proposed %v log [%d,%d) mark %d", s.Role, s.LeaderEpoch, s.PartitionEpoch, s.ISR,
		s.Proposed, s.LogStart, s.LogEnd, s.HighWatermark)
}
