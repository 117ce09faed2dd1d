package broker

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// The broker was cut off, fenced, deposed, and unfenced by its first heartbeat after that: what it is told of a lease counts
// only when it has heard what it still leads.
func TestALeaseAfterAnUnseenFenceWaitsForASnapshot(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript()
		s.assignments = []*pb.Assignment{assignmentFor("b1", 1, 1)}
		m, b, r := joined(t, s)
		time.Sleep(time.Second)
		synctest.Wait()
		old := r.leadership()
		if old == nil || !old.Valid() {
			t.Fatal("no lease to begin with")
		}
		b.set(func() { s.silent[messages.VerbHeartbeat] = true })
		time.Sleep(4 * time.Second)
		b.set(func() {
			s.silent[messages.VerbHeartbeat], s.silent[messages.VerbSnapshot] = false, true
			s.unfenced = 77
			s.assignments = []*pb.Assignment{assignmentFor("b2", 2, 2)}
		})
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if old.Valid() || m.State().Lease > 0 {
			t.Error("a lease for leaderships that may have moved")
		}
		if m.State().Fenced {
			t.Error("fenced, which it is not")
		}
		b.set(func() { s.silent[messages.VerbSnapshot] = false })
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if m.State().Lease == 0 || old.Current() {
			t.Errorf("after the snapshot: lease %v, still led %v", m.State().Lease, old.Current())
		}
	})
}

// A lease that holds is not cut short by another controller; it is only not extended before there is a snapshot.
func TestALeaseOutlivesTheChangeOfControllers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript()
		s.assignments = []*pb.Assignment{assignmentFor("b1", 1, 1)}
		_, b, r := joined(t, s)
		time.Sleep(time.Second)
		synctest.Wait()
		l := r.leadership()
		b.set(func() { s.seen = &pb.Seen{ControllerEpoch: 4, Sequence: 20} })
		for range 100 {
			time.Sleep(50 * time.Millisecond)
			if !l.Valid() {
				t.Fatal("the lease was interrupted")
			}
		}
	})
}

// The controller wants another to lead. This broker gives the role up first, and says so until it is heard.
func TestALeaderThatIsAskedToResignHasEndedBeforeItSaysSo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript()
		s.assignments = []*pb.Assignment{assignmentFor("b1", 1, 1)}
		_, b, r := joined(t, s)
		time.Sleep(time.Second)
		synctest.Wait()
		l := r.leadership()
		if l == nil || !l.Valid() {
			t.Fatal("no lease to begin with")
		}
		var valid []bool
		b.set(func() {
			b.answer = func(verb messages.BrokerVerb, body []byte) (msg, time.Duration) {
				q := &pb.ReadyRequest{}
				if verb != messages.VerbReady {
					return s.answer(verb, body)
				}
				if proto.Unmarshal(body, q) != nil || len(q.Reports) != 1 || !q.Reports[0].Resigned || q.Reports[0].Declined {
					t.Errorf("reported: %v", q)
				}
				if valid = append(valid, l.Valid()); len(valid) < 3 {
					return nil, 0
				}
				return s.answer(verb, body)
			}
		})
		ask := assignmentFor("b1", 1, 1)
		ask.Resign, ask.LeaderProven = true, true
		b.deliver(&pb.AssignmentBatch{Seen: s.seen, Broker: "b1", BrokerEpoch: 5, Feed: &pb.FeedPosition{Feed: 1, Position: 1},
			Assignments: []*pb.Assignment{ask}})
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if len(valid) != 3 || valid[0] || l.Current() {
			t.Errorf("said %d times, the role was valid: %v, is current: %v", len(valid), valid, l.Current())
		}
		again := assignmentFor("b1", 1, 2) // the ISR has changed, and the controller has not heard of it
		again.LeaderProven = true
		b.deliver(&pb.AssignmentBatch{Seen: s.seen, Broker: "b1", BrokerEpoch: 5, Feed: &pb.FeedPosition{Feed: 1, Position: 2},
			Assignments: []*pb.Assignment{again}})
		synctest.Wait()
		if len(valid) != 4 || l.Valid() {
			t.Errorf("said %d times, valid %v", len(valid), l.Valid())
		}
	})
}

// Until the controller has heard that it leads, it may give the lead to another without a word.
func TestALeaderHasNoLeaseBeforeTheControllerHasHeardOfIt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newScript()
		s.assignments = []*pb.Assignment{assignmentFor("b1", 1, 1)}
		s.silent[messages.VerbReady] = true
		m, b, r := joined(t, s)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		l := r.leadership()
		if l == nil || !l.Current() || m.State().Lease == 0 {
			t.Fatal("it does not lead")
		}
		if l.Valid() {
			t.Error("valid although the controller has not heard of it")
		}
		b.set(func() { s.silent[messages.VerbReady] = false })
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if !l.Valid() {
			t.Error("not valid although the controller has heard of it")
		}
	})
}
