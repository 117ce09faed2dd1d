package client

import (
	"context"
	"math"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/broker/replica"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// Fetched is one committed record.
type Fetched struct {
	Partition       int32
	Offset          messages.Offset
	LeaderEpoch     messages.LeaderEpoch
	Key             []byte // nil: no key
	Value           []byte
	Headers         []*pb.Header
	TimestampUnixMs int64
}

// FromBeginning and FromEnd are starts for ConsumeOptions.From.
const (
	FromBeginning messages.Offset = -1
	FromEnd       messages.Offset = -2
)

// ConsumeOptions of Consume. The zero value reads every partition from offset 0, for ever.
type ConsumeOptions struct {
	// Partitions to read; none: all.
	Partitions []int32
	// From is an offset, FromBeginning or FromEnd, for each partition that Offsets does not name.
	From messages.Offset
	// Offsets are starts of single partitions.
	Offsets map[int32]messages.Offset
	// ExitAtEnd ends each partition at the mark that it had when Consume began, which is above everything that had been
	// acknowledged by then.
	ExitAtEnd bool
	// MaxBytes bounds one fetch of one partition; default 1 MiB.
	MaxBytes int
	// MaxWait is how long a leader may hold a fetch while there is nothing to read, 1 ms to 30 s; default 1 s.
	MaxWait time.Duration
}

// maxMaxWait is what leaders allow.
const maxMaxWait = 30 * time.Second

// plan returns the partitions to read, each with its start.
func (o *ConsumeOptions) plan(name messages.TopicName, t topic) (map[int32]messages.Offset, error) {
	if o.MaxBytes <= 0 {
		o.MaxBytes = 1 << 20
	}
	if o.MaxWait <= 0 {
		o.MaxWait = time.Second
	}
	o.MaxBytes = min(o.MaxBytes, math.MaxInt32)
	o.MaxWait = min(max(o.MaxWait, time.Millisecond), maxMaxWait)
	starts := map[int32]messages.Offset{}
	for _, p := range o.Partitions {
		starts[p] = o.From
	}
	for p := int32(0); len(o.Partitions) == 0 && p < t.partitions; p++ {
		starts[p] = o.From
	}
	for p, at := range o.Offsets {
		if _, read := starts[p]; !read {
			return nil, messages.Errorf(messages.CodeInvalidRequest, "partition %d has a start but is not read", p)
		}
		starts[p] = at
	}
	for p, at := range starts {
		if p < 0 || p >= t.partitions {
			return nil, noPartition(name, t, p)
		}
		if at < FromEnd {
			return nil, messages.Errorf(messages.CodeInvalidRequest, "%d is no offset to start from", at)
		}
	}
	return starts, nil
}

// Consume reads committed records and calls f with each: in order within a partition, one call at a time. It ends when the
// context ends (with its error), when f returns an error (with it, and f is not called again), when every partition is at its
// end with ExitAtEnd, or with a coded error when an offset cannot be read: records are never skipped or repeated silently.
// Errors: UNKNOWN_TOPIC, UNKNOWN_PARTITION, INVALID_REQUEST, OFFSET_OUT_OF_RANGE, CORRUPT_BATCH, UNKNOWN_TOPIC_ID once the
// topic is deleted, INTERNAL for a leader that leaves out an offset.
func (c *Client) Consume(ctx context.Context, name messages.TopicName, o ConsumeOptions, f func(Fetched) error) error {
	l, t, err := c.follow(ctx, name)
	if err != nil {
		return err
	}
	defer c.release(l)
	starts, err := o.plan(name, t)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var one sync.Mutex
	each := func(r Fetched) error {
		one.Lock()
		defer one.Unlock()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		err := f(r)
		if err != nil {
			cancel(err)
		}
		return err
	}
	var readers sync.WaitGroup
	for p, start := range starts {
		r := &reader{options: o, each: each,
			attempt: attempt{leaders: l, topic: t.id, partition: p, verb: messages.VerbFetch, timeout: o.MaxWait + 5*time.Second}}
		readers.Go(func() {
			if err := r.read(ctx, start); err != nil {
				cancel(err)
			}
		})
	}
	readers.Wait()
	return context.Cause(ctx)
}

// reader reads one partition.
type reader struct {
	options ConsumeOptions
	attempt attempt
	each    func(Fetched) error
}

func (r *reader) read(ctx context.Context, at messages.Offset) error {
	end := messages.Offset(math.MaxInt64)
	if at < 0 || r.options.ExitAtEnd {
		bounds, err := r.bounds(ctx)
		if err != nil {
			return err
		}
		start, mark := messages.Offset(bounds.GetLogStart()), messages.Offset(bounds.GetHighWatermark())
		switch {
		case at == FromBeginning:
			at = start
		case at == FromEnd:
			at = mark
		case at < start || at > mark:
			return messages.Errorf(messages.CodeOffsetOutOfRange, "partition %d: the log is [%d, %d), the offset is %d",
				r.attempt.partition, start, mark, at)
		}
		if r.options.ExitAtEnd {
			end = mark
		}
	}
	for at < end {
		answer, err := r.fetch(ctx, &pb.FetchRequest{TopicId: r.attempt.topic.Bytes(), Offset: int64(at),
			MaxBytes: uint32(r.options.MaxBytes), MaxWaitMs: uint32(r.options.MaxWait / time.Millisecond)})
		if err != nil {
			return err
		}
		if at, err = r.hand(answer, at, end); err != nil {
			return err
		}
	}
	return nil
}

// bounds asks for the log's start and mark as of now: a strict read, because a leader that has just taken over may not know
// yet how far its predecessor had committed.
func (r *reader) bounds(ctx context.Context) (*pb.FetchResponse, error) {
	return r.fetch(ctx, &pb.FetchRequest{TopicId: r.attempt.topic.Bytes(), Offset: -1, Strict: true})
}

func (r *reader) fetch(ctx context.Context, request *pb.FetchRequest) (*pb.FetchResponse, error) {
	answer := &pb.FetchResponse{}
	err := r.attempt.persist(ctx, request, answer, func(err error) error {
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case final(err):
			return err
		}
		return nil
	})
	return answer, err
}

