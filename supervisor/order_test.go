package supervisor

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/messages"
)

// everything is a machine that, asked for "all", produces every kind of effect at once.
func everything(_ actors.Env, s *toyState, msg actors.Message) (fx actors.Effects) {
	switch m := msg.(type) {
	case actors.Request:
		fx.Records = []messages.Record{s.bump()}
		fx.Replies = answer(m.ID, "done")
		fx.Tells = []actors.Tell{{To: partitionAt(0, 1), Msg: noted("told")}}
		fx.Broadcast = []actors.Broadcast{{Broker: "b1", Msg: noted("broadcast")}}
		fx.Publish = []actors.Publication{actors.PublishLeadership{Topic: "t0", Partition: s.partition}}
		fx.Wakes = []actors.Wake{{After: time.Hour, Msg: noted("woken")}}
		fx.Events = []actors.Event{noted("decided")}
	case noted:
		fx.Events = []actors.Event{noted(string(m) + "." + string(rune('0'+s.self.Partition.Index)))}
	}
	return fx
}

func TestNothingLeavesBeforeItIsStored(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStage(t, 2)
		s.partitions(&toy{onStep: everything})
		s.start()
		defer s.stop()
		s.ear.onCall = func(call string) {
			if p, _ := s.catalog.Partition(partitionID(0, 0)); p.Epoch != 1 {
				t.Errorf("%s left while the catalog was at epoch %d", call, p.Epoch)
			}
		}
		open := s.gate()
		s.tell(partitionAt(0, 0), call(1, "all"))
		time.Sleep(time.Second)
		synctest.Wait()
		if heard := s.ear.log(); len(heard) > 0 {
			t.Fatalf("before the append was answered there was %q", heard)
		}
		if p, _ := s.catalog.Partition(partitionID(0, 0)); p.Epoch != 0 {
			t.Fatalf("the catalog is at epoch %d before the append was answered", p.Epoch)
		}
		open()
		synctest.Wait()
		heard := s.ear.log()
		if first := heard[0]; first != "reply 1 done" {
			t.Errorf("the first effect was %q", first)
		}
		// The other actor's events may come at any place behind the reply; the actor's own come in order.
		slices.Sort(heard)
		want := []string{"event toy.broadcast.0", "event toy.broadcast.1", "event toy.decided", "event toy.told.1",
			"publish 0@1", "reply 1 done"}
		if !slices.Equal(heard, want) {
			t.Errorf("effects: %q, want %q", heard, want)
		}
		if seen := (messages.Seen{Controller: 1, Sequence: 2}); !slices.Equal(s.ear.seen, []messages.Seen{seen}) {
			t.Errorf("published at %v, want %v", s.ear.seen, seen)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if !slices.Contains(s.ear.log(), "event toy.woken.0") {
			t.Errorf("the wake-up did not come: %q", s.ear.log())
		}
	})
}

func TestNothingLeavesWhenAnotherControllerHasAppended(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStage(t, 2)
		s.partitions(&toy{onStep: everything})
		s.start()
		defer s.stop()
		at, _, err := journal.Recover(t.Context(), s.log, journal.NewCatalog())
		if err != nil {
			t.Fatal(err)
		}
		payload, _, err := journal.EncodeEntry(at, journal.Writer{Controller: "c2", Epoch: 2}, journal.NewStamp(),
			[]messages.Record{&messages.ControllerClaimed{Controller: "c2", Epoch: 2}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.log.Append(t.Context(), at.Last, payload); err != nil {
			t.Fatal(err)
		}
		s.tell(partitionAt(0, 0), call(1, "all"))
		s.tell(partitionAt(0, 0), call(2, "held behind it"))
		<-s.tree.Done()
		s.expect(map[actors.RequestID]string{1: "NOT_ACTIVE_CONTROLLER", 2: "NOT_ACTIVE_CONTROLLER"})
		if heard := s.ear.log(); len(heard) != 2 {
			t.Errorf("effects of a decision that was never stored: %q", heard)
		}
		if deposed := (*journal.Deposed)(nil); !errors.As(s.tree.Err(), &deposed) || deposed.By != "c2" {
			t.Errorf("the tree ended with %v", s.tree.Err())
		}
		if err := s.tree.Tell(partitionAt(0, 1), call(3, "late")); messages.CodeOf(err) != messages.CodeNotActiveController {
			t.Errorf("a deposed tree answers %v", err)
		}
	})
}

func TestLostAppendsAreSettledBeforeAnythingLeaves(t *testing.T) {
	for name, fault := range map[string]journal.FaultKind{
		"lost before": journal.FaultLostBefore, "lost after": journal.FaultLostAfter, "twice": journal.FaultTwice,
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newStage(t, 1)
				s.start()
				defer s.stop()
				s.log.Inject(journal.Fault{Kind: fault})
				s.tell(partitionAt(0, 0), call(1, "write"))
				time.Sleep(time.Second)
				s.expect(map[actors.RequestID]string{1: "write"})
				again := journal.NewCatalog()
				if _, _, err := journal.Recover(t.Context(), s.log, again); err != nil {
					t.Fatal(err)
				}
				if p, _ := again.Partition(partitionID(0, 0)); p.Epoch != 1 {
					t.Errorf("the log holds epoch %d", p.Epoch)
				}
			})
		})
	}
}

