package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// outgoing is a record that waits for its result.
type outgoing struct {
	record Record
	done   func(Result)
}

// recordOverhead is what a record or a header takes beside its bytes, at most.
const recordOverhead = 32

func size(r Record) int {
	n := len(r.Key) + len(r.Value) + recordOverhead
	for _, h := range r.Headers {
		n += len(h.GetKey()) + len(h.GetValue()) + recordOverhead
	}
	return n
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
		attempt: attempt{leaders: p.leaders, topic: p.topic.id, partition: index, verb: messages.VerbProduce, timeout: p.options.RequestTimeout}}
}

func newProducerID() uint64 { return max(1, rand.Uint64()) } // 0 means none

func (l *lane) put(o outgoing) {
	l.mu.Lock()
	l.queue = append(l.queue, o)
	l.mu.Unlock()
	select {
	case l.ready <- struct{}{}:
	default:
	}
}

// take returns the next batch, none if the queue is empty. A batch has one record at least, whatever its size.
func (l *lane) take() []outgoing {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, bytes := 0, 0
	for n < len(l.queue) && n < l.producer.options.BatchRecords {
		bytes += size(l.queue[n].record)
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
		var answer pb.ProduceResponse
		l.report(batch, &answer, l.deliver(batch, &answer))
	}
}

func (l *lane) report(batch []outgoing, answer *pb.ProduceResponse, err error) {
	for i, o := range batch {
		r := Result{Record: o.record, Partition: l.attempt.partition, Offset: -1, Err: err}
		if err == nil {
			r.Offset = messages.Offset(answer.GetBaseOffset()) + messages.Offset(i)
			r.Duplicate, r.Protected = answer.GetDuplicate(), answer.GetProtected()
		}
		<-l.producer.credits // before done, which may send the next record
		if o.done != nil {
			o.done(r)
		}
	}
	l.producer.settle(len(batch))
}

// deliver sends one batch until it is acknowledged or cannot be.
//
// The leader knows a batch that comes again by producer id, sequence and count. So sequences that have been sent with one
// batch are never used for another: a batch that is given up takes the producer id with it.
func (l *lane) deliver(batch []outgoing, answer *pb.ProduceResponse) error {
	ctx := l.producer.ctx
	if d := l.producer.options.DeliveryTimeout; d > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, d, fmt.Errorf("not acknowledged within %s", d))
		defer cancel()
	}
	request := l.request(batch)
	uncertain := false // a try may have stored the batch
	var last error     // why it was not acknowledged so far
	err := l.attempt.persist(ctx, request, answer, func(err error) error {
		uncertain = uncertain || !refused(err)
		if ctx.Err() != nil || closed(err) {
			return l.given(cmp.Or(context.Cause(ctx), err), uncertain, last)
		}
		last = err
		switch weak := request.Acks == pb.Acks_ACKS_LEADER; {
		case isCode(err, messages.CodeUnknownProducer) && (weak || !uncertain), isCode(err, messages.CodeOutOfOrderSequence) && weak:
			l.restart() // the log has forgotten the producer, which with acks=leader may have lost what it acknowledged
			request.Batch.ProducerId, request.Batch.BaseSequence = l.id, l.sequence
		case isCode(err, messages.CodeOutOfOrderSequence), final(err):
			return err // out of order: something that was acknowledged is missing
		}
		return nil
	})
	if err != nil {
		l.restart()
		return err
	}
	l.sequence += int64(len(batch))
	return nil
}

func (l *lane) restart() { l.id, l.sequence = newProducerID(), 0 }

// given explains why a batch was given up: OUTCOME_UNKNOWN if it may be stored, else the code of the last try.
func (l *lane) given(why error, uncertain bool, last error) error {
	code := messages.CodeOutcomeUnknown
	if !uncertain {
		code = messages.CodeUnavailable
		var coded *messages.Error
		if errors.As(last, &coded) {
			code = coded.Code
		}
	}
	text := messages.AsError(why).Message
	if last != nil {
		text = fmt.Sprintf("%s; the last try: %v", text, last)
	}
	return messages.Errorf(code, "partition %d: %s", l.attempt.partition, text)
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
