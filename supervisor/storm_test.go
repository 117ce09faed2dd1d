package supervisor

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/highwater-io/highwater/actors"
)

// TestAStormOfCrashesStarvesNobody has 20,000 actors crash twice each, on one worker, so that what happens before what can
// be counted instead of timed.
func TestAStormOfCrashesStarvesNobody(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const size, every = 20_000, 1_000
		s := newStage(t, size, 1)
		var crashes atomic.Int64
		// Two that crash never are asked again and again, one question at a time: a bystander, and the registry.
		type witness struct {
			address        actors.Address
			base           actors.RequestID
			asked          actors.RequestID
			waiting        bool
			askedAt, worst int64
		}
		witnesses := [2]*witness{{address: partitionAt(1, 0), base: 1_000_000}, {address: actors.Registry, base: 2_000_000}}
		ask := func(n int64) {
			for _, w := range witnesses {
				if !w.waiting {
					w.waiting, w.askedAt = true, n
					w.asked++
					s.tell(w.address, call(w.base+w.asked, "read"))
				}
			}
		}
		watch := func(who int) *toy {
			return &toy{onStep: func(env actors.Env, st *toyState, msg actors.Message) actors.Effects {
				if _, read := word(msg); read == "read" {
					w := witnesses[who]
					w.waiting, w.worst = false, max(w.worst, crashes.Load()-w.askedAt)
				}
				return echo(env, st, msg)
			}}
		}
		bystander := watch(0)
		s.partitions(&toy{onStep: func(env actors.Env, st *toyState, msg actors.Message) actors.Effects {
			if st.self.Partition.Topic == topicID(1) {
				return bystander.onStep(env, st, msg)
			}
			if _, w := word(msg); w == "panic" {
				if n := crashes.Add(1) - 1; n%every == 0 {
					ask(n)
				}
				panic("storm")
			}
			return actors.Effects{}
		}})
		s.config.Machines[actors.KindRegistry] = Host(watch(1))
		s.config.Limits.Workers, s.config.Limits.Quantum = 1, 1 // so an actor crashes at most once in its turn
		s.start()
		defer s.stop()
		for i := range size {
			s.tell(partitionAt(0, i), call(actors.RequestID(2*i+1), "panic"))
			s.tell(partitionAt(0, i), call(actors.RequestID(2*i+2), "panic"))
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := crashes.Load(); n != 2*size {
			t.Fatalf("%d crashes", n)
		}
		for i := range 2 * size {
			if got := s.ear.answered(t, actors.RequestID(i+1)); got != "INTERNAL" {
				t.Fatalf("request %d was answered %q", i+1, got)
			}
		}
		for _, w := range witnesses {
			for id := w.base + 1; id <= w.base+w.asked; id++ {
				if got := s.ear.answered(t, id); got != "read" {
					t.Errorf("question %d was answered %q", id, got)
				}
			}
		}
		if w := witnesses[0]; w.worst > size || w.asked < 2 {
			t.Errorf("the bystander was asked %d times and waited for up to %d crashes; each of %d actors may go first once",
				w.asked, w.worst, size)
		}
		if w := witnesses[1]; w.worst > 2 || w.asked != 2*size/every {
			t.Errorf("the registry was asked %d times and waited for up to %d crashes", w.asked, w.worst)
		}
		if failed := s.tree.Failed(); len(failed) > 0 {
			t.Errorf("%d actors failed for good by two crashes", len(failed))
		}
	})
}
