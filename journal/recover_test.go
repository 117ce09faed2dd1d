package journal

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/highwater-io/highwater/messages"
)

func wantBroken(t *testing.T, err error, at messages.Sequence, d Defect) {
	t.Helper()
	b := (*Broken)(nil)
	if !errors.As(err, &b) || b.At != at || b.Defect != d {
		t.Fatalf("the error is %v, not %s at %d", err, d, at)
	}
	if messages.CodeOf(err) != messages.CodeUnavailable {
		t.Errorf("the code is %s", messages.CodeOf(err))
	}
}

// logOf returns a log of a claim and n entries with one broker each, and where it ends.
func logOf(t testing.TB, n int) (*Memory, Position) {
	t.Helper()
	log, c := NewMemory(), NewCatalog()
	at, epoch, err := Claim(t.Context(), log, c, Position{}, "c1", &messages.Cluster{Name: "one", ID: "id"})
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		at = appendRaw(t, log, at, Writer{"c1", epoch}, records(t, &messages.Broker{ID: name(1, i)}))
	}
	return log, at
}

func records(t testing.TB, all ...messages.Record) []byte {
	t.Helper()
	encoded, err := encodeRecords(all)
	if err != nil {
		t.Fatal(err)
	}
	return encoded
}

// appendRaw appends an entry with these bytes behind its head, whatever they are, and a right chain.
func appendRaw(t testing.TB, log Log, at Position, w Writer, body []byte) Position {
	t.Helper()
	payload, chain := assemble(at, w, NewStamp(), [][]byte{body})
	seq, err := log.Append(t.Context(), at.Last, payload)
	if err != nil {
		t.Fatal(err)
	}
	return Position{Last: seq, Chain: chain}
}

func TestClaimThenCommitThenRecover(t *testing.T) {
	log, live := NewMemory(), NewCatalog()
	at, epoch, err := Claim(t.Context(), log, live, Position{}, "c1", &messages.Cluster{Name: "one", ID: "id"})
	if err != nil || epoch != 1 || at.Last != 1 || live.Applied() != 1 || live.Identity().ID != "id" {
		t.Fatalf("claim: %v, epoch %d, at %d", err, epoch, at.Last)
	}
	m := NewCommitter(at, Writer{Controller: "c1", Epoch: epoch}, Limits{})
	topic := &messages.Topic{ID: messages.TopicID{1}, Name: "t", Partitions: 1, ReplicationFactor: 1, MinISR: 1}
	if err := m.Propose(7, []messages.Record{topic}); err != nil {
		t.Fatal(err)
	}
	log.Inject(Fault{Kind: FaultLostAfter})
	err = Drive(t.Context(), log, m, func(c Committed) { live.Apply(c.Sequence, c.Records) })
	if err != nil {
		t.Fatal(err)
	}
	again := NewCatalog()
	end, epoch, err := Recover(t.Context(), log, again)
	if err != nil || epoch != 1 || end != m.Position() || fingerprint(again) != fingerprint(live) {
		t.Fatalf("recover: %v, epoch %d, %v instead of %v", err, epoch, end, m.Position())
	}
	if again.Seen() != (messages.Seen{Controller: 1, Sequence: 2}) || again.Claimed().Controller != "c1" {
		t.Errorf("the catalog has seen %+v", again.Seen())
	}
}

func TestEveryFlippedByteIsFound(t *testing.T) {
	log, _ := logOf(t, 2)
	good, err := log.Get(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	for i := range good {
		bad := append([]byte{}, good...)
		bad[i] ^= 1 << (i % 8)
		log.Replace(2, bad)
		c := NewCatalog()
		at, _, err := Recover(t.Context(), log, c)
		b := (*Broken)(nil)
		if !errors.As(err, &b) || b.At != 2 || at.Last != 1 || c.Applied() != 1 {
			t.Fatalf("byte %d: %v, at %d", i, err, at.Last)
		}
	}
}

func TestGapsAreRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		damage func(*Memory)
		at     messages.Sequence
	}{
		{"in the middle", func(m *Memory) { m.Replace(3, nil) }, 3},
		{"at the end", func(m *Memory) { m.Replace(6, nil) }, 6},
		{"at the start", func(m *Memory) { _ = m.Purge(context.Background(), 2) }, 1},
		{"everything", func(m *Memory) { _ = m.Purge(context.Background(), 6) }, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			log, _ := logOf(t, 5)
			c.damage(log)
			catalog := NewCatalog()
			_, _, err := Recover(t.Context(), log, catalog)
			wantBroken(t, err, c.at, DefectGap)
			if catalog.Applied() != c.at-1 {
				t.Errorf("applied up to %d", catalog.Applied())
			}
		})
	}
}

