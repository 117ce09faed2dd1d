package replica

import (
	"errors"
	"testing"
	"time"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// script reads a sequence of small numbers.
type script struct{ in []byte }

func (s *script) n(limit int) int {
	if len(s.in) == 0 {
		return 0
	}
	b := s.in[0]
	s.in = s.in[1:]
	return int(b) % limit
}

// FuzzReplicaHoldsItsInvariants calls every method in any order with anything: nothing panics, the mark never falls and
// never passes what is durable, and a batch is never given a place twice within one epoch.
func FuzzReplicaHoldsItsInvariants(f *testing.F) {
	f.Add([]byte{0, 1, 1, 1, 3, 1, 5, 2, 7, 1, 1, 4, 5, 3, 0, 2, 2, 2, 3, 6, 1, 9, 4})
	f.Add([]byte{0, 0, 1, 1, 3, 4, 1, 5, 1, 4, 4, 5, 2, 2, 0, 1, 2, 2, 3, 1, 1, 1, 8, 8, 8, 7})
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) > 400 {
			return
		}
		s := &script{in}
		r := New(Config{Self: "a", Partition: testPartition})
		now, mark := time.Duration(0), messages.Offset(0)
		for len(s.in) > 0 {
			now += time.Duration(s.n(40)) * 100 * time.Millisecond
			fuzzStep(s, r, now)
			if r.mark < mark || r.mark > r.durable || r.durable > r.end || len(r.epochs) > 0 && r.epochs[0].Start < r.start {
				t.Fatalf("mark %d after %d, durable %d, end %d", r.mark, mark, r.durable, r.end)
			}
			mark = r.mark
			for i := 1; i < len(r.epochs); i++ {
				if r.epochs[i].Epoch <= r.epochs[i-1].Epoch || r.epochs[i].Start <= r.epochs[i-1].Start {
					t.Fatalf("epochs %v", r.epochs)
				}
			}
		}
	})
}

var someBrokers = []string{"", "a", "b", "c"}

func fuzzStep(s *script, r *Replica, now time.Duration) {
	switch s.n(10) {
	case 0:
		r.Assign(now, &pb.Assignment{LeaderEpoch: int64(s.n(12)), PartitionEpoch: int64(s.n(20)), Leader: someBrokers[s.n(4)],
			Isr: someBrokers[1 : 1+s.n(4)], Replicas: someBrokers[1:4], MinIsr: uint32(s.n(3)), Floor: int64(s.n(6))}, 5)
	case 1:
		b, _ := Seal(&pb.RecordBatch{Records: records(1 + s.n(3)), ProducerId: uint64(s.n(3)), BaseSequence: int64(s.n(6))})
		r.Produce(now, Append{Batch: b, Acks: pb.Acks(s.n(3)), Deadline: now + time.Duration(s.n(3))*time.Second})
	case 2, 3:
		r.Written(now, messages.Offset(s.n(20)), nil)
		r.Written(now, r.end, nil)
	case 4, 5:
		r.Fetched(now, messages.BrokerID(someBrokers[s.n(4)]), messages.BrokerEpoch(s.n(3)), &pb.FetchPosition{
			LeaderEpoch: int64(r.leaderEpoch) + int64(s.n(4)/3), LastEpoch: int64(s.n(12)) - 1, Offset: int64(s.n(20)) - 1})
	case 6:
		fuzzFetchResult(s, r, now)
	case 7:
		id := uint64(s.n(4))
		if s.n(2) == 0 {
			r.ProposalAnswer(now, id, nil)
			return
		}
		codes := []messages.Code{"", messages.CodeIneligibleReplica, messages.CodeStalePartitionEpoch, messages.CodeBusy, "ANYTHING"}
		r.ProposalAnswer(now, id, &pb.IsrResult{Error: &pb.Error{Code: string(codes[s.n(5)])}})
	case 8:
		r.Tick(now)
		_, _ = r.Consume(messages.Offset(s.n(20)))
	default:
		if r.truncating {
			to := messages.Offset(s.n(20))
			var err error
			if s.n(8) == 0 {
				err = errors.New("failed")
			}
			r.Truncated(now, LogState{End: min(to, r.end), Epochs: r.epochs.Truncated(min(to, r.end))}, err)
		}
	}
}

func fuzzFetchResult(s *script, r *Replica, now time.Duration) {
	pos, ok := r.Position(now)
	if !ok {
		pos = &pb.FetchPosition{}
	}
	res := &pb.PartitionFetch{LeaderEpoch: int64(r.leaderEpoch), HighWatermark: int64(s.n(20))}
	switch s.n(4) {
	case 0:
		res.Diverging, res.DivergingEpoch, res.DivergingEnd = true, int64(s.n(12))-1, int64(s.n(20))-1
	case 1:
		res.Error = messages.Errorf(messages.CodeNotLeader, "no").Proto()
	default:
		b, _ := Seal(&pb.RecordBatch{Records: records(1 + s.n(3))})
		b.BaseOffset, b.LeaderEpoch = int64(r.end)+int64(s.n(4)/3), int64(s.n(12))
		res.Batches = []*pb.StoredBatch{b}
	}
	r.FetchResult(now, pos, res)
}
