// Package storagetest checks an implementation of broker.Storage. An implementation's test calls Run with a function that
// opens the storage in a folder; the suite closes and opens it again to see what has been kept.
package storagetest

import (
	"errors"
	"fmt"
	"hash/crc32"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/highwater-io/highwater/broker"
	"github.com/highwater-io/highwater/broker/replica"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// Open opens the storage that is kept in a folder, new or not.
type Open func(dir string) (broker.Storage, error)

// Run runs the whole suite.
func Run(t *testing.T, open Open) {
	for name, test := range map[string]func(*testing.T, Open){
		"IdentityIsKept":                  identityIsKept,
		"AnotherClustersFolderIsRefused":  anotherFolderIsRefused,
		"BatchesAreReadAsTheyWereWritten": batchesAreRead,
		"AGapIsRefused":                   gapIsRefused,
		"AWriteOfSeveralReplicasIsAtomic": writeIsAtomic,
		"TruncationForgets":               truncationForgets,
		"RemovedReplicasStayRemoved":      removedStayRemoved,
		"ProducersAreRemembered":          producersAreRemembered,
		"ItEqualsASimpleModel":            equalsModel,
		"ADamagedBatchIsNotHandedOut":     damagedBatch,
		"UnknownReplicasAreAnError":       unknownReplicas,
		"EpochsWithoutRecordsAreReplaced": emptyEpochs,
	} {
		t.Run(name, func(t *testing.T) { test(t, open) })
	}
}

// Batch makes a stored batch of count records at an offset.
func Batch(base messages.Offset, epoch messages.LeaderEpoch, count uint32, producer uint64, sequence int64) *pb.StoredBatch {
	body := fmt.Appendf(nil, "records %d..%d of epoch %d", base, int64(base)+int64(count), epoch)
	return &pb.StoredBatch{BaseOffset: int64(base), LeaderEpoch: int64(epoch), Count: count, ProducerId: producer, BaseSequence: sequence,
		Body: body, Crc: crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli))}
}

var topic = messages.TopicID{1, 2, 3}

func partition(i int32) messages.PartitionID { return messages.PartitionID{Topic: topic, Index: i} }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func opened(t testing.TB, open Open, dir string) broker.Storage {
	t.Helper()
	s, err := open(dir)
	must(t, err)
	return s
}

func reopened(t testing.TB, s broker.Storage, open Open, dir string) broker.Storage {
	t.Helper()
	must(t, s.Close())
	return opened(t, open, dir)
}

func write(p messages.PartitionID, mark messages.Offset, batches ...*pb.StoredBatch) []broker.Write {
	return []broker.Write{{Partition: p, Batches: batches, HighWatermark: mark}}
}

func identityIsKept(t *testing.T, open Open) {
	dir := t.TempDir()
	s := opened(t, open, dir)
	first := s.Identity()
	if first.Storage == "" || first.Storage.Validate() != nil || first.ClusterID != "" || first.CleanEpoch != 0 {
		t.Fatalf("identity of a new storage: %+v", first)
	}
	must(t, s.Bind("cluster", "b1"))
	must(t, s.MarkRunning())
	seen := messages.Seen{Controller: 3, Sequence: 1 << 40}
	must(t, s.SaveSeen(messages.Seen{Controller: 2, Sequence: 9}))
	must(t, s.SaveSeen(seen))
	must(t, s.MarkClean(7))
	s = reopened(t, s, open, dir)
	if got := s.Identity(); got.Seen != seen || got.Storage != first.Storage || got.ClusterID != "cluster" || got.Broker != "b1" || got.CleanEpoch != 7 {
		t.Fatalf("after a clean stop: %+v", got)
	}
	must(t, s.MarkRunning())
	s = reopened(t, s, open, dir)
	defer s.Close()
	if got := s.Identity(); got.CleanEpoch != 0 {
		t.Fatalf("after a stop that was not marked clean: %+v", got)
	}
	other := opened(t, open, t.TempDir())
	defer other.Close()
	if other.Identity().Storage == first.Storage {
		t.Fatal("two folders have the same storage id")
	}
}

func anotherFolderIsRefused(t *testing.T, open Open) {
	s := opened(t, open, t.TempDir())
	defer s.Close()
	must(t, s.Bind("cluster", "b1"))
	must(t, s.Bind("cluster", "b1"))
	for _, err := range []error{s.Bind("other", "b1"), s.Bind("cluster", "b2")} {
		if messages.CodeOf(err) != messages.CodeClusterMismatch {
			t.Errorf("got %v, want %s", err, messages.CodeClusterMismatch)
		}
	}
}

