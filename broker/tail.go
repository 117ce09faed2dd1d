package broker

import (
	"slices"
	"sort"
	"sync/atomic"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// tail is the end of a led log in memory, so that followers and consumers that keep up never touch the storage. It always
// holds what is not durable yet; older batches are dropped from the front when it is too large. The batches are immutable.
type tail struct {
	batches []*pb.StoredBatch
	head    int   // batches before it have been dropped
	bytes   int64 // of the batches that are held
	total   *atomic.Int64
}

// tailPerPartition bounds what one partition keeps beyond what is not durable, in bytes.
const tailPerPartition = 1 << 20

func batchEnd(b *pb.StoredBatch) messages.Offset {
	return messages.Offset(b.GetBaseOffset()) + messages.Offset(b.GetCount())
}

// batchSize is about what a batch takes in a message, in bytes.
func batchSize(b *pb.StoredBatch) int { return len(b.GetBody()) + 48 }

func (t *tail) append(b *pb.StoredBatch) {
	t.batches = append(t.batches, b)
	t.bytes += int64(batchSize(b))
	t.total.Add(int64(batchSize(b)))
}

// trim drops durable batches while the tail, or all tails together, are above their bounds.
func (t *tail) trim(durable messages.Offset, limit int64) {
	for t.head < len(t.batches) && batchEnd(t.batches[t.head]) <= durable &&
		(t.bytes > tailPerPartition || t.total.Load() > limit) {
		t.drop(int64(batchSize(t.batches[t.head])))
		t.batches[t.head] = nil
		t.head++
	}
	if t.head > 64 && t.head > len(t.batches)/2 {
		n := copy(t.batches, t.batches[t.head:])
		clear(t.batches[n:])
		t.batches, t.head = t.batches[:n], 0
	}
}

func (t *tail) drop(bytes int64) {
	t.bytes -= bytes
	t.total.Add(-bytes)
}

func (t *tail) clear() {
	t.drop(t.bytes)
	t.batches, t.head = nil, 0
}

// read returns whole batches from the one that holds the offset on, below limit, up to maxBytes but at least one. false if
// the tail does not reach back that far. The answer is the caller's: it is read after the lock is let go, while the tail
// moves on.
func (t *tail) read(from, limit messages.Offset, maxBytes int) ([]*pb.StoredBatch, bool) {
	held := t.batches[t.head:]
	if len(held) == 0 || messages.Offset(held[0].GetBaseOffset()) > from {
		return nil, false
	}
	i := sort.Search(len(held), func(i int) bool { return batchEnd(held[i]) > from })
	n, size := i, 0
	for n < len(held) && batchEnd(held[n]) <= limit && (n == i || size+batchSize(held[n]) <= maxBytes) {
		size += batchSize(held[n])
		n++
	}
	return slices.Clone(held[i:n]), true
}
