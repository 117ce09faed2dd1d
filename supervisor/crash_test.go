package supervisor

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/messages"
)

// fragile is a machine that panics at one point of its life as long as broken says so. Requests are answered by echo;
// "panic" always panics.
type fragile struct {
	point  string
	broken *atomic.Bool
	// only is the partition that it concerns.
	only int32
	mu   sync.Mutex
	// activations are the Restarted flags of partition only, in order.
	activations []bool
}

func (f *fragile) activated() []bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.activations)
}

func (f *fragile) at(point string, self actors.Address) {
	if f.point == point && f.broken.Load() && self.Partition.Index == f.only {
		panic("at " + point)
	}
}

func (f *fragile) machine() *toy {
	return &toy{
		onLoad: func(_ actors.Env, self actors.Address) error {
			f.at("load", self)
			if f.point == "load error" && f.broken.Load() && self.Partition.Index == f.only {
				return errors.New("cannot be loaded")
			}
			return nil
		},
		onStep: func(env actors.Env, s *toyState, msg actors.Message) (fx actors.Effects) {
			switch m := msg.(type) {
			case actors.Activated:
				if s.self.Partition.Index == f.only {
					f.mu.Lock()
					f.activations = append(f.activations, m.Restarted)
					f.mu.Unlock()
				}
				if m.Restarted && m.Takeover {
					panic("a restarted actor begins with nobody")
				}
				f.at("activated", s.self)
				fx.Wakes = []actors.Wake{{After: time.Second, Msg: noted("wake")}}
			case noted:
				f.at(string(m), s.self)
			case actors.Request:
				f.at("request", s.self)
				if _, w := word(m); w == "panic" {
					panic("on demand")
				}
				return echo(env, s, msg)
			}
			return fx
		},
	}
}

func TestAPanicAtAnyPointCostsOneMessageOnly(t *testing.T) {
	for _, point := range []string{"load", "load error", "activated", "wake", "fact", "request"} {
		t.Run(point, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newStage(t, 2)
				f := &fragile{point: point, broken: &atomic.Bool{}}
				s.partitions(f.machine())
				f.broken.Store(true)
				repaired := time.AfterFunc(100*time.Millisecond, func() { f.broken.Store(false) })
				s.start() // returns when the actor is up or has failed
				defer s.stop()
				repaired.Stop()
				switch point {
				case "fact":
					s.tell(partitionAt(0, 0), noted("fact"))
				case "wake":
					time.Sleep(time.Second)
				case "request":
					s.tell(partitionAt(0, 0), call(9, "lost"))
				}
				synctest.Wait()
				f.broken.Store(false)
				s.tell(partitionAt(0, 0), call(1, "write"))
				s.tell(partitionAt(0, 1), call(2, "write"))
				time.Sleep(10 * time.Second)
				want := map[actors.RequestID]string{1: "write", 2: "write"}
				if point == "request" {
					want[9] = "INTERNAL"
				}
				s.expect(want)
				if h := s.tree.directory.partition(partitionID(0, 0)); h.incarnation < 2 {
					t.Errorf("nothing has crashed")
				}
				if len(s.tree.Failed()) > 0 || s.tree.Err() != nil {
					t.Errorf("failed %v, err %v", s.tree.Failed(), s.tree.Err())
				}
				if all := f.activated(); !all[len(all)-1] {
					t.Errorf("the new incarnation was not told that it is one: %v", all)
				}
			})
		})
	}
}

func TestHeldMessagesSurviveACrash(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStage(t, 1)
		s.partitions((&fragile{broken: &atomic.Bool{}}).machine())
		s.start()
		defer s.stop()
		open := s.gate()
		s.tell(partitionAt(0, 0), call(1, "write"))
		synctest.Wait()
		want := map[actors.RequestID]string{1: "write"}
		for id := actors.RequestID(2); id < 20; id++ {
			w := "read"
			want[id] = w
			if id%5 == 0 {
				w, want[id] = "panic", "INTERNAL"
			}
			s.tell(partitionAt(0, 0), call(id, w))
		}
		open()
		synctest.Wait()
		time.Sleep(time.Minute)
		s.expect(want)
		h := s.tree.directory.partition(partitionID(0, 0))
		if h.incarnation != 4 {
			t.Errorf("after three crashes the incarnation is %d", h.incarnation)
		}
		if p := h.body.(*stateful[*toyState]).state.partition; p.Epoch != 1 {
			t.Errorf("the state after the reload is at epoch %d, the catalog is at 1", p.Epoch)
		}
	})
}

