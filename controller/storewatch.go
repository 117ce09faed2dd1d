package controller

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/messages"
)

// storeSlow is how long an append may take before the store counts as not answering.
const storeSlow = 2 * time.Second

// storeWatch is the journal's log with an eye on it: whether it takes appends, and how much it has grown. One append is on the
// way at a time.
type storeWatch struct {
	journal.Log
	bytes atomic.Int64           // replayed and appended
	grown atomic.Pointer[func()] // called after an append that was stored, if there is one

	mu     sync.Mutex
	since  time.Time // of the append on its way, zero if there is none
	failed error     // of the last append that ended, nil if it was stored or refused
}

// watch has a function called after each append that was stored, in place of the one before; nil ends it.
func (w *storeWatch) watch(grown func()) {
	if grown == nil {
		w.grown.Store(nil)
		return
	}
	w.grown.Store(&grown)
}

// Append passes an append on.
func (w *storeWatch) Append(ctx context.Context, expected messages.Sequence, payload []byte) (messages.Sequence, error) {
	w.mu.Lock()
	w.since = time.Now()
	w.mu.Unlock()
	seq, err := w.Log.Append(ctx, expected, payload)
	if err == nil {
		w.bytes.Add(int64(len(payload)))
		if grown := w.grown.Load(); grown != nil {
			(*grown)()
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.since, w.failed = time.Time{}, nil
	if _, refused := err.(*journal.Conflict); err != nil && !refused && ctx.Err() != context.Canceled {
		w.failed = err
	}
	return seq, err
}

// Replay passes a replay on and counts its bytes.
func (w *storeWatch) Replay(ctx context.Context, from messages.Sequence, f func(messages.Sequence, []byte) error) error {
	return w.Log.Replay(ctx, from, func(at messages.Sequence, payload []byte) error {
		w.bytes.Add(int64(len(payload)))
		return f(at, payload)
	})
}

// waiting is for how long the append on its way, if there is one, has been without an answer.
func (w *storeWatch) waiting() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.since.IsZero() {
		return 0
	}
	return time.Since(w.since)
}

// problem says what is wrong with the store, "" if nothing is.
func (w *storeWatch) problem() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.failed != nil:
		return "the last write to the journal failed: " + w.failed.Error()
	case !w.since.IsZero() && time.Since(w.since) > storeSlow:
		return "a write to the journal is without an answer for " + time.Since(w.since).Round(time.Millisecond).String()
	}
	return ""
}
