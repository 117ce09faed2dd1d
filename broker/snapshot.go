package broker

import (
	"bytes"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// snapshot is everything that the controller assigns to this broker, with the feed position that it includes.
type snapshot struct {
	term        leaseTerm // in which it was asked for
	seen        messages.Seen
	feed        *pb.FeedPosition
	assignments []*pb.Assignment
	removals    []*pb.Removal
	unknown     [][]byte
	err         error
}

// takeSnapshot asks for a snapshot in the background, page by page, for as long as the registration lasts.
func (l *life) takeSnapshot() {
	if l.taking {
		return
	}
	l.taking = true
	held, term := l.heldPart(l.sink.held()), l.term
	go func() {
		pauses := backoff{first: registerFirstPause, limit: time.Second}
		for {
			snap := l.pages(held)
			snap.term = term
			if snap.err == nil || !messages.AsError(snap.err).Retryable() {
				l.snapshots <- snap
				return
			}
			l.log.Debug().Err(snap.err).Msg("no snapshot yet")
			if !pauses.wait(l.ctx) {
				return
			}
		}
	}()
}

// heldPart returns as many of the held topics as one request may name: another part with each snapshot, if there are more.
func (l *life) heldPart(held []*pb.HeldTopic) []*pb.HeldTopic {
	slices.SortFunc(held, func(a, b *pb.HeldTopic) int { return bytes.Compare(a.GetTopicId(), b.GetTopicId()) })
	start, size := 0, 0
	if n := len(held); n > 0 {
		start = l.heldFrom % n
	}
	for n := range held {
		h := held[(start+n)%len(held)]
		if size += len(h.GetTopic()) + 24 + 3*len(h.GetPartitions()); n == messages.MaxHeldTopics || size > messages.SnapshotPageBytes {
			l.heldFrom = start + n
			l.log.Warn().Int("topics", len(held)).Int("named", n).Msg("more topics are held than a request can name; the rest follows")
			return append(slices.Clone(held[start:min(start+n, len(held))]), held[:max(0, start+n-len(held))]...)
		}
	}
	return held
}

// pages asks for one snapshot. All pages must come from one controller.
func (l *life) pages(held []*pb.HeldTopic) snapshot {
	var out snapshot
	req := &pb.SnapshotRequest{Broker: string(l.id), BrokerEpoch: uint64(l.registration().epoch), Held: held}
	for page := 0; ; page++ {
		resp := &pb.SnapshotResponse{}
		if out.err = l.ask(l.ctx, registerTimeout, messages.VerbSnapshot, req, resp); out.err != nil {
			return out
		}
		seen := messages.SeenFromProto(resp.GetSeen())
		if page == 0 {
			out.seen, out.feed = seen, resp.GetFeed()
		} else if seen.Controller != out.seen.Controller {
			out.err = messages.Errorf(messages.CodeUnavailable, "the controller changed in the middle of a snapshot")
			return out
		}
		out.assignments = append(out.assignments, resp.GetAssignments()...)
		out.removals = append(out.removals, resp.GetRemovals()...)
		out.unknown = append(out.unknown, resp.GetUnknown()...)
		if resp.GetNext() == "" {
			return out
		}
		req = &pb.SnapshotRequest{Broker: req.Broker, BrokerEpoch: req.BrokerEpoch, Cursor: resp.GetNext()}
	}
}

// onSnapshot applies a snapshot and what the feed brought meanwhile.
func (l *life) onSnapshot(snap snapshot) error {
	l.taking = false
	switch code := messages.CodeOf(snap.err); {
	case code == messages.CodeStaleBrokerEpoch || code == messages.CodeUnknownBroker:
		return errOver
	case snap.err != nil:
		return snap.err
	case snap.seen.Controller < l.highest().Controller:
		l.takeSnapshot() // a newer controller has spoken since
		return nil
	}
	present := make(map[messages.PartitionID]bool, len(snap.assignments))
	for _, p := range snap.assignments {
		if id, ok := l.assign(p); ok {
			present[id] = true
		}
	}
	for _, r := range snap.removals {
		l.remove(r)
	}
	for id := range l.known {
		if !present[id] {
			delete(l.known, id)
			l.sink.retired(id)
		}
	}
	l.ordered()
	first := !l.snapshotIn
	l.snapshotIn = true
	l.sink.snapshotApplied(l.unknown(snap.unknown))
	kept := l.feed.adopt(snap.feed, snap.seen.Controller)
	for _, b := range kept {
		l.apply(b)
	}
	news := snap.term != l.covered
	if l.covered = snap.term; first || news {
		l.beat() // ready; or a lease of the new term
	}
	return nil
}

// unknown reads the topic ids that the controller does not know.
func (l *life) unknown(raw [][]byte) []messages.TopicID {
	ids := make([]messages.TopicID, 0, len(raw))
	for _, b := range raw {
		if id, err := messages.ParseTopicID(b); err == nil {
			ids = append(ids, id)
			l.log.Warn().Stringer("topic_id", id).Msg("the controller has never heard of this topic; its data is kept aside")
		}
	}
	return ids
}

// onBatch takes one message of the feed. Orders for another registration of this broker are not for us; if that one is
// newer than ours, a heartbeat finds out what has become of us.
func (l *life) onBatch(data []byte) error {
	b := &pb.AssignmentBatch{}
	if err := proto.Unmarshal(data, b); err != nil {
		l.log.Warn().Err(err).Msg("a batch of assignments cannot be read")
		return nil
	}
	if b.GetBroker() != string(l.id) || !l.observe(b.GetSeen()) {
		return nil
	}
	if epoch := l.registration().epoch; messages.BrokerEpoch(b.GetBrokerEpoch()) != epoch {
		if messages.BrokerEpoch(b.GetBrokerEpoch()) > epoch {
			l.beat()
		}
		return nil
	}
	l.apply(b)
	return nil
}

// apply takes a batch if the feed says so.
func (l *life) apply(b *pb.AssignmentBatch) {
	switch l.feed.judge(b) {
	case feedApply:
		l.ordered()
		for _, p := range b.GetAssignments() {
			l.assign(p)
		}
		for _, r := range b.GetRemovals() {
			l.remove(r)
		}
	case feedGap, feedKeep:
		l.takeSnapshot()
	}
}

// assign passes on an assignment unless a newer one is known or its topic has been ordered away.
func (l *life) assign(p *pb.Assignment) (messages.PartitionID, bool) {
	a, err := assignmentFromProto(p)
	if err != nil {
		l.log.Error().Err(err).Msg("an assignment is not acceptable")
		return a.Partition.ID, false
	}
	id := a.Partition.ID
	if known, ok := l.known[id]; ok && a.Epoch < known {
		return id, true
	}
	if order, ok := l.orders[id.Topic]; ok && order.covers(id.Index, a.Epoch) {
		return id, false
	}
	l.known[id] = a.Epoch
	l.sink.assigned(a)
	return id, true
}

// remove passes on the order to delete a topic's replicas. A replica with a later epoch than the order's is of another
// life of the partition and stays.
func (l *life) remove(p *pb.Removal) {
	r, err := removalFromProto(p)
	if err != nil {
		l.log.Error().Err(err).Msg("an order to remove is not acceptable")
		return
	}
	l.orders[r.topic] = r
	for id, epoch := range l.known {
		if id.Topic == r.topic && r.covers(id.Index, epoch) {
			delete(l.known, id)
		} else if id.Topic == r.topic {
			l.log.Error().Stringer("partition", id).Msg("an order to remove is older than the replica; it stays")
			r.epochs[id.Index] = -1
		}
	}
	l.sink.removed(r)
}