func TestMessagesAreHeldInOrderWhileACommitIsOnTheWay(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStage(t, 1)
		var stepped []string
		s.partitions(&toy{onStep: func(env actors.Env, st *toyState, msg actors.Message) actors.Effects {
			switch m := msg.(type) {
			case noted:
				stepped = append(stepped, string(m))
			case actors.Request:
				_, w := word(m)
				stepped = append(stepped, w)
			}
			return echo(env, st, msg)
		}})
		s.config.Limits.Mailbox = 3
		s.start()
		defer s.stop()
		open := s.gate()
		s.tell(partitionAt(0, 0), call(1, "write"))
		synctest.Wait()
		s.tell(partitionAt(0, 0), call(2, "second"))
		s.tell(partitionAt(0, 0), noted("fact"))
		s.tell(partitionAt(0, 0), call(3, "third"))
		if err := s.tree.Tell(partitionAt(0, 0), call(4, "fourth")); messages.CodeOf(err) != messages.CodeBusy {
			t.Errorf("a request beyond the limit: %v", err)
		}
		if err := s.tree.Tell(partitionAt(0, 0), actors.OffsetReport{}); messages.CodeOf(err) != messages.CodeBusy {
			t.Errorf("a report beyond the limit: %v", err)
		}
		for range 100 {
			s.tell(partitionAt(0, 0), noted("fence"))
		}
		s.expect(map[actors.RequestID]string{1: "", 2: "", 3: ""})
		if len(stepped) != 1 {
			t.Fatalf("the machine was given %q while its commit was on the way", stepped)
		}
		open()
		s.expect(map[actors.RequestID]string{1: "write", 2: "second", 3: "third"})
		if want := []string{"write", "second", "fact", "third"}; !slices.Equal(stepped[:4], want) || len(stepped) != 104 {
			t.Errorf("the machine saw %q (%d in all)", stepped[:4], len(stepped))
		}
	})
}

func TestAReloadForgetsWakeUps(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStage(t, 1)
		s.partitions(&toy{onStep: func(_ actors.Env, _ *toyState, msg actors.Message) (fx actors.Effects) {
			switch m := msg.(type) {
			case actors.Activated:
				fx.Wakes = []actors.Wake{{After: time.Minute, Msg: noted(fmt.Sprintf("restarted %v", m.Restarted))}}
			case noted:
				fx.Events = []actors.Event{m}
			case actors.Request:
				panic("on demand")
			}
			return fx
		}})
		s.start()
		defer s.stop()
		time.Sleep(30 * time.Second)
		s.tell(partitionAt(0, 0), call(1, "panic"))
		time.Sleep(time.Hour)
		synctest.Wait()
		if want := []string{"fail 1 INTERNAL", "event toy.restarted true"}; !slices.Equal(s.ear.log(), want) {
			t.Errorf("heard %q, want %q", s.ear.log(), want)
		}
	})
}

func TestResultsOfAnOlderIncarnationAreIgnored(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStage(t, 1)
		s.start()
		defer s.stop()
		open := s.gate()
		s.tell(partitionAt(0, 0), call(1, "write"))
		synctest.Wait()
		h := s.tree.directory.partition(partitionID(0, 0))
		for _, stale := range []outcome{{incarnation: 0, at: 9}, {incarnation: 0, err: errBusy("stale")}, {incarnation: 2, at: 9}} {
			h.mailbox.post(laneUrgent, stale, 0)
		}
		s.tell(partitionAt(0, 0), call(2, "held"))
		s.expect(map[actors.RequestID]string{1: "", 2: ""})
		open()
		s.expect(map[actors.RequestID]string{1: "write", 2: "held"})
		h.mailbox.post(laneUrgent, outcome{incarnation: 1, at: 2}, 0) // once more, with nothing pending
		s.expect(map[actors.RequestID]string{1: "write", 2: "held"})
		if h.incarnation != 1 {
			t.Errorf("incarnation %d", h.incarnation)
		}
	})
}

func TestGroupCommit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStage(t, 200)
		s.start()
		defer s.stop()
		before := s.log.Appends()
		open := s.gate()
		s.tell(partitionAt(0, 0), call(1, "write"))
		synctest.Wait()
		for i := 1; i < 200; i++ {
			s.tell(partitionAt(0, i), call(actors.RequestID(i+1), "write"))
		}
		synctest.Wait()
		if n := s.tree.journal.backlog.Load(); n != 200 {
			t.Errorf("the backlog counts %d records", n)
		}
		open()
		want := map[actors.RequestID]string{}
		for i := range 200 {
			want[actors.RequestID(i+1)] = "write"
		}
		s.expect(want)
		if n := s.log.Appends() - before; n != 2 {
			t.Errorf("200 decisions took %d appends, 199 of them were waiting for the first", n)
		}
		if n := s.tree.journal.backlog.Load(); n != 0 {
			t.Errorf("the backlog counts %d records", n)
		}
	})
}

func TestABacklogTurnsRequestsToPartitionsAway(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStage(t, 10)
		s.config.Limits.Backlog = 4
		s.start()
		defer s.stop()
		open := s.gate()
		for i := range 5 {
			s.tell(partitionAt(0, i), call(actors.RequestID(i+1), "write"))
		}
		synctest.Wait()
		err := s.tree.Tell(partitionAt(0, 7), call(9, "write"))
		if e := messages.AsError(err); e == nil || e.Code != messages.CodeBusy || e.RetryAfterMs == 0 {
			t.Errorf("a request beyond the backlog: %v", err)
		}
		s.tell(partitionAt(0, 7), actors.BrokerChanged{Broker: "b1"})
		s.tell(actors.Registry, call(10, "heartbeat"))
		s.expect(map[actors.RequestID]string{10: "heartbeat"})
		open()
		s.expect(map[actors.RequestID]string{1: "write", 5: "write"})
	})
}
