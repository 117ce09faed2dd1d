package broker

import (
	"testing"

	"github.com/highwater-io/highwater/broker/replica"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// A replica that is ordered away may still be told things; the storage, which may have removed it by then, must not be asked to
// write them, for it would refuse, and be taken to be broken.
func TestNothingIsWrittenToAReplicaThatIsOrderedAway(t *testing.T) {
	for name, a := range map[string]replica.Action{
		"a mark":       replica.Write{HighWatermark: 5},
		"records":      replica.Write{HighWatermark: -1, Batches: []*pb.StoredBatch{{BaseOffset: 3, Count: 1}}},
		"a truncation": replica.Truncate{To: 1},
	} {
		t.Run(name, func(t *testing.T) {
			for _, removed := range []bool{false, true} {
				p := &partition{srv: &Server{writer: newWriter(nil, nil)}, removed: removed}
				p.apply([]replica.Action{a}, &effects{})
				if p.queued == removed {
					t.Errorf("ordered away: %v, written: %v", removed, p.queued)
				}
			}
		})
	}
}
