package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

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

// ConsumeOptions of Consume. The zero value reads every partition from its end, for ever.
type ConsumeOptions struct {
	// Partitions to read; none: all.
	Partitions []int32
	// From is an offset, FromBeginning or FromEnd, for each partition that Offsets does not name. The zero value is offset 0.
	From messages.Offset
	// Offsets are starts of single partitions.
	Offsets map[int32]messages.Offset
	// ExitAtEnd ends each partition at the mark that it had when Consume began.
	ExitAtEnd bool
	// MaxBytes bounds one fetch of one partition; default 1 MiB.
	MaxBytes int
	// MaxWait is how long a leader may hold a fetch while there is nothing to read; default 1 s.
	MaxWait time.Duration
}

// Consume reads committed records and calls f with each: in order within a partition, one call at a time. It ends when the
// context ends (with its error), when f returns an error (with it), when every partition is at its end with ExitAtEnd, or
// with a coded error when an offset cannot be read: records are never skipped or repeated silently.
func (c *Client) Consume(ctx context.Context, topic messages.TopicName, o ConsumeOptions, f func(Fetched) error) error {
	l, err := c.follow(ctx, topic)
	if err != nil {
		return err
	}
	if o.MaxBytes <= 0 {
		o.MaxBytes = 1 << 20
	}
	if o.MaxWait <= 0 {
		o.MaxWait = time.Second
	}
	partitions := o.Partitions
	if len(partitions) == 0 {
		for i := range int32(l.count()) {
			partitions = append(partitions, i)
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var one sync.Mutex
	var readers sync.WaitGroup
	for _, p := range partitions {
		r := &reader{options: o, f: func(r Fetched) error { one.Lock(); defer one.Unlock(); return f(r) },
			attempt: attempt{leaders: l, topic: l.id(), partition: p, verb: messages.VerbFetch, timeout: o.MaxWait + 5*time.Second}}
		readers.Go(func() {
			if err := r.read(ctx); err != nil {
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
	f       func(Fetched) error
}

func (r *reader) read(ctx context.Context) error {
	at, ok := r.options.Offsets[r.attempt.partition]
	if !ok {
		at = r.options.From
	}
	end := messages.Offset(-1)
	if at < 0 || r.options.ExitAtEnd {
		bounds, err := r.bounds(ctx)
		if err != nil {
			return err
		}
		switch at {
		case FromBeginning:
			at = messages.Offset(bounds.GetLogStart())
		case FromEnd:
			at = messages.Offset(bounds.GetHighWatermark())
		}
		if r.options.ExitAtEnd {
			end = messages.Offset(bounds.GetHighWatermark())
		}
	}
	for end < 0 || at < end {
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
	for try := 0; ; try++ {
		_, changed := r.attempt.leaders.of(r.attempt.partition)
		answer := &pb.FetchResponse{}
		err := r.attempt.try(ctx, request, answer)
		if err == nil {
			e := messages.ErrorFromProto(answer.GetError())
			if e == nil {
				return answer, nil
			}
			err = e
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if final(err) {
			return nil, err
		}
		if errors.Is(err, errMoved) {
			continue
		}
		if err := r.attempt.leaders.pause(ctx, changed, backoff(try)); err != nil {
			return nil, context.Cause(ctx)
		}
	}
}

// hand calls f with the records of an answer from an offset on and returns the next offset. A hole is an error.
func (r *reader) hand(answer *pb.FetchResponse, at, end messages.Offset) (messages.Offset, error) {
	for _, stored := range answer.GetBatches() {
		base := messages.Offset(stored.GetBaseOffset())
		if base > at {
			return at, messages.Errorf(messages.CodeInternal, "partition %d: the leader answers offset %d where %d was asked for", r.attempt.partition, base, at)
		}
		var batch pb.RecordBatch
		if err := proto.Unmarshal(stored.GetBody(), &batch); err != nil || len(batch.GetRecords()) != int(stored.GetCount()) {
			return at, messages.Errorf(messages.CodeCorruptBatch, "partition %d: the batch at offset %d cannot be read", r.attempt.partition, base)
		}
		for i, rec := range batch.GetRecords() {
			offset := base + messages.Offset(i)
			if offset < at {
				continue
			}
			if offset >= messages.Offset(answer.GetHighWatermark()) || end >= 0 && offset >= end {
				return at, nil
			}
			if err := r.f(fetched(r.attempt.partition, offset, stored, rec)); err != nil {
				return at, err
			}
			at = offset + 1
		}
	}
	return at, nil
}

func fetched(partition int32, offset messages.Offset, stored *pb.StoredBatch, rec *pb.LogRecord) Fetched {
	f := Fetched{Partition: partition, Offset: offset, LeaderEpoch: messages.LeaderEpoch(stored.GetLeaderEpoch()), Key: rec.GetKey(),
		Value: rec.GetValue(), Headers: rec.GetHeaders(), TimestampUnixMs: rec.GetTimestampUnixMs()}
	if !rec.GetNullKey() && f.Key == nil {
		f.Key = []byte{}
	}
	return f
}
