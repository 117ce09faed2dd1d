package broker

import (
	"hash/crc32"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/highwater-io/highwater/broker/replica"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// produce appends a client's batch. The answer comes when the batch is as safe as the request asks for.
func (s *Server) produce(sub *subscription, m *nats.Msg) {
	req, err := parseProduce(m.Data)
	if err == nil {
		err = s.admit(req)
	}
	if err != nil {
		s.respond(m.Reply, &pb.ProduceResponse{Error: err.Proto()})
		return
	}
	size := int64(batchSize(req.batch))
	p := sub.p
	var fx effects
	p.mu.Lock()
	if err := p.mayServe(sub.epoch, req.topic); err != nil {
		fx.reply(m.Reply, &pb.ProduceResponse{Error: err.Proto()})
	} else if req.acks == pb.Acks_ACKS_LEADER && !p.leased() {
		fx.reply(m.Reply, &pb.ProduceResponse{Error: noLease().Proto()})
	} else {
		s.produceBytes.Add(size)
		p.lastTicket++
		p.tickets[p.lastTicket] = produceWait{reply: m.Reply, bytes: size}
		now := s.now()
		p.apply(p.machine.Produce(now, replica.Append{Batch: req.batch, Acks: req.acks, Ticket: p.lastTicket,
			Deadline: now + req.timeout}), &fx)
	}
	p.mu.Unlock()
	s.carryOut(&fx)
}

// mayServe checks that a request is for what this partition serves now. The caller holds mu.
func (p *partition) mayServe(epoch messages.LeaderEpoch, topic []byte) *messages.Error {
	switch {
	case string(topic) != string(p.id.Topic[:]):
		return messages.Errorf(messages.CodeUnknownTopicID, "the topic's id is %s, not %x", p.id.Topic, topic)
	case p.serving == nil || p.leaderEpoch != epoch:
		return notLeading(p)
	}
	return nil
}

// admit checks a produce request against the server's bounds and fills in defaults.
func (s *Server) admit(req *produceRequest) *messages.Error {
	limits := &s.cfg.limits
	if n := len(req.batch.GetBody()); n > limits.BatchBytes {
		return messages.Errorf(messages.CodeTooLarge, "the batch has %d bytes, the limit is %d", n, limits.BatchBytes)
	}
	if s.produceBytes.Load() > limits.ProduceBytes {
		e := messages.Errorf(messages.CodeBusy, "%d bytes of batches wait to be committed", limits.ProduceBytes)
		e.RetryAfterMs = 50
		return e
	}
	if req.timeout == 0 {
		req.timeout = limits.CommitTimeout
	}
	req.timeout = min(req.timeout, 6*limits.CommitTimeout)
	return nil
}

// produceRequest is a ProduceRequest whose batch stays as the bytes that the client sent.
type produceRequest struct {
	topic   []byte
	acks    pb.Acks
	timeout time.Duration
	batch   *pb.StoredBatch // without its place in the log
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func unreadable(what string) *messages.Error {
	return messages.Errorf(messages.CodeInvalidRequest, "the %s cannot be read", what)
}

// parseProduce reads a ProduceRequest without building its records: the body of the batch is kept and stored as it came.
// Every record is walked once, so that what is stored can be read by whoever fetches it.
func parseProduce(data []byte) (*produceRequest, *messages.Error) {
	req := &produceRequest{}
	var body []byte
	ok := fields(data, func(num protowire.Number, v uint64, b []byte) bool {
		switch num {
		case 1:
			req.topic = b
		case 2:
			req.acks = pb.Acks(min(v, 1<<30))
		case 3:
			if body != nil || b == nil {
				return false // parts of a batch are not merged
			}
			body = b
		case 4:
			req.timeout = time.Duration(uint32(v)) * time.Millisecond
		}
		return true
	})
	if !ok || body == nil {
		return nil, unreadable("produce request")
	}
	if req.acks > pb.Acks_ACKS_LEADER {
		return nil, messages.Errorf(messages.CodeInvalidRequest, "acks are %d; 1 is all, 2 the leader", req.acks)
	}
	var err *messages.Error
	req.batch, err = seal(body)
	return req, err
}

// seal makes the stored form of a serialized RecordBatch, whose bytes are kept as they are.
func seal(body []byte) (*pb.StoredBatch, *messages.Error) {
	var count uint32
	var producer, sequence uint64
	ok := fields(body, func(num protowire.Number, v uint64, b []byte) bool {
		switch num {
		case 1:
			producer = v
		case 2:
			sequence = v
		case 3:
			count++
			return b != nil && validRecord(b)
		}
		return true
	})
	switch {
	case !ok:
		return nil, unreadable("batch")
	case count == 0 || count > replica.MaxBatchRecords:
		return nil, messages.Errorf(messages.CodeInvalidRequest, "a batch has 1 to %d records, not %d", replica.MaxBatchRecords, count)
	case sequence > 1<<62:
		return nil, messages.Errorf(messages.CodeInvalidRequest, "the base sequence %d is out of bounds", int64(sequence))
	}
	return &pb.StoredBatch{Count: count, ProducerId: producer, BaseSequence: int64(sequence), Body: body,
		Crc: crc32.Checksum(body, castagnoli)}, nil
}

// validRecord reports whether a LogRecord can be read.
func validRecord(data []byte) bool {
	return fields(data, func(num protowire.Number, _ uint64, b []byte) bool {
		switch num {
		case 1, 2:
			return b != nil
		case 4:
			return b != nil && fields(b, func(num protowire.Number, _ uint64, b []byte) bool {
				return num > 2 || b != nil && (num != 1 || utf8.Valid(b))
			})
		case 3, 5:
			return b == nil
		}
		return true
	})
}

// fields calls f for each field of a message: with the number of a varint, or with the bytes of a length-delimited one,
// which are then not nil. It reports whether the message could be read and f liked all of it.
func fields(data []byte, f func(num protowire.Number, v uint64, b []byte) bool) bool {
	for len(data) > 0 {
		num, typ, n := protowire.ConsumeTag(data)
		if n < 0 {
			return false
		}
		data = data[n:]
		var v uint64
		var b []byte
		switch typ {
		case protowire.VarintType:
			v, n = protowire.ConsumeVarint(data)
		case protowire.BytesType:
			if b, n = protowire.ConsumeBytes(data); n >= 0 && b == nil {
				b = []byte{}
			}
		default:
			n = protowire.ConsumeFieldValue(num, typ, data)
		}
		if n < 0 || !f(num, v, b) {
			return false
		}
		data = data[n:]
	}
	return true
}
