package replica

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// kLog is a leader of epoch 10 with the epochs 0@0, 3@2, 4@8, 7@13, 9@14 and log end 17.
func kLog(t *testing.T, start messages.Offset) *member {
	m := newMember(t, "a")
	m.Replica = New(Config{Self: "a", Partition: testPartition, Log: LogState{Start: start, End: 17, HighWatermark: start,
		Epochs: []EpochStart{{0, 0}, {3, 2}, {4, 8}, {7, 13}, {9, 14}}}})
	m.hold = true
	m.assign(assignment("a", 10, 5, "a", "b"))
	return m
}

func ask(m *member, last, offset int64) *pb.PartitionFetch {
	ans, _ := m.Fetched(m.now, "b", 10, &pb.FetchPosition{LeaderEpoch: 10, LastEpoch: last, Offset: offset})
	return ans.Partition
}

func TestK81DivergenceIsFoundByEpoch(t *testing.T) {
	m := kLog(t, 0)
	for _, c := range [][4]int64{{2, 5, 0, 2}, {6, 6, 4, 13}, {10, 18, 10, 17}} {
		p := ask(m, c[0], c[1])
		if !p.Diverging || p.DivergingEpoch != c[2] || p.DivergingEnd != c[3] || p.HighWatermark != 0 || p.Error != nil {
			t.Fatalf("asked %v: %v", c[:2], p)
		}
	}
}

func TestK82PositionsThatAgreeAndThoseOutOfRange(t *testing.T) {
	m := kLog(t, 0)
	for _, c := range [][2]int64{{0, 2}, {7, 14}, {9, 17}, {10, 17}} {
		if p := ask(m, c[0], c[1]); p.Diverging || p.Error != nil {
			t.Fatalf("asked %v: %v", c, p)
		}
	}
	wantCode(t, ask(m, 11, 17).Error, messages.CodeOffsetOutOfRange)
	m = kLog(t, 5)
	if p := ask(m, 2, 8); !p.Diverging || p.DivergingEpoch != 2 || p.DivergingEnd != 5 {
		t.Fatalf("below the first epoch that is kept: %v", p)
	}
	m = kLog(t, 10)
	wantCode(t, ask(m, 5, 6).Error, messages.CodeOffsetOutOfRange)
}

func TestK83EndOfAnEpoch(t *testing.T) {
	e := Epochs{{0, 10}, {2, 13}, {4, 17}}
	check := func(e Epochs, ask, epoch messages.LeaderEpoch, end messages.Offset, ok bool) {
		t.Helper()
		if g, at, o := e.EndOf(ask, 20); g != epoch || o != ok || ok && at != end {
			t.Fatalf("asked %d: %d ends at %d, %v", ask, g, at, o)
		}
	}
	check(e, 1, 0, 13, true)
	check(e, 3, 2, 17, true)
	check(e, 4, 4, 20, true)
	check(e, 5, -1, 0, false)
	check(Epochs{{5, 11}}, 4, 4, 11, true)
	check(nil, 0, -1, 0, false)
}

func TestK84RepeatedEpochKeepsItsStartAndEmptyOneIsReplaced(t *testing.T) {
	e := Epochs(nil).With(EpochStart{1, 0}).With(EpochStart{1, 5}).With(EpochStart{2, 7}).With(EpochStart{3, 7})
	if want := (Epochs{{1, 0}, {3, 7}}); !slices.Equal(e, want) {
		t.Fatalf("%v, want %v", e, want)
	}
	// A lower epoch may follow one that has no records.
	if got, want := e.With(EpochStart{2, 7}), (Epochs{{1, 0}, {2, 7}}); !slices.Equal(got, want) {
		t.Fatalf("%v, want %v", got, want)
	}
}

// An epoch list that follows writes, elections and truncations says of every record the epoch that it was written in.
func TestEpochListSaysTheEpochOfEachRecord(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var e Epochs
		var truth []messages.LeaderEpoch // epoch of the record at each offset
		epoch := messages.LeaderEpoch(0)
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			end := messages.Offset(len(truth))
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				epoch += messages.LeaderEpoch(rapid.IntRange(1, 3).Draw(t, "rise"))
				e = e.With(EpochStart{epoch, end})
			case 1:
				to := messages.Offset(rapid.IntRange(0, len(truth)).Draw(t, "to"))
				truth, e = truth[:to], e.Truncated(to)
			default:
				b := epoch
				if n := len(truth); rapid.Bool().Draw(t, "older") {
					b = 0 // as a follower, of a record that is older than the elections since
					if n > 0 {
						b = truth[n-1]
					}
				}
				e = e.With(EpochStart{b, end})
				truth = append(truth, b)
			}
			checkEpochs(t, e, truth)
		}
	})
}

func checkEpochs(t *rapid.T, e Epochs, truth []messages.LeaderEpoch) {
	for i := 1; i < len(e); i++ {
		if e[i].Epoch <= e[i-1].Epoch || e[i].Start <= e[i-1].Start {
			t.Fatalf("not rising: %v", e)
		}
	}
	for i, want := range truth {
		if got := e.Truncated(messages.Offset(i + 1)).Last(); got != want {
			t.Fatalf("record %d is of epoch %d, the list %v says %d", i, want, e, got)
		}
	}
	if n := len(truth); n > 0 {
		if got, end, ok := e.EndOf(truth[n-1], messages.Offset(n)); !ok || got != truth[n-1] || end > messages.Offset(n) {
			t.Fatalf("end of the last record's epoch: %d %d %v of %v", got, end, ok, e)
		}
	}
}
