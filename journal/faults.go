package journal

import (
	"context"
	"errors"

	"github.com/highwater-io/highwater/messages"
)

// ErrInjected is what a caller hears of an append whose outcome is hidden by a fault.
var ErrInjected = errors.New("journal: no answer (injected)")

// FaultKind says what goes wrong with one append to a Memory.
type FaultKind uint8

// The kinds of faults.
const (
	FaultNone       FaultKind = iota
	FaultRefused              // an error at once; nothing is stored
	FaultLostBefore           // the payload is lost on its way; the caller hears nothing
	FaultLostAfter            // the payload is stored if nothing else was; the caller hears nothing either way
	FaultLate                 // the payload is on its way until Deliver; the caller hears nothing
	FaultTwice                // the payload arrives twice; the caller hears the second answer, a conflict
)

// Fault is what happens to one append. Gates may be added to any kind: closing the channel, or sending once, lets the
// append go on. A context that ends first ends the wait with its error.
type Fault struct {
	Kind   FaultKind
	Before <-chan struct{} // waited for before anything happens
	After  <-chan struct{} // waited for after the payload was stored, before the answer
	Err    error           // what the caller hears instead of ErrInjected
}

func (f Fault) err() error {
	if f.Err != nil {
		return f.Err
	}
	return ErrInjected
}

// Inject programs the next appends, one fault each, in order.
func (m *Memory) Inject(faults ...Fault) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults = append(m.faults, faults...)
}

// InjectFunc has f decide about every append for which Inject has nothing; nil ends that. f must not use the log.
func (m *Memory) InjectFunc(f func(expected messages.Sequence, payload []byte) Fault) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.decide = f
}

func (m *Memory) nextFault(expected messages.Sequence, payload []byte) Fault {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.appends++
	if len(m.faults) > 0 {
		f := m.faults[0]
		m.faults = m.faults[1:]
		return f
	}
	if m.decide != nil {
		return m.decide(expected, payload)
	}
	return Fault{}
}

// Deliver lets every payload arrive that FaultLate has kept back, in the order of their appends, and returns how many of
// them were stored.
func (m *Memory) Deliver() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	stored := 0
	for _, l := range m.late {
		if _, err := m.store(l.expected, l.payload); err == nil {
			stored++
		}
	}
	m.late = nil
	return stored
}

// Appends returns how many appends have been asked for, whatever came of them.
func (m *Memory) Appends() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.appends
}

// SetStale makes reads miss the last n entries, as those of a server that has fallen behind.
func (m *Memory) SetStale(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stale = n
}

// Replace exchanges the payload at a sequence, as a damaged disk would; nil deletes it and leaves a gap. It reports whether
// there was one.
func (m *Memory) Replace(at messages.Sequence, payload []byte) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if at < m.first || at > m.last() {
		return false
	}
	m.entries[at-m.first] = payload
	return true
}

// Truncate drops everything behind a sequence, as a store that went back in time.
func (m *Memory) Truncate(last messages.Sequence) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if last < m.last() {
		m.entries = m.entries[:max(last+1, m.first)-m.first]
	}
}

// Purge drops everything up to a sequence, as is done behind a snapshot. The last sequence stays what it is.
func (m *Memory) Purge(ctx context.Context, upTo messages.Sequence) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	n := min(max(upTo+1, m.first), m.last()+1) - m.first
	m.entries = m.entries[n:]
	m.first += n
	return nil
}

// Begin makes an empty log go on behind a sequence.
func (m *Memory) Begin(ctx context.Context, behind messages.Sequence) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.last() > 0 {
		return messages.Errorf(messages.CodeClusterMismatch, "the journal is not empty: it ends at %d", m.last())
	}
	m.first = behind + 1
	return ctx.Err()
}

// Restart drops every entry and goes on behind a sequence.
func (m *Memory) Restart(ctx context.Context, behind messages.Sequence) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.entries, m.first = nil, behind+1
	return ctx.Err()
}
