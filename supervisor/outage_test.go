package supervisor

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/messages"
)

// outage stores nothing for d of virtual time: half of the appends are refused, the others get no answer.
func (s *stage) outage(d time.Duration) {
	end := time.Now().Add(d)
	n := 0
	s.log.InjectFunc(func(messages.Sequence, []byte) journal.Fault {
		if !time.Now().Before(end) {
			return journal.Fault{}
		}
		if n++; n%2 == 0 {
			return journal.Fault{Kind: journal.FaultLostBefore}
		}
		return journal.Fault{Kind: journal.FaultRefused}
	})
}

func TestEverythingAnswersAfterAnOutageOfTheStore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const partitions = 500
		s := newStage(t, partitions)
		s.config.Limits.AppendLimit = time.Minute
		s.config.Limits.Mailbox = 4
		s.start()
		defer s.stop()
		s.outage(30 * time.Second)
		id, busy := actors.RequestID(0), 0
		for range 35 {
			for i := range partitions {
				id++
				if err := s.tree.Tell(partitionAt(0, i), call(id, "write")); messages.CodeOf(err) == messages.CodeBusy {
					busy++
					id--
				} else if err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(time.Second)
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		for n := actors.RequestID(1); n <= id; n++ {
			if got := s.ear.answered(t, n); got != "write" {
				t.Fatalf("request %d of %d was answered %q", n, id, got)
			}
		}
		if busy == 0 {
			t.Error("nothing was refused in 30 s without a store")
		}
		if failed := s.tree.Failed(); len(failed) > 0 || s.tree.Err() != nil {
			t.Errorf("an outage is no failure of actors: %v, %v", failed, s.tree.Err())
		}
	})
}

func TestAStoreThatStaysAwayEndsTheTree(t *testing.T) {
	for name, fault := range map[string]func(*stage){
		"silent": func(s *stage) { s.log.Inject(journal.Fault{Before: make(chan struct{})}); s.outage(time.Hour) },
		"errors": func(s *stage) { s.outage(time.Hour) },
		"ticks only": func(s *stage) {
			s.log.InjectFunc(func(_ messages.Sequence, payload []byte) journal.Fault {
				if e, err := journal.DecodeEntry(2, payload); err == nil && len(e.Records) == 0 {
					return journal.Fault{}
				}
				return journal.Fault{Kind: journal.FaultRefused}
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newStage(t, 3)
				s.start()
				defer s.stop()
				began := time.Now()
				fault(s)
				for i := range 3 {
					s.tell(partitionAt(0, i), call(actors.RequestID(i+1), "write"))
					s.tell(partitionAt(0, i), call(actors.RequestID(i+11), "held"))
				}
				<-s.tree.Done()
				if after := time.Since(began); after != 15*time.Second {
					t.Errorf("the tree ended after %s", after)
				}
				s.expect(map[actors.RequestID]string{1: "OUTCOME_UNKNOWN", 2: "OUTCOME_UNKNOWN", 3: "OUTCOME_UNKNOWN",
					11: "UNAVAILABLE", 12: "UNAVAILABLE", 13: "UNAVAILABLE"})
				if messages.CodeOf(s.tree.Err()) != messages.CodeUnavailable {
					t.Errorf("the tree ended with %v", s.tree.Err())
				}
			})
		})
	}
}

// deaf is a log that minds no context and answers when it is allowed to.
type deaf struct {
	journal.Log
	allowed chan struct{}
}

func (d *deaf) Append(ctx context.Context, expected messages.Sequence, payload []byte) (messages.Sequence, error) {
	<-d.allowed
	return d.Log.Append(context.WithoutCancel(ctx), expected, payload)
}

func TestAnAnswerThatComesAfterTheEndChangesNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStage(t, 1)
		log := &deaf{Log: s.log, allowed: make(chan struct{})}
		s.config.Log = log
		s.start()
		defer s.stop()
		s.tell(partitionAt(0, 0), call(1, "write"))
		<-s.tree.Done()
		s.expect(map[actors.RequestID]string{1: "OUTCOME_UNKNOWN"})
		close(log.allowed)
		synctest.Wait()
		if at := s.catalog.Applied(); at != s.config.Position.Last {
			t.Errorf("the catalog moved to %d after the tree had ended", at)
		}
		s.expect(map[actors.RequestID]string{1: "OUTCOME_UNKNOWN"})
	})
}

