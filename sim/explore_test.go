package sim

import (
	"flag"
	"strings"
	"testing"
	"time"
)

var (
	depth  = flag.Int("depth", 5, "how many steps deep TestExplore goes")
	states = flag.Int("states", 0, "after how many states each scene of TestExplore ends early, 0 for never")
)

var misfortunes = Misfortunes{Claims: 2, Timeouts: 1, ControllerCrashes: 1, BrokerCrashes: 1, Silences: 1, Lags: 1, Retries: 1, Produced: 1}

func TestExplore(t *testing.T) {
	for _, scene := range []Scene{Calm, Joining, Handover} {
		began := time.Now()
		got := Explore(Exploration{Scene: scene, Depth: *depth, MaxStates: *states, Limits: misfortunes})
		t.Logf("%s: %d states and %d transitions to depth %d in %v, all of them: %v", scene, got.States, got.Transitions, got.Depth,
			time.Since(began).Round(time.Millisecond), got.Complete)
		if got.Violation != "" {
			t.Errorf("%s: %s\n%s", scene, got.Violation, strings.Join(got.Path, "\n"))
		}
	}
}
