package broker

import (
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// feed decides which batches of assignments count. A broker applies them in order of position; after a gap, a batch of
// another feed, or a change of controller, only a snapshot helps. Batches that arrive while the snapshot is on its way
// are kept and judged against it.
type feed struct {
	position   *pb.FeedPosition // applied; nil before the first snapshot
	controller messages.ControllerEpoch
	synced     bool
	waiting    []*pb.AssignmentBatch
}

// maxWaiting bounds the batches that are kept during a snapshot. More make a gap, so another snapshot follows.
const maxWaiting = 4096

// verdict is what to do with a batch.
type verdict uint8

const (
	feedIgnore verdict = iota
	feedApply
	feedKeep // until the snapshot is there
	feedGap  // take a snapshot
)

// judge decides on one batch and moves the position if it is to be applied.
func (f *feed) judge(b *pb.AssignmentBatch) verdict {
	at := b.GetFeed()
	switch {
	case messages.ControllerEpoch(b.GetSeen().GetControllerEpoch()) < f.controller:
		return feedIgnore
	case !f.synced:
		if len(f.waiting) < maxWaiting {
			f.waiting = append(f.waiting, b)
		}
		return feedKeep
	case at.GetFeed() != f.position.GetFeed():
		f.lose(b)
		return feedGap
	case at.GetPosition() <= f.position.GetPosition():
		return feedIgnore
	case at.GetPosition() == f.position.GetPosition()+1:
		f.position = at
		return feedApply
	}
	f.lose(b)
	return feedGap
}

// lose marks that a snapshot is needed; b, if given, is kept for after it.
func (f *feed) lose(b *pb.AssignmentBatch) {
	f.synced = false
	f.waiting = f.waiting[:0]
	if b != nil {
		f.waiting = append(f.waiting, b)
	}
}

// adopt takes the position of a snapshot and returns the batches that were kept meanwhile, to be judged again.
func (f *feed) adopt(at *pb.FeedPosition, c messages.ControllerEpoch) []*pb.AssignmentBatch {
	kept := f.waiting
	f.position, f.controller, f.synced, f.waiting = at, c, true, nil
	return kept
}
