package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// fetcher is a follower's side of the replication from one leader: one request at a time, for all partitions.
type fetcher struct {
	leader  messages.BrokerID
	waiting bool
	round   uint64
}

// parkedFetch is a request that waits at the leader for something to answer.
type parkedFetch struct {
	follower  messages.BrokerID
	epoch     messages.BrokerEpoch
	positions []*pb.FetchPosition
	until     time.Duration
	done      bool
	reply     func([]*pb.PartitionFetch)
}

const (
	fetchWait    = 400 * time.Millisecond
	fetchTimeout = time.Second
)

func (w *world) broker(id messages.BrokerID) *broker {
	for _, b := range w.brokers {
		if b.id == id {
			return b
		}
	}
	return nil
}

// kickAll lets every fetcher look for something to ask.
func (b *broker) kickAll() {
	for _, x := range b.w.brokers {
		b.kick(x.id)
	}
}

// kick sends the next request to a leader, if none is under way and nothing of the one before is still being written.
func (b *broker) kick(leader messages.BrokerID) {
	if leader == "" || leader == b.id || !b.registered {
		return
	}
	var positions []*pb.FetchPosition
	busy := false
	for _, p := range b.order {
		h := b.replicas[p]
		if h.r.Leader() != leader {
			continue
		}
		if pos, ok := h.r.Position(b.local()); ok {
			positions = append(positions, pos)
		} else {
			busy = busy || h.r.Busy()
		}
	}
	f := b.fetchers[leader]
	if f == nil {
		f = &fetcher{leader: leader}
		b.fetchers[leader] = f
	}
	if f.waiting || busy || len(positions) == 0 {
		return
	}
	b.fetch(f, positions)
}

func (b *broker) fetch(f *fetcher, positions []*pb.FetchPosition) {
	l := b.w.broker(f.leader)
	f.waiting = true
	f.round++
	round, epoch, life := f.round, b.epoch, b.life
	finish := func() {
		if f.round == round {
			f.waiting = false
		}
	}
	b.w.send(&b.process, &l.process, "fetch", func() {
		l.fetched(&parkedFetch{follower: b.id, epoch: epoch, positions: positions, until: b.local() + fetchWait,
			reply: func(answers []*pb.PartitionFetch) {
				b.w.answer(&l.process, &b.process, "fetch reply", life, func() {
					finish()
					b.fetchResults(positions, answers)
					b.kick(f.leader)
				})
			}})
	})
	b.timer(fetchTimeout, "fetch timeout", finish)
}

func (b *broker) fetchResults(asked []*pb.FetchPosition, answers []*pb.PartitionFetch) {
	for i, res := range answers {
		if h := b.replicas[partitionOf(asked[i].GetTopicId(), asked[i].GetPartition())]; h != nil {
			b.run(h, h.r.FetchResult(b.local(), asked[i], res))
		}
	}
}

// fetched is the leader's side: it answers at once if there is something to tell, else later.
func (b *broker) fetched(q *parkedFetch) {
	if b.look(q, false) {
		return
	}
	b.parked = append(b.parked, q)
	b.timer(fetchWait, "fetch wait", func() {
		if !q.done {
			b.look(q, true)
			b.parked = slices.DeleteFunc(b.parked, func(x *parkedFetch) bool { return x.done })
		}
	})
}

// wakeParked looks again at the requests that wait for a partition.
func (b *broker) wakeParked(p messages.PartitionID) {
	for _, q := range slices.Clone(b.parked) {
		if !q.done && slices.ContainsFunc(q.positions, func(x *pb.FetchPosition) bool { return partitionOf(x.GetTopicId(), x.GetPartition()) == p }) {
			b.look(q, false)
		}
	}
	b.parked = slices.DeleteFunc(b.parked, func(x *parkedFetch) bool { return x.done })
}

// look asks the replicas, and replies if there is news or it must.
func (b *broker) look(q *parkedFetch, must bool) bool {
	answers := make([]*pb.PartitionFetch, len(q.positions))
	news := must
	q.done = true // asking may wake this request again
	for i, pos := range q.positions {
		var fresh bool
		answers[i], fresh = b.lookAt(q, pos)
		news = news || fresh
	}
	if q.done = news; !news {
		return false
	}
	for i, a := range answers {
		if a.GetError() == nil && !a.GetDiverging() {
			b.told[toldKey(q.follower, q.positions[i])] = messages.Offset(a.GetHighWatermark())
		}
	}
	q.reply(answers)
	return true
}

func toldKey(follower messages.BrokerID, pos *pb.FetchPosition) string {
	return fmt.Sprintf("%s %s %d", follower, pos.GetTopicId(), pos.GetPartition())
}

func (b *broker) lookAt(q *parkedFetch, pos *pb.FetchPosition) (*pb.PartitionFetch, bool) {
	p := partitionOf(pos.GetTopicId(), pos.GetPartition())
	h := b.replicas[p]
	if h == nil {
		err := messages.Errorf(messages.CodeUnknownLeaderEpoch, "no replica here")
		return &pb.PartitionFetch{Error: err.Proto()}, true
	}
	ans, acts := h.r.Fetched(b.local(), q.follower, q.epoch, pos)
	b.run(h, acts)
	if ans.Partition.GetDiverging() && b.w.cfg.Faults.IgnoreDivergence {
		if last, ok := b.lastEpochAt(p, messages.Offset(pos.GetOffset())); ok {
			ans, acts = h.r.Fetched(b.local(), q.follower, q.epoch, &pb.FetchPosition{TopicId: pos.TopicId, Partition: pos.Partition,
				LeaderEpoch: pos.LeaderEpoch, LastEpoch: last, Offset: pos.Offset})
			b.run(h, acts)
		}
	}
	if ans.Limit > ans.From {
		ans.Partition.Batches = b.readAny(h, ans.From, ans.Limit)
	}
	a := ans.Partition
	fresh := a.GetError() != nil || a.GetDiverging() || len(a.GetBatches()) > 0 ||
		messages.Offset(a.GetHighWatermark()) > b.told[toldKey(q.follower, pos)]
	return a, fresh
}

// lastEpochAt returns the epoch of the record below an offset that is a boundary of batches.
func (b *broker) lastEpochAt(p messages.PartitionID, offset messages.Offset) (int64, bool) {
	for _, x := range b.disk.current[p].batches {
		if batchEnd(x) == offset {
			return x.GetLeaderEpoch(), true
		}
	}
	return 0, false
}