func batchesAreRead(t *testing.T, open Open) {
	dir := t.TempDir()
	s := opened(t, open, dir)
	must(t, s.Create(partition(0), "t"))
	must(t, s.Create(partition(0), "t"))
	a, b, c := Batch(0, 0, 3, 0, 0), Batch(3, 0, 1, 0, 0), Batch(4, 2, 6, 0, 0)
	must(t, s.Write(write(partition(0), -1, a, b)))
	must(t, s.Write(write(partition(0), 4, c)))
	for range 2 {
		state, err := s.Log(partition(0))
		must(t, err)
		want := replica.LogState{End: 10, HighWatermark: 4, Epochs: []replica.EpochStart{{Epoch: 0, Start: 0}, {Epoch: 2, Start: 4}}}
		if !reflect.DeepEqual(state, want) {
			t.Fatalf("state %+v, want %+v", state, want)
		}
		for from, first := range map[messages.Offset]int64{0: 0, 1: 0, 2: 0, 3: 3, 4: 4, 9: 4} {
			got, err := s.Read(partition(0), from, 1<<20)
			must(t, err)
			if len(got) == 0 || got[0].BaseOffset != first || got[len(got)-1].BaseOffset != 4 {
				t.Fatalf("read from %d: %v", from, got)
			}
		}
		one, err := s.Read(partition(0), 0, 1)
		must(t, err)
		if len(one) != 1 || string(one[0].Body) != string(a.Body) {
			t.Fatalf("a read of one byte gives %d batches", len(one))
		}
		if none, err := s.Read(partition(0), 10, 1<<20); err != nil || len(none) != 0 {
			t.Fatalf("a read at the end gives %v, %v", none, err)
		}
		s = reopened(t, s, open, dir)
	}
	must(t, s.Close())
}

func gapIsRefused(t *testing.T, open Open) {
	s := opened(t, open, t.TempDir())
	defer s.Close()
	must(t, s.Create(partition(0), "t"))
	must(t, s.Write(write(partition(0), -1, Batch(0, 0, 2, 0, 0))))
	for _, b := range []*pb.StoredBatch{Batch(3, 0, 1, 0, 0), Batch(1, 0, 1, 0, 0), Batch(2, 0, 0, 0, 0)} {
		if err := s.Write(write(partition(0), -1, b)); err == nil {
			t.Errorf("a batch of %d records at %d behind the end 2 is accepted", b.Count, b.BaseOffset)
		}
	}
	state, err := s.Log(partition(0))
	must(t, err)
	if state.End != 2 {
		t.Errorf("the end moved to %d", state.End)
	}
}

func writeIsAtomic(t *testing.T, open Open) {
	dir := t.TempDir()
	s := opened(t, open, dir)
	must(t, s.Create(partition(0), "t"))
	must(t, s.Create(partition(1), "t"))
	bad := append(write(partition(0), -1, Batch(0, 0, 1, 0, 0)), write(partition(1), -1, Batch(5, 0, 1, 0, 0))...)
	if err := s.Write(bad); err == nil {
		t.Fatal("a write with a gap is accepted")
	}
	s = reopened(t, s, open, dir)
	defer s.Close()
	if state, err := s.Log(partition(0)); err != nil || state.End != 0 {
		t.Fatalf("half of a refused write was stored: %+v, %v", state, err)
	}
	good := append(write(partition(0), -1, Batch(0, 0, 1, 0, 0)), write(partition(1), 0, Batch(0, 0, 4, 0, 0))...)
	must(t, s.Write(good))
	if state, err := s.Log(partition(1)); err != nil || state.End != 4 {
		t.Fatalf("%+v, %v", state, err)
	}
}

