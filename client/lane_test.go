package client

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

func ok(*pb.ProduceRequest) proto.Message { return &pb.ProduceResponse{BaseOffset: 7, Protected: true} }

func refusal(code messages.Code) proto.Message {
	return &pb.ProduceResponse{Error: messages.Errorf(code, "said the test").Proto()}
}

// What a leader may answer, or not answer, before it answers well.
func TestABatchIsSentAgainAsItWas(t *testing.T) {
	for name, first := range map[string]proto.Message{
		"no answer":           nil,
		"garbage":             &pb.FetchRequest{TopicId: []byte{1}, Offset: -1},
		"outcome unknown":     refusal(messages.CodeOutcomeUnknown),
		"not enough replicas": refusal(messages.CodeNotEnoughReplicas),
		"busy":                refusal(messages.CodeBusy),
		"not the leader":      refusal(messages.CodeNotLeader),
		"fenced":              refusal(messages.CodeFencedLeaderEpoch),
		"a deleted namesake":  refusal(messages.CodeUnknownTopicID),
		"broken disk":         refusal(messages.CodeStorageFailed),
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, 1)
			f.produce = func(n int, r *pb.ProduceRequest) proto.Message {
				if n == 0 {
					return first
				}
				return ok(r)
			}
			if r := f.one(f.producer(ProducerOptions{RequestTimeout: 50 * time.Millisecond}), "x"); r.Err != nil || r.Offset != 7 {
				t.Fatalf("result %+v", r)
			}
			if len(f.sent()) != 2 || !proto.Equal(f.sent()[0], f.sent()[1]) {
				t.Errorf("sent %v", f.sent())
			}
		})
	}
}

func TestWhatNoRetryMendsIsAnError(t *testing.T) {
	for _, code := range []messages.Code{messages.CodeTooLarge, messages.CodeInvalidRequest, messages.CodeDenied,
		messages.CodeOutOfOrderSequence, "A_CODE_OF_THE_FUTURE"} {
		f := newFake(t, 1)
		f.produce = func(int, *pb.ProduceRequest) proto.Message { return refusal(code) }
		r := f.one(f.producer(ProducerOptions{}), "x")
		wantCode(t, r.Err, code)
		if r.Offset != -1 || len(f.sent()) != 1 {
			t.Errorf("%s: %d tries, %+v", code, len(f.sent()), r)
		}
	}
}

// A leader takes a batch with the producer, sequence and count of an earlier one for the same.
func TestSequencesOfABatchThatFailedAreNotUsedAgain(t *testing.T) {
	f := newFake(t, 1)
	f.produce = func(n int, r *pb.ProduceRequest) proto.Message {
		switch n {
		case 1:
			return nil // it may be stored
		case 2:
			return refusal(messages.CodeTooLarge)
		}
		return ok(r)
	}
	p := f.producer(ProducerOptions{RequestTimeout: time.Minute, DeliveryTimeout: 50 * time.Millisecond})
	var ids []uint64
	for i, code := range []messages.Code{"", messages.CodeOutcomeUnknown, messages.CodeTooLarge, "", ""} {
		wantCode(t, f.one(p, fmt.Sprint(i)).Err, code)
		r := f.sent()[i].GetBatch()
		if want := int64(map[int]int{1: 1, 4: 1}[i]); r.GetBaseSequence() != want {
			t.Errorf("batch %d has sequence %d, want %d", i, r.GetBaseSequence(), want)
		}
		ids = append(ids, r.GetProducerId())
	}
	if ids[0] != ids[1] || ids[1] == ids[2] || ids[2] == ids[3] || ids[3] != ids[4] || slices.Contains(ids, 0) {
		t.Errorf("producer ids %v", ids)
	}
}

