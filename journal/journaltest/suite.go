package journaltest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/messages"
)

// timeout bounds each case, far above what any takes.
const timeout = 30 * time.Second

// Run runs the suite. open returns a new empty log each time, and sees to its end.
func Run(t *testing.T, open func(t *testing.T) journal.Log) {
	for _, c := range []struct {
		name string
		run  func(*testing.T, context.Context, journal.Log)
	}{
		{"an empty log holds nothing", empty},
		{"entries come back in order with their bytes", order},
		{"an append with another expectation is refused and stores nothing", conflict},
		{"the first append of two is the only one", firstAppend},
		{"replay starts anywhere and ends with its function's error", replayBounds},
		{"an ended context stores at most once", endedContext},
		{"of concurrent appenders exactly one wins each sequence", concurrent},
		{"a large entry comes back", large},
		{"a committer commits in order and recovers", commits},
		{"an unknown outcome is settled, stored or not", unknown},
		{"a late delivery of what was settled as not stored is refused", lateDelivery},
		{"B40 a zombie writer is refused at its next append", zombie},
		{"a claim that is not at the end is refused", refusedClaim},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			c.run(t, ctx, open(t))
		})
	}
}

func empty(t *testing.T, ctx context.Context, log journal.Log) {
	if last, err := log.Last(ctx); last != 0 || err != nil {
		t.Errorf("the last sequence is %d, %v", last, err)
	}
	for _, at := range []messages.Sequence{0, 1, 2} {
		if _, err := log.Get(ctx, at); !errors.Is(err, journal.ErrNotFound) {
			t.Errorf("get %d: %v", at, err)
		}
	}
	if got := read(t, ctx, log, 1); len(got) != 0 {
		t.Errorf("replay found %d entries", len(got))
	}
}

func order(t *testing.T, ctx context.Context, log journal.Log) {
	want := fill(t, ctx, log, 20)
	if got := read(t, ctx, log, 1); !equal(got, want) {
		t.Fatalf("replay gave %q instead of %q", got, want)
	}
	for i, w := range want {
		if got, err := log.Get(ctx, messages.Sequence(i+1)); err != nil || !bytes.Equal(got, w) {
			t.Errorf("entry %d is %q, %v", i+1, got, err)
		}
	}
	if last, err := log.Last(ctx); last != 20 || err != nil {
		t.Errorf("the last sequence is %d, %v", last, err)
	}
}

func conflict(t *testing.T, ctx context.Context, log journal.Log) {
	want := fill(t, ctx, log, 3)
	for _, expected := range []messages.Sequence{0, 1, 2, 4, 100} {
		_, err := log.Append(ctx, expected, []byte("x"))
		refused := (*journal.Conflict)(nil)
		if !errors.As(err, &refused) || refused.Last != 3 {
			t.Errorf("an append behind %d: %v", expected, err)
		}
	}
	if got := read(t, ctx, log, 1); !equal(got, want) {
		t.Errorf("the log holds %q", got)
	}
}

func firstAppend(t *testing.T, ctx context.Context, log journal.Log) {
	if seq, err := log.Append(ctx, 0, []byte("a")); seq != 1 || err != nil {
		t.Fatalf("the first append: %d, %v", seq, err)
	}
	refused := (*journal.Conflict)(nil)
	if _, err := log.Append(ctx, 0, []byte("b")); !errors.As(err, &refused) || refused.Last != 1 {
		t.Fatalf("the second first append: %v", err)
	}
}

func replayBounds(t *testing.T, ctx context.Context, log journal.Log) {
	want := fill(t, ctx, log, 10)
	for from := messages.Sequence(1); from <= 11; from++ {
		if got := read(t, ctx, log, from); !equal(got, want[from-1:]) {
			t.Errorf("replay from %d gave %d entries", from, len(got))
		}
	}
	stop, calls := errors.New("enough"), 0
	err := log.Replay(ctx, 1, func(seq messages.Sequence, _ []byte) error {
		if calls++; seq == 4 {
			return stop
		}
		return nil
	})
	if !errors.Is(err, stop) || calls != 4 {
		t.Errorf("replay ended with %v after %d calls", err, calls)
	}
}

