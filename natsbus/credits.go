package natsbus

import "sync/atomic"

// credits bound what is admitted and not answered yet. They are taken when a request is admitted and given back when its
// answer has been written, so whatever waits between the two has a bound.
type credits struct {
	size int64
	left atomic.Int64
}

func newCredits(size int) *credits {
	c := &credits{size: int64(size)}
	c.left.Store(c.size)
	return c
}

// take takes n credits, or all of an untouched pool for a request larger than that; false if there are too few.
func (c *credits) take(n int) (taken int, ok bool) {
	want := min(int64(n), c.size)
	for {
		left := c.left.Load()
		if left < want {
			return 0, false
		}
		if c.left.CompareAndSwap(left, left-want) {
			return int(want), true
		}
	}
}

func (c *credits) give(n int) { c.left.Add(int64(n)) }

// outstanding returns how many credits are taken.
func (c *credits) outstanding() int { return int(c.size - c.left.Load()) }
