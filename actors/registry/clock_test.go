package registry

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// TestB123TheWallClockDecidesNothing plays one history twice: with a wall clock that stands, and with one that jumps by hours
// and days in both directions. Every broker is fenced and unfenced at the same time, under the same epochs.
func TestB123TheWallClockDecidesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		still, jumping := newWorld(messages.DefaultSettings()), newWorld(messages.DefaultSettings())
		both := func(f func(w *world)) {
			f(still)
			f(jumping)
		}
		both(func(w *world) { w.step(actors.Activated{}) })
		ids := []string{"b1", "b2", "b3"}
		for _, b := range ids {
			both(func(w *world) { w.join(b) })
		}
		silent := rapid.SampledFrom(ids).Draw(t, "silent")
		for step := range rapid.IntRange(1, 40).Draw(t, "steps") {
			jumping.wall += rapid.SampledFrom([]time.Duration{0, time.Hour, -2 * time.Hour, 24 * time.Hour, -48 * time.Hour}).Draw(t, "jump")
			d := time.Duration(rapid.IntRange(0, 900).Draw(t, "ms")) * time.Millisecond
			switch rapid.IntRange(0, 5).Draw(t, "what") {
			case 0:
				both(func(w *world) { w.stall(d * 4) })
			case 1:
				q := &pb.CreateTopicRequest{Name: fmt.Sprint("t", step), Assignment: []*pb.ReplicaList{{Brokers: ids}}}
				both(func(w *world) { w.ask("op", q) })
			case 2:
				both(func(w *world) { w.load(); w.step(actors.Activated{}) })
			}
			both(func(w *world) { w.wait(d) })
			for _, b := range ids {
				if b != silent {
					both(func(w *world) { w.ask(b, w.beat(messages.BrokerID(b))) })
				}
			}
			if a, b := still.cluster.brokers, jumping.cluster.brokers; !reflect.DeepEqual(a, b) {
				t.Fatalf("at %v the brokers are\n%+v with a clock that jumps, else\n%+v", still.now, b, a)
			}
			if still.applied != jumping.applied || len(still.wakes) != len(jumping.wakes) {
				t.Fatalf("at %v: %d records and %d, %d wake-ups and %d", still.now, still.applied, jumping.applied, len(still.wakes), len(jumping.wakes))
			}
		}
	})
}