func endedContext(t *testing.T, ctx context.Context, log journal.Log) {
	fill(t, ctx, log, 1)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := log.Append(ended, 1, []byte("perhaps")); err == nil {
		t.Fatal("an append with an ended context says that it is stored")
	} else if refused := (*journal.Conflict)(nil); errors.As(err, &refused) {
		t.Fatal("an append with an ended context says that somebody else was faster")
	}
	// Whatever became of it, it can be settled.
	if _, err := log.Append(ctx, 1, []byte("tick")); err != nil {
		refused := (*journal.Conflict)(nil)
		if !errors.As(err, &refused) || refused.Last != 2 {
			t.Fatalf("settling: %v", err)
		}
	}
	if last, err := log.Last(ctx); last != 2 || err != nil {
		t.Fatalf("the last sequence is %d, %v", last, err)
	}
}

func concurrent(t *testing.T, ctx context.Context, log journal.Log) {
	const writers, places = 8, 25
	var mu sync.Mutex
	winners := map[messages.Sequence]string{}
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for at := messages.Sequence(0); at < places; {
				mine := fmt.Sprintf("writer %d at %d", w, at+1)
				seq, err := log.Append(ctx, at, []byte(mine))
				refused := (*journal.Conflict)(nil)
				switch {
				case err == nil:
					mu.Lock()
					if winners[seq] != "" || seq != at+1 {
						t.Errorf("%q and %q both won %d", winners[seq], mine, seq)
					}
					winners[seq] = mine
					mu.Unlock()
					at = seq
				case errors.As(err, &refused) && refused.Last > at:
					at = refused.Last
				default:
					t.Errorf("an append behind %d: %v", at, err)
					return
				}
			}
		})
	}
	all.Wait()
	for i, got := range read(t, ctx, log, 1) {
		if want := winners[messages.Sequence(i+1)]; string(got) != want {
			t.Errorf("entry %d is %q, the winner was %q", i+1, got, want)
		}
	}
	if len(winners) < places {
		t.Errorf("%d places of %d have a winner", len(winners), places)
	}
}

func large(t *testing.T, ctx context.Context, log journal.Log) {
	want := bytes.Repeat([]byte("0123456789abcdef"), 7<<20/16)
	if _, err := log.Append(ctx, 0, want); err != nil {
		t.Fatal(err)
	}
	if got := read(t, ctx, log, 1); len(got) != 1 || !bytes.Equal(got[0], want) {
		t.Fatal("replay gave something else")
	}
	if got, err := log.Get(ctx, 1); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("get gave something else: %v", err)
	}
}

func fill(t *testing.T, ctx context.Context, log journal.Log, n int) [][]byte {
	t.Helper()
	var out [][]byte
	for i := range n {
		payload := fmt.Appendf(nil, "entry %d", i+1)
		seq, err := log.Append(ctx, messages.Sequence(i), payload)
		if err != nil || seq != messages.Sequence(i+1) {
			t.Fatalf("append %d: sequence %d, %v", i+1, seq, err)
		}
		out = append(out, payload)
	}
	return out
}

func read(t *testing.T, ctx context.Context, log journal.Log, from messages.Sequence) [][]byte {
	t.Helper()
	var out [][]byte
	next := from
	err := log.Replay(ctx, from, func(seq messages.Sequence, payload []byte) error {
		if seq != next {
			t.Errorf("replay gave %d instead of %d", seq, next)
		}
		next = seq + 1
		out = append(out, bytes.Clone(payload))
		return nil
	})
	if err != nil {
		t.Fatalf("replay from %d: %v", from, err)
	}
	return out
}

func equal(a, b [][]byte) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !bytes.Equal(a[i], b[i]) {
			return false
		}
	}
	return true
}
