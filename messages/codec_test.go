package messages

import (
	"reflect"
	"testing"
	"time"
	"unsafe"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"pgregory.net/rapid"

	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

func drawTopicID(t *rapid.T) TopicID {
	var id TopicID
	copy(id[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "topic id"))
	id[0] |= 1
	return id
}

func drawBrokers(t *rapid.T, label string) []BrokerID {
	ids := rapid.SliceOfN(rapid.StringMatching(`[a-z][a-z0-9_-]{0,9}`), 0, 4).Draw(t, label)
	return BrokerIDs(ids)
}

func drawRecord(t *rapid.T) Record {
	switch rapid.IntRange(0, 7).Draw(t, "kind") {
	case 0:
		s := DefaultSettings()
		s.Session = time.Duration(rapid.IntRange(0, 1<<20).Draw(t, "session")) * time.Millisecond
		return &Cluster{Name: "c", ID: rapid.String().Draw(t, "id"), Settings: s}
	case 1:
		return &ControllerClaimed{Controller: "c1", Epoch: ControllerEpoch(rapid.Uint64().Draw(t, "epoch"))}
	case 2:
		return &Broker{ID: "b1", Incarnation: "i", Storage: "s", Epoch: BrokerEpoch(rapid.Uint64().Draw(t, "epoch")), Rack: "r/x",
			Endpoints: map[string]string{"nats": "127.0.0.1:1"}, Weight: rapid.IntRange(0, 1000).Draw(t, "weight"),
			Fsyncs: rapid.Bool().Draw(t, "fsyncs"), Fenced: rapid.Bool().Draw(t, "fenced"), Stopping: rapid.Bool().Draw(t, "stopping"),
			Draining: rapid.Bool().Draw(t, "draining"), Suspect: rapid.Bool().Draw(t, "suspect"), FencedReason: "x", Host: "h", PID: 7, Version: "v"}
	case 3:
		return &Topic{ID: drawTopicID(t), Name: "t", Partitions: 3, ReplicationFactor: 3, MinISR: 2, Labels: map[string]string{"a": "b"}, CreatedUnixMs: 9}
	case 4:
		return &Partition{ID: PartitionID{Topic: drawTopicID(t), Index: rapid.Int32Range(0, 99).Draw(t, "index")},
			Replicas: drawBrokers(t, "replicas"), ISR: drawBrokers(t, "isr"), Eligible: drawBrokers(t, "eligible"), Leader: "b1",
			LeaderEpoch: LeaderEpoch(rapid.Int64().Draw(t, "le")), Epoch: PartitionEpoch(rapid.Int64().Draw(t, "pe")), MinISR: 2,
			LastLeader: "b2", HighWatermark: Offset(rapid.Int64().Draw(t, "hwm")), LeaderProven: rapid.Bool().Draw(t, "proven"), Reason: "r"}
	case 5:
		return &TopicDeletion{ID: drawTopicID(t), Name: "t", Partitions: 2, Epochs: []PartitionEpoch{4, 5}, Pending: drawBrokers(t, "pending")}
	case 6:
		return &BrokerForgotten{ID: "b1"}
	}
	return &TopicDeletionDone{ID: drawTopicID(t)}
}

func TestRecordsRoundTripThroughTheirWireForm(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawRecord(t)
		raw, err := proto.Marshal(RecordToProto(want))
		if err != nil {
			t.Fatal(err)
		}
		var p pb.Record
		if err := proto.Unmarshal(raw, &p); err != nil {
			t.Fatal(err)
		}
		got, err := RecordFromProto(&p)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("got %+v, want %+v", got, want)
		}
	})
}

func FuzzRecordFromProto(f *testing.F) {
	f.Add([]byte{})
	raw, err := proto.Marshal(RecordToProto(&Broker{ID: "b1"}))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add(append(protowire.AppendBytes(protowire.AppendTag(nil, 60, protowire.BytesType), []byte("of a later kind")), raw...))
	f.Add(protowire.AppendVarint(protowire.AppendTag(nil, 101, protowire.VarintType), 60))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var p pb.Record
		if proto.Unmarshal(raw, &p) != nil {
			return
		}
		r, err := RecordFromProto(&p)
		if err != nil {
			return
		}
		// Whatever can be read is written so that it is read as the same.
		written, err := proto.Marshal(RecordToProto(r))
		if err != nil {
			t.Fatal(err)
		}
		var again pb.Record
		if err := proto.Unmarshal(written, &again); err != nil {
			t.Fatal(err)
		}
		if same, err := RecordFromProto(&again); err != nil || !proto.Equal(RecordToProto(same), RecordToProto(r)) {
			t.Fatalf("%+v is read back as %+v, %v", r, same, err)
		}
	})
}

