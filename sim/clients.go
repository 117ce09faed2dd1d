package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/highwater-io/highwater/broker/replica"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// client produces to one partition and reads it. A batch that was not answered, or refused for now, is sent again as it
// was, until it is acknowledged.
type client struct {
	process
	partition messages.PartitionID
	acks      pb.Acks
	window    int

	leader      messages.BrokerID
	leaderEpoch messages.LeaderEpoch
	epoch       messages.PartitionEpoch

	producer uint64
	next     int64
	batches  int
	open     []*outstanding // in the order of their sequences
	acked    bool           // some batch of this producer was acknowledged
	idle     bool           // produces nothing new

	offset messages.Offset // to read next
}

type outstanding struct {
	number   int
	batch    *pb.RecordBatch
	inFlight bool
	tries    int
	misfits  int // refusals that only make sense if records are missing
}

const (
	produceTimeout = 600 * time.Millisecond
	readPause      = 120 * time.Millisecond
	maxProduced    = 5000 // records a client
)

func (c *client) start() {
	c.begin()
	c.leaderEpoch, c.epoch = messages.NoLeaderEpoch, -1
	c.newProducer()
	c.produceLoop()
	c.readLoop()
	c.askLeader()
}

func (c *client) newProducer() {
	c.producer, c.next, c.open, c.acked = c.w.rng.Uint64()|1, 0, nil, false
}

// learn takes a published leadership.
func (c *client) learn(p *messages.Partition) {
	if p.ID != c.partition || p.LeaderEpoch < c.leaderEpoch || p.LeaderEpoch == c.leaderEpoch && p.Epoch <= c.epoch {
		return
	}
	moved := p.LeaderEpoch > c.leaderEpoch
	c.leader, c.leaderEpoch, c.epoch = p.Leader, p.LeaderEpoch, p.Epoch
	if moved && c.leader != "" {
		for _, o := range slices.Clone(c.open) {
			c.send(o) // without waiting for an answer of the former leader
		}
	}
}

// askLeader asks for the leadership now and then, because publications get lost.
func (c *client) askLeader() {
	ctl, life := c.w.controllers[c.w.rng.IntN(len(c.w.controllers))], c.life // a standby answers too
	c.w.send(&c.process, &ctl.process, "leadership?", func() {
		if p, ok := ctl.catalog.Partition(c.partition); ok {
			c.w.answer(&ctl.process, &c.process, "leadership", life, func() { c.learn(p) })
		}
	})
	c.timer(700*time.Millisecond, "ask", c.askLeader)
}

func (c *client) produceLoop() {
	if !c.idle && c.mayProduce() {
		b := &pb.RecordBatch{ProducerId: c.producer, BaseSequence: c.next}
		for i := range 1 + c.w.rng.IntN(4) {
			b.Records = append(b.Records, &pb.LogRecord{Value: fmt.Appendf(nil, "%x-%d", c.producer, c.next+int64(i))})
		}
		c.next += int64(len(b.Records))
		c.batches++
		o := &outstanding{batch: b, number: c.batches}
		c.open = append(c.open, o)
		c.send(o)
	}
	c.timer(c.w.between(20*time.Millisecond, 400*time.Millisecond), "produce", c.produceLoop)
}

// mayProduce: a leader remembers the last few batches of a producer, so none may be further ahead of the oldest open one.
func (c *client) mayProduce() bool {
	return c.next < maxProduced && len(c.open) < c.window &&
		(len(c.open) == 0 || c.batches+1-c.open[0].number < replica.ProducerBatches)
}

func (c *client) send(o *outstanding) {
	b := c.w.broker(c.leader)
	o.inFlight = true
	o.tries++
	try, life := o.tries, c.life
	if b != nil {
		q := &pb.ProduceRequest{Acks: c.acks, Batch: o.batch, TimeoutMs: 500}
		c.w.send(&c.process, &b.process, "produce", func() {
			b.produce(c.partition, q, func(res *pb.ProduceResponse) {
				c.w.answer(&b.process, &c.process, "produced", life, func() { c.produced(o, res) })
			})
		})
	}
	c.timer(produceTimeout, "produce timeout", func() {
		if o.tries == try {
			c.again(o)
		}
	})
}

func (c *client) again(o *outstanding) {
	if slices.Contains(c.open, o) {
		c.send(o)
	}
}

func (c *client) produced(o *outstanding, res *pb.ProduceResponse) {
	if !slices.Contains(c.open, o) {
		return
	}
	switch code := messages.Code(res.GetError().GetCode()); code {
	case "":
		c.done(o, res)
	case messages.CodeUnknownProducer, messages.CodeOutOfOrderSequence, messages.CodeInvalidRequest:
		if c.open[0] == o {
			c.misfit(o, res.GetError())
			return
		}
		c.retry(o)
	default:
		c.retry(o)
	}
}

func (c *client) retry(o *outstanding) {
	try := o.tries
	c.timer(c.w.between(10*time.Millisecond, 100*time.Millisecond), "retry", func() {
		if o.tries == try {
			c.again(o)
		}
	})
}

func (c *client) done(o *outstanding, res *pb.ProduceResponse) {
	c.open = slices.DeleteFunc(c.open, func(x *outstanding) bool { return x == o })
	if c.acks == pb.Acks_ACKS_ALL && res.GetProtected() {
		c.acked = true
		c.w.check.acknowledged(c.partition, messages.Offset(res.GetBaseOffset()), o.batch)
	}
}

// misfit: the leader does not know what came before the oldest batch that is open, although all of that was acknowledged.
// Late requests may be answered so; that it stays so is a loss.
func (c *client) misfit(o *outstanding, err *pb.Error) {
	o.misfits++
	if c.acks == pb.Acks_ACKS_LEADER {
		c.newProducer()
		return
	}
	if o.misfits == 20 {
		c.w.violated("producer %x is told %s for sequence %d of %s, although everything before was acknowledged: %s", c.producer,
			err.GetCode(), o.batch.GetBaseSequence(), short(c.partition), err.GetMessage())
		c.newProducer()
		return
	}
	c.retry(o)
}

func (c *client) readLoop() {
	if c.w.chance(0.01) {
		c.offset = 0
	}
	if b := c.w.broker(c.leader); b != nil {
		from, life := c.offset, c.life
		c.w.send(&c.process, &b.process, "read", func() {
			b.consume(c.partition, from, func(res *pb.FetchResponse) {
				c.w.answer(&b.process, &c.process, "records", life, func() { c.records(b, from, res) })
			})
		})
	}
	c.timer(c.w.between(readPause/2, readPause*2), "read", c.readLoop)
}

func (c *client) records(b *broker, from messages.Offset, res *pb.FetchResponse) {
	if messages.Code(res.GetError().GetCode()) == messages.CodeOffsetOutOfRange {
		c.w.violated("%s refuses to read %s from %d, which is where reading got to: %s", b.name, short(c.partition), from, res.GetError().GetMessage())
	}
	if from != c.offset {
		return // answered twice, or late
	}
	for _, x := range res.GetBatches() {
		c.w.check.read(c.partition, x)
		c.offset = max(c.offset, batchEnd(x))
	}
}
