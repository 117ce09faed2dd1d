package broker

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// joined starts a member on a scripted bus in the test's bubble.
func joined(t *testing.T, s *script) (*Member, *fakeBus, *recorder) {
	t.Helper()
	b, r := newFakeBus(), &recorder{}
	b.answer = s.answer
	m, err := join(t.Context(), b, "c", "b1", r, newConfig(nil))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m, b, r
}

// bubble runs a test with a clock of its own.
func bubble(t *testing.T, f func(t *testing.T)) { synctest.Test(t, f) }

func TestLeaseCountsFromTheMomentOfSending(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m, b, _ := joined(t, newScript())
		time.Sleep(3200 * time.Millisecond)
		synctest.Wait()
		// The last heartbeat is answered 100 ms after it was sent; then none is any more.
		b.set(func() { b.answer = nil })
		last := m.State().LastHeartbeat
		time.Sleep(time.Until(last.Add(2699 * time.Millisecond)))
		if !m.s.lease.valid(time.Now()) {
			t.Error("the lease ended early")
		}
		time.Sleep(2 * time.Millisecond)
		if m.s.lease.valid(time.Now()) {
			t.Error("the lease outlives 2.7 s from the sending of the last answered heartbeat")
		}
	})
}

func TestB42IsolatedLeaderIsNotValidButStaysCurrent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript()
		s.assignments = []*pb.Assignment{assignmentFor("b1", 1, 1)}
		_, b, r := joined(t, s)
		time.Sleep(time.Second)
		synctest.Wait()
		l := r.leadership()
		if l == nil || !l.Valid() {
			t.Fatal("a leader with answered heartbeats has no lease")
		}
		b.set(func() { b.up = false })
		b.events <- nats.RECONNECTING
		synctest.Wait()
		if l.Valid() {
			t.Error("the lease holds without a connection")
		}
		if !l.Current() {
			t.Error("a leader that has heard of no other is not current")
		}
		// Back again: only an answered heartbeat brings the lease back.
		b.set(func() { b.up = true; s.silent[messages.VerbHeartbeat] = true })
		b.events <- nats.CONNECTED
		synctest.Wait()
		if l.Valid() {
			t.Error("the lease is back without an answered heartbeat")
		}
		b.set(func() { s.silent[messages.VerbHeartbeat] = false })
		time.Sleep(700 * time.Millisecond)
		synctest.Wait()
		if !l.Valid() {
			t.Error("the lease is not back after an answered heartbeat")
		}
	})
}

func TestAnAnswerToAHeartbeatFromBeforeTheLossDoesNotCount(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var l lease
		g, sent := l.begin(), time.Now()
		l.end()
		l.grant(g, sent, time.Hour)
		if l.valid(time.Now()) {
			t.Error("valid")
		}
		l.grant(l.begin(), sent, time.Second)
		l.grant(l.begin(), sent.Add(-time.Second), time.Second)
		if !l.valid(sent.Add(999*time.Millisecond)) || l.valid(sent.Add(time.Second)) {
			t.Error("an overtaken answer shortened or lengthened the lease")
		}
	})
}

func TestB49ABrokerWaitsForItsController(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b, s := newFakeBus(), newScript()
		go func() {
			time.Sleep(60 * time.Second)
			b.set(func() { b.answer = s.answer })
		}()
		m, err := join(t.Context(), b, "c", "b1", &recorder{}, newConfig(nil))
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		if d := time.Since(b.starts); d < 60*time.Second || d > 75*time.Second {
			t.Errorf("registered after %v", d)
		}
		var tries []time.Time
		b.set(func() { tries = slices.Clone(b.asked[messages.VerbRegister]) })
		if len(tries) < 12 || len(tries) > 60 {
			t.Errorf("%d tries in a minute", len(tries))
		}
		if first, late := tries[1].Sub(tries[0]), tries[len(tries)-1].Sub(tries[len(tries)-2]); late < 10*first {
			t.Errorf("the pauses do not grow: %v at first, %v later", first, late)
		}
	})
}

