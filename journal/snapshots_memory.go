package journal

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"maps"
	"slices"
	"sync"

	"github.com/highwater-io/highwater/messages"
)

// MemorySnapshots keeps snapshots in memory, for tests and simulations, and can damage them. It is safe for concurrent use.
type MemorySnapshots struct {
	mu    sync.Mutex
	kept  map[messages.Sequence][]byte
	fault error // of the next saves
	torn  bool  // the next save stores half of it
}

var _ Snapshots = (*MemorySnapshots)(nil)

// NewMemorySnapshots returns an empty store.
func NewMemorySnapshots() *MemorySnapshots {
	return &MemorySnapshots{kept: map[messages.Sequence][]byte{}}
}

// Save stores a snapshot, or does what FailSaves says.
func (m *MemorySnapshots) Save(ctx context.Context, at messages.Sequence, from io.Reader) error {
	data, err := io.ReadAll(from)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if m.fault != nil {
		if m.torn {
			m.kept[at] = data[:len(data)/2]
		}
		return m.fault
	}
	m.kept[at] = data
	return nil
}

// List returns what is there.
func (m *MemorySnapshots) List(ctx context.Context) ([]StoredSnapshot, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []StoredSnapshot
	for _, at := range slices.Backward(slices.Sorted(maps.Keys(m.kept))) {
		out = append(out, StoredSnapshot{At: at, Bytes: int64(len(m.kept[at]))})
	}
	return out, ctx.Err()
}

// Load opens a snapshot.
func (m *MemorySnapshots) Load(ctx context.Context, at messages.Sequence) (io.ReadCloser, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	data, ok := m.kept[at]
	if !ok {
		return nil, ErrNotFound
	}
	return io.NopCloser(bytes.NewReader(bytes.Clone(data))), ctx.Err()
}

// Delete removes a snapshot.
func (m *MemorySnapshots) Delete(ctx context.Context, at messages.Sequence) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.kept, at)
	return ctx.Err()
}

// FailSaves lets saves fail with an error, torn ones after half of it was stored; nil ends that.
func (m *MemorySnapshots) FailSaves(err error, torn bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fault, m.torn = err, torn
}

// Change lets f exchange the bytes of a snapshot. It reports whether there is one.
func (m *MemorySnapshots) Change(at messages.Sequence, f func([]byte) []byte) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	data, ok := m.kept[at]
	if ok {
		m.kept[at] = f(bytes.Clone(data))
	}
	return ok
}

// Torn is a change that leaves the first half of a snapshot.
func Torn(data []byte) []byte { return data[:len(data)/2] }

// Corrupt is a change of one bit in the middle of a snapshot.
func Corrupt(data []byte) []byte {
	data[len(data)/2] ^= 4
	return data
}

// WithoutPiece is a change that takes out the second piece of a snapshot, frame and all.
func WithoutPiece(data []byte) []byte {
	at := len(snapshotMagic)
	length := func() int { return 4 + int(binary.BigEndian.Uint32(data[at:])) }
	at += length()
	return slices.Delete(data, at, at+length())
}
