package replica

import (
	"container/list"
	"slices"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// MaxProducers bounds how many idempotent producers a log remembers. Beyond it the one whose last batch is the oldest is
// forgotten, which is the same on every replica because it depends on the log alone.
const MaxProducers = 10_000

// Producers is the memory of idempotent producers that belongs to a log: the last batches of each producer. It is a
// function of the log's batches in order, so a storage may use it to rebuild LogState.Producers.
type Producers struct {
	by    map[uint64]*list.Element // of *ProducerState
	order *list.List               // oldest last batch first
}

// NewProducers returns the memory with what a storage holds, in any order.
func NewProducers(states []ProducerState) *Producers {
	m := &Producers{by: make(map[uint64]*list.Element, len(states)), order: list.New()}
	sorted := slices.Clone(states)
	slices.SortStableFunc(sorted, func(a, b ProducerState) int { return int(lastOffset(a) - lastOffset(b)) })
	for _, s := range sorted {
		if s.Producer != 0 && len(s.Batches) > 0 && m.by[s.Producer] == nil {
			s.Batches = slices.Clone(s.Batches)
			m.by[s.Producer] = m.order.PushBack(&s)
			m.trim(&s)
		}
	}
	return m
}

func lastOffset(s ProducerState) messages.Offset {
	if len(s.Batches) == 0 {
		return -1
	}
	return s.Batches[len(s.Batches)-1].BaseOffset
}

// Add takes note of a batch that has been appended. Batches without a producer are ignored.
func (m *Producers) Add(b *pb.StoredBatch) {
	if b.GetProducerId() == 0 {
		return
	}
	e := m.by[b.GetProducerId()]
	if e == nil {
		e = m.order.PushBack(&ProducerState{Producer: b.GetProducerId()})
		m.by[b.GetProducerId()] = e
	} else {
		m.order.MoveToBack(e)
	}
	s := e.Value.(*ProducerState)
	s.Batches = append(s.Batches, ProducerBatch{BaseSequence: b.GetBaseSequence(), Count: b.GetCount(),
		BaseOffset: messages.Offset(b.GetBaseOffset())})
	m.trim(s)
}

func (m *Producers) trim(s *ProducerState) {
	if n := len(s.Batches) - ProducerBatches; n > 0 {
		s.Batches = append(s.Batches[:0], s.Batches[n:]...)
	}
	for m.order.Len() > MaxProducers {
		oldest := m.order.Remove(m.order.Front()).(*ProducerState)
		delete(m.by, oldest.Producer)
	}
}

// Check says what a leader has to do with a batch: append it (nil, nil), answer that it is stored already (the batch),
// or refuse it with OUT_OF_ORDER_SEQUENCE, UNKNOWN_PRODUCER or INVALID_REQUEST.
func (m *Producers) Check(b *pb.StoredBatch) (*ProducerBatch, *messages.Error) {
	if b.GetProducerId() == 0 {
		return nil, nil
	}
	e := m.by[b.GetProducerId()]
	if e == nil {
		if b.GetBaseSequence() != 0 {
			return nil, messages.Errorf(messages.CodeUnknownProducer,
				"producer %d is not known here and its batch starts at sequence %d, not 0", b.GetProducerId(), b.GetBaseSequence())
		}
		return nil, nil
	}
	s := e.Value.(*ProducerState)
	last := s.Batches[len(s.Batches)-1]
	next := last.BaseSequence + int64(last.Count)
	if b.GetBaseSequence() == next {
		return nil, nil
	}
	if b.GetBaseSequence() > next {
		return nil, messages.Errorf(messages.CodeOutOfOrderSequence, "producer %d is expected to go on with sequence %d, not %d",
			b.GetProducerId(), next, b.GetBaseSequence())
	}
	for i := range s.Batches {
		if s.Batches[i].BaseSequence == b.GetBaseSequence() && s.Batches[i].Count == b.GetCount() {
			return &s.Batches[i], nil
		}
	}
	return nil, messages.Errorf(messages.CodeInvalidRequest,
		"sequence %d of producer %d is below the expected %d and is none of its last %d batches", b.GetBaseSequence(),
		b.GetProducerId(), next, ProducerBatches)
}

// States returns the memory as a storage keeps it, the producer with the oldest last batch first.
func (m *Producers) States() []ProducerState {
	out := make([]ProducerState, 0, m.order.Len())
	for e := m.order.Front(); e != nil; e = e.Next() {
		s := e.Value.(*ProducerState)
		out = append(out, ProducerState{Producer: s.Producer, Batches: slices.Clone(s.Batches)})
	}
	return out
}
