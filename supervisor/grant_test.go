package supervisor

import (
	"testing"
	"testing/synctest"
	"time"
)

// Idle ticks keep the grants of a quiet controller valid; without a journal they run out, and come back with it.
func TestGrantsAreValidAsLongAsTheJournalTakesEntries(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStage(t, 1)
		s.config.Limits.AppendLimit = time.Minute
		s.config.GrantValidity, s.config.IdleTick, s.config.Claimed = 4*time.Second, time.Second, time.Now()
		s.start()
		defer s.stop()
		left := func() time.Duration {
			synctest.Wait()
			return s.tree.env().GrantUntil - s.tree.env().Now
		}
		time.Sleep(20 * time.Second)
		if l := left(); l < 1500*time.Millisecond || l > 4*time.Second {
			t.Errorf("a quiet controller may grant for another %v", l)
		}
		s.outage(10 * time.Second)
		time.Sleep(5 * time.Second)
		if l := left(); l >= 0 {
			t.Errorf("5 s without a journal, and it may grant for another %v", l)
		}
		time.Sleep(10 * time.Second)
		if l := left(); l < 0 {
			t.Errorf("the journal is back, and grants have ended %v ago", -l)
		}
	})
}
