package natsbus

import (
	"testing"
	"time"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

func TestABrokerThatTakesNothingUpIsMissed(t *testing.T) {
	const patience = 10 * time.Second
	r, b := newResponses(), &messages.Broker{ID: "b1", Epoch: 5}
	now := time.Now()
	at := func(want bool, after time.Duration, why string) {
		t.Helper()
		if now = now.Add(after); r.missing(b, now, patience) != want {
			t.Errorf("%s: missing is %v", why, !want)
		}
	}
	at(false, time.Hour, "nothing was ever sent")
	r.sent(b, feedAt{7, 1}, now)
	at(false, patience, "it has its time")
	at(true, time.Second, "and has let it pass")
	r.beat(b, &pb.FeedPosition{Feed: 7, Position: 1}, now)
	at(false, time.Hour, "it has all, and there is nothing new")
	r.sent(b, feedAt{7, 2}, now)
	r.sent(b, feedAt{7, 3}, now)
	at(false, patience, "two at once")
	r.beat(b, &pb.FeedPosition{Feed: 7, Position: 2}, now)
	at(false, patience, "slow, but at work")
	at(true, time.Second, "stuck")
	r.beat(b, &pb.FeedPosition{Feed: 7, Position: 2}, now)
	at(true, 0, "the same position again is no work")
	r.sent(b, feedAt{8, 0}, now)
	at(true, 0, "another feed brings no new time")
	r.beat(b, &pb.FeedPosition{Feed: 8, Position: 4}, now)
	at(false, 0, "it has taken a snapshot")
	r.led(b, false)
	at(true, 0, "it has all, but does not lead")
	b = &messages.Broker{ID: "b1", Epoch: 6}
	at(false, 0, "another registration")
	r.led(b, false)
	r.led(b, true)
	at(false, 0, "it leads")
}
