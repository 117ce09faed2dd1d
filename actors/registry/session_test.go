package registry

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
)

// TestWhoIsHeardInTimeIsNeverFencedAndWhoIsNotIs lets brokers beat at their own pace, some of them fall silent, and the
// controller stand still for a while now and then, with heartbeats piling up in its queue.
func TestWhoIsHeardInTimeIsNeverFencedAndWhoIsNotIs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(messages.DefaultSettings())
		w.step(actors.Activated{})
		n := rapid.IntRange(1, 12).Draw(t, "brokers")
		due, silent := map[string]time.Duration{}, map[string]time.Duration{} // next heartbeat; last one
		for i := range n {
			b := fmt.Sprintf("b%02d", i)
			w.join(b)
			due[b] = pace(t)
		}
		stalls := rapid.Bool().Draw(t, "stalls")
		for range rapid.IntRange(1, 60).Draw(t, "turns") {
			switch {
			case stalls && rapid.IntRange(0, 9).Draw(t, "stall") == 0:
				w.stall(time.Duration(rapid.IntRange(0, 8000).Draw(t, "ms")) * time.Millisecond)
			case len(due) > 0 && rapid.IntRange(0, 19).Draw(t, "falls silent") == 0:
				b := rapid.SampledFrom(sortedKeys(due)).Draw(t, "broker")
				silent[b] = w.now
				delete(due, b)
			}
			run(t, w, due, w.now+time.Duration(rapid.IntRange(0, 1500).Draw(t, "ms"))*time.Millisecond)
			for b := range due {
				if w.cluster.brokers[messages.BrokerID(b)].Fenced {
					t.Fatalf("%s is heard in time and fenced at %v", b, w.now)
				}
			}
			for b, since := range silent {
				if late := w.now - since; !stalls && late > 3*time.Second+3*time.Second/8+time.Second && !w.cluster.brokers[messages.BrokerID(b)].Fenced {
					t.Fatalf("%s is silent for %v and not fenced", b, late)
				}
			}
		}
		run(t, w, due, w.now+3*time.Second+3*time.Second/8+time.Second)
		for b := range silent {
			if !w.cluster.brokers[messages.BrokerID(b)].Fenced {
				t.Fatalf("%s is silent and not fenced in the end", b)
			}
		}
	})
}

func pace(t *rapid.T) time.Duration {
	return time.Duration(rapid.IntRange(50, 1000).Draw(t, "pace")) * time.Millisecond
}

// run moves the clock, with every heartbeat and wake-up at its time. What is overdue comes now, heartbeats or wake-ups first.
func run(t *rapid.T, w *world, due map[string]time.Duration, until time.Duration) {
	if rapid.Bool().Draw(t, "wake-ups first") {
		w.wait(0)
	}
	for {
		next := until
		for _, at := range due {
			next = min(next, at)
		}
		w.wait(max(0, next-w.now))
		for _, b := range sortedKeys(due) {
			if due[b] <= w.now {
				w.ask(b, w.beat(messages.BrokerID(b)))
				due[b] = w.now + pace(t)
			}
		}
		if w.now >= until {
			return
		}
	}
}

func TestK62TheQueueIsPreciseAndInOrder(t *testing.T) {
	settings := messages.DefaultSettings()
	settings.Session = 10 * time.Second
	w := newWorld(settings)
	w.step(actors.Activated{})
	var fenced []string
	w.observe = func(_ actors.Message, fx actors.Effects) {
		for _, e := range fx.Events {
			if f, ok := e.(BrokerFenced); ok {
				fenced = append(fenced, fmt.Sprintf("%s at %v", f.Broker, w.now))
			}
		}
	}
	at := func(second int, b string, beat func(string)) {
		w.wait(time.Duration(second)*time.Second - w.now)
		beat(b)
	}
	heard := func(b string) { w.ask(b, w.beat(messages.BrokerID(b))) }
	at(0, "b0", w.join)
	at(0, "b1", w.join)
	at(0, "b2", w.join)
	at(0, "b3", w.join)
	at(2, "b1", heard)
	at(3, "b2", heard)
	at(4, "b3", heard)
	w.wait(9*time.Second - w.now)
	if len(fenced) != 0 {
		t.Fatalf("fenced too early: %v", fenced)
	}
	at(11, "b3", heard)
	w.wait(time.Minute)
	want := []string{"b0 at 10s", "b1 at 12s", "b2 at 13s", "b3 at 21s"}
	if !slices.Equal(fenced, want) {
		t.Fatalf("fenced %v, want %v", fenced, want)
	}
}

