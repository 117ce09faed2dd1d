package replica

import (
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

func TestRepeatedBatchIsAnsweredWithItsOffset(t *testing.T) {
	a, b, c := trio(t)
	assignAll(assignment("a", 1, 1, "a", "b", "c"), a, b, c)
	one := &pb.RecordBatch{ProducerId: 7, Records: records(3)}
	a.send(1, pb.Acks_ACKS_ALL, one)
	a.send(2, pb.Acks_ACKS_ALL, one)
	if acks := take[Ack](a); len(acks) != 0 || a.end != 3 {
		t.Fatalf("acknowledged before the commit: %v, end %d", acks, a.end)
	}
	for range 2 {
		fetch(b, a)
		fetch(c, a)
	}
	acks := take[Ack](a)
	if len(acks) != 2 || acks[0].Duplicate || !acks[1].Duplicate || acks[1].BaseOffset != 0 || !acks[1].Protected {
		t.Fatalf("%+v", acks)
	}
	a.send(3, pb.Acks_ACKS_ALL, one)
	if acks := take[Ack](a); len(acks) != 1 || !acks[0].Duplicate {
		t.Fatalf("%+v", acks)
	}
}

func TestRetryAfterFailoverIsRecognised(t *testing.T) {
	a, b, c := trio(t)
	assignAll(assignment("a", 1, 1, "a", "b", "c"), a, b, c)
	one := &pb.RecordBatch{ProducerId: 7, Records: records(3)}
	a.send(1, pb.Acks_ACKS_ALL, one)
	syncUp(b, a)
	assignAll(assignment("b", 2, 2, "b", "c"), b, c)
	b.send(5, pb.Acks_ACKS_ALL, one)
	if b.end != 3 || len(take[Ack](b)) != 0 {
		t.Fatal("the retry was appended, or acknowledged before its commit")
	}
	syncUp(c, b)
	if acks := take[Ack](b); len(acks) != 1 || !acks[0].Duplicate || acks[0].BaseOffset != 0 {
		t.Fatalf("%+v", acks)
	}
}

func TestSequencesOutOfOrderAreRefused(t *testing.T) {
	m := NewProducers(nil)
	check := func(id uint64, seq int64, n uint32, want messages.Code) {
		t.Helper()
		_, err := m.Check(&pb.StoredBatch{ProducerId: id, BaseSequence: seq, Count: n})
		if got := err; (got == nil) != (want == "") || got != nil && got.Code != want {
			t.Fatalf("producer %d sequence %d: %v, want %q", id, seq, got, want)
		}
	}
	check(1, 4, 1, messages.CodeUnknownProducer)
	check(0, 4, 1, "")
	check(1, 0, 1, "")
	for i := range 7 {
		m.Add(&pb.StoredBatch{ProducerId: 1, BaseSequence: int64(2 * i), Count: 2, BaseOffset: int64(2 * i)})
	}
	check(1, 14, 1, "")
	check(1, 15, 1, messages.CodeOutOfOrderSequence)
	check(1, 12, 2, "")
	check(1, 4, 2, "")
	check(1, 12, 1, messages.CodeInvalidRequest) // same start, other length
	check(1, 2, 2, messages.CodeInvalidRequest)  // older than what is remembered
}

func TestProducerMemoryIsBounded(t *testing.T) {
	m := NewProducers(nil)
	for i := range MaxProducers + 10 {
		m.Add(&pb.StoredBatch{ProducerId: uint64(i + 1), Count: 1, BaseOffset: int64(i)})
	}
	if n := len(m.States()); n != MaxProducers {
		t.Fatalf("%d producers", n)
	}
	if _, err := m.Check(&pb.StoredBatch{ProducerId: 10, BaseSequence: 1, Count: 1}); err == nil {
		t.Fatal("the oldest producer is still known")
	}
}

// However a memory came about, it is what the log says: leaders, followers and restarted replicas agree.
func TestProducerMemoryEqualsARebuildFromTheLog(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		a, b, _ := trio(t)
		le, leader, other := int64(1), a, b
		pe := int64(1)
		assignAll(assignment("a", le, pe, "a", "b"), a, b)
		next := map[uint64]int64{}
		for range rapid.IntRange(1, 30).Draw(rt, "steps") {
			switch rapid.IntRange(0, 5).Draw(rt, "what") {
			case 0:
				fetch(other, leader)
			case 1: // the other leads; what it did not copy is cut off
				le, pe = le+1, pe+1
				leader, other = other, leader
				assignAll(assignment(leader.cfg.Self, le, pe, "a", "b"), leader, other)
				syncUp(other, leader)
				next = sequences(leader)
			case 2:
				other.open(other.cfg.Self)
				pe++
				le++
				assignAll(assignment(leader.cfg.Self, le, pe, "a", "b"), leader, other)
			default:
				id := uint64(rapid.IntRange(1, 3).Draw(rt, "producer"))
				n := rapid.IntRange(1, 3).Draw(rt, "records")
				leader.send(1, pb.Acks_ACKS_LEADER, &pb.RecordBatch{ProducerId: id, BaseSequence: next[id], Records: records(n)})
				next[id] += int64(n)
			}
			for _, m := range []*member{a, b} {
				if got, want := m.producers.States(), m.log.state().Producers; !reflect.DeepEqual(got, want) {
					rt.Fatalf("%s remembers %v, its log says %v", m.cfg.Self, got, want)
				}
			}
		}
	})
}

func sequences(m *member) map[uint64]int64 {
	out := map[uint64]int64{}
	for _, s := range m.log.state().Producers {
		last := s.Batches[len(s.Batches)-1]
		out[s.Producer] = last.BaseSequence + int64(last.Count)
	}
	return out
}