func TestAnEdgeThatPanicsHurtsNobody(t *testing.T) {
	for _, broken := range []string{"reply", "publish", "event", "fail"} {
		t.Run(broken, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newStage(t, 2)
				s.partitions(&toy{onStep: func(env actors.Env, st *toyState, msg actors.Message) actors.Effects {
					if _, w := word(msg); w == "panic" {
						panic("on demand")
					}
					return everything(env, st, msg)
				}})
				s.start()
				defer s.stop()
				s.ear.onCall = func(call string) {
					if call == broken {
						panic("the edge is broken")
					}
				}
				s.tell(partitionAt(0, 0), call(1, "all"))
				s.tell(partitionAt(0, 0), call(2, "panic"))
				synctest.Wait()
				s.ear.onCall = nil
				s.tell(partitionAt(0, 0), call(3, "all"))
				s.expect(map[actors.RequestID]string{3: "done"})
				if h := s.tree.directory.partition(partitionID(0, 0)); h.incarnation != 2 {
					t.Errorf("incarnation %d; only the machine's own panic may count", h.incarnation)
				}
				if want := "event toy.told.1"; broken != "event" && !slices.Contains(s.ear.log(), want) {
					t.Errorf("%q is missing in %q", want, s.ear.log())
				}
			})
		})
	}
}

func TestTheSixthCrashInAMinuteFailsTheActor(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStage(t, 2)
		f := &fragile{broken: &atomic.Bool{}}
		s.partitions(f.machine())
		s.start()
		defer s.stop()
		id := actors.RequestID(0)
		crash := func() {
			id++
			s.tell(partitionAt(0, 0), call(id, "panic"))
			time.Sleep(3 * time.Second) // longer than the longest pause within the limit
			s.expect(map[actors.RequestID]string{id: "INTERNAL"})
		}
		for range 5 {
			crash()
		}
		if failed := s.tree.Failed(); len(failed) > 0 {
			t.Fatalf("failed after five crashes: %v", failed)
		}
		s.tell(partitionAt(0, 0), call(100, "panic"))
		s.tell(partitionAt(0, 0), call(101, "queued behind the last crash"))
		s.tell(partitionAt(0, 0), noted("a fact that must not be lost"))
		s.expect(map[actors.RequestID]string{100: "INTERNAL", 101: "UNAVAILABLE"})
		if failed := s.tree.Failed(); !slices.Equal(failed, []actors.Address{partitionAt(0, 0)}) {
			t.Fatalf("failed: %v", failed)
		}
		if err := s.tree.Tell(partitionAt(0, 0), call(102, "refused")); messages.CodeOf(err) != messages.CodeUnavailable {
			t.Errorf("a failed actor answers %v", err)
		}
		s.tell(partitionAt(0, 1), call(103, "write"))
		s.expect(map[actors.RequestID]string{103: "write"})
		loads := len(f.activated())
		time.Sleep(59 * time.Second)
		synctest.Wait()
		if len(f.activated()) != loads {
			t.Errorf("it was tried again within the minute")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if failed := s.tree.Failed(); len(failed) > 0 || len(f.activated()) != loads+1 {
			t.Fatalf("after the attempt: failed %v, %d loads", failed, len(f.activated())-loads)
		}
		s.tell(partitionAt(0, 0), call(104, "write"))
		s.expect(map[actors.RequestID]string{104: "write"})

		s.tell(partitionAt(0, 0), call(105, "panic")) // soon after the attempt: one is too many
		s.expect(map[actors.RequestID]string{105: "INTERNAL"})
		if failed := s.tree.Failed(); len(failed) != 1 {
			t.Errorf("a crash right after the attempt was forgiven")
		}
		time.Sleep(3 * time.Minute) // loaded for more than a minute by now: as good as new
		id = 200
		crash()
		if failed := s.tree.Failed(); len(failed) != 0 {
			t.Errorf("a crash long after the attempt was not forgiven")
		}
	})
}

func TestAnActorThatCannotLoadIsTriedOnceAMinute(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStage(t, 2)
		f := &fragile{point: "load", broken: &atomic.Bool{}}
		f.broken.Store(true)
		var loads atomic.Int32
		m := f.machine()
		load := m.onLoad
		m.onLoad = func(env actors.Env, self actors.Address) error {
			if self.Partition.Index == 0 {
				loads.Add(1)
			}
			return load(env, self)
		}
		s.partitions(m)
		s.start()
		defer s.stop()
		if failed := s.tree.Failed(); !slices.Equal(failed, []actors.Address{partitionAt(0, 0)}) {
			t.Fatalf("started with failed %v", failed)
		}
		before := loads.Load()
		if before != 6 {
			t.Errorf("%d loads until it was marked failed", before)
		}
		s.tell(partitionAt(0, 0), noted("kept"))
		time.Sleep(10*time.Minute + time.Second)
		synctest.Wait()
		if n := loads.Load() - before; n != 10 {
			t.Errorf("%d attempts in ten minutes", n)
		}
		f.broken.Store(false)
		time.Sleep(time.Minute)
		s.tell(partitionAt(0, 0), call(1, "write"))
		s.expect(map[actors.RequestID]string{1: "write"})
		if st := s.tree.directory.partition(partitionID(0, 0)).body.(*stateful[*toyState]).state; st.steps != 4 {
			t.Errorf("%d steps; expected were Activated, the fact that was kept, a wake-up, and the request", st.steps)
		}
	})
}

