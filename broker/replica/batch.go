package replica

import (
	"hash/crc32"

	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// MaxBatchRecords bounds the records of one batch.
const MaxBatchRecords = 1 << 20

// Seal makes the stored form of a client's batch, yet without a place in the log, or INVALID_REQUEST. It needs no
// replica: the host may do it before it takes its lock.
func Seal(b *pb.RecordBatch) (*pb.StoredBatch, *messages.Error) {
	n := len(b.GetRecords())
	if n == 0 || n > MaxBatchRecords {
		return nil, messages.Errorf(messages.CodeInvalidRequest, "a batch has 1 to %d records, not %d", MaxBatchRecords, n)
	}
	if b.GetBaseSequence() < 0 || b.GetBaseSequence() > 1<<62 {
		return nil, messages.Errorf(messages.CodeInvalidRequest, "the base sequence %d is out of bounds", b.GetBaseSequence())
	}
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(b)
	if err != nil {
		return nil, messages.Errorf(messages.CodeInvalidRequest, "the batch cannot be written: %v", err)
	}
	return &pb.StoredBatch{Count: uint32(n), ProducerId: b.GetProducerId(), BaseSequence: b.GetBaseSequence(), Body: body,
		Crc: crc32.Checksum(body, castagnoli)}, nil
}

// Verify returns CORRUPT_BATCH for a batch whose body does not have its checksum.
func Verify(b *pb.StoredBatch) *messages.Error {
	if got := crc32.Checksum(b.GetBody(), castagnoli); got != b.GetCrc() {
		return messages.Errorf(messages.CodeCorruptBatch, "the batch at offset %d has checksum %08x instead of %08x",
			b.GetBaseOffset(), got, b.GetCrc())
	}
	return nil
}

// endOfBatch returns the offset behind a batch.
func endOfBatch(b *pb.StoredBatch) messages.Offset {
	return messages.Offset(b.GetBaseOffset()) + messages.Offset(b.GetCount())
}