func truncationForgets(t *testing.T, open Open) {
	dir := t.TempDir()
	s := opened(t, open, dir)
	must(t, s.Create(partition(0), "t"))
	must(t, s.Create(partition(1), "t"))
	must(t, s.Write(write(partition(1), 0, Batch(0, 0, 9, 0, 0))))
	must(t, s.Write(write(partition(0), 3, Batch(0, 0, 3, 9, 0), Batch(3, 1, 3, 9, 3), Batch(6, 2, 2, 8, 0))))
	state, err := s.Truncate(partition(0), 4)
	must(t, err)
	if state.End != 3 {
		t.Fatalf("truncation to 4 within the batch [3,6) ends at %d, want 3", state.End)
	}
	want := replica.LogState{End: 3, HighWatermark: 3, Epochs: []replica.EpochStart{{Epoch: 0, Start: 0}},
		Producers: []replica.ProducerState{{Producer: 9, Batches: []replica.ProducerBatch{{BaseSequence: 0, Count: 3, BaseOffset: 0}}}}}
	for range 2 {
		state, err := s.Log(partition(0))
		must(t, err)
		if !reflect.DeepEqual(state, want) {
			t.Fatalf("state %+v, want %+v", state, want)
		}
		s = reopened(t, s, open, dir)
	}
	must(t, s.Write(write(partition(0), 3, Batch(3, 5, 1, 0, 0))))
	got, err := s.Read(partition(0), 0, 1<<20)
	must(t, err)
	if len(got) != 2 || got[1].LeaderEpoch != 5 {
		t.Fatalf("after truncation and a new batch: %v", got)
	}
	if other, err := s.Log(partition(1)); err != nil || other.End != 9 {
		t.Fatalf("the neighbour was changed: %+v, %v", other, err)
	}
	must(t, s.Close())
}

func removedStayRemoved(t *testing.T, open Open) {
	dir := t.TempDir()
	s := opened(t, open, dir)
	for i := range int32(3) {
		must(t, s.Create(partition(i), "t"))
		must(t, s.Write(write(partition(i), 1, Batch(0, 0, 1, 5, 0))))
	}
	must(t, s.Remove(partition(1)))
	must(t, s.Remove(partition(1)))
	s = reopened(t, s, open, dir)
	defer s.Close()
	if held, err := s.Replicas(); err != nil || len(held) != 2 || held[0].Topic != "t" {
		t.Fatalf("held %v, %v", held, err)
	}
	must(t, s.Create(partition(1), "t"))
	state, err := s.Log(partition(1))
	must(t, err)
	if !reflect.DeepEqual(state, replica.LogState{}) {
		t.Fatalf("a replica made again is not empty: %+v", state)
	}
	if got, err := s.Read(partition(1), 0, 1<<20); err != nil || len(got) != 0 {
		t.Fatalf("a replica made again gives %v, %v", got, err)
	}
}

func producersAreRemembered(t *testing.T, open Open) {
	dir := t.TempDir()
	s := opened(t, open, dir)
	must(t, s.Create(partition(0), "t"))
	for i := range 2 * replica.ProducerBatches {
		must(t, s.Write(write(partition(0), -1, Batch(messages.Offset(2*i), 0, 2, 42, int64(2*i)))))
	}
	s = reopened(t, s, open, dir)
	defer s.Close()
	state, err := s.Log(partition(0))
	must(t, err)
	if len(state.Producers) != 1 || len(state.Producers[0].Batches) != replica.ProducerBatches {
		t.Fatalf("producers %+v", state.Producers)
	}
	last := state.Producers[0].Batches[replica.ProducerBatches-1]
	if want := int64(2 * (2*replica.ProducerBatches - 1)); last.BaseSequence != want || int64(last.BaseOffset) != want {
		t.Fatalf("last batch %+v, want %d", last, want)
	}
	// All remembered batches are cut off: what is left of the log is looked through.
	state, err = s.Truncate(partition(0), 4)
	must(t, err)
	if len(state.Producers) != 1 || len(state.Producers[0].Batches) != 2 {
		t.Fatalf("after truncation: %+v", state.Producers)
	}
}

func emptyEpochs(t *testing.T, open Open) {
	dir := t.TempDir()
	s := opened(t, open, dir)
	must(t, s.Create(partition(0), "t"))
	for _, e := range []messages.LeaderEpoch{1, 2, 4} {
		must(t, s.Write([]broker.Write{{Partition: partition(0), HighWatermark: -1, Epoch: &replica.EpochStart{Epoch: e}}}))
	}
	must(t, s.Write(write(partition(0), -1, Batch(0, 4, 2, 0, 0))))
	s = reopened(t, s, open, dir)
	defer func() { _ = s.Close() }()
	state, err := s.Log(partition(0))
	must(t, err)
	want := []replica.EpochStart{{Epoch: 4, Start: 0}}
	if !reflect.DeepEqual(state.Epochs, want) {
		t.Fatalf("epochs %v, want %v", state.Epochs, want)
	}
	// A stint without records does not stand in the way of what another leader wrote at that place before it.
	must(t, s.Write([]broker.Write{{Partition: partition(0), HighWatermark: -1, Epoch: &replica.EpochStart{Epoch: 9}}}))
	must(t, s.Write(write(partition(0), -1, Batch(2, 6, 1, 0, 0), Batch(3, 8, 1, 0, 0))))
	s = reopened(t, s, open, dir)
	state, err = s.Log(partition(0))
	must(t, err)
	want = []replica.EpochStart{{Epoch: 4, Start: 0}, {Epoch: 6, Start: 2}, {Epoch: 8, Start: 3}}
	if !reflect.DeepEqual(state.Epochs, want) {
		t.Fatalf("epochs %v, want %v", state.Epochs, want)
	}
}