func TestTheRegistryMustStart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStage(t, 1)
		s.config.Machines[actors.KindRegistry] = Host(&toy{onLoad: func(actors.Env, actors.Address) error { panic("no") }})
		if _, err := Start(s.config); messages.CodeOf(err) != messages.CodeInternal {
			t.Errorf("started with %v", err)
		}
	})
}

func TestRecordsThatCannotBeWrittenCostOneActorOnly(t *testing.T) {
	for name, bad := range map[string]messages.Record{
		"broken invariant": &messages.Partition{ID: partitionID(0, 0), Leader: "nobody"},
		"nil":              (*messages.Partition)(nil),
		"no record":        nil,
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newStage(t, 2)
				s.partitions(&toy{onStep: func(env actors.Env, st *toyState, msg actors.Message) actors.Effects {
					if id, w := word(msg); w == "bad" {
						return actors.Effects{Records: []messages.Record{bad}, Replies: answer(id, "stored")}
					}
					return echo(env, st, msg)
				}})
				s.start()
				defer s.stop()
				s.tell(partitionAt(0, 0), call(1, "bad"))
				s.tell(partitionAt(0, 0), call(2, "write"))
				s.tell(partitionAt(0, 1), call(3, "write"))
				s.expect(map[actors.RequestID]string{1: "INTERNAL", 2: "write", 3: "write"})
			})
		})
	}
}

func TestALogThatPanicsIsALogThatDoesNotAnswer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStage(t, 1)
		s.config.Log = &panicky{Log: s.log}
		s.start()
		defer s.stop()
		s.tell(partitionAt(0, 0), call(1, "write"))
		time.Sleep(time.Second)
		s.expect(map[actors.RequestID]string{1: "write"})
	})
}

// panicky is a log whose first append panics.
type panicky struct {
	journal.Log
	once atomic.Bool
}

func (p *panicky) Append(ctx context.Context, expected messages.Sequence, payload []byte) (messages.Sequence, error) {
	if p.once.CompareAndSwap(false, true) {
		panic("a log must not do this")
	}
	return p.Log.Append(ctx, expected, payload)
}

func TestAFaultOfASupervisorEndsTheTree(t *testing.T) {
	for name, poison := range map[string]func(*stage){
		"journal":  func(s *stage) { s.catalog.Apply(100, nil) }, // somebody else writes to it: the next commit is older
		"outboxes": func(s *stage) { s.tree.outboxes.mailbox.post(laneOrdinary, spawnOutbox{}, 0) },
		"strategy": func(s *stage) {
			s.tree.strategy.HandleFailure(nil, nil, s.tree.root, nil, "a panic that is not of a machine", nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newStage(t, 1)
				s.start()
				defer s.stop()
				open := s.gate()
				s.tell(partitionAt(0, 0), call(1, "write"))
				s.tell(partitionAt(0, 0), call(2, "held"))
				synctest.Wait()
				poison(s)
				synctest.Wait()
				open()
				<-s.tree.Done()
				if s.tree.Err() == nil {
					t.Error("the tree ended without an error")
				}
				want := map[actors.RequestID]string{1: "write", 2: "UNAVAILABLE"} // the journal goes on with what it has
				if name == "journal" {
					want[1] = "OUTCOME_UNKNOWN"
				}
				s.expect(want)
			})
		})
	}
}

func TestACrashIsLoggedWithItsStackAndAStormIsNot(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var out strings.Builder
		s := newStage(t, 60)
		s.config.Logger = zerolog.New(zerolog.SyncWriter(&out))
		s.partitions((&fragile{broken: &atomic.Bool{}, only: -1}).machine())
		s.start()
		for i := range 60 {
			s.tell(partitionAt(0, i), call(actors.RequestID(i+1), "panic"))
		}
		synctest.Wait()
		time.Sleep(2 * time.Second)
		s.tell(partitionAt(0, 0), call(99, "panic"))
		synctest.Wait()
		s.stop()
		text := out.String()
		if n := strings.Count(text, "an actor has crashed"); n != crashLines+1 {
			t.Errorf("%d lines for 61 crashes", n)
		}
		for _, part := range []string{`"reason":"on demand"`, "crash_test.go", `"skipped":40`, `"actor":"partition 01`} {
			if !strings.Contains(text, part) {
				t.Errorf("%s is not in the log:\n%.2000s", part, text)
			}
		}
	})
}
