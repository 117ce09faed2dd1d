package sim

import (
	"flag"
	"regexp"
	"strings"
	"testing"
	"time"
)

var (
	depth  = flag.Int("depth", 3, "how many steps deep TestExplore goes")
	narrow = flag.Int("narrow", 4, "how deep it goes where little goes wrong")
	states = flag.Int("states", 0, "after how many states each exploration ends early, 0 for never")
)

var (
	scenes     = []Scene{Calm, Joining, Handover, Contested}
	everything = Misfortunes{Claims: 2, Timeouts: 1, ControllerCrashes: 1, BrokerCrashes: 1, Silences: 1, Lags: 1, Retries: 1, Produced: 1}
	little     = Misfortunes{Claims: 1, BrokerCrashes: 1, Produced: 1}
)

// Nothing that can be reached within the depth violates an invariant.
func TestExplore(t *testing.T) {
	for _, scene := range scenes {
		explore(t, "everything", Exploration{Scene: scene, Depth: *depth, Limits: everything, MaxStates: *states})
		explore(t, "little", Exploration{Scene: scene, Depth: *narrow, Limits: little, MaxStates: *states})
	}
}

func explore(t *testing.T, what string, e Exploration) {
	t.Helper()
	began := time.Now()
	got := Explore(e)
	t.Logf("%s, %s goes wrong: %d states and %d transitions to depth %d in %v, all of them: %v", e.Scene, what, got.States, got.Transitions,
		got.Depth, time.Since(began).Round(time.Millisecond), got.Complete)
	if got.Violation != "" {
		t.Errorf("%s, %s goes wrong: %s\n%s", e.Scene, what, got.Violation, strings.Join(got.Path, "\n"))
	}
}

// Faults that are put in are found, by the shortest path that there is.
func TestExploreFindsInjectedFaults(t *testing.T) {
	for _, c := range []struct {
		name string
		e    Exploration
		says string
	}{
		{"a refusal is the last word", Exploration{Scene: Contested, Limits: Misfortunes{Produced: 1}, Faults: Faults{TrustRefusals: true}, Depth: 9},
			"which ISR member b3 does not have"},
		{"a leader epoch twice", Exploration{Scene: Handover, Faults: Faults{ReuseLeaderEpoch: true}, Depth: 6}, "in leader epoch"},
		{"act before the journal has it", Exploration{Scene: Calm, Limits: Misfortunes{Silences: 1}, Faults: Faults{ReleaseBeforeCommit: true}, Depth: 4}, "not stored"},
		{"claim without an expected end", Exploration{Scene: Handover, Limits: Misfortunes{Claims: 1}, Faults: Faults{AppendAnywhere: true}, Depth: 4}, "does not continue"},
		{"a controller epoch twice", Exploration{Scene: Calm, Limits: Misfortunes{Claims: 1}, Faults: Faults{ReuseEpoch: true}, Depth: 3}, "controller epoch"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Explore(c.e)
			t.Logf("%d states, %d transitions: %s\n%s", got.States, got.Transitions, got.Violation, strings.Join(got.Path, "\n"))
			if !regexp.MustCompile(c.says).MatchString(got.Violation) {
				t.Errorf("found %q in %d states, want %q", got.Violation, got.States, c.says)
			}
		})
	}
}

// The same exploration visits the same states.
func TestExploreIsRepeatable(t *testing.T) {
	e := Exploration{Scene: Contested, Depth: 3, Limits: everything}
	a, b := Explore(e), Explore(e)
	if a.States != b.States || a.Transitions != b.Transitions || a.States < 100 {
		t.Errorf("%d states and %d transitions, then %d and %d", a.States, a.Transitions, b.States, b.Transitions)
	}
}