func TestK76AFirstSessionIsLongerWhileAPredecessorMayGrantLeases(t *testing.T) {
	w := newWorld(messages.DefaultSettings())
	w.step(actors.Activated{})
	w.join("b1")
	w.join("b2")
	w.machine.GrantValidity = 4 * time.Second
	w.load()
	w.step(actors.Activated{})
	w.wait(time.Second)
	w.ask("b1", w.beat("b1"))       // an answer does not shorten it
	w.wait(6300 * time.Millisecond) // until 7.3 s: 4 s, a tenth more for clocks, 3 s
	if w.cluster.brokers["b1"].Fenced || w.cluster.brokers["b2"].Fenced {
		t.Fatal("fenced while a lease of the predecessor may be valid")
	}
	w.wait(200 * time.Millisecond)
	if !w.cluster.brokers["b1"].Fenced || !w.cluster.brokers["b2"].Fenced {
		t.Fatal("not fenced after validity and session")
	}
}

func TestManySilentBrokersAreFencedInEntriesOfBoundedSize(t *testing.T) {
	w := newWorld(messages.DefaultSettings())
	w.step(actors.Activated{})
	const brokers = 3*maxFencesPerStep + 7
	for i := range brokers {
		w.join(fmt.Sprintf("b%d", i))
	}
	fenced := 0
	w.observe = func(_ actors.Message, fx actors.Effects) {
		if n := len(fx.Records); n > maxFencesPerStep || n != len(fx.Broadcast) {
			t.Fatalf("%d records and %d broadcasts in one step", n, len(fx.Broadcast))
		}
		fenced += len(fx.Records)
	}
	w.wait(3*time.Second + 10*time.Millisecond)
	if fenced != brokers {
		t.Fatalf("%d of %d are fenced", fenced, brokers)
	}
}

func TestAFenceThatWasNotCommittedIsMadeUpFor(t *testing.T) {
	w := newWorld(messages.DefaultSettings())
	w.step(actors.Activated{})
	w.join("b1")
	active := w.cluster.brokers["b1"]
	w.wait(3 * time.Second)
	w.cluster.apply(active) // as if the record had been refused
	w.wait(4 * time.Second)
	if !w.cluster.brokers["b1"].Fenced {
		t.Fatal("an unfenced broker is out of sight")
	}
}

func BenchmarkHeartbeats(b *testing.B) {
	w := newWorld(messages.DefaultSettings())
	w.step(actors.Activated{})
	const brokers = 1000
	requests := make([]actors.Request, brokers)
	for i := range requests {
		id := fmt.Sprintf("b%d", i)
		w.join(id)
		beat := w.beat(messages.BrokerID(id))
		beat.Connection = connectionArg(fmt.Sprintf("S/%d", i+1))
		requests[i] = actors.Request{ID: 1, Principal: id, Body: beat}
	}
	env := w.env()
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		env.Now += 500 * time.Millisecond / brokers
		for env.Now > w.state.tickDue {
			w.machine.Step(env, w.state, actors.Tick{})
		}
		if _, fx := w.machine.Step(env, w.state, requests[i%brokers]); len(fx.Replies) != 1 || len(fx.Records) != 0 {
			b.Fatalf("%+v", fx)
		}
		i++
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "heartbeats/s")
}

// Loading very many partitions takes longer than a session. Whoever could not be heard meanwhile has not been silent.
func TestSessionsBeginWhenBrokersCanBeHeard(t *testing.T) {
	w := newWorld(messages.DefaultSettings())
	w.step(actors.Activated{})
	w.join("b1")
	w.join("b2")
	w.machine.AwaitOpen = true
	w.load()
	w.step(actors.Activated{})
	fenced := func(b messages.BrokerID) bool { return w.cluster.brokers[b].Fenced }
	w.wait(20 * time.Second)
	if fenced("b1") || fenced("b2") {
		t.Fatal("fenced before it could be heard")
	}
	w.step(actors.Opened{})
	w.wait(2900 * time.Millisecond)
	if fenced("b1") || fenced("b2") {
		t.Fatal("fenced before its session was over")
	}
	w.ask("b1", w.beat("b1"))
	w.wait(500 * time.Millisecond)
	if fenced("b1") || !fenced("b2") {
		t.Fatalf("b1, which was heard, is fenced: %t; b2, which was not: %t", fenced("b1"), fenced("b2"))
	}
	w.load()
	w.step(actors.Activated{Restarted: true}) // it is not told again that the way in is open
	w.wait(3500 * time.Millisecond)
	if !fenced("b1") {
		t.Fatal("after a fault of the registry silence does not count any more")
	}
}
