package broker

import (
	"slices"
	"sync"

	"github.com/highwater-io/highwater/broker/replica"
	"github.com/highwater-io/highwater/messages"
)

// writer is the only one that changes the storage once replicas are open. It takes what all partitions want written as
// one Storage.Write; what is wanted meanwhile goes into the next. So one fsync serves many partitions and producers.
type writer struct {
	storage Storage
	failed  func(error)

	mu     sync.Mutex
	dirty  []*partition
	wake   chan struct{}
	closed bool
	done   chan struct{}
}

// maxGroupBytes bounds the batches of one Storage.Write.
const maxGroupBytes = 8 << 20

func newWriter(s Storage, failed func(error)) *writer {
	return &writer{storage: s, failed: failed, wake: make(chan struct{}, 1), done: make(chan struct{})}
}

// enqueue puts a partition on the list; it is taken off when its work is taken. The caller holds the partition's lock.
func (w *writer) enqueue(p *partition) {
	if p.queued {
		return
	}
	p.queued = true
	w.mu.Lock()
	w.dirty = append(w.dirty, p)
	w.mu.Unlock()
	notify(w.wake)
}

// close lets the writer finish what is queued and waits for it.
func (w *writer) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	notify(w.wake)
	<-w.done
}

func (w *writer) run() {
	defer close(w.done)
	var list []*partition
	for {
		w.mu.Lock()
		list, w.dirty = w.dirty, list[:0]
		closed := w.closed
		w.mu.Unlock()
		if len(list) > 0 {
			w.work(list)
			clear(list)
			continue
		}
		if closed {
			return
		}
		<-w.wake
	}
}

// job is what one partition wants of the storage, in this order: write, truncate, remove.
type job struct {
	p        *partition
	write    Write
	end      messages.Offset // of the log when the write is done; -1: unchanged
	truncate *messages.Offset
	remove   bool
}

// work carries out one round of jobs.
func (w *writer) work(list []*partition) {
	for len(list) > 0 {
		jobs := make([]job, 0, len(list))
		size := 0
		for len(list) > 0 && size < maxGroupBytes {
			j, bytes := list[0].takeJob()
			jobs = append(jobs, j)
			size += bytes
			list = list[1:]
		}
		w.write(jobs)
		for _, j := range jobs {
			w.after(j)
		}
	}
}

func (w *writer) write(jobs []job) {
	writes := make([]Write, 0, len(jobs))
	for _, j := range jobs {
		if !j.remove && (len(j.write.Batches) > 0 || j.write.Epoch != nil || j.write.HighWatermark >= 0) {
			writes = append(writes, j.write)
		}
	}
	if len(writes) == 0 {
		return
	}
	err := w.storage.Write(writes)
	if err != nil {
		w.failed(err)
	}
	for _, j := range jobs {
		if !j.remove && (j.end >= 0 || err != nil) {
			j.p.written(j.end, err)
		}
	}
}

// after does what is not a write. The replica gives no write until it has heard of its truncation.
func (w *writer) after(j job) {
	switch {
	case j.remove:
		err := w.storage.Remove(j.p.id)
		if err != nil {
			w.failed(err)
		}
		j.p.removedFromStorage(err)
	case j.truncate != nil:
		l, err := w.storage.Truncate(j.p.id, *j.truncate)
		if err != nil {
			w.failed(err)
		}
		j.p.truncated(l, err)
	}
}

// pendingWrite gathers what a replica gave out since the writer last took it.
type pendingWrite struct {
	write    Write
	bytes    int
	end      messages.Offset
	truncate *messages.Offset
	remove   bool
	any      bool
}

// add merges a write behind the earlier ones. It reports false if it cannot be one write: an epoch starts at the end of
// the log before the batches of a write, so it must not come behind batches that are not taken yet.
func (w *pendingWrite) add(id messages.PartitionID, a replica.Write) bool {
	if a.Epoch != nil && (len(w.write.Batches) > 0 || w.write.Epoch != nil) {
		return false
	}
	if !w.any {
		w.write = Write{Partition: id, HighWatermark: -1}
		w.end, w.any = -1, true
	}
	if a.Epoch != nil {
		w.write.Epoch = a.Epoch
	}
	w.write.HighWatermark = max(w.write.HighWatermark, a.HighWatermark)
	if n := len(a.Batches); n > 0 {
		w.write.Batches = append(slices.Grow(w.write.Batches, n), a.Batches...)
		w.end = batchEnd(a.Batches[n-1])
		for _, b := range a.Batches {
			w.bytes += batchSize(b)
		}
	}
	return true
}
