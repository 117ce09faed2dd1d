package journal

import (
	"context"
	"slices"
	"sync"

	"github.com/highwater-io/highwater/messages"
)

// Memory is a Log in memory, for tests and simulations. Faults can be programmed for each append, see Inject. It is safe
// for concurrent use.
type Memory struct {
	mu      sync.Mutex
	first   messages.Sequence // sequence of entries[0]
	entries [][]byte          // nil where something was deleted
	faults  []Fault
	decide  func(expected messages.Sequence, payload []byte) Fault
	late    []late
	stale   int
	appends int
}

type late struct {
	expected messages.Sequence
	payload  []byte
}

var _ Log = (*Memory)(nil)

// NewMemory returns an empty log.
func NewMemory() *Memory { return &Memory{first: 1} }

// Append stores a payload behind expected, or does what the fault programmed for this append says.
func (m *Memory) Append(ctx context.Context, expected messages.Sequence, payload []byte) (messages.Sequence, error) {
	payload = append([]byte{}, payload...)
	fault := m.nextFault(expected, payload)
	if !wait(ctx, fault.Before) {
		return 0, context.Cause(ctx)
	}
	seq, err := m.deliver(fault, expected, payload)
	if !wait(ctx, fault.After) {
		return 0, context.Cause(ctx)
	}
	return seq, err
}

func wait(ctx context.Context, gate <-chan struct{}) bool {
	if gate == nil {
		return ctx.Err() == nil
	}
	select {
	case <-gate:
		return true
	case <-ctx.Done():
		return false
	}
}

func (m *Memory) deliver(f Fault, expected messages.Sequence, payload []byte) (messages.Sequence, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch f.Kind {
	case FaultRefused, FaultLostBefore:
		return 0, f.err()
	case FaultLate:
		m.late = append(m.late, late{expected, payload})
		return 0, f.err()
	case FaultLostAfter:
		m.store(expected, payload)
		return 0, f.err()
	case FaultTwice:
		m.store(expected, payload)
		return m.store(expected, payload)
	}
	return m.store(expected, payload)
}

func (m *Memory) store(expected messages.Sequence, payload []byte) (messages.Sequence, error) {
	if last := m.last(); last != expected {
		return 0, &Conflict{Last: last}
	}
	m.entries = append(m.entries, payload)
	return m.last(), nil
}

func (m *Memory) last() messages.Sequence { return m.first + messages.Sequence(len(m.entries)) - 1 }

// Get returns the payload at a sequence.
func (m *Memory) Get(ctx context.Context, at messages.Sequence) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if at < m.first || at > m.readable() || m.entries[at-m.first] == nil {
		return nil, ErrNotFound
	}
	return slices.Clone(m.entries[at-m.first]), nil
}

// Replay calls f for every payload from a sequence on.
func (m *Memory) Replay(ctx context.Context, from messages.Sequence, f func(messages.Sequence, []byte) error) error {
	m.mu.Lock()
	first, last := m.first, m.readable()
	entries := slices.Clone(m.entries)
	m.mu.Unlock()
	for seq := max(from, first); seq <= last; seq++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		if entries[seq-first] == nil {
			continue
		}
		if err := f(seq, slices.Clone(entries[seq-first])); err != nil {
			return err
		}
	}
	return nil
}

// Last returns the last sequence.
func (m *Memory) Last(ctx context.Context) (messages.Sequence, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.readable(), ctx.Err()
}

// readable is the last sequence that reads know of.
func (m *Memory) readable() messages.Sequence {
	return m.first + messages.Sequence(max(len(m.entries)-m.stale, 0)) - 1
}