func TestAnAppendThatIsSlowButCommitsIsPatientlyWaitedFor(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStage(t, 1)
		s.start()
		defer s.stop()
		for range 5 {
			open := s.gate()
			time.AfterFunc(4*time.Second, open)
			id := actors.RequestID(time.Now().UnixNano())
			s.tell(partitionAt(0, 0), call(id, "write"))
			time.Sleep(4 * time.Second)
			s.expect(map[actors.RequestID]string{id: "write"})
		}
		if s.tree.Err() != nil {
			t.Error(s.tree.Err())
		}
	})
}

func TestStopWaitsForTheCommitOnTheWay(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStage(t, 2)
		s.start()
		open := s.gate()
		s.tell(partitionAt(0, 0), call(1, "write"))
		synctest.Wait()
		s.tell(partitionAt(0, 0), call(2, "held"))
		time.AfterFunc(3*time.Second, open)
		began := time.Now()
		s.stop()
		if time.Since(began) != 3*time.Second {
			t.Errorf("stopped after %s", time.Since(began))
		}
		s.expect(map[actors.RequestID]string{1: "write", 2: "UNAVAILABLE"})
		if err := s.tree.Tell(partitionAt(0, 1), call(3, "late")); messages.CodeOf(err) != messages.CodeUnavailable {
			t.Errorf("a stopped tree answers %v", err)
		}
		<-s.tree.Done()
		if s.tree.Err() != nil {
			t.Errorf("an ordinary stop ended with %v", s.tree.Err())
		}
		s.stop() // again: the same
	})
}

func TestStopDoesNotWaitBeyondItsContext(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStage(t, 2)
		s.start()
		defer s.gate()()
		s.tell(partitionAt(0, 0), call(1, "write"))
		synctest.Wait()
		s.tell(partitionAt(0, 0), call(2, "held"))
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		if err := s.tree.Stop(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("stopped with %v", err)
		}
		s.expect(map[actors.RequestID]string{1: "OUTCOME_UNKNOWN", 2: "UNAVAILABLE"})
	})
}

func TestStopEndsActorsThatAreInAPause(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStage(t, 1)
		s.partitions((&fragile{broken: &atomic.Bool{}}).machine())
		s.start()
		s.tell(partitionAt(0, 0), call(1, "panic"))
		s.tell(partitionAt(0, 0), call(2, "panic"))
		s.tell(partitionAt(0, 0), call(3, "waits for the end of the pause"))
		s.expect(map[actors.RequestID]string{2: "INTERNAL", 3: ""})
		s.stop()
		s.expect(map[actors.RequestID]string{1: "INTERNAL", 2: "INTERNAL", 3: "UNAVAILABLE"})
		time.Sleep(time.Minute) // the timer of the pause finds nobody
	})
}

// Real time, real threads: for the race detector.
func TestEveryRequestIsAnsweredOnceWhateverHappens(t *testing.T) {
	defer goleak.VerifyNone(t)
	s := newStage(t, 40)
	s.partitions((&fragile{broken: &atomic.Bool{}, only: -1}).machine())
	s.config.Limits = Limits{Mailbox: 8, BackoffFirst: time.Millisecond, Restarts: 50, Slice: 7, Children: 10}
	s.start()
	var admitted sync.Map
	var senders sync.WaitGroup
	var ids, total atomic.Uint64
	enough := make(chan struct{})
	for range 4 {
		senders.Go(func() {
			for n := 0; n < 3_000; {
				id := actors.RequestID(ids.Add(1))
				w := [3]string{"write", "read", "write"}[n%3]
				if n%100 == 3 {
					w = "panic"
				}
				err := s.tree.Tell(partitionAt(0, int(id)%40), call(id, w))
				if messages.CodeOf(err) == messages.CodeBusy {
					runtime.Gosched()
					continue
				}
				if n++; err == nil {
					admitted.Store(id, w)
				}
				if total.Add(1) == 9_000 {
					close(enough)
				}
			}
		})
	}
	<-enough
	s.stop() // while requests are still coming
	senders.Wait()
	n, kinds := 0, map[string]int{}
	admitted.Range(func(key, asked any) bool {
		n++
		got := s.ear.answered(t, key.(actors.RequestID))
		kinds[got]++
		if got == "" || (got == "INTERNAL") != (asked == "panic") && got != "UNAVAILABLE" {
			t.Errorf("request %v, %q, was answered %q", key, asked, got)
		}
		return true
	})
	if len(s.ear.answers) != n {
		t.Errorf("%d requests were admitted and %d answered", n, len(s.ear.answers))
	}
	if kinds["write"] == 0 || kinds["read"] == 0 || kinds["INTERNAL"] == 0 {
		t.Errorf("answers: %v", kinds)
	}
}
