package history

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// Kind says what a client did.
type Kind uint8

// The kinds of operations.
const (
	Append Kind = iota // the record at Offset was acknowledged
	Read               // the record at Offset was handed out
	End                // a strict read said that committed records end before Offset
)

// Op is one operation that has ended well. Times are nanoseconds of one monotonic clock.
type Op struct {
	Kind         Kind
	Client       int // operations of one client may overlap
	Partition    int32
	Offset       int64
	Value        string // not of End
	Call, Return int64
}

// Place is where a record is.
type Place struct {
	Partition int32
	Offset    int64
}

// History is what clients have seen of one topic from its first record on.
type History struct {
	Ops []Op
	// Sent has the time of the call for every value that somebody tried to append, acknowledged or not. Values are unique.
	Sent map[string]int64
}

// maxFaults bounds how many faults of one sort are told.
const maxFaults = 5

// faults gathers what is wrong.
type faults struct {
	list []error
	more int
}

func (f *faults) add(format string, args ...any) {
	if len(f.list) == maxFaults {
		f.more++
		return
	}
	f.list = append(f.list, fmt.Errorf(format, args...))
}

func (f *faults) err() error {
	if f.more > 0 {
		return errors.Join(append(f.list, fmt.Errorf("and %d more of the kind", f.more))...)
	}
	return errors.Join(f.list...)
}

// Check holds a history against everything that is promised of a log. last is the whole topic as it was read after everything
// else. The error names every sort of fault, with a few examples of each.
func (h History) Check(last map[Place]string) error {
	return errors.Join(h.contents(last), h.origins(last), h.kept(last), h.linear())
}

// contents checks that every offset has had one content, and every value one place.
func (h History) contents(last map[Place]string) error {
	var f faults
	at, of := maps.Clone(last), map[string]Place{}
	for p, v := range last {
		if other, twice := of[v]; twice {
			f.add("%q is stored at %v and at %v", v, p, other)
		}
		of[v] = p
	}
	for _, o := range h.Ops {
		if o.Kind == End {
			continue
		}
		p := Place{o.Partition, o.Offset}
		if was, known := at[p]; known && was != o.Value {
			f.add("%v has had the contents %q and %q", p, was, o.Value)
		} else if other, twice := of[o.Value]; twice && other != p {
			f.add("%q was seen at %v and at %v", o.Value, p, other)
		}
		if at == nil {
			at = map[Place]string{}
		}
		at[p], of[o.Value] = o.Value, p
	}
	return f.err()
}

// origins checks that nothing is read that was not written before.
func (h History) origins(last map[Place]string) error {
	var f faults
	for p, v := range last {
		if _, sent := h.Sent[v]; !sent {
			f.add("%v holds %q, which nobody wrote", p, v)
		}
	}
	for _, o := range h.Ops {
		if o.Kind != Read {
			continue
		}
		if sent, known := h.Sent[o.Value]; !known {
			f.add("%q was read, which nobody wrote", o.Value)
		} else if sent > o.Return {
			f.add("%q was read before it was written", o.Value)
		}
	}
	return f.err()
}

// kept checks that whatever was acknowledged or read is still there, and that offsets have no holes.
func (h History) kept(last map[Place]string) error {
	var f faults
	for _, o := range h.Ops {
		p := Place{o.Partition, o.Offset}
		if _, there := last[p]; !there && o.Kind == Append {
			f.add("%v was acknowledged as %q and is lost", p, o.Value)
		} else if !there && o.Kind == Read {
			f.add("%v was read as %q and is lost", p, o.Value)
		}
	}
	ends := map[int32]int64{}
	for p := range last {
		ends[p.Partition] = max(ends[p.Partition], p.Offset+1)
	}
	for _, partition := range slices.Sorted(maps.Keys(ends)) {
		for at := range ends[partition] {
			if _, there := last[Place{partition, at}]; !there {
				f.add("partition %d has a hole at %d", partition, at)
			}
		}
	}
	return f.err()
}

// Acknowledged counts the records that were acknowledged.
func (h History) Acknowledged() int {
	n := 0
	for _, o := range h.Ops {
		if o.Kind == Append {
			n++
		}
	}
	return n
}

// LongestGap is the longest time between two ends of operations of a kind, from one moment to another, with what passed before
// the first and behind the last.
func (h History) LongestGap(kind Kind, from, until int64) int64 {
	ends := []int64{from, until}
	for _, o := range h.Ops {
		if o.Kind == kind && o.Return > from && o.Return < until {
			ends = append(ends, o.Return)
		}
	}
	slices.SortFunc(ends, cmp.Compare)
	gap := int64(0)
	for i := range ends[1:] {
		gap = max(gap, ends[i+1]-ends[i])
	}
	return gap
}
