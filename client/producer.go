package client

import (
	"context"
	"errors"
	"hash/fnv"
	"math/rand/v2"
	"sync"
	"time"

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
	// BatchRecords and BatchBytes bound one request; defaults 1,000 records, 512 KiB of keys and values.
	BatchRecords int
	BatchBytes   int
	// RequestTimeout bounds one try; default 5 s. A newer leader is followed at once, without waiting for it.
	RequestTimeout time.Duration
	// DeliveryTimeout bounds all tries of a record; 0: until the producer is closed. A record given up by it may or may not
	// have been stored.
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
	if o.BatchBytes <= 0 {
		o.BatchBytes = 512 << 10
	}
	if o.RequestTimeout <= 0 {
		o.RequestTimeout = 5 * time.Second
	}
	return o
}

// Producer writes records to one topic. Records of one partition are stored in the order of Send; each batch is sent until
// it is acknowledged. It is safe for concurrent use.
type Producer struct {
	options ProducerOptions
	leaders *leaders
	topic   messages.TopicID
	count   uint32
	credits chan struct{}
	ctx     context.Context
	stop    context.CancelFunc

	mu      sync.Mutex
	lanes   map[int32]*lane
	next    uint32
	pending int
	idle    chan struct{} // closed while pending is 0
	closed  bool
	running sync.WaitGroup
}

// NewProducer returns a producer for an existing topic. UNKNOWN_TOPIC if there is none.
func (c *Client) NewProducer(ctx context.Context, topic messages.TopicName, o ProducerOptions) (*Producer, error) {
	l, err := c.follow(ctx, topic)
	if err != nil {
		return nil, err
	}
	p := &Producer{options: o.withDefaults(), leaders: l, topic: l.id(), count: uint32(l.count()), lanes: map[int32]*lane{},
		next: rand.Uint32(), idle: make(chan struct{})}
	p.credits = make(chan struct{}, p.options.MaxInFlight)
	p.ctx, p.stop = context.WithCancel(context.WithoutCancel(ctx))
	close(p.idle)
	return p, nil
}

// Send accepts a record and returns; done is called once, later, from another goroutine, with what became of it. It waits
// while MaxInFlight records are out, until the context ends.
func (p *Producer) Send(ctx context.Context, r Record, done func(Result)) error {
	if r.Partition != ByKey && (r.Partition < 0 || r.Partition >= int32(p.count)) {
		return messages.Errorf(messages.CodeUnknownPartition, "topic %s has the partitions 0 to %d, not %d", p.leaders.name, p.count-1, r.Partition)
	}
	if size := len(r.Key) + len(r.Value); size > p.options.BatchBytes {
		return messages.Errorf(messages.CodeTooLarge, "the record has %d bytes, the limit is %d", size, p.options.BatchBytes)
	}
	select {
	case p.credits <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
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

// run is how many records without a key go to one partition before the next one's turn, so that batches form.
const run = 16

func (p *Producer) choose(key []byte) int32 {
	if key == nil {
		p.next++
		return int32(p.next / run % p.count)
	}
	return PartitionOf(key, int32(p.count))
}

// PartitionOf returns the partition of a key: FNV-1a of 64 bits, modulo the number of partitions.
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
		p.running.Add(1)
		go l.loop()
	}
	return l
}

// settle gives back the credits of n records.
func (p *Producer) settle(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pending -= n
	if p.pending == 0 {
		close(p.idle)
	}
	for range n {
		<-p.credits
	}
}

// Flush waits until every record that was accepted before has its result.
func (p *Producer) Flush(ctx context.Context) error {
	p.mu.Lock()
	idle := p.idle
	p.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close flushes and ends the producer. When the context ends first, what is still out gets a result with an error, and
// Close returns the context's error.
func (p *Producer) Close(ctx context.Context) error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	err := p.Flush(ctx)
	p.stop()
	p.running.Wait()
	return err
}

func newProducerID() uint64 {
	for {
		if id := rand.Uint64(); id != 0 {
			return id
		}
	}
}

func isCode(err error, codes ...messages.Code) bool {
	var coded *messages.Error
	if !errors.As(err, &coded) {
		return false
	}
	for _, c := range codes {
		if coded.Code == c {
			return true
		}
	}
	return false
}