// hand calls each with the records of an answer from an offset on, below the end, and returns the next offset. An answer
// that has batches and yet not that offset is an error.
func (r *reader) hand(answer *pb.FetchResponse, at, end messages.Offset) (messages.Offset, error) {
	end = min(end, messages.Offset(answer.GetHighWatermark()))
	asked := at
	for _, stored := range answer.GetBatches() {
		base := messages.Offset(stored.GetBaseOffset())
		if base > at {
			return at, r.hole(at, base)
		}
		if base >= end {
			break
		}
		records, err := r.open(stored)
		if err != nil {
			return at, err
		}
		for ; at < min(base+messages.Offset(len(records)), end); at++ {
			if err := r.each(fetched(r.attempt.partition, at, stored, records[at-base])); err != nil {
				return at, err
			}
		}
	}
	if at == asked && at < end && len(answer.GetBatches()) > 0 {
		return at, r.hole(at, -1)
	}
	return at, nil
}

func (r *reader) hole(at, instead messages.Offset) error {
	return messages.Errorf(messages.CodeInternal, "partition %d: offset %d was asked for, the leader's answer begins at %d without it",
		r.attempt.partition, at, instead)
}

// open checks a stored batch and returns its records.
func (r *reader) open(stored *pb.StoredBatch) ([]*pb.LogRecord, error) {
	var batch pb.RecordBatch
	err := proto.Unmarshal(stored.GetBody(), &batch)
	if bad := replica.Verify(stored); bad != nil || err != nil || len(batch.GetRecords()) != int(stored.GetCount()) {
		return nil, messages.Errorf(messages.CodeCorruptBatch, "partition %d: the batch at offset %d cannot be read", r.attempt.partition, stored.GetBaseOffset())
	}
	return batch.GetRecords(), nil
}

func fetched(partition int32, offset messages.Offset, stored *pb.StoredBatch, rec *pb.LogRecord) Fetched {
	f := Fetched{Partition: partition, Offset: offset, LeaderEpoch: messages.LeaderEpoch(stored.GetLeaderEpoch()), Key: rec.GetKey(),
		Value: rec.GetValue(), Headers: rec.GetHeaders(), TimestampUnixMs: rec.GetTimestampUnixMs()}
	if !rec.GetNullKey() && f.Key == nil {
		f.Key = []byte{}
	}
	return f
}
