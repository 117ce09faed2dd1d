package supervisor

// keepItems is the capacity that an emptied queue may keep; a longer one gives its memory back after a burst.
const keepItems = 64

// fifo is a queue. The zero value is empty.
type fifo struct {
	items []any
	head  int
}

func (f *fifo) size() int { return len(f.items) - f.head }

func (f *fifo) push(v any) {
	if f.head > keepItems && f.head > len(f.items)/2 { // a queue that never empties must not grow for ever
		n := copy(f.items, f.items[f.head:])
		clear(f.items[n:])
		f.items, f.head = f.items[:n], 0
	}
	f.items = append(f.items, v)
}

// pop returns the oldest item of a queue that has one.
func (f *fifo) pop() any {
	v := f.items[f.head]
	f.items[f.head] = nil
	if f.head++; f.head == len(f.items) {
		f.reset()
	}
	return v
}

// take removes and returns the items that match, in order.
func (f *fifo) take(match func(any) bool) []any {
	var taken []any
	kept := f.items[:0]
	for _, v := range f.items[f.head:] {
		if match(v) {
			taken = append(taken, v)
		} else {
			kept = append(kept, v)
		}
	}
	clear(f.items[len(kept):])
	f.items, f.head = kept, 0
	return taken
}

// reset readies an empty queue for another use.
func (f *fifo) reset() {
	f.head = 0
	if f.items = f.items[:0]; cap(f.items) > keepItems {
		f.items = nil
	}
}