func TestAForgottenProducerBeginsAnewOnlyWhenNothingMayBeStored(t *testing.T) {
	script := func(acks pb.Acks, answers ...proto.Message) (*fake, Result) {
		f := newFake(t, 1)
		f.produce = func(n int, r *pb.ProduceRequest) proto.Message {
			if n == 0 || n > len(answers) {
				return ok(r)
			}
			return answers[n-1]
		}
		p := f.producer(ProducerOptions{Acks: acks})
		must(t, f.one(p, "first").Err)
		return f, f.one(p, "second")
	}
	all, leader := pb.Acks_ACKS_ALL, pb.Acks_ACKS_LEADER
	unknown, forgotten, missing := refusal(messages.CodeOutcomeUnknown), refusal(messages.CodeUnknownProducer), refusal(messages.CodeOutOfOrderSequence)
	for name, x := range map[string]struct {
		acks    pb.Acks
		answers []proto.Message
		code    messages.Code
	}{
		"forgotten":                          {all, []proto.Message{forgotten}, ""},
		"forgotten, maybe stored":            {all, []proto.Message{unknown, forgotten}, messages.CodeUnknownProducer},
		"acknowledged, missing":              {all, []proto.Message{missing}, messages.CodeOutOfOrderSequence},
		"acks=leader: forgotten":             {leader, []proto.Message{unknown, forgotten}, ""},
		"acks=leader: acknowledged, missing": {leader, []proto.Message{missing}, ""},
	} {
		f, r := script(x.acks, x.answers...)
		wantCode(t, r.Err, x.code)
		last := f.sent()[len(f.sent())-1].GetBatch()
		if x.code == "" && (last.GetBaseSequence() != 0 || last.GetProducerId() == f.sent()[0].GetBatch().GetProducerId()) {
			t.Errorf("%s: begins anew with sequence %d", name, last.GetBaseSequence())
		}
	}
}

func TestBatchesKeepOrderAndBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := ProducerOptions{BatchRecords: rapid.IntRange(1, 20).Draw(t, "records"), BatchBytes: rapid.IntRange(1, 500).Draw(t, "bytes")}
		l := &lane{producer: &Producer{options: o}, ready: make(chan struct{}, 1)}
		sizes := rapid.SliceOf(rapid.IntRange(0, 200)).Draw(t, "sizes")
		for i, n := range sizes {
			l.put(outgoing{record: Record{Value: make([]byte, n), TimestampUnixMs: int64(i)}})
		}
		next := int64(0)
		for {
			batch := l.take()
			if len(batch) == 0 {
				break
			}
			bytes := 0
			for _, x := range batch {
				if x.record.TimestampUnixMs != next {
					t.Fatalf("record %d comes where %d should", x.record.TimestampUnixMs, next)
				}
				next++
				bytes += size(x.record)
			}
			if len(batch) > o.BatchRecords || len(batch) > 1 && bytes > o.BatchBytes {
				t.Fatalf("a batch of %d records and %d bytes", len(batch), bytes)
			}
		}
		if int(next) != len(sizes) {
			t.Fatalf("%d of %d records were taken", next, len(sizes))
		}
	})
}

func TestTheSizeOfARecordIsNotUnderestimated(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bytes := rapid.SliceOfN(rapid.Byte(), 0, 300)
		r := Record{Key: bytes.Draw(t, "key"), Value: bytes.Draw(t, "value"), TimestampUnixMs: rapid.Int64().Draw(t, "time")}
		for range rapid.IntRange(0, 5).Draw(t, "headers") {
			r.Headers = append(r.Headers, &pb.Header{Key: rapid.String().Draw(t, "name"), Value: bytes.Draw(t, "header")})
		}
		wire := proto.Size(&pb.RecordBatch{Records: []*pb.LogRecord{{Key: r.Key, Value: r.Value, TimestampUnixMs: r.TimestampUnixMs,
			Headers: r.Headers, NullKey: true}}})
		if wire > size(r) {
			t.Fatalf("%d bytes on the wire, estimated %d", wire, size(r))
		}
	})
}

// Changing these would send the records of a key to another partition than before.
func TestThePartitionOfAKeyIsFixed(t *testing.T) {
	for key, want := range map[string]int32{"": 5, "a": 4, "order-17": 10, "\x00\xff": 8} {
		if got := PartitionOf([]byte(key), 12); got != want {
			t.Errorf("%q belongs to partition %d, want %d", key, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int32Range(1, 10_000).Draw(t, "partitions")
		key := rapid.SliceOf(rapid.Byte()).Draw(t, "key")
		if p := PartitionOf(key, n); p < 0 || p >= n || p != PartitionOf(slices.Clone(key), n) {
			t.Fatalf("partition %d of %d", p, n)
		}
	})
}
