package journal

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/highwater-io/highwater/messages"
)

// rewritable returns a log that holds one topic with one partition, and what the brokers say of a later time.
func rewritable(t *testing.T) (*Memory, messages.PartitionID, Witnessed) {
	t.Helper()
	log, at := logOf(t, 2)
	p := messages.PartitionID{Topic: messages.TopicID{7}}
	appendRaw(t, log, at, Writer{"c1", 1}, records(t, &messages.Topic{ID: p.Topic, Name: "t", Partitions: 1, ReplicationFactor: 3, MinISR: 2},
		&messages.Partition{ID: p, Replicas: []messages.BrokerID{"b1", "b2", "b3"}, ISR: []messages.BrokerID{"b1", "b2", "b3"}, Leader: "b1",
			LeaderEpoch: 20, Epoch: 30, MinISR: 2, HighWatermark: 100, LeaderProven: true}))
	return log, p, Witnessed{Seen: messages.Seen{Controller: 9, Sequence: 1 << 40}, Brokers: map[messages.BrokerID]messages.BrokerEpoch{name(1, 0): 1 << 41},
		Replicas: map[messages.PartitionID][]Copy{p: {
			{Broker: "b1", LeaderEpoch: 20, LogEnd: 900, HighWatermark: 100}, // led before, and wrote what nobody acknowledged
			{Broker: "b2", LeaderEpoch: 35, LogEnd: 150, HighWatermark: 140, Epoch: 60},
			{Broker: "b3", LeaderEpoch: 35, LogEnd: 149, HighWatermark: 141},
			{Broker: "b9", LeaderEpoch: 99, LogEnd: 1},
		}}}
}

func TestB119ARewrittenJournalGoesOnAboveEverythingThatBrokersHaveSeen(t *testing.T) {
	log, p, w := rewritable(t)
	kept := NewMemorySnapshots()
	c, fault, err := Salvage(t.Context(), log, kept, messages.FirstVersion)
	if err != nil || fault != nil {
		t.Fatal(fault, err)
	}
	for again := range 2 { // as after a crash, when it is repeated
		at, epoch, err := Rewrite(t.Context(), log, kept, c, w, Heir{"c2", "new"})
		if err != nil || at.Last <= 1<<41 || epoch <= 9 {
			t.Fatalf("time %d: at %d with epoch %d, %v", again, at.Last, epoch, err)
		}
		next := NewCatalog()
		r, err := RecoverFrom(t.Context(), log, kept, next)
		if err != nil || r.At != at || next.Identity().Store != "new" || next.Identity().ID != "id" || next.Claimed().Controller != "c2" {
			t.Fatalf("time %d: %+v, %v", again, r, err)
		}
		got, _ := next.Partition(p)
		if got.Leader != "" || got.LeaderProven || got.LeaderEpoch <= 99 || got.Epoch <= 60 || got.HighWatermark != 141 ||
			!slices.Equal(got.ISR, []messages.BrokerID{"b2"}) || len(got.Eligible) != 0 {
			t.Errorf("time %d: the partition is %+v", again, got)
		}
		if b := next.Brokers()[name(1, 0)]; !b.Fenced || b.Epoch != 1<<41 {
			t.Errorf("time %d: a broker is %+v", again, b)
		}
		if c, fault, err = Salvage(t.Context(), log, kept, messages.FirstVersion); fault != nil || err != nil {
			t.Fatal(fault, err)
		}
	}
}

func TestB119ADamagedJournalIsRewrittenFromItsLastGoodEntry(t *testing.T) {
	log, p, w := rewritable(t)
	last, _ := log.Last(t.Context())
	_, _ = log.Append(t.Context(), last, []byte("no entry"))
	c, fault, err := Salvage(t.Context(), log, NewMemorySnapshots(), messages.FirstVersion)
	if err != nil || fault == nil || c.Applied() != last {
		t.Fatalf("salvaged up to %d of %d: %v, %v", c.Applied(), last, fault, err)
	}
	kept := NewMemorySnapshots()
	at, _, err := Rewrite(t.Context(), log, kept, c, w, Heir{"c2", "new"})
	if err != nil {
		t.Fatal(err)
	}
	next := NewCatalog()
	if r, err := RecoverFrom(t.Context(), log, kept, next); err != nil || r.At != at {
		t.Fatalf("%+v, %v", r, err)
	}
	if _, ok := next.Partition(p); !ok {
		t.Error("the partition is gone")
	}
}

func TestARewriteThatWasCutOffAfterItsSnapshotIsRepeated(t *testing.T) {
	log, p, w := rewritable(t)
	kept := NewMemorySnapshots()
	c, _, err := Salvage(t.Context(), log, kept, messages.FirstVersion)
	if err != nil {
		t.Fatal(err)
	}
	full := errors.New("the process ends")
	if _, _, err := Rewrite(t.Context(), &endsEarly{log, full}, kept, c, w, Heir{"c2", "a"}); !errors.Is(err, full) {
		t.Fatal(err)
	}
	if _, err := RecoverFrom(t.Context(), log, kept, NewCatalog()); err == nil {
		t.Fatal("half a recovery is taken for a journal in order")
	}
	c, fault, err := Salvage(t.Context(), log, kept, messages.FirstVersion)
	if err != nil || fault == nil {
		t.Fatal(fault, err)
	}
	if _, ok := c.Partition(p); !ok {
		t.Fatal("the partition is gone")
	}
	at, _, err := Rewrite(t.Context(), log, kept, c, w, Heir{"c2", "b"})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := RecoverFrom(t.Context(), log, kept, NewCatalog()); err != nil || r.At != at {
		t.Fatalf("%+v, %v", r, err)
	}
}

type endsEarly struct {
	*Memory
	err error
}

func (l *endsEarly) Restart(_ context.Context, _ messages.Sequence) error { return l.err }

func TestB120AnEmptyJournalIsNotRewritten(t *testing.T) {
	c, fault, err := Salvage(t.Context(), NewMemory(), NewMemorySnapshots(), messages.FirstVersion)
	if err != nil || fault != nil {
		t.Fatal(fault, err)
	}
	log := NewMemory()
	if _, _, err := Rewrite(t.Context(), log, NewMemorySnapshots(), c, Witnessed{}, Heir{"c1", "x"}); messages.CodeOf(err) != messages.CodeInvalidRequest {
		t.Errorf("%v", err)
	}
	if last, _ := log.Last(t.Context()); last != 0 {
		t.Errorf("it ends at %d", last)
	}
}
