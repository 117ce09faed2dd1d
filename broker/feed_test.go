package broker

import (
	"testing"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

func TestFeed(t *testing.T) {
	batch := func(controller, feed, position uint64) *pb.AssignmentBatch {
		return &pb.AssignmentBatch{Seen: &pb.Seen{ControllerEpoch: controller}, Feed: &pb.FeedPosition{Feed: feed, Position: position}}
	}
	for name, c := range map[string]struct {
		b    *pb.AssignmentBatch
		want verdict
	}{
		"the next":                     {batch(3, 7, 11), feedApply},
		"the same again":               {batch(3, 7, 10), feedIgnore},
		"an older one":                 {batch(3, 7, 4), feedIgnore},
		"a gap":                        {batch(3, 7, 12), feedGap},
		"another feed":                 {batch(3, 8, 11), feedGap},
		"a replaced controller's":      {batch(2, 7, 11), feedIgnore},
		"a later controller's, new id": {batch(4, 9, 1), feedGap},
	} {
		f := feed{}
		f.adopt(&pb.FeedPosition{Feed: 7, Position: 10}, 3)
		if got := f.judge(c.b); got != c.want {
			t.Errorf("%s: verdict %d, want %d", name, got, c.want)
		}
	}
	f := feed{}
	for p := uint64(3); p <= 6; p++ {
		if f.judge(batch(1, 1, p)) != feedKeep {
			t.Fatal("a batch before the snapshot is not kept")
		}
	}
	kept := f.adopt(&pb.FeedPosition{Feed: 1, Position: 4}, 1)
	var got []verdict
	for _, b := range kept {
		got = append(got, f.judge(b))
	}
	if want := []verdict{feedIgnore, feedIgnore, feedApply, feedApply}; len(got) != 4 || got[0] != want[0] || got[1] != want[1] || got[2] != want[2] || got[3] != want[3] {
		t.Errorf("kept batches after the snapshot at 4: %v, want %v", got, want)
	}
}

func TestRemovalCoversOnlyWhatWasThere(t *testing.T) {
	r := removal{topic: testTopic, epochs: []messages.PartitionEpoch{5, 2}}
	for _, c := range []struct {
		index int32
		epoch messages.PartitionEpoch
		want  bool
	}{{0, 5, true}, {0, 6, false}, {1, 3, false}, {1, 0, true}, {2, 0, false}, {-1, 0, false}} {
		if got := r.covers(c.index, c.epoch); got != c.want {
			t.Errorf("partition %d at epoch %d: %v", c.index, c.epoch, got)
		}
	}
}

func TestEveryHeldTopicIsNamedInTurn(t *testing.T) {
	l := &life{session: &session{}}
	held := make([]*pb.HeldTopic, 2*messages.MaxHeldTopics+100)
	for i := range held {
		held[i] = &pb.HeldTopic{TopicId: []byte{1, byte(i >> 16), byte(i >> 8), byte(i)}}
	}
	named := map[string]bool{}
	for range 4 {
		part := l.heldPart(held)
		if len(part) > messages.MaxHeldTopics {
			t.Fatalf("%d topics in one request", len(part))
		}
		for _, h := range part {
			named[string(h.GetTopicId())] = true
		}
	}
	if len(named) != len(held) {
		t.Errorf("%d of %d topics were named", len(named), len(held))
	}
	if part := l.heldPart(held[:3]); len(part) != 3 {
		t.Errorf("%d of 3 topics were named", len(part))
	}
}
