//go:build e2e && linux

package e2e

import (
	"testing"
	"time"
)

// The active controller's host loses its way to others, in every manner that a network has: to the other controllers only, to
// the brokers only, and in one direction only. Whether another one takes over is its own affair; that changes are accepted
// again, that everybody finds together when the network is whole, and that histories and leaderships are right, is not.
func TestNetTheActiveControllerIsCutOff(t *testing.T) {
	for _, x := range []struct {
		name string
		cut  func(s *site, victim string)
		// replaced: the others cannot hear it, so another one takes over.
		replaced bool
	}{
		{"from the other controllers and not from the brokers", func(s *site, victim string) { s.net.sever(victim, s.others(victim)...) }, true},
		{"from the brokers and not from the other controllers", func(s *site, victim string) { s.net.sever(victim, brokerHosts...) }, false},
		{"it is not heard by the other controllers", func(s *site, victim string) { s.net.cut(victim, s.others(victim)...) }, true},
		{"it does not hear the other controllers", func(s *site, victim string) { s.net.deafen(victim, s.others(victim)...) }, true},
		{"it is not heard by anybody", func(s *site, victim string) { s.net.cut(victim, append(s.others(victim), brokerHosts...)...) }, true},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, t.TempDir())
			s.startBrokers()
			s.createTopic("orders", 6)
			victim := s.whole("orders")
			s.attach(s.others(victim)...)
			l := s.startLoad("orders", 6, s.others(victim)...)
			l.progress(200)
			_, epoch := s.claimant()
			fault := time.Now()
			x.cut(s, victim)
			t.Logf("first accepted request after %s", s.accepted("after", fault, 90*time.Second))
			l.progress(300)
			now, later := s.claimant()
			if x.replaced && (now == victim || later == epoch) {
				t.Errorf("%s is active in controller epoch %d, as before", now, later)
			}
			t.Logf("%s was cut off under epoch %d, %s is active under %d, writing goes on after %s", victim, epoch, now, later, time.Since(fault))
			s.net.heal()
			healed := time.Now()
			s.whole("orders")
			t.Logf("whole again %s after the network", time.Since(healed))
			l.progress(200)
			l.finish()
			s.checkJournal()
		})
	}
}
