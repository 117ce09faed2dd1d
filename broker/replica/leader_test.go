package replica

import (
	"testing"
	"time"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

func TestLeaderProvesThatItHoldsTheFloor(t *testing.T) {
	a := newMember(t, "a")
	a.fill(1, 10)
	a.open("a")
	x := assignment("a", 2, 2, "a", "b")
	x.Floor, x.LeaderProven = 11, false
	a.assign(x)
	if r := take[Report](a); len(r) != 1 || !r[0].Report.Declined || r[0].Report.LogEnd != 10 || a.Role() != RoleDeclined {
		t.Fatalf("%v", r)
	}
	y := assignment("a", 3, 3, "a", "b")
	y.Floor, y.LeaderProven = 11, false
	a.log.fillTo(a, 11)
	a.open("a")
	a.assign(y)
	if r := take[Report](a); len(r) != 1 || r[0].Report.Declined || r[0].Report.HighWatermark != 11 || a.Role() != RoleLeader {
		t.Fatalf("%v", r)
	}
	a.assign(y)
	if r := take[Report](a); len(r) != 1 {
		t.Fatal("does not report again while the controller does not know")
	}
	y.LeaderProven = true
	a.assign(y)
	if r := take[Report](a); len(r) != 0 {
		t.Fatal("reports for ever")
	}
}

func (l *memory) fillTo(m *member, end messages.Offset) { m.fill(1, int(end-l.end())) }

func TestReadsAboveTheMarkWaitAndOnlyBehindTheEndAreOutOfRange(t *testing.T) {
	a := newMember(t, "a")
	a.fill(1, 10)
	a.open("a")
	x := assignment("a", 2, 2, "a", "b")
	x.Floor = 4
	a.assign(x)
	for offset, want := range map[messages.Offset]messages.Offset{0: 4, 4: 4, 9: 4, 10: 4} {
		if limit, err := a.Consume(offset); err != nil || limit != want {
			t.Fatalf("at %d: %d %v", offset, limit, err)
		}
	}
	if _, err := a.Consume(11); err == nil || err.Code != messages.CodeOffsetOutOfRange {
		t.Fatal(err)
	}
}

func TestLeaderWaitsForItsOwnStorageBeforeItServes(t *testing.T) {
	a, b, _ := trio(t)
	assignAll(assignment("a", 1, 1, "a", "b"), a, b)
	a.produce(1, pb.Acks_ACKS_ALL, 5)
	b.hold = true
	fetch(b, a)
	x := assignment("b", 2, 2, "b")
	x.Floor = 5
	b.assign(x)
	if b.Role() != RoleProving {
		t.Fatalf("%+v", b.Status())
	}
	b.produce(2, pb.Acks_ACKS_ALL, 1)
	if f := take[Fail](b); len(f) != 1 || f[0].Err.Code != messages.CodeNotLeader {
		t.Fatalf("%v", f)
	}
	b.hold = false
	b.release()
	if b.Role() != RoleLeader || b.Status().EpochStart != 5 {
		t.Fatalf("%+v", b.Status())
	}
}

func TestAcksOfTheLeaderAreUnprotectedAndFollowTheStorage(t *testing.T) {
	a, b, _ := trio(t)
	assignAll(assignment("a", 1, 1, "a", "b"), a, b)
	a.hold = true
	a.produce(1, pb.Acks_ACKS_LEADER, 5)
	if len(take[Ack](a)) != 0 {
		t.Fatal("acknowledged before it was stored")
	}
	a.hold = false
	a.release()
	if acks := take[Ack](a); len(acks) != 1 || acks[0].Protected {
		t.Fatalf("%v", acks)
	}
}

func TestFollowersReadOnlyWhatIsDurableAtTheLeader(t *testing.T) {
	a, b, _ := trio(t)
	assignAll(assignment("a", 1, 1, "a", "b"), a, b)
	a.hold = true
	a.produce(1, pb.Acks_ACKS_ALL, 5)
	pos, _ := b.Position(b.now)
	if ans, _ := a.Fetched(a.now, "b", 10, pos); ans.Limit != ans.From {
		t.Fatalf("%+v", ans)
	}
}

func TestEpochOfAnEarlierLifeIsNotLedAgain(t *testing.T) {
	a := newMember(t, "a")
	a.Replica = New(Config{Self: "a", Partition: testPartition, FirstSnapshot: true})
	x := assignment("a", 4, 4, "a")
	x.LeaderProven = false
	a.assign(x)
	if a.Role() != RoleWithdrawn || len(a.got) != 0 {
		t.Fatalf("%+v %v", a.Status(), a.got)
	}
	x = assignment("a", 5, 5, "a")
	a.assign(x)
	if a.Role() != RoleLeader {
		t.Fatal("a later epoch is not led")
	}
	// The log itself tells, too.
	a.open("a")
	a.assign(x)
	if a.Role() != RoleWithdrawn {
		t.Fatalf("%+v", a.Status())
	}
}

func TestWaitingProducersLearnWhenTheirTimeIsOver(t *testing.T) {
	a, b, _ := trio(t)
	assignAll(assignment("a", 1, 1, "a", "b"), a, b)
	s, _ := Seal(&pb.RecordBatch{Records: records(1)})
	a.run(a.Produce(a.now, Append{Batch: s, Ticket: 9, Deadline: a.now + time.Second}))
	a.tick(time.Second)
	if f := take[Fail](a); len(f) != 1 || f[0].Ticket != 9 || f[0].Err.Code != messages.CodeOutcomeUnknown {
		t.Fatalf("%v", f)
	}
	fetch(b, a)
	fetch(b, a)
	if len(take[Ack](a)) != 0 || a.mark != 1 {
		t.Fatal("answered twice, or not committed")
	}
}

func TestWaitingProducersAreBounded(t *testing.T) {
	a := newMember(t, "a")
	a.assign(assignment("a", 1, 1, "a", "b"))
	for i := range MaxWaiting + 1 {
		a.produce(Ticket(i), pb.Acks_ACKS_ALL, 1)
	}
	if f := take[Fail](a); len(f) != 1 || f[0].Err.Code != messages.CodeBusy {
		t.Fatalf("%d failed", len(f))
	}
}

func TestSameLeaderInALaterEpochKeepsItsProducers(t *testing.T) {
	a, b, _ := trio(t)
	assignAll(assignment("a", 1, 1, "a", "b"), a, b)
	a.produce(1, pb.Acks_ACKS_ALL, 3)
	assignAll(assignment("a", 2, 2, "a", "b"), a, b)
	syncUp(b, a)
	if acks := take[Ack](a); len(acks) != 1 || acks[0].LeaderEpoch != 1 || acks[0].BaseOffset != 0 {
		t.Fatalf("%v", acks)
	}
}

func TestMarkIsStoredAtTheCheckpoint(t *testing.T) {
	a, b, _ := trio(t)
	assignAll(assignment("a", 1, 1, "a", "b"), a, b)
	a.produce(1, pb.Acks_ACKS_ALL, 3)
	syncUp(b, a)
	a.wantMark(3)
	a.tick(5 * time.Second)
	b.tick(5 * time.Second)
	b.now += 5 * time.Second
	if a.log.mark != 3 || b.log.mark != 3 {
		t.Fatalf("stored marks %d and %d", a.log.mark, b.log.mark)
	}
	a.got = nil
	a.tick(time.Hour)
	if w := take[Write](a); len(w) != 0 {
		t.Fatalf("the mark is stored again: %v", w)
	}
}

func TestTwoLeadersOfOneEpochStopTheReplica(t *testing.T) {
	a := newMember(t, "a")
	a.assign(assignment("a", 1, 1, "a", "b"))
	a.assign(assignment("b", 1, 2, "a", "b"))
	if a.Role() != RoleFaulted {
		t.Fatalf("%+v", a.Status())
	}
}

func TestBadBatchesAreRefused(t *testing.T) {
	for _, b := range []*pb.RecordBatch{nil, {}, {Records: records(1), BaseSequence: -1}} {
		if _, err := Seal(b); err == nil || err.Code != messages.CodeInvalidRequest {
			t.Fatalf("%v: %v", b, err)
		}
	}
}
