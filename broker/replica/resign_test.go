package replica

import (
	"testing"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

func unheard(a *pb.Assignment) *pb.Assignment {
	a.LeaderProven = false
	return a
}

func TestALeaderThatIsAskedToResignServesNothingMoreAndSaysSo(t *testing.T) {
	a, b, _ := trio(t)
	assignAll(unheard(assignment("a", 2, 5, "a", "b")), a, b)
	if a.Confirmed() {
		t.Error("confirmed before the controller has answered")
	}
	a.assign(assignment("a", 2, 5, "a", "b"))
	if !a.Confirmed() {
		t.Error("not confirmed although the controller has answered")
	}
	a.produce(1, pb.Acks_ACKS_ALL, 3)
	take[Report](a)
	ask := assignment("a", 2, 5, "a", "b")
	ask.Resign = true
	a.assign(ask)
	var failed []Fail
	var reports []Report
	for _, x := range a.got {
		switch x := x.(type) {
		case Fail:
			failed = append(failed, x)
		case Report:
			reports = append(reports, x)
		}
	}
	if len(failed) != 1 || failed[0].Err.Code != messages.CodeOutcomeUnknown {
		t.Errorf("who waited was told %v", failed)
	}
	if len(reports) != 1 || !reports[0].Report.Resigned || reports[0].Report.Declined || reports[0].Report.LeaderEpoch != 2 ||
		reports[0].Report.LogEnd != 3 {
		t.Errorf("reported %v", reports)
	}
	if s := a.Status(); s.Role != RoleWithdrawn || a.Confirmed() || s.LogEnd != 3 {
		t.Errorf("%+v", s)
	}
	if ans := fetch(b, a); messages.Code(ans.GetError().GetCode()) != messages.CodeNotLeader {
		t.Errorf("a follower is answered %v", ans)
	}
	a.got = nil
	a.assign(assignment("a", 2, 6, "a", "b")) // the controller has not heard of it
	if again := take[Report](a); len(again) != 1 || !again[0].Report.Resigned {
		t.Errorf("not said again: %v", again)
	}
	a.assign(unheard(assignment("a", 3, 7, "a", "b"))) // nobody else was left
	if s := a.Status(); s.Role != RoleLeader || a.Confirmed() {
		t.Errorf("in the next epoch: %+v", s)
	}
}

func TestAFollowerIgnoresTheRequestToResign(t *testing.T) {
	_, b, _ := trio(t)
	ask := assignment("a", 2, 5, "a", "b")
	ask.Resign = true
	b.assign(ask)
	if s := b.Status(); s.Role != RoleFollower || len(take[Report](b)) != 0 || b.Confirmed() {
		t.Errorf("%+v", s)
	}
}
