package history

import (
	"maps"
	"strings"
	"testing"
)

// ms makes an operation between two milliseconds.
func ms(kind Kind, offset int64, value string, call, ret int64) Op {
	return Op{Kind: kind, Offset: offset, Value: value, Call: call * 1e6, Return: ret * 1e6}
}

// sound is a history with nothing wrong: "b" was stored without being acknowledged, "x" was never stored.
func sound() (History, map[Place]string) {
	return History{
		Ops: []Op{
			ms(End, 0, "", 0, 1),
			ms(Append, 0, "a", 1, 10),
			ms(Append, 2, "c", 3, 12),
			ms(Append, 3, "d", 3, 11), // answered before the one in front of it
			ms(Read, 0, "a", 11, 12),
			ms(Read, 1, "b", 13, 14),
			ms(Read, 2, "c", 13, 14),
			ms(End, 4, "", 15, 16),
			ms(End, 5, "", 4, 40), // while "e" is on its way
			ms(Append, 4, "e", 20, 30),
			ms(Read, 4, "e", 26, 27), // committed, and not acknowledged yet
		},
		Sent: map[string]int64{"a": 1e6, "b": 2e6, "c": 3e6, "d": 3e6, "e": 20e6, "x": 21e6},
	}, map[Place]string{{0, 0}: "a", {0, 1}: "b", {0, 2}: "c", {0, 3}: "d", {0, 4}: "e"}
}

func TestASoundHistoryHasNoFaults(t *testing.T) {
	h, last := sound()
	if err := h.Check(last); err != nil {
		t.Error(err)
	}
}

func TestEveryWrongHistoryIsFoundOut(t *testing.T) {
	add := func(more ...Op) func(*History, map[Place]string) {
		return func(h *History, _ map[Place]string) { h.Ops = append(h.Ops, more...) }
	}
	for name, x := range map[string]struct {
		spoil func(h *History, last map[Place]string)
		want  string
	}{
		"an acknowledged record is lost at the end": {func(_ *History, last map[Place]string) { delete(last, Place{0, 4}) }, "acknowledged as \"e\" and is lost"},
		"an acknowledged record is another one":     {func(_ *History, last map[Place]string) { last[Place{0, 2}] = "x" }, "has had the contents"},
		"a record that was read is lost":            {func(_ *History, last map[Place]string) { delete(last, Place{0, 1}) }, "was read as \"b\" and is lost"},
		"there is a hole":                           {func(h *History, last map[Place]string) { h.Sent["y"] = 0; last[Place{0, 6}] = "y" }, "has a hole at 5"},
		"a value is stored twice":                   {func(_ *History, last map[Place]string) { last[Place{0, 5}] = "a" }, "is stored at"},
		"a value is acknowledged at two places":     {add(ms(Append, 5, "a", 50, 51)), "was seen at"},
		"an offset is acknowledged for two values":  {add(ms(Append, 4, "x", 50, 51)), "has had the contents"},
		"a read shows what was there for a while":   {add(ms(Read, 3, "x", 17, 18)), "has had the contents"},
		"somebody reads what nobody wrote":          {add(ms(Read, 5, "z", 50, 51)), "which nobody wrote"},
		"the log holds what nobody wrote":           {func(_ *History, last map[Place]string) { last[Place{0, 5}] = "z" }, "which nobody wrote"},
		"a record is read before it is written":     {add(ms(Read, 4, "e", 17, 18)), "before it was written"},
		"the end goes back":                         {add(ms(End, 3, "", 41, 42)), "not linearizable"},
		"a strict read misses what is acknowledged": {add(ms(End, 4, "", 31, 32)), "not linearizable"},
		"a strict read sees too much":               {add(ms(End, 5, "", 17, 18)), "not linearizable"},
		"a later append gets an earlier offset":     {func(h *History, _ map[Place]string) { h.Ops[9].Call, h.Ops[9].Return = 0, 1e6 }, "not linearizable"},
		"a record is read before its append begins": {func(h *History, _ map[Place]string) {
			h.Ops[3].Call = 15e6
			h.Ops[3].Return = 16e6
			h.Ops[5].Return = 14e6
			h.Ops = append(h.Ops, ms(Read, 3, "d", 13, 14))
		}, "not linearizable"},
		"two leaders take the same offset in a time": {add(ms(Append, 4, "x", 21, 29)), "has had the contents"},
	} {
		t.Run(name, func(t *testing.T) {
			h, last := sound()
			last = maps.Clone(last)
			x.spoil(&h, last)
			if err := h.Check(last); err == nil || !strings.Contains(err.Error(), x.want) {
				t.Errorf("found %v, want %q", err, x.want)
			}
		})
	}
}

// Each partition is judged for itself, and a long history with much at the same time is decided.
func TestALongHistoryIsDecided(t *testing.T) {
	h := History{Sent: map[string]int64{}}
	last := map[Place]string{}
	const records, flying = 3000, 200
	for i := range int64(records) {
		for p := range int32(2) {
			v := string(rune('a'+p)) + strings.Repeat("i", int(i%7)) + string(rune(0x4e00+i))
			h.Sent[v] = i * 1e6
			last[Place{p, i}] = v
			h.Ops = append(h.Ops, Op{Kind: Append, Partition: p, Offset: i, Value: v, Call: i * 1e6, Return: (i + flying) * 1e6},
				Op{Kind: Read, Client: 1, Partition: p, Offset: i, Value: v, Call: (i + flying) * 1e6, Return: (i + flying) * 1e6})
		}
	}
	if err := h.Check(last); err != nil {
		t.Fatal(err)
	}
	h.Ops = append(h.Ops, Op{Kind: End, Client: 2, Partition: 1, Offset: records / 2, Call: records * 1e6, Return: records*1e6 + 1})
	if err := h.Check(last); err == nil || !strings.Contains(err.Error(), "partition 1") || strings.Contains(err.Error(), "partition 0") {
		t.Errorf("found %v", err)
	}
}

func TestTheLongestGapCountsFromBeforeTheFirstToBehindTheLast(t *testing.T) {
	h := History{Ops: []Op{ms(Append, 0, "a", 0, 30), ms(Append, 1, "b", 0, 10), ms(Append, 2, "c", 0, 20), ms(Read, 0, "a", 0, 15)}}
	for _, x := range []struct{ from, until, want int64 }{{0, 40, 10}, {0, 100, 70}, {12, 22, 8}, {40, 45, 5}, {-100, 10, 110}} {
		if got := h.LongestGap(Append, x.from*1e6, x.until*1e6); got != x.want*1e6 {
			t.Errorf("from %d until %d: %d ms, want %d", x.from, x.until, got/1e6, x.want)
		}
	}
	if h.Acknowledged() != 3 {
		t.Errorf("%d acknowledged", h.Acknowledged())
	}
}
