package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

type outgoing struct {
	record Record
	done   func(Result)
}

// lane sends the records of one partition, one batch at a time. While a batch is out the next one gathers.
type lane struct {
	producer *Producer
	attempt  attempt
	id       uint64 // producer id
	sequence int64  // of the next record

	mu    sync.Mutex
	queue []outgoing
	ready chan struct{} // has a token when the queue may not be empty
}

func newLane(p *Producer, index int32) *lane {
	return &lane{producer: p, id: newProducerID(), ready: make(chan struct{}, 1),
		attempt: attempt{leaders: p.leaders, topic: p.topic, partition: index, verb: messages.VerbProduce, timeout: p.options.RequestTimeout}}
}

func (l *lane) put(o outgoing) {
	l.mu.Lock()
	l.queue = append(l.queue, o)
	l.mu.Unlock()
	select {
	case l.ready <- struct{}{}:
	default:
	}
}

// take returns the next batch, none if the queue is empty.
func (l *lane) take() []outgoing {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, bytes := 0, 0
	for n < len(l.queue) && n < l.producer.options.BatchRecords {
		bytes += len(l.queue[n].record.Key) + len(l.queue[n].record.Value)
		if n > 0 && bytes > l.producer.options.BatchBytes {
			break
		}
		n++
	}
	batch := l.queue[:n:n]
	l.queue = l.queue[n:]
	if len(l.queue) == 0 {
		l.queue = nil
	}
	return batch
}

func (l *lane) loop() {
	defer l.producer.running.Done()
	for {
		batch := l.take()
		if len(batch) == 0 {
			select {
			case <-l.ready:
				continue
			case <-l.producer.ctx.Done():
			}
			if batch = l.take(); len(batch) == 0 {
				return
			}
		}
		l.report(batch, l.deliver(batch))
	}
}

type delivered struct {
	answer *pb.ProduceResponse
	err    error
}

func (l *lane) report(batch []outgoing, d delivered) {
	for i, o := range batch {
		r := Result{Record: o.record, Partition: l.attempt.partition, Offset: -1, Err: d.err}
		if d.err == nil {
			r.Offset = messages.Offset(d.answer.GetBaseOffset()) + messages.Offset(i)
			r.Duplicate, r.Protected = d.answer.GetDuplicate(), d.answer.GetProtected()
		}
		if o.done != nil {
			o.done(r)
		}
	}
	l.producer.settle(len(batch))
}

// deliver sends one batch until it is acknowledged or cannot be.
func (l *lane) deliver(batch []outgoing) delivered {
	ctx := l.producer.ctx
	if d := l.producer.options.DeliveryTimeout; d > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d)
		defer cancel()
	}
	request := l.request(batch)
	uncertain := false // an earlier try may have stored the batch
	for try := 0; ; try++ {
		_, changed := l.attempt.leaders.of(l.attempt.partition)
		var answer pb.ProduceResponse
		err := l.attempt.try(ctx, request, &answer)
		if err == nil {
			if e := messages.ErrorFromProto(answer.GetError()); e != nil {
				err = e
			}
		}
		switch {
		case err == nil:
			l.sequence += int64(len(batch))
			return delivered{answer: &answer}
		case ctx.Err() != nil:
			return delivered{err: l.given(ctx, err, try)}
		case isCode(err, messages.CodeUnknownProducer, messages.CodeOutOfOrderSequence) && l.mayRestart(uncertain):
			l.id, l.sequence = newProducerID(), 0
			request = l.request(batch)
			continue
		case final(err):
			return delivered{err: err}
		}
		uncertain = uncertain || !refused(err)
		if errors.Is(err, errMoved) {
			continue
		}
		if err := l.attempt.leaders.pause(ctx, changed, backoff(try)); err != nil {
			return delivered{err: l.given(ctx, err, try)}
		}
	}
}

// mayRestart reports whether the batch can be sent as the first one of a new producer without the risk that it is stored
// twice: when no try of it can have been stored. With acks=leader the leader may have forgotten what it acknowledged.
func (l *lane) mayRestart(uncertain bool) bool {
	return !uncertain || l.producer.options.Acks == pb.Acks_ACKS_LEADER
}

// refused reports whether an error proves that the leader has not appended the batch.
func refused(err error) bool {
	return errors.Is(err, errNoLeader) || isCode(err, messages.CodeNotLeader, messages.CodeNotEnoughReplicas, messages.CodeBusy,
		messages.CodeFencedLeaderEpoch, messages.CodeUnknownLeaderEpoch, messages.CodeBrokerFenced, messages.CodeNoLease)
}

// given explains why a batch was given up.
func (l *lane) given(ctx context.Context, last error, try int) error {
	why := "the producer was closed"
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		why = fmt.Sprintf("not acknowledged within %s", l.producer.options.DeliveryTimeout)
	}
	return messages.Errorf(messages.CodeOutcomeUnknown, "partition %d: %s after %d tries; the last one: %v", l.attempt.partition, why, try+1, last)
}

func (l *lane) request(batch []outgoing) *pb.ProduceRequest {
	records := make([]*pb.LogRecord, len(batch))
	for i, o := range batch {
		records[i] = &pb.LogRecord{Key: o.record.Key, NullKey: o.record.Key == nil, Value: o.record.Value,
			TimestampUnixMs: o.record.TimestampUnixMs, Headers: o.record.Headers}
	}
	return &pb.ProduceRequest{TopicId: l.attempt.topic.Bytes(), Acks: l.producer.options.Acks,
		TimeoutMs: uint32(l.producer.options.RequestTimeout / time.Millisecond),
		Batch:     &pb.RecordBatch{ProducerId: l.id, BaseSequence: l.sequence, Records: records}}
}
