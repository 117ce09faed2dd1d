package journal

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// encodable draws a partition with whatever values its fields can have, sense or not.
func encodable(t *rapid.T) *messages.Partition {
	text := rapid.OneOf(rapid.Just(""), rapid.StringN(0, 40, 200), rapid.Just("\xff"))
	name := rapid.Custom(func(t *rapid.T) messages.BrokerID { return messages.BrokerID(text.Draw(t, "name")) })
	names := rapid.SliceOfN(name, 0, 5)
	number := rapid.Int64()
	return &messages.Partition{
		ID: messages.PartitionID{Topic: messages.TopicID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "topic")),
			Index: rapid.Int32().Draw(t, "index")},
		Replicas: names.Draw(t, "replicas"), ISR: names.Draw(t, "isr"), Eligible: names.Draw(t, "eligible"),
		Leader: name.Draw(t, "leader"), LeaderEpoch: messages.LeaderEpoch(number.Draw(t, "leader epoch")),
		Epoch: messages.PartitionEpoch(number.Draw(t, "epoch")), MinISR: int(rapid.Uint32().Draw(t, "min ISR")),
		LastLeader: name.Draw(t, "last leader"), HighWatermark: messages.Offset(number.Draw(t, "mark")),
		LeaderProven: rapid.Bool().Draw(t, "proven"), Reason: text.Draw(t, "reason"),
	}
}

func TestPartitionsAreWrittenAsTheProtobufLibraryDoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := encodable(t)
		want, err := proto.Marshal(&pb.EntryBody{Records: []*pb.Record{messages.RecordToProto(p)}})
		got, ok := appendPartition([]byte("before"), p)
		switch {
		case ok != (err == nil):
			t.Fatalf("%+v: written %v, by the library %v", p, ok, err)
		case !ok && string(got) != "before":
			t.Fatalf("%+v: %q", p, got)
		case ok && !bytes.Equal(got, append([]byte("before"), want...)):
			t.Fatalf("%+v:\n%x, by the library\n%x", p, got[len("before"):], want)
		}
	})
}

// TestEveryFieldOfAPartitionIsWritten fails when the record gets a field that appendPartition does not know.
func TestEveryFieldOfAPartitionIsWritten(t *testing.T) {
	if n := (&pb.PartitionRecord{}).ProtoReflect().Descriptor().Fields().Len(); n != int(partitionReason) {
		t.Errorf("a partition's record has %d fields, %d are written", n, partitionReason)
	}
}

// BenchmarkEncodePartition measures one record of a partition.
func BenchmarkEncodePartition(b *testing.B) {
	ids := []messages.BrokerID{"b1", "b2", "b3"}
	records := []messages.Record{&messages.Partition{ID: messages.PartitionID{Topic: messages.TopicID{1}, Index: 4}, Replicas: ids, ISR: ids[1:],
		Leader: "b2", LeaderEpoch: 3, Epoch: 17, MinISR: 2, Reason: "broker b1 is fenced: its connection ended"}}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := encodeRecords(records); err != nil {
			b.Fatal(err)
		}
	}
}
