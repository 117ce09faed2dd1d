package replica

import (
	"errors"
	"testing"
	"time"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// fill writes one batch of an epoch straight into a log.
func (m *member) fill(epoch int64, n int) {
	m.t.Helper()
	b, err := Seal(&pb.RecordBatch{Records: append(records(n-1), &pb.LogRecord{Value: []byte(m.cfg.Self + "!")})})
	if err != nil {
		m.t.Fatal(err)
	}
	b.BaseOffset, b.LeaderEpoch = int64(m.log.end()), epoch
	m.log.write(Write{Batches: []*pb.StoredBatch{b}, HighWatermark: -1})
}

func sameLogs(t *testing.T, a, b *member) {
	t.Helper()
	if len(a.log.batches) != len(b.log.batches) {
		t.Fatalf("%d and %d batches", len(a.log.batches), len(b.log.batches))
	}
	for i, x := range a.log.batches {
		if y := b.log.batches[i]; x.BaseOffset != y.BaseOffset || x.LeaderEpoch != y.LeaderEpoch || string(x.Body) != string(y.Body) {
			t.Fatalf("batch %d differs: %v and %v", i, x, y)
		}
	}
}

func TestK85LogsConvergeByRepeatedTruncation(t *testing.T) {
	f, l := newMember(t, "b"), newMember(t, "a")
	for _, e := range []int64{0, 2, 4} {
		f.fill(e, 3)
	}
	for _, e := range []int64{0, 1, 3, 5} {
		l.fill(e, 2)
	}
	f.open("b")
	l.open("a")
	assignAll(assignment("a", 6, 9, "a", "b"), l, f)
	syncUp(f, l)
	syncUp(f, l)
	sameLogs(t, l, f)
	if n := len(take[Truncate](f)); n == 0 {
		t.Fatal("nothing was truncated")
	}
}

func TestK86FencedEpochParksAndUnknownEpochIsRetried(t *testing.T) {
	a, b, _ := trio(t)
	b.assign(assignment("a", 2, 2, "a", "b"))
	a.assign(assignment("a", 1, 1, "a", "b"))
	wantCode(t, fetch(b, a).Error, messages.CodeUnknownLeaderEpoch)
	if _, ok := b.Position(b.now); ok {
		t.Fatal("asks again at once")
	}
	b.now += fetchRetry
	if _, ok := b.Position(b.now); !ok {
		t.Fatal("does not ask again")
	}
	a.assign(assignment("a", 3, 3, "a", "b"))
	wantCode(t, fetch(b, a).Error, messages.CodeFencedLeaderEpoch)
	b.now += time.Hour
	if _, ok := b.Position(b.now); ok {
		t.Fatal("asks again without a new assignment")
	}
	if len(take[RequestSnapshot](b)) != 1 {
		t.Fatal("does not ask for the assignment")
	}
	b.assign(assignment("a", 3, 3, "a", "b"))
	if fetch(b, a).Error != nil {
		t.Fatal("the new assignment does not unpark")
	}
}

func TestK87DivergingAnswerBringsNoRecordsAndMovesNoMark(t *testing.T) {
	b := newMember(t, "b")
	b.fill(1, 5)
	b.fill(2, 5)
	b.open("b")
	b.assign(assignment("a", 3, 3, "a", "b"))
	pos, _ := b.Position(b.now)
	b.run(b.FetchResult(b.now, pos, &pb.PartitionFetch{LeaderEpoch: 3, Diverging: true, DivergingEpoch: 1, DivergingEnd: 5,
		HighWatermark: 99, Batches: []*pb.StoredBatch{{BaseOffset: 10, LeaderEpoch: 3, Count: 1}}}))
	b.wantEnd(5)
	b.wantMark(0)
}

func TestB23RestartedFollowerKeepsWhatItHasNotAskedAbout(t *testing.T) {
	a, b, _ := trio(t)
	two := func(leader messages.BrokerID, le, pe int64, isr ...string) *pb.Assignment {
		x := assignment(leader, le, pe, isr...)
		x.MinIsr = 1
		return x
	}
	assignAll(two("a", 1, 1, "a", "b"), a, b)
	a.produce(1, pb.Acks_ACKS_ALL, 1)
	syncUp(b, a)
	a.produce(2, pb.Acks_ACKS_ALL, 1)
	fetch(b, a) // copies the second record, not yet the news that it is committed
	pos, _ := b.Position(b.now)
	_, acts := a.Fetched(a.now, "b", 10, pos)
	a.run(acts)
	a.wantMark(2)
	b.wantMark(1)
	b.open("b")
	b.assign(two("a", 1, 1, "a", "b"))
	b.wantEnd(2)
	x := two("b", 2, 2, "b")
	x.Floor = 1
	b.assign(x)
	b.wantMark(2)
	if limit, err := b.Consume(1); err != nil || limit != 2 {
		t.Fatalf("the second record is not served: %d %v", limit, err)
	}
}

func TestB25FormerLeaderTruncatesBeforeItTakesTheMark(t *testing.T) {
	a, b, c := trio(t)
	assignAll(assignment("a", 1, 1, "a", "b", "c"), a, b, c)
	a.produce(1, pb.Acks_ACKS_ALL, 80)
	for range 2 {
		fetch(b, a)
		fetch(c, a)
	}
	a.wantMark(80)
	a.produce(2, pb.Acks_ACKS_ALL, 20)
	assignAll(assignment("b", 2, 2, "b", "c"), b, c)
	b.produce(3, pb.Acks_ACKS_ALL, 40)
	syncUp(c, b)
	b.wantMark(120)
	a.assign(assignment("b", 2, 2, "b", "c"))
	if f := take[Fail](a); len(f) != 1 || f[0].Ticket != 2 || f[0].Err.Code != messages.CodeOutcomeUnknown {
		t.Fatalf("the waiting producer: %+v", f)
	}
	if p := fetch(a, b); !p.Diverging {
		t.Fatalf("%v", p)
	}
	a.wantMark(80)
	a.wantEnd(80)
	syncUp(a, b)
	a.wantMark(120)
	sameLogs(t, a, b)
}

func TestB26ElectionsWithoutWritesDoNotJam(t *testing.T) {
	a, b, c := trio(t)
	all := map[messages.BrokerID]*member{"a": a, "b": b, "c": c}
	var leader *member
	for i, id := range []messages.BrokerID{"a", "b", "c", "a", "a", "b"} {
		assignAll(assignment(id, int64(i), int64(i), "a", "b", "c"), a, b, c)
		leader = all[id]
		if leader.Role() != RoleLeader || leader.epochs.Last() != messages.LeaderEpoch(i) {
			t.Fatalf("stint %d: %+v", i, leader.Status())
		}
	}
	leader.produce(1, pb.Acks_ACKS_ALL, 10)
	for range 3 {
		fetch(a, leader)
		fetch(c, leader)
	}
	for _, m := range all {
		m.wantMark(10)
		m.wantEnd(10)
	}
	if len(take[Propose](leader)) != 0 {
		t.Fatal("the ISR is to change")
	}
}

// A replica whose own stint left no record must take records of lower epochs that others have there.
func TestB26EmptyStintOfAFollowerIsForgotten(t *testing.T) {
	a, b, _ := trio(t)
	a.fill(4, 10)
	a.open("a")
	b.assign(assignment("b", 5, 5, "a", "b"))
	assignAll(assignment("a", 6, 6, "a", "b"), a, b)
	syncUp(b, a)
	sameLogs(t, a, b)
	if b.epochs.Truncated(b.end).Last() != 4 {
		t.Fatalf("%v", b.epochs)
	}
}

func TestFollowerNeverTruncatesBelowItsMark(t *testing.T) {
	b := newMember(t, "b")
	b.fill(1, 5)
	b.fill(2, 5)
	b.log.mark = 8
	b.open("b")
	b.assign(assignment("a", 3, 3, "a", "b"))
	pos, _ := b.Position(b.now)
	b.run(b.FetchResult(b.now, pos, &pb.PartitionFetch{LeaderEpoch: 3, Diverging: true, DivergingEpoch: 1, DivergingEnd: 5}))
	b.wantEnd(10)
	if len(take[Faulted](b)) != 1 || b.Role() != RoleFaulted {
		t.Fatal("the replica goes on")
	}
	x := assignment("b", 4, 4, "b")
	x.LeaderProven = false
	b.assign(x)
	if r := take[Report](b); len(r) != 1 || !r[0].Report.Declined || r[0].Report.Reason == "" {
		t.Fatalf("a stopped replica must decline to lead: %v", r)
	}
}

func TestLateAnswersAreIgnored(t *testing.T) {
	a, b, c := trio(t)
	assignAll(assignment("a", 1, 1, "a", "b", "c"), a, b, c)
	a.produce(1, pb.Acks_ACKS_ALL, 5)
	pos, _ := b.Position(b.now)
	syncUp(b, a)
	for _, res := range []*pb.PartitionFetch{
		{LeaderEpoch: 1, Diverging: true, DivergingEpoch: 0, DivergingEnd: 0},
		{LeaderEpoch: 1, Batches: a.log.read(0, 5), HighWatermark: 5},
		{Error: messages.Errorf(messages.CodeFencedLeaderEpoch, "late").Proto()},
	} {
		b.run(b.FetchResult(b.now, pos, res))
	}
	b.wantEnd(5)
	if _, ok := b.Position(b.now); !ok {
		t.Fatal("a late answer stopped the follower")
	}
}

func TestDamagedBatchesAreNotStored(t *testing.T) {
	a, b, _ := trio(t)
	assignAll(assignment("a", 2, 1, "a", "b"), a, b)
	good, _ := Seal(&pb.RecordBatch{Records: records(2)})
	for name, damage := range map[string]func(*pb.StoredBatch){
		"body":  func(x *pb.StoredBatch) { x.Body = append([]byte{1}, x.Body...) },
		"gap":   func(x *pb.StoredBatch) { x.BaseOffset = 1 },
		"empty": func(x *pb.StoredBatch) { x.Count = 0 },
		"epoch": func(x *pb.StoredBatch) { x.LeaderEpoch = 3 },
		"huge":  func(x *pb.StoredBatch) { x.Count = 1 << 31 },
	} {
		x := &pb.StoredBatch{Count: good.Count, Body: good.Body, Crc: good.Crc, LeaderEpoch: 2}
		damage(x)
		pos, _ := b.Position(b.now)
		b.run(b.FetchResult(b.now, pos, &pb.PartitionFetch{LeaderEpoch: 2, HighWatermark: 9, Batches: []*pb.StoredBatch{x}}))
		if b.end != 0 || b.mark != 0 {
			t.Fatalf("%s: stored up to %d", name, b.end)
		}
		b.now += fetchRetrySlow
	}
}

func TestFailedStorageStopsTheReplica(t *testing.T) {
	a, b, _ := trio(t)
	a.hold = true
	assignAll(assignment("a", 1, 1, "a", "b"), a, b)
	a.produce(1, pb.Acks_ACKS_ALL, 1)
	a.run(a.Written(a.now, 0, errors.New("no space")))
	if f := take[Fail](a); len(f) != 1 || f[0].Err.Code != messages.CodeOutcomeUnknown {
		t.Fatalf("%v", f)
	}
	wantCode(t, fetch(b, a).Error, messages.CodeStorageFailed)
	if _, err := a.Consume(0); err == nil || err.Code != messages.CodeStorageFailed {
		t.Fatal(err)
	}
}
