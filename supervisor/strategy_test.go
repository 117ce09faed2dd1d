package supervisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/rs/zerolog"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
)

func TestPausesGrowWithJitterAndTheHistoryIsBounded(t *testing.T) {
	l := Limits{Restarts: 1_000, RestartWindow: time.Hour}.withDefaults()
	spread := map[int]map[time.Duration]bool{}
	for range 50 {
		var r record
		if pause, failed := r.add(0, l); pause != 0 || failed {
			t.Fatalf("the first failure: pause %s, failed %v", pause, failed)
		}
		for n := range 20 {
			base := min(l.BackoffFirst<<n, l.BackoffMax)
			pause, failed := r.add(time.Duration(n), l)
			if pause < base/2 || pause > base*3/2 || failed {
				t.Fatalf("failure %d: pause %s around %s, failed %v", n+2, pause, base, failed)
			}
			if spread[n] == nil {
				spread[n] = map[time.Duration]bool{}
			}
			spread[n][pause] = true
		}
	}
	for n, pauses := range spread {
		if len(pauses) < 40 {
			t.Errorf("failure %d: only %d different pauses of 50", n+2, len(pauses))
		}
	}
	var r record
	l = Limits{}.withDefaults()
	for n := range 10_000 {
		if _, failed := r.add(time.Duration(n)*13*time.Second, l); failed {
			t.Fatal("one failure every 13 s is within the limit")
		}
		if cap(r.times) > 16 {
			t.Fatalf("the history occupies %d places", cap(r.times))
		}
	}
}

func TestWhatMayBeRefused(t *testing.T) {
	for _, c := range []struct {
		msg            actors.Message
		id             actors.RequestID
		request, maybe bool
	}{
		{actors.Request{ID: 1}, 1, true, true},
		{actors.ISRProposal{Request: 2}, 2, true, true},
		{actors.LeaderReport{Request: 3}, 3, true, true},
		{actors.FeedStart{Request: 4}, 4, true, true},
		{actors.OffsetReport{}, 0, false, true},
		{actors.BrokerChanged{}, 0, false, false},
		{actors.BrokerRestarted{}, 0, false, false},
		{actors.TopicDeleted{}, 0, false, false},
		{actors.Assign{}, 0, false, false},
		{actors.Disconnected{}, 0, false, false},
		{actors.Placement{}, 0, false, false},
		{wake{msg: actors.Request{ID: 5}}, 0, false, false},
	} {
		if id, is := requestOf(c.msg); id != c.id || is != c.request || refusable(c.msg) != c.maybe {
			t.Errorf("%T: id %d, request %v, refusable %v", c.msg, id, is, refusable(c.msg))
		}
	}
}

func TestTheLibraryLogsThroughTheBridge(t *testing.T) {
	var out bytes.Buffer
	logger := slog.New(&bridge{logger: zerolog.New(&out).Level(zerolog.DebugLevel)}).With("system", "s1").WithGroup("g")
	secret := struct{ Password string }{"hunter2"}
	logger.Error("text", "message", secret, "pid", actor.NewPID("local", "hw/a"), "directive", actor.StopDirective,
		"err", errors.New("oops"), "n", int64(7))
	logger.Info("[ACTOR] Recovering")
	logger.Debug("not at this level")
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2 || strings.Contains(out.String(), "hunter2") {
		t.Fatalf("logged:\n%s", out.String())
	}
	var line map[string]any
	if err := json.Unmarshal([]byte(lines[0]), &line); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]any{"level": "error", "message": "text", "pid": "hw/a", "system": "s1", "err": "oops",
		"directive": "StopDirective", "n": 7.0, "actor_message": "struct { Password string }", "library": "protoactor"} {
		if line[key] != want {
			t.Errorf("%s is %v, want %v", key, line[key], want)
		}
	}
	if !strings.Contains(lines[1], `"level":"debug"`) {
		t.Errorf("what the library says for every panic is at another level: %s", lines[1])
	}
	quiet := &bridge{logger: zerolog.New(&out).Level(zerolog.InfoLevel)}
	if quiet.Enabled(context.Background(), slog.LevelInfo) || !quiet.Enabled(context.Background(), slog.LevelWarn) {
		t.Error("the levels are not mapped before a line is made")
	}
}

func TestDeadLettersThatAreRequestsAreAnswered(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStage(t, 1)
		s.start()
		pid := actor.NewPID("nonhost", "hw/nobody")
		s.tree.system.Root.Send(pid, call(1, "lost"))
		s.tree.system.Root.Send(pid, noted("lost"))
		s.stop()
		s.expect(map[actors.RequestID]string{1: string(messages.CodeUnavailable)})
	})
}
