package client

import (
	"context"
	"hash/fnv"
	"math/rand/v2"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/highwater-io/highwater/broker/replica"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// ByKey as a record's partition leaves the choice to the producer: by the hash of the key, or evenly without a key.
const ByKey int32 = -1

// Record is one record to write.
type Record struct {
	Partition int32  // or ByKey
	Key       []byte // nil: no key
	Value     []byte
	Headers   []*pb.Header
	// TimestampUnixMs 0: now.
	TimestampUnixMs int64
}

// Result says what became of a record. Exactly one comes for each record that Send accepted.
type Result struct {
	Record    Record
	Partition int32
	Offset    messages.Offset // -1 with an error
	// Duplicate: an earlier try had stored it already; it is stored once.
	Duplicate bool
	// Protected: committed, survives failover. False for acks=leader.
	Protected bool
	Err       error
}

// ProducerOptions of NewProducer. The zero value is usable.
type ProducerOptions struct {
	Acks pb.Acks // default ACKS_ALL
	// MaxInFlight bounds the records that Send has accepted and that have no result yet; default 10,000.
	MaxInFlight int
	// BatchRecords and BatchBytes bound one request; defaults 1,000 records, 512 KiB. A larger record goes alone; one that is
	// larger than a message may be is refused.
	BatchRecords int
	BatchBytes   int
	// RequestTimeout bounds one try; default 5 s. A newer leader is followed at once, without waiting for it.
	RequestTimeout time.Duration
	// DeliveryTimeout bounds all tries of a batch, from the first on; 0: until the producer is closed. With OUTCOME_UNKNOWN a
	// record that is given up may or may not have been stored.
	DeliveryTimeout time.Duration
}

func (o ProducerOptions) withDefaults() ProducerOptions {
	if o.Acks == pb.Acks_ACKS_UNSPECIFIED {
		o.Acks = pb.Acks_ACKS_ALL
	}
	if o.MaxInFlight <= 0 {
		o.MaxInFlight = 10_000
	}
	if o.BatchRecords <= 0 {
		o.BatchRecords = 1000
	}
	o.BatchRecords = min(o.BatchRecords, replica.MaxBatchRecords)
	if o.BatchBytes <= 0 {
		o.BatchBytes = 512 << 10
	}
	if o.RequestTimeout <= 0 {
		o.RequestTimeout = 5 * time.Second
	}
	return o
}

// Producer writes records to one topic. Records of one partition are stored in the order of Send; each batch is sent until
// it is acknowledged, and stored once however often it is sent. It is safe for concurrent use.
type Producer struct {
	client  *Client
	options ProducerOptions
	leaders *leaders
	topic   topic
	largest int // bytes of one record
	credits chan struct{}
	ctx     context.Context
	stop    context.CancelCauseFunc
	running sync.WaitGroup
	release sync.Once

	mu      sync.Mutex
	lanes   map[int32]*lane
	next    uint32
	pending int
	idle    chan struct{} // closed while pending is 0
	closed  bool
}

// NewProducer returns a producer for an existing topic; Close ends it. UNKNOWN_TOPIC if there is none. A producer belongs to
// the topic, not to its name: when the topic is deleted its records fail with UNKNOWN_TOPIC_ID, also when there is a new
// topic of the name.
func (c *Client) NewProducer(ctx context.Context, name messages.TopicName, o ProducerOptions) (*Producer, error) {
	l, t, err := c.follow(ctx, name)
	if err != nil {
		return nil, err
	}
	p := &Producer{client: c, options: o.withDefaults(), leaders: l, topic: t, largest: c.largest(), lanes: map[int32]*lane{},
		next: rand.Uint32(), idle: make(chan struct{})}
	p.options.BatchBytes = min(p.options.BatchBytes, p.largest)
	p.credits = make(chan struct{}, p.options.MaxInFlight)
	p.ctx, p.stop = context.WithCancelCause(context.WithoutCancel(ctx))
	close(p.idle)
	return p, nil
}

// Send accepts a record and returns; done is called once, later, from another goroutine, with what became of it. Until then
// the record's bytes belong to the producer. Send waits while MaxInFlight records are out, until the context ends. done may
// call Send, but whatever it waits for holds up its partition. Errors, without a call of done: UNKNOWN_PARTITION, TOO_LARGE,
// INVALID_REQUEST, UNAVAILABLE after Close, the context's.
func (p *Producer) Send(ctx context.Context, r Record, done func(Result)) error {
	if err := p.check(r); err != nil {
		return err
	}
	select {
	case p.credits <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-p.ctx.Done():
		return errClosed
	}
	if r.TimestampUnixMs == 0 {
		r.TimestampUnixMs = time.Now().UnixMilli()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		<-p.credits
		return errClosed
	}
	index := r.Partition
	if index == ByKey {
		index = p.choose(r.Key)
	}
	if p.pending == 0 {
		p.idle = make(chan struct{})
	}
	p.pending++
	p.lane(index).put(outgoing{record: r, done: done})
	return nil
}

var errClosed = messages.Errorf(messages.CodeUnavailable, "the producer is closed")

// check refuses what could not be stored.
func (p *Producer) check(r Record) error {
	if r.Partition != ByKey && (r.Partition < 0 || r.Partition >= p.topic.partitions) {
		return noPartition(p.leaders.name, p.topic, r.Partition)
	}
	if n := size(r); n > p.largest {
		return messages.Errorf(messages.CodeTooLarge, "the record has %d bytes, the limit is %d", n, p.largest)
	}
	for _, h := range r.Headers {
		if !utf8.ValidString(h.GetKey()) {
			return messages.Errorf(messages.CodeInvalidRequest, "the header name %q is no UTF-8", h.GetKey())
		}
	}
	return nil
}

func noPartition(name messages.TopicName, t topic, index int32) error {
	return messages.Errorf(messages.CodeUnknownPartition, "topic %s has the partitions 0 to %d, not %d", name, t.partitions-1, index)
}

// run is how many records without a key go to one partition before the next one's turn, so that batches form.
const run = 16

func (p *Producer) choose(key []byte) int32 {
	if key == nil {
		p.next++
		return int32(p.next / run % uint32(p.topic.partitions))
	}
	return PartitionOf(key, p.topic.partitions)
}

// PartitionOf returns the partition of a key: FNV-1a of 64 bits, modulo the number of partitions, which must be positive.
func PartitionOf(key []byte, partitions int32) int32 {
	h := fnv.New64a()
	h.Write(key) // never fails
	return int32(h.Sum64() % uint64(partitions))
}

func (p *Producer) lane(index int32) *lane {
	l, ok := p.lanes[index]
	if !ok {
		l = newLane(p, index)
		p.lanes[index] = l
		p.running.Go(l.loop)
	}
	return l
}

// settle follows the results of n records.
func (p *Producer) settle(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pending -= n; p.pending == 0 {
		close(p.idle)
	}
}

// Flush waits for a moment at which every accepted record has its result.
func (p *Producer) Flush(ctx context.Context) error {
	p.mu.Lock()
	idle := p.idle
	p.mu.Unlock()
	select {
	case <-idle:
		return nil
	default:
	}
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Close flushes and ends the producer. When the context ends first, what is still out gets a result with an error:
// OUTCOME_UNKNOWN for what may have been stored; and Close returns the context's error. It must not be called by done.
func (p *Producer) Close(ctx context.Context) error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	err := p.Flush(ctx)
	p.stop(errClosed)
	p.running.Wait()
	p.release.Do(func() { p.client.release(p.leaders) })
	return err
}
