package supervisor

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/highwater-io/highwater/actors"
)

// storm counts crashes, and asks two actors that never crash again and again, one question at a time: a bystander, and
// the registry.
type storm struct {
	stage     *stage
	crashes   atomic.Int64
	witnesses [2]*witness
}

type witness struct {
	address        actors.Address
	base, asked    actors.RequestID
	waiting        bool
	askedAt, worst int64 // in crashes
}

func newStorm(s *stage) *storm {
	return &storm{stage: s, witnesses: [2]*witness{{address: partitionAt(1, 0), base: 1_000_000},
		{address: actors.Registry, base: 2_000_000}}}
}

func (st *storm) ask(n int64) {
	for _, w := range st.witnesses {
		if !w.waiting {
			w.waiting, w.askedAt = true, n
			w.asked++
			st.stage.tell(w.address, call(w.base+w.asked, "read"))
		}
	}
}

// testify is the step of a witness.
func (st *storm) testify(who int) func(actors.Env, *toyState, actors.Message) actors.Effects {
	return func(env actors.Env, s *toyState, msg actors.Message) actors.Effects {
		if _, read := word(msg); read == "read" {
			w := st.witnesses[who]
			w.waiting, w.worst = false, max(w.worst, st.crashes.Load()-w.askedAt)
		}
		return echo(env, s, msg)
	}
}

// crash is the step of everybody else.
func (st *storm) crash(every int64) func(actors.Env, *toyState, actors.Message) actors.Effects {
	bystander := st.testify(0)
	return func(env actors.Env, s *toyState, msg actors.Message) actors.Effects {
		if s.self.Partition.Topic == topicID(1) {
			return bystander(env, s, msg)
		}
		if _, w := word(msg); w == "panic" {
			if n := st.crashes.Add(1) - 1; n%every == 0 {
				st.ask(n)
			}
			panic("storm")
		}
		return actors.Effects{}
	}
}

// TestAStormOfCrashesStarvesNobody has 20,000 actors crash twice each, on one worker, so that what happens before what can
// be counted instead of timed.
func TestAStormOfCrashesStarvesNobody(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const size, every = 20_000, 1_000
		s := newStage(t, size, 1)
		st := newStorm(s)
		s.partitions(&toy{onStep: st.crash(every)})
		s.config.Machines[actors.KindRegistry] = Host(&toy{onStep: st.testify(1)})
		s.config.Limits.Workers, s.config.Limits.Quantum = 1, 1 // so an actor crashes at most once in its turn
		s.start()
		defer s.stop()
		for i := range size {
			s.tell(partitionAt(0, i), call(actors.RequestID(2*i+1), "panic"))
			s.tell(partitionAt(0, i), call(actors.RequestID(2*i+2), "panic"))
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := st.crashes.Load(); n != 2*size {
			t.Fatalf("%d crashes", n)
		}
		for i := range 2 * size {
			if got := s.ear.answered(t, actors.RequestID(i+1)); got != "INTERNAL" {
				t.Fatalf("request %d was answered %q", i+1, got)
			}
		}
		for _, w := range st.witnesses {
			for id := w.base + 1; id <= w.base+w.asked; id++ {
				if got := s.ear.answered(t, id); got != "read" {
					t.Errorf("question %d was answered %q", id, got)
				}
			}
		}
		if w := st.witnesses[0]; w.worst > size || w.asked < 2 {
			t.Errorf("the bystander was asked %d times and waited for up to %d crashes; each of %d actors may go first once",
				w.asked, w.worst, size)
		}
		if w := st.witnesses[1]; w.worst > 2 || w.asked != 2*size/every {
			t.Errorf("the registry was asked %d times and waited for up to %d crashes", w.asked, w.worst)
		}
		if failed := s.tree.Failed(); len(failed) > 0 {
			t.Errorf("%d actors failed for good by two crashes", len(failed))
		}
	})
}
