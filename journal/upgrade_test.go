package journal

import (
	"bytes"
	"errors"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// wire is a record in an entry's body.
func wire(t *testing.T, p *pb.Record) []byte {
	t.Helper()
	raw, err := proto.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	return protowire.AppendBytes(protowire.AppendTag(nil, fieldRecords, protowire.BytesType), raw)
}

func wantTooNew(t *testing.T, err error, at messages.Sequence, needs messages.Version) {
	t.Helper()
	newer := (*TooNew)(nil)
	if !errors.As(err, &newer) || newer.At != at || newer.Needs != needs || newer.By != "c1" {
		t.Fatalf("the error is %v, not that entry %d needs version %d", err, at, needs)
	}
	if messages.CodeOf(err) != messages.CodeUnsupportedVersion {
		t.Errorf("the code is %s", messages.CodeOf(err))
	}
}

func TestB124RecordsOfALaterKindAreKeptReplacedAndEnded(t *testing.T) {
	log, at := logOf(t, 0)
	note := func(key string, value byte) *messages.UnknownRecord {
		return &messages.UnknownRecord{Kind: 99, Key: key, Fields: later(99, value)}
	}
	for _, r := range [][]messages.Record{
		{note("a", 1), note("b", 1), &messages.Broker{ID: "b1"}},
		{note("a", 2)},
		{note("c", 1), &messages.UnknownRecord{Kind: 99, Key: "b", Ended: true}, &messages.UnknownRecord{Kind: 98, Key: "a", Ended: true}},
	} {
		at = appendRaw(t, log, at, Writer{"c1", 1}, records(t, r...))
	}
	c := NewCatalog()
	if _, _, err := Recover(t.Context(), log, c); err != nil {
		t.Fatal(err)
	}
	check := func(c *Catalog) {
		t.Helper()
		kept := c.UnknownRecords()
		if len(kept) != 2 || kept[0].Key != "a" || !bytes.Equal(kept[0].Fields, later(99, 2)) || kept[1].Key != "c" || len(c.Brokers()) != 1 {
			t.Errorf("kept are %+v", kept)
		}
		if _, n := c.Damaged(); n != 0 {
			t.Errorf("%d records count as damaged", n)
		}
	}
	check(c)
	store := NewMemorySnapshots()
	if _, err := TakeSnapshot(t.Context(), c, store, time.Now()); err != nil {
		t.Fatal(err)
	}
	again := NewCatalog()
	if r, err := RecoverFrom(t.Context(), log, store, again); err != nil || r.From.At != at {
		t.Fatalf("%+v, %v", r, err)
	}
	check(again)
	backup, restored := snapshotOf(t, store, at.Last), NewCatalog()
	into, there := NewMemory(), NewMemorySnapshots()
	if _, _, err := Restore(t.Context(), into, there, backup, "c9", "store"); err != nil {
		t.Fatal(err)
	}
	if _, err := RecoverFrom(t.Context(), into, there, restored); err != nil {
		t.Fatal(err)
	}
	check(restored)
}

func TestB124ARecordThatCannotBeKeptIsLeftOut(t *testing.T) {
	log, at := logOf(t, 0)
	two := &pb.Record{}
	two.ProtoReflect().SetUnknown(append(later(98, 1), later(97, 1)...))
	beside := &pb.Record{}
	beside.ProtoReflect().SetUnknown(later(200, 1))
	long := messages.RecordToProto(&messages.UnknownRecord{Kind: 60, Key: string(make([]byte, messages.MaxRecordKey+1)), Fields: later(60, 1)})
	both := messages.RecordToProto(&messages.Broker{ID: "b1"})
	both.Ends = 60
	all := []*pb.Record{two, beside, long, both, {Ends: 4, Key: []byte("topic")}, {Ends: 100, Key: []byte("x")}}
	var body []byte
	for _, p := range all {
		body = append(body, wire(t, p)...)
	}
	appendRaw(t, log, at, Writer{"c1", 1}, body)
	c := NewCatalog()
	if _, _, err := Recover(t.Context(), log, c); err != nil {
		t.Fatal(err)
	}
	if damage, n := c.Damaged(); n != len(all) || len(c.UnknownRecords()) != 0 {
		t.Errorf("left out are %v", damage)
	}
}

func TestB124WhatNeedsALaterVersionIsRefusedWhole(t *testing.T) {
	broker := records(t, &messages.Broker{ID: "b"})
	format := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), Format+1)
	least := protowire.AppendVarint(protowire.AppendTag(nil, 7, protowire.VarintType), 2)
	note := messages.RecordToProto(&messages.UnknownRecord{Kind: 60, Key: "x", Fields: later(60, 1), MinReader: 2})
	unusable := messages.RecordToProto(&messages.Topic{})
	unusable.MinReader = 2
	for name, test := range map[string]struct {
		body  []byte
		needs messages.Version
		reads messages.Version // from which on it is taken in; 0: by none
	}{
		"an entry":                            {append(slices.Clone(broker), least...), 2, 2},
		"a record":                            {append(slices.Clone(broker), wire(t, note)...), 2, 2},
		"a record that is of no use anyway":   {append(slices.Clone(broker), wire(t, unusable)...), 2, 2},
		"the cluster":                         {records(t, &messages.Broker{ID: "b"}, &messages.Cluster{Name: "one", ID: "id", Version: 3}), 3, 3},
		"the layout":                          {append(slices.Clone(broker), format...), 0, 0},
		"the end of something":                {wire(t, &pb.Record{Ends: 60, Key: []byte("x"), MinReader: 2}), 2, 2},
		"a cluster that says so with nothing": {wire(t, &pb.Record{Kind: &pb.Record_Cluster{Cluster: &pb.ClusterRecord{Name: "one", Version: 2}}}), 2, 2},
	} {
		t.Run("B124 "+name, func(t *testing.T) {
			log, at := logOf(t, 1)
			appendRaw(t, log, at, Writer{"c1", 1}, test.body)
			c := NewCatalogReading(1)
			got, _, err := Recover(t.Context(), log, c)
			wantTooNew(t, err, 3, test.needs)
			if got != at || c.Position() != at || len(c.Brokers()) != 1 || len(c.UnknownRecords()) != 0 {
				t.Errorf("it has been taken in half: at %d, brokers %v", c.Applied(), c.Brokers())
			}
			// Nor can it be claimed over: somebody else's entry is in the way.
			if _, _, err := Claim(t.Context(), log, c, got, "c2"); err == nil {
				t.Error("it has been claimed")
			}
			if test.reads > 0 {
				if _, _, err := Recover(t.Context(), log, NewCatalogReading(test.reads)); err != nil {
					t.Errorf("a later version refuses it: %v", err)
				}
			}
		})
	}
}

