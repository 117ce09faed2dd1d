package broker_test

import (
	"slices"
	"testing"

	"github.com/highwater-io/highwater/broker"
	"github.com/highwater-io/highwater/broker/brokertest"
	"github.com/highwater-io/highwater/messages"
)

// A follower that the controller keeps refusing for longer than the lag, while nobody writes, is proposed until it is let in.
func TestAnIdleFollowerIsProposedUntilItMayJoin(t *testing.T) {
	c := newCluster(t, "a", "b", "c")
	p, _ := c.topic(2, "a", "b", "c")
	in := func(b broker.ID) bool { return slices.Contains(c.ctl.Partition(p).ISR, b) }
	c.ctl.SetFault(func(r brokertest.Request) brokertest.Outcome {
		if r.Verb == messages.VerbHeartbeat && r.Broker == "b" {
			return brokertest.DropRequest
		}
		return brokertest.Deliver
	})
	c.ctl.Fence("b")
	if in("b") {
		t.Fatal("a fenced broker is in the ISR")
	}
	before := len(c.ctl.Requests(messages.VerbISR, "a"))
	eventually(t, "proposals beyond the lag", func() bool { return len(c.ctl.Requests(messages.VerbISR, "a")) >= before+5 })
	c.ctl.SetFault(nil)
	eventually(t, "b to join", func() bool { return in("b") })
}
