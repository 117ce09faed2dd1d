package memlog_test

import (
	"sync"
	"testing"

	"github.com/highwater-io/highwater/broker"
	"github.com/highwater-io/highwater/broker/memlog"
	"github.com/highwater-io/highwater/broker/storagetest"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

func TestStorageContract(t *testing.T) {
	var disks sync.Map
	storagetest.Run(t, func(dir string) (broker.Storage, error) {
		d, _ := disks.LoadOrStore(dir, memlog.NewDisk(true))
		return d.(*memlog.Disk).Open(), nil
	})
}

func TestACrashTakesWhatWasNotSynced(t *testing.T) {
	p := messages.PartitionID{Topic: messages.TopicID{1}}
	for _, fsyncs := range []bool{true, false} {
		d := memlog.NewDisk(fsyncs)
		s := d.Open()
		write := func(b *pb.StoredBatch) {
			if err := s.Write([]broker.Write{{Partition: p, Batches: []*pb.StoredBatch{b}, HighWatermark: -1}}); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Create(p, "t"); err != nil {
			t.Fatal(err)
		}
		write(storagetest.Batch(0, 0, 3, 0, 0))
		d.Sync()
		write(storagetest.Batch(3, 0, 2, 0, 0))
		d.Crash()
		if _, err := s.Log(p); err == nil {
			t.Error("the storage of a crashed process still answers")
		}
		want := map[bool]messages.Offset{true: 5, false: 3}[fsyncs]
		if st, err := d.Open().Log(p); err != nil || st.End != want {
			t.Errorf("fsyncs %v: the log ends at %d (%v), want %d", fsyncs, st.End, err, want)
		}
	}
}
