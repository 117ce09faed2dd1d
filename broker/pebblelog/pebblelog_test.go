package pebblelog_test

import (
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/highwater-io/highwater/broker"
	"github.com/highwater-io/highwater/broker/pebblelog"
	"github.com/highwater-io/highwater/broker/storagetest"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

func TestStorageContract(t *testing.T) {
	t.Run("FsyncAlways", func(t *testing.T) {
		storagetest.Run(t, func(dir string) (broker.Storage, error) { return pebblelog.Open(dir, pebblelog.Options{}) })
	})
	t.Run("FsyncInterval", func(t *testing.T) {
		storagetest.Run(t, func(dir string) (broker.Storage, error) {
			return pebblelog.Open(dir, pebblelog.Options{Sync: pebblelog.Interval})
		})
	})
}

func TestASecondProcessOnTheFolderIsRefused(t *testing.T) {
	dir := t.TempDir()
	l, err := pebblelog.Open(dir, pebblelog.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if second, err := pebblelog.Open(dir, pebblelog.Options{}); err == nil {
		t.Fatal("opened twice", second.Close())
	}
}

var one = messages.PartitionID{Topic: messages.TopicID{1}}

// A crash drops everything that was not synced. With Always that is nothing that a Write has returned for.
func TestAPowerLossTakesNothingThatWasSynced(t *testing.T) {
	disk := vfs.NewCrashableMem()
	l, err := pebblelog.Open("log", pebblelog.Options{FS: disk})
	if err != nil {
		t.Fatal(err)
	}
	var want messages.Offset
	err = l.Create(one, "t")
	for range 50 {
		err = errors.Join(err, l.Write([]broker.Write{{Partition: one, HighWatermark: want,
			Batches: []*pb.StoredBatch{storagetest.Batch(want, 0, 3, 7, int64(want))}}}))
		want += 3
	}
	if err != nil {
		t.Fatal(err)
	}
	after := disk.CrashClone(vfs.CrashCloneCfg{})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l, err = pebblelog.Open("log", pebblelog.Options{FS: after})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	state, err := l.Log(one)
	if err != nil || state.End != want || state.HighWatermark != want-3 {
		t.Fatalf("after the crash: %+v, %v; want the end %d", state, err, want)
	}
	if l.Identity().CleanEpoch != 0 {
		t.Fatal("a crash looks like a clean stop")
	}
}

func BenchmarkWrite(b *testing.B) {
	for name, mode := range map[string]pebblelog.Sync{"always": pebblelog.Always, "interval": pebblelog.Interval} {
		b.Run(name, func(b *testing.B) {
			l, err := pebblelog.Open(b.TempDir(), pebblelog.Options{Sync: mode})
			if err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			if err := l.Create(one, "t"); err != nil {
				b.Fatal(err)
			}
			end := messages.Offset(0)
			for b.Loop() {
				if err := l.Write([]broker.Write{{Partition: one, HighWatermark: -1, Batches: []*pb.StoredBatch{storagetest.Batch(end, 0, 1, 1, int64(end))}}}); err != nil {
					b.Fatal(err)
				}
				end++
			}
		})
	}
}
