package history

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// linearLimit bounds the search for an order; the model leaves so little choice that it needs seconds at most.
const linearLimit = time.Minute

// lane is what the model knows of a partition beforehand: the offsets that were acknowledged. Offsets between them may belong to
// records whose outcome nobody knows.
type lane struct {
	acked []int64
}

// next returns the first acknowledged offset from at on.
func (l *lane) next(at int64) (int64, bool) {
	i, _ := slices.BinarySearch(l.acked, at)
	if i == len(l.acked) {
		return 0, false
	}
	return l.acked[i], true
}

// skips reports whether going from one end to a later one passes an acknowledged record that is not appended yet.
func (l *lane) skips(from, to int64) bool {
	next, some := l.next(from)
	return some && next < to
}

type input struct {
	lane *lane
	op   Op
}

// step is one partition as a log that does one thing at a time. Its state is where the committed records end. Records with an
// unknown outcome may be committed at any time, others in the order of their offsets by their append alone.
func step(state, in, _ any) (bool, any) {
	end, i := state.(int64), in.(input)
	at := i.op.Offset
	switch i.op.Kind {
	case Append:
		return at >= end && !i.lane.skips(end, at), at + 1
	case Read:
		if at < end {
			return true, end
		}
		return !i.lane.skips(end, at+1), at + 1
	default:
		return at >= end && !i.lane.skips(end, at), at
	}
}

// linear checks that each partition has behaved like one log.
func (h History) linear() error {
	lanes, ops := map[int32]*lane{}, map[int32][]porcupine.Operation{}
	for _, o := range h.Ops {
		l := lanes[o.Partition]
		if l == nil {
			l = &lane{}
			lanes[o.Partition] = l
		}
		if o.Kind == Append {
			l.acked = append(l.acked, o.Offset)
		}
		ops[o.Partition] = append(ops[o.Partition], porcupine.Operation{ClientId: o.Client, Input: input{l, o}, Call: o.Call, Return: o.Return})
	}
	for _, l := range lanes {
		slices.Sort(l.acked)
	}
	model := porcupine.Model{Init: func() any { return int64(0) }, Step: step}
	var f faults
	for _, p := range slices.Sorted(maps.Keys(ops)) {
		switch result := porcupine.CheckOperationsTimeout(model, ops[p], linearLimit); result {
		case porcupine.Ok:
		case porcupine.Illegal:
			f.add("partition %d: no order of its %d operations is that of one log", p, len(ops[p]))
		default:
			f.add("partition %d: whether its %d operations are those of one log is not known after %v", p, len(ops[p]), linearLimit)
		}
	}
	if err := f.err(); err != nil {
		return fmt.Errorf("not linearizable: %w", err)
	}
	return nil
}