func TestK70RegistrationDeadlineAndDuplicateID(t *testing.T) {
	t.Run("K70 the deadline passes", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 7*time.Second)
			defer cancel()
			if _, err := join(ctx, newFakeBus(), "c", "b1", &recorder{}, newConfig(nil)); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v", err)
			}
		})
	})
	inUse := &pb.RegisterResponse{Error: messages.Errorf(messages.CodeBrokerIDInUse, "held by another").Proto()}
	t.Run("K70 a duplicate is tried again", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			b, s := newFakeBus(), newScript()
			s.register, b.answer = inUse, s.answer
			go func() {
				time.Sleep(4 * time.Second) // the holder's session ends
				b.set(func() { s.register = nil })
			}()
			m, err := join(t.Context(), b, "c", "b1", &recorder{}, newConfig(nil))
			if err != nil {
				t.Fatal(err)
			}
			m.Close()
		})
	})
	t.Run("K70 a duplicate that stays is an error", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			b, s := newFakeBus(), newScript()
			s.register, b.answer = inUse, s.answer
			_, err := join(t.Context(), b, "c", "b1", &recorder{}, newConfig([]Option{WithInUseTimeout(10 * time.Second)}))
			if !errors.Is(err, ErrBrokerIDInUse) || messages.CodeOf(err) != messages.CodeBrokerIDInUse {
				t.Errorf("got %v", err)
			}
			if d := time.Since(b.starts); d < 10*time.Second || d > 12*time.Second {
				t.Errorf("gave up after %v", d)
			}
		})
	})
}

func TestFatalAnswersEndTheRegistration(t *testing.T) {
	for code, want := range map[messages.Code]error{
		messages.CodeClusterMismatch: ErrClusterMismatch, messages.CodeDenied: ErrDenied, messages.CodeUnsupportedVersion: ErrIncompatible,
	} {
		bubble(t, func(t *testing.T) {
			b, s := newFakeBus(), newScript()
			s.register, b.answer = &pb.RegisterResponse{Error: messages.Errorf(code, "no").Proto()}, s.answer
			if _, err := join(t.Context(), b, "c", "b1", &recorder{}, newConfig(nil)); !errors.Is(err, want) {
				t.Errorf("%s: got %v", code, err)
			}
		})
	}
}

func TestB37OrdersComeBeforeTheAnswerToTheRegistration(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript()
		s.epoch, s.registerIn = 9, 2*time.Second
		s.assignments = []*pb.Assignment{assignmentFor("b2", 4, 7)}
		b, r := newFakeBus(), &recorder{}
		b.answer = s.answer
		go func() {
			time.Sleep(time.Second)
			b.set(func() { s.feed = &pb.FeedPosition{Feed: 1, Position: 1} })
			b.deliver(&pb.AssignmentBatch{Seen: s.seen, Broker: "b1", BrokerEpoch: 9, Feed: s.feed,
				Assignments: []*pb.Assignment{assignmentFor("b2", 4, 7)}})
		}()
		m, err := join(t.Context(), b, "c", "b1", r, newConfig(nil))
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if got := r.seen(); !slices.Equal(got, []string{"add", "follow"}) {
			t.Errorf("the handler was told %v", got)
		}
		if at := s.beats[len(s.beats)-1].GetFeed(); at.GetPosition() != 1 {
			t.Errorf("applied %v", at)
		}
	})
}

func TestStaleEpochEndsLeadershipsBeforeANewRegistration(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript()
		s.assignments = []*pb.Assignment{assignmentFor("b1", 1, 1)}
		m, b, r := joined(t, s)
		time.Sleep(time.Second)
		synctest.Wait()
		first, l := m.State().Incarnation, r.leadership()
		current := true
		b.set(func() {
			s.heartbeat = &pb.HeartbeatResponse{Error: messages.Errorf(messages.CodeStaleBrokerEpoch, "stale").Proto(), Seen: s.seen}
			b.answer = func(verb messages.BrokerVerb, body []byte) (a msg, d time.Duration) {
				if verb == messages.VerbRegister {
					current, s.heartbeat, s.epoch = l.Current(), nil, 8
				}
				return s.answer(verb, body)
			}
		})
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if current || l.Valid() {
			t.Error("the leadership outlived its registration")
		}
		st := m.State()
		if st.Epoch != 8 || st.Incarnation == first {
			t.Errorf("after the stale answer: %+v", st)
		}
		if again := s.registers[len(s.registers)-1]; again.GetCleanEpoch() != 5 {
			t.Errorf("a process that has lost nothing says its last clean epoch is %d", again.GetCleanEpoch())
		}
		if next := r.leadership(); next == l || !next.Current() {
			t.Error("the same assignment under the new registration is not led")
		}
	})
}

