package broker

import (
	"sync/atomic"
	"testing"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// What was read from the tail is written into answers after the lock is let go; the tail drops and moves its batches meanwhile.
func TestWhatWasReadFromTheTailStaysWhenTheTailMovesOn(t *testing.T) {
	var total atomic.Int64
	log := tail{total: &total}
	const batches = 200
	for i := range batches {
		log.append(&pb.StoredBatch{BaseOffset: int64(i), Count: 1, Body: make([]byte, 64)})
	}
	read, ok := log.read(0, batches, 1<<20)
	if !ok || len(read) != batches {
		t.Fatalf("read %d batches, %v", len(read), ok)
	}
	log.trim(messages.Offset(batches-10), 0) // no room at all: everything durable goes
	if log.head != 0 || len(log.batches) > 64 {
		t.Fatalf("the tail has not moved its batches: head %d of %d", log.head, len(log.batches))
	}
	for i, b := range read {
		if b.GetBaseOffset() != int64(i) || b.GetCount() != 1 {
			t.Fatalf("batch %d has become %v", i, b)
		}
	}
}
