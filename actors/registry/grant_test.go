package registry

import (
	"testing"
	"time"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// Once the journal has taken nothing for the validity, a successor may be fencing already: no lease is granted any more, and
// nobody is fenced for it.
func TestNoLeaseIsGrantedBeyondTheValidityOfTheJournal(t *testing.T) {
	s := messages.DefaultSettings()
	w := newWorld(s)
	w.step(actors.Activated{})
	w.join("b1")
	w.join("b2")
	for _, c := range []struct {
		name       string
		until, now int64
		doubt      bool // b2 has heard of a successor
		want       uint32
	}{
		{"without a bound", 0, 5, false, uint32(s.Lease().Milliseconds())},
		{"within it", 5, 5, false, uint32(s.Lease().Milliseconds())},
		{"beyond it", 4, 5, false, 0},
		{"within it, and in doubt", 5, 5, true, uint32(s.Lease().Milliseconds())},
		{"beyond it, and in doubt", 4, 5, true, 0},
	} {
		env := w.env()
		if c.doubt {
			later := w.beat("b2")
			later.Seen = &pb.Seen{ControllerEpoch: uint64(env.Controller) + 1}
			w.machine.Step(env, w.state, actors.Request{ID: 1, Principal: "b2", Body: later})
		}
		env.GrantUntil, env.Now = w.now+time.Duration(c.until)*time.Millisecond, w.now+time.Duration(c.now)*time.Millisecond
		if c.until == 0 {
			env.GrantUntil = 0
		}
		_, fx := w.machine.Step(env, w.state, actors.Request{ID: 1, Principal: "b1", Body: w.beat("b1")})
		got := answer[*pb.HeartbeatResponse](fx)
		if got.Error != nil || got.Fenced || got.LeaseMs != c.want {
			t.Errorf("%s: %v, want a lease of %d ms", c.name, got, c.want)
		}
	}
}
