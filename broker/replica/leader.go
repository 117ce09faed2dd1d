package replica

import (
	"slices"
	"time"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// leading is the state of a leader in its epoch.
type leading struct {
	epochStart messages.Offset
	followers  map[messages.BrokerID]*progress
	proposal   *proposal
	// oneByOne: several were refused together; each is to join by itself until the ISR has changed.
	oneByOne bool
	waiting  waiters
}

// progress is what a leader knows of one follower in this epoch.
type progress struct {
	brokerEpoch messages.BrokerEpoch
	// end is where the follower's log, checked to agree with ours, ends durably; -1 while it has not fetched.
	end messages.Offset
	// caughtUp is when the follower last had all that we had; only meaningful with everCaughtUp.
	caughtUp     time.Duration
	everCaughtUp bool
	lastFetch    time.Duration
	lastEnd      messages.Offset // our durable end at the last fetch
	// refusedUntil holds a follower back that the controller has refused as a member.
	refusedUntil time.Duration
	// drops is how often it has left the ISR for lagging without a long stay in between, droppedAt when it last did, joinedAt
	// when it last became a member.
	drops               int
	droppedAt, joinedAt time.Duration
	refusals            int // since it was in the ISR last
}

// startLeading begins the epoch at the log's end. Members of the ISR count as caught up from now on and have the whole
// lag to show it; where anyone stands is unknown until it fetches in this epoch.
func (r *Replica) startLeading(now time.Duration) {
	r.leading.epochStart = r.end
	r.leading.followers = make(map[messages.BrokerID]*progress, len(r.replicas))
	for _, b := range r.replicas {
		if b != r.cfg.Self {
			r.leading.followers[b] = &progress{end: -1, caughtUp: now, joinedAt: now, everCaughtUp: slices.Contains(r.isr, b)}
		}
	}
	start := EpochStart{Epoch: r.leaderEpoch, Start: r.end}
	r.epochs = r.epochs.With(start)
	r.raiseMark(r.floor)
	r.write(now, nil, &start)
	r.advance()
}

// Append is a sealed batch of a client.
type Append struct {
	Batch  *pb.StoredBatch // from Seal; the replica sets its place
	Acks   pb.Acks
	Ticket Ticket
	// Deadline fails the request with OUTCOME_UNKNOWN when it passes before the answer; 0 means never.
	Deadline time.Duration
}

// Produce appends a batch, or recognises it as one that is stored already. The answer is one Ack or Fail, now or later.
// Nothing is appended if the answer is a Fail with another code than OUTCOME_UNKNOWN.
func (r *Replica) Produce(now time.Duration, a Append) []Action {
	r.begin()
	if err := r.refuse(a); err != nil {
		r.do(Fail{Ticket: a.Ticket, Err: err})
		return r.take()
	}
	stored, err := r.producers.Check(a.Batch)
	switch {
	case err != nil:
		r.do(Fail{Ticket: a.Ticket, Err: err})
	case stored != nil:
		r.wait(a, stored.BaseOffset, true)
	case a.Acks != pb.Acks_ACKS_LEADER && len(r.isr) < r.minISR:
		r.do(Fail{Ticket: a.Ticket, Err: messages.Errorf(messages.CodeNotEnoughReplicas,
			"%d replicas are in sync, min ISR is %d", len(r.isr), r.minISR)})
	default:
		base := r.append(now, a.Batch)
		r.wait(a, base, false)
	}
	return r.take()
}

// refuse checks what does not depend on the producer.
func (r *Replica) refuse(a Append) *messages.Error {
	switch {
	case r.isFaulted():
		return messages.Errorf(messages.CodeStorageFailed, "the replica has stopped: %s", r.fault.Message)
	case !r.serving():
		return r.notLeader()
	case len(r.leading.waiting.commit)+len(r.leading.waiting.stored) >= MaxWaiting:
		return messages.Errorf(messages.CodeBusy, "%d requests wait for this partition already", MaxWaiting)
	case a.Batch.GetCount() == 0 || a.Batch.GetCount() > MaxBatchRecords:
		return messages.Errorf(messages.CodeInvalidRequest, "a batch of %d records", a.Batch.GetCount())
	}
	return nil
}

func (r *Replica) notLeader() *messages.Error {
	if r.leader == r.cfg.Self {
		return messages.Errorf(messages.CodeNotLeader, "this broker is to lead in epoch %d but is %s", r.leaderEpoch, r.role)
	}
	return messages.Errorf(messages.CodeNotLeader, "the leader is %q in epoch %d", r.leader, r.leaderEpoch)
}

// append gives a batch its place at the log's end.
func (r *Replica) append(now time.Duration, b *pb.StoredBatch) messages.Offset {
	base := r.end
	b.BaseOffset, b.LeaderEpoch = int64(base), int64(r.leaderEpoch)
	r.end = endOfBatch(b)
	r.producers.Add(b)
	r.write(now, &Write{Batches: []*pb.StoredBatch{b}, HighWatermark: -1}, nil)
	return base
}

// wait answers a request whose batch is in the log, at once or when it is as safe as was asked for.
func (r *Replica) wait(a Append, base messages.Offset, duplicate bool) {
	w := waiter{end: base + messages.Offset(a.Batch.GetCount()), base: base, epoch: r.leaderEpoch, ticket: a.Ticket,
		deadline: a.Deadline, duplicate: duplicate}
	if a.Acks == pb.Acks_ACKS_LEADER {
		r.leading.waiting.stored = insert(r.leading.waiting.stored, w)
		r.ackStored()
		return
	}
	r.leading.waiting.commit = insert(r.leading.waiting.commit, w)
	r.ackCommitted()
}

// ledLogGrew follows a durable write of the leader. Whoever had everything until now was caught up until now.
func (r *Replica) ledLogGrew(now time.Duration, before messages.Offset) {
	for _, f := range r.leading.followers {
		if f.end >= before {
			f.caughtUp, f.everCaughtUp = now, true
		}
	}
	r.ackStored()
	r.advance()
}

// advance moves the mark to the smallest end over the maximal ISR: the committed members and those whose addition has
// been proposed and may have been accepted. It is frozen while fewer than min ISR are committed.
func (r *Replica) advance() {
	if len(r.isr) < r.minISR {
		return
	}
	mark := r.durable
	for _, b := range r.maximalISR() {
		if b == r.cfg.Self {
			continue
		}
		f := r.leading.followers[b]
		if f == nil {
			return
		}
		mark = min(mark, f.end)
	}
	r.raiseMark(mark)
}

// FetchAnswer is what a leader answers to one position of a follower. If Limit is above From, the host reads whole
// batches of [From, Limit) into Partition.Batches; if not, it may hold the answer back until an Appended or a
// HighWatermarkMoved, and ask again.
type FetchAnswer struct {
	Partition   *pb.PartitionFetch
	From, Limit messages.Offset
}

// Fetched takes note of where a follower stands and says what to answer. The position is the follower's durable end in
// that broker epoch. Asking again with the same position is harmless.
func (r *Replica) Fetched(now time.Duration, follower messages.BrokerID, epoch messages.BrokerEpoch, pos *pb.FetchPosition) (FetchAnswer, []Action) {
	r.begin()
	ans := &pb.PartitionFetch{TopicId: pos.GetTopicId(), Partition: pos.GetPartition(), LeaderEpoch: int64(r.leaderEpoch),
		LogStart: int64(r.start)}
	f, err := r.admitFetch(follower, epoch, pos)
	if err != nil {
		ans.Error = err.Proto()
		return FetchAnswer{Partition: ans}, r.take()
	}
	if f.brokerEpoch != epoch {
		// Another life of the follower: what the earlier one held counts no more.
		f.brokerEpoch, f.end, f.everCaughtUp = epoch, -1, f.everCaughtUp && slices.Contains(r.isr, follower)
		f.refusedUntil, f.refusals = 0, 0
	}
	offset := messages.Offset(pos.GetOffset())
	if !r.agrees(ans, messages.LeaderEpoch(pos.GetLastEpoch()), offset) {
		return FetchAnswer{Partition: ans}, r.take()
	}
	r.progressed(now, f, offset)
	r.considerISR(now)
	r.advance()
	ans.HighWatermark = int64(r.mark)
	limit := r.durable
	if r.cfg.SendUnstored {
		limit = r.end
	}
	return FetchAnswer{Partition: ans, From: offset, Limit: max(offset, limit)}, r.take()
}

// admitFetch checks who asks, without touching any state.
func (r *Replica) admitFetch(follower messages.BrokerID, epoch messages.BrokerEpoch, pos *pb.FetchPosition) (*progress, *messages.Error) {
	le := messages.LeaderEpoch(pos.GetLeaderEpoch())
	switch {
	case r.isFaulted():
		return nil, messages.Errorf(messages.CodeStorageFailed, "the replica has stopped: %s", r.fault.Message)
	case le < r.leaderEpoch:
		return nil, messages.Errorf(messages.CodeFencedLeaderEpoch, "the leader epoch is %d, not %d", r.leaderEpoch, le)
	case le > r.leaderEpoch:
		return nil, messages.Errorf(messages.CodeUnknownLeaderEpoch, "leader epoch %d is not known here yet, %d is", le, r.leaderEpoch)
	case r.role == RoleProving:
		return nil, messages.Errorf(messages.CodeUnknownLeaderEpoch, "the leader of epoch %d does not serve yet", le)
	case !r.serving():
		return nil, r.notLeader()
	}
	f := r.leading.followers[follower]
	if f == nil {
		return nil, messages.Errorf(messages.CodeUnknownLeaderEpoch, "broker %q is not known as a replica here", follower)
	}
	if epoch < f.brokerEpoch {
		return nil, messages.Errorf(messages.CodeStaleBrokerEpoch, "broker %q has registered again with epoch %d", follower, f.brokerEpoch)
	}
	return f, nil
}

// agrees reports whether the follower's log, whose last record has that epoch and that ends there, is a prefix of ours.
// If not, the answer says where the logs part, or that the position is outside of what is kept here.
func (r *Replica) agrees(ans *pb.PartitionFetch, last messages.LeaderEpoch, offset messages.Offset) bool {
	if offset < r.start || offset > r.end && last < 0 {
		ans.Error = messages.Errorf(messages.CodeOffsetOutOfRange, "the log is [%d, %d), the position is %d", r.start, r.end, offset).Proto()
		return false
	}
	if last < 0 {
		return true // an empty log agrees with everything
	}
	epoch, end, ok := r.epochs.EndOf(last, r.end)
	if !ok {
		ans.Error = messages.Errorf(messages.CodeOffsetOutOfRange, "leader epoch %d is above every one of this log, the last is %d",
			last, r.epochs.Last()).Proto()
		return false
	}
	if epoch == last && end >= offset {
		return true
	}
	ans.Diverging, ans.DivergingEpoch, ans.DivergingEnd = true, int64(epoch), int64(end)
	return false
}

// progressed takes over where a follower stands.
func (r *Replica) progressed(now time.Duration, f *progress, offset messages.Offset) {
	f.end = offset
	switch {
	case offset >= r.durable:
		f.caughtUp, f.everCaughtUp = now, true
	case f.lastEnd > 0 && offset >= f.lastEnd && (!f.everCaughtUp || f.lastFetch > f.caughtUp):
		// It has all that there was at its fetch before this one.
		f.caughtUp, f.everCaughtUp = f.lastFetch, true
	}
	f.lastFetch, f.lastEnd = now, r.durable
}

// Consume says how far a consumer may read from an offset: below the limit. A limit that is not above the offset means
// that it has to wait for HighWatermarkMoved. Errors: NOT_LEADER, OFFSET_OUT_OF_RANGE, STORAGE_FAILED.
func (r *Replica) Consume(offset messages.Offset) (messages.Offset, *messages.Error) {
	switch {
	case r.isFaulted():
		return 0, messages.Errorf(messages.CodeStorageFailed, "the replica has stopped: %s", r.fault.Message)
	case !r.serving():
		return 0, r.notLeader()
	case offset < r.start || offset > r.end:
		return 0, messages.Errorf(messages.CodeOffsetOutOfRange, "the log is [%d, %d), the offset is %d", r.start, r.end, offset)
	}
	return r.mark, nil
}