func TestAnswersOfAReplacedControllerAreIgnored(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript()
		s.assignments = []*pb.Assignment{assignmentFor("b2", 1, 1)}
		m, b, _ := joined(t, s)
		time.Sleep(time.Second)
		synctest.Wait()
		b.set(func() {
			s.heartbeat = &pb.HeartbeatResponse{Error: messages.Errorf(messages.CodeStaleBrokerEpoch, "stale").Proto(),
				Seen: &pb.Seen{ControllerEpoch: 2, Sequence: 900}}
		})
		b.deliver(&pb.AssignmentBatch{Seen: &pb.Seen{ControllerEpoch: 2}, Broker: "b1", BrokerEpoch: 5, Feed: &pb.FeedPosition{Feed: 1, Position: 1},
			Assignments: []*pb.Assignment{assignmentFor("b1", 9, 9)}})
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if st := m.State(); st.Epoch != 5 || st.Leading != 0 || len(s.registers) != 1 || st.Seen.Controller != 3 {
			t.Errorf("%+v after answers of controller 2", st)
		}
	})
}

func TestANewControllerMeansASnapshot(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript()
		s.assignments = []*pb.Assignment{assignmentFor("b2", 1, 1)}
		m, b, r := joined(t, s)
		time.Sleep(time.Second)
		synctest.Wait()
		b.set(func() {
			s.seen, s.feed = &pb.Seen{ControllerEpoch: 4, Sequence: 20}, &pb.FeedPosition{Feed: 2}
			s.assignments = []*pb.Assignment{assignmentFor("b1", 2, 2)}
		})
		time.Sleep(time.Second)
		synctest.Wait()
		if l := r.leadership(); l == nil || l.Epoch() != 2 || m.State().Seen.Controller != 4 {
			t.Errorf("the silent feed of a new controller was waited for: %v", r.seen())
		}
	})
}

// A controller whose journal has lost its end speaks first, and must still be told what this broker has seen of it.
func TestB119APositionThatWasSeenIsNotForgottenForALaterController(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript()
		m, b, _ := joined(t, s)
		time.Sleep(time.Second)
		synctest.Wait()
		b.deliver(&pb.AssignmentBatch{Seen: &pb.Seen{ControllerEpoch: 4, Sequence: 2}, Broker: "b1", BrokerEpoch: 5, Feed: &pb.FeedPosition{Feed: 2}})
		time.Sleep(time.Second)
		synctest.Wait()
		if seen := m.State().Seen; seen.Controller != 4 || seen.Sequence != 5 {
			t.Errorf("it has seen %+v", seen)
		}
	})
}

// A fence deposes this broker everywhere; the batch that says so, and both of its announcements, may have been lost.
func TestAFenceMeansASnapshot(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript()
		s.assignments = []*pb.Assignment{assignmentFor("b1", 1, 1)}
		_, b, r := joined(t, s)
		time.Sleep(time.Second)
		synctest.Wait()
		l := r.leadership()
		if l == nil || !l.Current() {
			t.Fatalf("it does not lead: %v", r.seen())
		}
		b.set(func() {
			s.fenced = true
			s.assignments = []*pb.Assignment{assignmentFor("b2", 2, 2)}
		})
		time.Sleep(time.Second)
		synctest.Wait()
		if l.Current() {
			t.Errorf("it still takes itself for the leader: %v", r.seen())
		}
	})
}

func TestOneHeartbeatIsInFlight(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript()
		m, b, _ := joined(t, s)
		time.Sleep(time.Second)
		b.set(func() {
			b.asked = map[messages.BrokerVerb][]time.Time{}
			b.answer = func(verb messages.BrokerVerb, body []byte) (msg, time.Duration) {
				a, _ := s.answer(verb, body)
				return a, 900 * time.Millisecond
			}
		})
		for range 50 {
			m.s.kick()
			time.Sleep(100 * time.Millisecond)
		}
		b.set(func() {
			sent := b.asked[messages.VerbHeartbeat]
			if len(sent) < 5 {
				t.Errorf("only %d heartbeats in 5 s", len(sent))
			}
			for i := 1; i < len(sent); i++ {
				if gap := sent[i].Sub(sent[i-1]); gap < 900*time.Millisecond {
					t.Errorf("a heartbeat %v after the one before, which takes 900 ms to be answered", gap)
				}
			}
		})
	})
}