func TestExchangedEntriesAreRefused(t *testing.T) {
	log, _ := logOf(t, 5)
	three, err := log.Get(t.Context(), 3)
	if err != nil {
		t.Fatal(err)
	}
	log.Replace(4, three)
	_, _, err = Recover(t.Context(), log, NewCatalog())
	wantBroken(t, err, 4, DefectChain)
}

func TestB113AMalformedRecordIsIsolatedAndReported(t *testing.T) {
	log, at := logOf(t, 0)
	topic := messages.TopicID{1}
	poison := func(raw []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, fieldRecords, protowire.BytesType), raw)
	}
	body := records(t, &messages.Broker{ID: "before"}, &messages.Topic{ID: topic, Name: "t", Partitions: 2})
	body = append(body, poison([]byte{0xff, 0xff, 0xff})...)       // no message at all
	body = append(body, poison([]byte{0x22, 0x02, 0x0a, 0x00})...) // a topic without an id
	body = append(body, poison(nil)...)                            // nothing
	body = append(body, records(t,
		&messages.Partition{ID: messages.PartitionID{Topic: topic, Index: 7}, Replicas: []messages.BrokerID{"before"}},
		&messages.Partition{ID: messages.PartitionID{Topic: topic, Index: 1}, Replicas: []messages.BrokerID{"before"}},
		&messages.Broker{ID: "after"})...)
	at = appendRaw(t, log, at, Writer{"c1", 1}, body)
	c := NewCatalog()
	got, _, err := Recover(t.Context(), log, c)
	if err != nil || got != at {
		t.Fatal(err)
	}
	if _, n := c.Damaged(); n != 4 || len(c.Brokers()) != 2 || c.Counts().Total != 1 {
		t.Errorf("%d records are left out, %d brokers and %d partitions are there", n, len(c.Brokers()), c.Counts().Total)
	}
	if _, epoch, err := Claim(t.Context(), log, c, got, "c2"); err != nil || epoch != 2 {
		t.Fatalf("the controller does not become active: %v", err)
	}
}

func TestOnlyTheFirstDamagesAreKept(t *testing.T) {
	c := NewCatalog()
	c.addDamage(3, make([]Damage, maxDamageKept+50))
	if kept, n := c.Damaged(); len(kept) != maxDamageKept || n != maxDamageKept+50 {
		t.Errorf("%d of %d are kept", len(kept), n)
	}
}

func TestEntriesOfWhoIsNotActiveAreRefused(t *testing.T) {
	claim := func(who string, epoch messages.ControllerEpoch) messages.Record {
		return &messages.ControllerClaimed{Controller: who, Epoch: epoch}
	}
	for i, c := range []struct {
		writer  Writer
		records []messages.Record
		ok      bool
	}{
		{Writer{"c1", 1}, nil, true},
		{Writer{"c1", 2}, nil, false}, // no claim
		{Writer{"c2", 1}, nil, false}, // another's epoch
		{Writer{"c1", 0}, nil, false},
		{Writer{"c2", 2}, []messages.Record{claim("c2", 2)}, true},
		{Writer{"c2", 9}, []messages.Record{claim("c2", 9)}, true},
		{Writer{"c2", 1}, []messages.Record{claim("c2", 1)}, false}, // issued before
		{Writer{"c2", 2}, []messages.Record{claim("c2", 3)}, false},
		{Writer{"c2", 2}, []messages.Record{claim("c3", 2)}, false},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			log, at := logOf(t, 1)
			appendRaw(t, log, at, c.writer, records(t, c.records...))
			_, _, err := Recover(t.Context(), log, NewCatalog())
			if c.ok {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			wantBroken(t, err, 3, DefectEpoch)
		})
	}
}

func TestFollowingAStaleLogChangesNothing(t *testing.T) {
	log, at := logOf(t, 5)
	c := NewCatalog()
	if _, _, err := Recover(t.Context(), log, c); err != nil {
		t.Fatal(err)
	}
	log.SetStale(3)
	if got, _, err := Follow(t.Context(), log, c, at); err != nil || got != at || c.Applied() != at.Last {
		t.Fatalf("%v, at %d", err, got.Last)
	}
	log.SetStale(0)
	end := appendRaw(t, log, at, Writer{"c1", 1}, nil)
	if got, _, err := Follow(t.Context(), log, c, at); err != nil || got != end || c.Applied() != end.Last {
		t.Fatalf("%v, at %d", err, got.Last)
	}
	if err := log.Purge(t.Context(), 4); err != nil {
		t.Fatal(err)
	}
	if got, _, err := Follow(t.Context(), log, c, end); err != nil || got != end {
		t.Fatalf("behind a purge: %v, at %d", err, got.Last)
	}
}