// drawLater puts fields that this version does not know into every message of a record.
func drawLater(t *rapid.T, p *pb.Record) {
	var put func(m protoreflect.Message, from int)
	put = func(m protoreflect.Message, from int) {
		var raw []byte
		for range rapid.IntRange(0, 3).Draw(t, "fields") {
			number := protowire.Number(rapid.IntRange(from, 1<<20).Draw(t, "number"))
			switch rapid.IntRange(0, 2).Draw(t, "type") {
			case 0:
				raw = protowire.AppendVarint(protowire.AppendTag(raw, number, protowire.VarintType), rapid.Uint64().Draw(t, "value"))
			case 1:
				raw = protowire.AppendFixed64(protowire.AppendTag(raw, number, protowire.Fixed64Type), rapid.Uint64().Draw(t, "value"))
			default:
				raw = protowire.AppendBytes(protowire.AppendTag(raw, number, protowire.BytesType), rapid.SliceOf(rapid.Byte()).Draw(t, "value"))
			}
		}
		m.SetUnknown(raw)
		m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
			if f.Message() != nil && !f.IsMap() && !f.IsList() {
				put(v.Message(), 40)
			}
			return true
		})
	}
	put(p.ProtoReflect(), 110)
	p.MinReader = rapid.Uint32Range(0, 3).Draw(t, "min reader")
}

func TestB124FieldsOfALaterVersionSurviveReadingChangingAndWriting(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		record := drawRecord(t)
		want := RecordToProto(record)
		if want.GetEnds() == 0 {
			drawLater(t, want)
		}
		raw, err := proto.Marshal(want)
		var p pb.Record
		if err == nil {
			err = proto.Unmarshal(raw, &p)
		}
		if err != nil {
			t.Fatal(err)
		}
		got, err := RecordFromProto(&p)
		if err != nil {
			t.Fatal(err)
		}
		// What changes is what this version knows; the rest stays as it is.
		switch r := got.(type) {
		case *Partition:
			c := *r
			c.Epoch, c.Leader, c.ISR = 77, "b9", []BrokerID{"b9"}
			want.GetPartition().PartitionEpoch, want.GetPartition().Leader, want.GetPartition().Isr = 77, "b9", []string{"b9"}
			got = &c
		case *Broker:
			c := *r
			c.Fenced, want.GetBroker().Fenced = !c.Fenced, !c.Fenced
			got = &c
		case *Cluster:
			c := *r
			c.Settings.Heartbeat, want.GetCluster().Settings.HeartbeatMs = time.Second, 1000
			want.MinReader = 0 // of a cluster it follows from the version
			got = &c
		}
		if again := RecordToProto(got); !proto.Equal(again, want) {
			t.Fatalf("%T is written as\n%v, was\n%v", got, again, want)
		}
	})
}

func TestB124ARecordOfALaterKindIsWrittenAsItWasRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := &pb.Record{Key: rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "key"), MinReader: rapid.Uint32Range(0, 9).Draw(t, "min reader")}
		kind := rapid.Uint32Range(8, 99).Draw(t, "kind")
		ended := rapid.Bool().Draw(t, "ended")
		var raw []byte
		if ended {
			want.Ends = kind
		} else {
			raw = protowire.AppendBytes(protowire.AppendTag(nil, protowire.Number(kind), protowire.BytesType), rapid.SliceOf(rapid.Byte()).Draw(t, "body"))
		}
		raw = protowire.AppendVarint(protowire.AppendTag(raw, 120, protowire.VarintType), 7)
		want.ProtoReflect().SetUnknown(raw)
		r, err := RecordFromProto(want)
		if err != nil {
			t.Fatal(err)
		}
		u, ok := r.(*UnknownRecord)
		if !ok || u.Kind != kind || u.Key != string(want.Key) || u.Ended != ended || u.Validate() != nil {
			t.Fatalf("read as %T %+v", r, r)
		}
		if again := RecordToProto(r); !proto.Equal(again, want) {
			t.Fatalf("written as %v, was %v", again, want)
		}
	})
}

// A partition takes a place of 192 bytes in memory with or without the room for what later versions write.
func TestRoomForLaterFieldsCostsNoMemory(t *testing.T) {
	if size := unsafe.Sizeof(Partition{}); size > 192 {
		t.Errorf("a partition's record has %d bytes, which take the next larger place", size)
	}
}
