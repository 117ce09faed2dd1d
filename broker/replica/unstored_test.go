package replica

import (
	"testing"

	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

func TestUnstoredRecordsAreSentButNotCommitted(t *testing.T) {
	a, b, _ := trio(t)
	a.cfg.SendUnstored = true
	assignAll(assignment("a", 1, 1, "a", "b"), a, b)
	a.hold = true
	a.produce(1, pb.Acks_ACKS_ALL, 5)
	pos, _ := b.Position(b.now)
	ans, _ := a.Fetched(a.now, "b", 10, pos)
	if ans.From != 0 || ans.Limit != 5 {
		t.Fatalf("%+v", ans)
	}
	pos.Offset, pos.LastEpoch = 5, 1 // the follower has stored what the leader has not
	if _, actions := a.Fetched(a.now, "b", 10, pos); len(actions) != 0 || a.HighWatermark() != 0 {
		t.Fatalf("committed up to %d before the leader has stored it: %v", a.HighWatermark(), actions)
	}
	a.hold = false
	a.release()
	if acks := take[Ack](a); len(acks) != 1 || !acks[0].Protected || a.HighWatermark() != 5 {
		t.Fatalf("mark %d, acks %v", a.HighWatermark(), acks)
	}
}