func damagedBatch(t *testing.T, open Open) {
	s := opened(t, open, t.TempDir())
	defer s.Close()
	must(t, s.Create(partition(0), "t"))
	bad := Batch(1, 0, 1, 0, 0)
	bad.Crc++
	must(t, s.Write(write(partition(0), -1, Batch(0, 0, 1, 0, 0), bad, Batch(2, 0, 1, 0, 0))))
	if got, err := s.Read(partition(0), 0, 1<<20); err != nil || len(got) != 1 {
		t.Errorf("before the damaged batch: %v, %v", got, err)
	}
	if got, err := s.Read(partition(0), 1, 1<<20); messages.CodeOf(err) != messages.CodeCorruptBatch {
		t.Errorf("at the damaged batch: %v, %v", got, err)
	}
	if got, err := s.Read(partition(0), 2, 1<<20); err != nil || len(got) != 1 {
		t.Errorf("behind the damaged batch: %v, %v", got, err)
	}
}

func unknownReplicas(t *testing.T, open Open) {
	s := opened(t, open, t.TempDir())
	defer s.Close()
	_, err := s.Log(partition(0))
	_, errRead := s.Read(partition(0), 0, 1)
	_, errTruncate := s.Truncate(partition(0), 0)
	for _, err := range []error{err, errRead, errTruncate, s.Write(write(partition(0), 0, Batch(0, 0, 1, 0, 0)))} {
		if !errors.Is(err, broker.ErrNoReplica) {
			t.Errorf("got %v, want %v", err, broker.ErrNoReplica)
		}
	}
}

// equalsModel runs random writes, truncations and reopenings beside a list of batches.
func equalsModel(t *testing.T, open Open) {
	rapid.Check(t, func(rt *rapid.T) {
		dir := t.TempDir()
		s := opened(t, open, dir)
		must(t, s.Create(partition(0), "t"))
		var model []*pb.StoredBatch
		var end messages.Offset
		epoch := messages.LeaderEpoch(0)
		for range rapid.IntRange(1, 12).Draw(rt, "steps") {
			switch rapid.IntRange(0, 5).Draw(rt, "what") {
			case 0:
				to := messages.Offset(rapid.Int64Range(0, int64(end)).Draw(rt, "to"))
				for len(model) > 0 && messages.Offset(model[len(model)-1].BaseOffset)+messages.Offset(model[len(model)-1].Count) > to {
					end = messages.Offset(model[len(model)-1].BaseOffset)
					model = model[:len(model)-1]
				}
				state, err := s.Truncate(partition(0), to)
				must(t, err)
				if state.End != end {
					rt.Fatalf("truncated to %d: end %d, want %d", to, state.End, end)
				}
				epoch++
			case 1:
				s = reopened(t, s, open, dir)
			default:
				b := Batch(end, epoch, rapid.Uint32Range(1, 5).Draw(rt, "count"), rapid.Uint64Range(0, 2).Draw(rt, "producer"), int64(end))
				must(t, s.Write(write(partition(0), -1, b)))
				model = append(model, b)
				end += messages.Offset(b.Count)
			}
		}
		got, err := s.Read(partition(0), 0, 1<<30)
		must(t, err)
		if len(got) != len(model) {
			rt.Fatalf("%d batches, want %d", len(got), len(model))
		}
		for i := range got {
			if got[i].BaseOffset != model[i].BaseOffset || got[i].LeaderEpoch != model[i].LeaderEpoch || string(got[i].Body) != string(model[i].Body) {
				rt.Fatalf("batch %d: %v, want %v", i, got[i], model[i])
			}
		}
		must(t, s.Close())
	})
}
