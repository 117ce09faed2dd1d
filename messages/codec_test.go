package messages

import (
	"reflect"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
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
	f.Fuzz(func(t *testing.T, raw []byte) {
		var p pb.Record
		if proto.Unmarshal(raw, &p) != nil {
			return
		}
		if r, err := RecordFromProto(&p); err == nil {
			RecordToProto(r)
		}
	})
}
