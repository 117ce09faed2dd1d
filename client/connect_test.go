package client

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/highwater-io/highwater/messages"
)

// A host that falls silent takes its NATS server along. Brokers that are connected to that one have to be somewhere else before
// the controller that takes over may fence them: that is a session and the 4 s for which its predecessor may have gone on
// granting leases.
func TestASilentServerIsLeftBeforeAnybodyIsFenced(t *testing.T) {
	o := nats.GetDefaultOptions()
	for _, set := range ConnectOptions("b1") {
		if err := set(&o); err != nil {
			t.Fatal(err)
		}
	}
	noticed := o.PingInterval * time.Duration(o.MaxPingsOut+1)
	elsewhere := noticed + o.ReconnectWait + o.ReconnectJitter + o.Timeout // one more server may be silent
	s := messages.DefaultSettings()
	if spared := s.Session + 4*time.Second; elsewhere >= spared {
		t.Errorf("a broker is elsewhere after %v, and may be fenced after %v", elsewhere, spared)
	}
	if noticed < s.Session {
		t.Errorf("a server is given up after %v, which a pause of less than a session could be", noticed)
	}
}