func TestB124ASnapshotThatNeedsALaterVersionIsNotPassedOver(t *testing.T) {
	log, store, at := twoSnapshots(t)
	later := NewCatalogReading(2)
	if _, err := RecoverFrom(t.Context(), log, store, later); err != nil {
		t.Fatal(err)
	}
	epoch := later.Claimed().Epoch
	at = appendRaw(t, log, at, Writer{"c1", epoch}, records(t, &messages.Cluster{Name: "one", ID: "id", Version: 2}))
	if _, _, err := Follow(t.Context(), log, later, later.Position()); err != nil {
		t.Fatal(err)
	}
	v, err := later.Pin()
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	if err := store.Save(t.Context(), at.Last, NewEncoder(v, 5)); err != nil {
		t.Fatal(err)
	}
	if err := log.Purge(t.Context(), at.Last); err != nil {
		t.Fatal(err)
	}
	c := NewCatalogReading(1)
	r, err := RecoverFrom(t.Context(), log, store, c)
	wantTooNew(t, err, at.Last, 2)
	if c.Applied() != 0 || len(c.Brokers()) != 0 || r.From.Pieces != 0 {
		t.Errorf("it has been taken in: %+v", r)
	}
	if _, err := RecoverFrom(t.Context(), log, store, NewCatalogReading(2)); err != nil {
		t.Errorf("a later version refuses it: %v", err)
	}
}

// An earlier version that changes what a later one wrote leaves what it does not know where it is.
func TestB124FieldsOfALaterVersionSurviveChangesAndSnapshots(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		value := rapid.Byte().Draw(rt, "value")
		topic := withLater(rt, &messages.Topic{ID: messages.TopicID{1}, Name: "x", Partitions: 2}, value)
		p := withLater(rt, partition(1, 1, "b1", "b2"), value).(*messages.Partition)
		changed := *p
		changed.ISR, changed.Leader, changed.Epoch = []messages.BrokerID{"b2"}, "b2", 9
		c := NewCatalog()
		c.ApplyAt(Position{1, [32]byte{1}}, []messages.Record{topic, p})
		log, at := logOf(t, 0)
		appendRaw(t, log, at, Writer{"c1", 1}, records(t, topic, &changed))
		read := NewCatalog()
		if _, _, err := Recover(t.Context(), log, read); err != nil {
			rt.Fatal(err)
		}
		store := NewMemorySnapshots()
		if _, err := TakeSnapshot(t.Context(), read, store, time.Now()); err != nil {
			rt.Fatal(err)
		}
		again := NewCatalog()
		if _, err := RecoverFrom(t.Context(), log, store, again); err != nil {
			rt.Fatal(err)
		}
		got, ok := again.Partition(p.ID)
		want := &pb.PartitionRecord{}
		raw, err := proto.Marshal(messages.RecordToProto(&changed).GetPartition())
		if err == nil {
			err = proto.Unmarshal(raw, want)
		}
		if err != nil || !ok || got.Unknown == nil || !bytes.Contains(raw, later(99, value)) || !proto.Equal(messages.RecordToProto(got).GetPartition(), want) {
			rt.Fatalf("it was %+v and is %+v, %v", changed, got, err)
		}
		if t, _ := again.Topic(messages.TopicID{1}); t.Unknown == nil {
			rt.Fatal("the topic's fields are gone")
		}
	})
}
