package broker

import (
	"context"
	"math/rand/v2"
	"time"
)

// backoff gives growing pauses with jitter, so that brokers that lost the same controller do not return as one.
type backoff struct {
	first, limit time.Duration
	next         time.Duration
}

// pause returns the next pause: between a half and the whole of a step that doubles up to the limit.
func (b *backoff) pause() time.Duration {
	if b.next == 0 {
		b.next = b.first
	}
	d := b.next
	b.next = min(2*b.next, b.limit)
	return d/2 + rand.N(d/2+1)
}

func (b *backoff) reset() { b.next = 0 }

// wait sleeps for the next pause; false if ctx ended first.
func (b *backoff) wait(ctx context.Context) bool {
	t := time.NewTimer(b.pause())
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
