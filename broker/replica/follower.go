package replica

import (
	"time"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// Pauses before a follower asks again.
const (
	fetchRetry     = 50 * time.Millisecond
	fetchRetrySlow = time.Second
)

// following is the state of a follower in its epoch.
type following struct {
	// mark is the leader's, as far as our log was checked to agree with it; it counts once that is durable here.
	mark messages.Offset
	// parked: the leader knows a later epoch; only a new assignment helps.
	parked  bool
	retryAt time.Duration
}

// Position returns where this follower wants to fetch from its leader; false if it does not fetch at the moment: it is
// no follower, its storage is busy, it is parked until a new assignment, or it pauses after an error.
func (r *Replica) Position(now time.Duration) (*pb.FetchPosition, bool) {
	if r.role != RoleFollower || r.following.parked || r.busy() || now < r.following.retryAt {
		return nil, false
	}
	return r.position(), true
}

func (r *Replica) position() *pb.FetchPosition {
	return &pb.FetchPosition{TopicId: r.cfg.Partition.Topic.Bytes(), Partition: r.cfg.Partition.Index,
		LeaderEpoch: int64(r.leaderEpoch), LastEpoch: int64(r.lastEpoch()), Offset: int64(r.end)}
}

// lastEpoch is the epoch of the last record: epochs that began and ended without a record are not asked about.
func (r *Replica) lastEpoch() messages.LeaderEpoch {
	if r.end == r.start {
		return messages.NoLeaderEpoch
	}
	return r.epochs.Truncated(r.end).Last()
}

// FetchResult takes the leader's answer to a position. An answer to another position than the current one is ignored:
// it is late, or was answered twice.
func (r *Replica) FetchResult(now time.Duration, asked *pb.FetchPosition, res *pb.PartitionFetch) []Action {
	r.begin()
	if r.role != RoleFollower || r.busy() || !r.isCurrent(asked) {
		return r.take()
	}
	switch {
	case res.GetError() != nil:
		r.fetchFailed(now, res)
	case res.GetLeaderEpoch() != int64(r.leaderEpoch):
		r.following.retryAt = now + fetchRetry
	case res.GetDiverging():
		r.diverged(now, messages.LeaderEpoch(res.GetDivergingEpoch()), messages.Offset(res.GetDivergingEnd()))
	default:
		r.replicate(now, res)
	}
	return r.take()
}

func (r *Replica) isCurrent(asked *pb.FetchPosition) bool {
	return asked.GetLeaderEpoch() == int64(r.leaderEpoch) && asked.GetOffset() == int64(r.end) &&
		asked.GetLastEpoch() == int64(r.lastEpoch())
}

func (r *Replica) fetchFailed(now time.Duration, res *pb.PartitionFetch) {
	switch messages.Code(res.GetError().GetCode()) {
	case messages.CodeFencedLeaderEpoch:
		r.following.parked = true
		r.do(RequestSnapshot{})
	case messages.CodeOffsetOutOfRange:
		r.failed(messages.Errorf(messages.CodeOffsetOutOfRange, "this log is [%d, %d) with last epoch %d, the leader says: %s", r.start,
			r.end, r.lastEpoch(), res.GetError().GetMessage()))
	case messages.CodeUnknownLeaderEpoch, messages.CodeNotLeader, messages.CodeBusy:
		r.following.retryAt = now + fetchRetry
	default:
		r.following.retryAt = now + fetchRetrySlow
	}
}

// diverged truncates to where the logs part, as far as this answer tells: the end that the leader's epoch has there, and
// the end that it has here. The next fetch asks again. The mark is a promise to readers: nothing below it is given up.
func (r *Replica) diverged(now time.Duration, epoch messages.LeaderEpoch, end messages.Offset) {
	_, own, ok := r.epochs.EndOf(epoch, r.end)
	if !ok {
		own = r.end
	}
	to := max(min(end, own, r.end), r.start)
	switch {
	case to < r.mark:
		r.failed(messages.Errorf(messages.CodeInternal,
			"the leader's log parts from this one at %d (epoch %d), below the mark %d: nothing is removed", to, epoch, r.mark))
	case to == r.end:
		r.following.retryAt = now + fetchRetrySlow // contradicts itself
	default:
		r.truncating = true
		r.do(Truncate{To: to})
	}
}

// replicate appends what the leader sent. The answer proves that everything up to our end agrees, so the leader's mark
// counts up to the new end.
func (r *Replica) replicate(now time.Duration, res *pb.PartitionFetch) {
	end, list := r.end, r.epochs.Truncated(r.end)
	for _, b := range res.GetBatches() {
		if err := r.checkBatch(b, end, list.Last()); err != nil {
			r.following.retryAt = now + fetchRetrySlow
			return
		}
		list = list.With(EpochStart{Epoch: messages.LeaderEpoch(b.GetLeaderEpoch()), Start: end})
		end = endOfBatch(b)
	}
	r.following.mark = max(r.following.mark, min(messages.Offset(res.GetHighWatermark()), end))
	if len(res.GetBatches()) == 0 {
		r.raiseMark(r.following.mark)
		return
	}
	r.end, r.epochs = end, list
	for _, b := range res.GetBatches() {
		r.producers.Add(b)
	}
	r.write(now, &Write{Batches: res.GetBatches(), HighWatermark: r.following.mark}, nil)
}

// checkBatch refuses what cannot follow the log's end.
func (r *Replica) checkBatch(b *pb.StoredBatch, end messages.Offset, last messages.LeaderEpoch) *messages.Error {
	if messages.Offset(b.GetBaseOffset()) != end || b.GetCount() == 0 || b.GetCount() > MaxBatchRecords {
		return messages.Errorf(messages.CodeInvalidRequest, "a batch of %d at %d cannot follow %d", b.GetCount(), b.GetBaseOffset(), end)
	}
	if le := messages.LeaderEpoch(b.GetLeaderEpoch()); le > r.leaderEpoch || le < last {
		return messages.Errorf(messages.CodeInvalidRequest, "a batch of epoch %d after %d", le, last)
	}
	return Verify(b)
}
