package journaltest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/messages"
)

// SnapshotStore is a store of snapshots under test, with the log that it belongs to and a hand that damages it.
type SnapshotStore struct {
	journal.Snapshots
	Log interface {
		journal.Log
		journal.Purger
	}
	// Change exchanges the bytes of a snapshot behind the store's back, Lose loses a part of it that the store keeps as one.
	Change func(t *testing.T, at messages.Sequence, f func([]byte) []byte)
	Lose   func(t *testing.T, at messages.Sequence)
}

// RunSnapshots runs the suite of snapshots. open returns an empty store with an empty log each time, and sees to their end.
func RunSnapshots(t *testing.T, open func(t *testing.T) SnapshotStore) {
	for _, c := range []struct {
		name string
		run  func(*testing.T, context.Context, SnapshotStore)
	}{
		{"an empty store holds nothing", noSnapshots},
		{"what is saved is listed and comes back", saved},
		{"another snapshot of the same sequence takes the place", replaced},
		{"a reader's error is the save's, and there is no snapshot", failedSave},
		{"an ended context saves nothing", endedSave},
		{"one that is closed early leaves nothing behind", closedEarly},
		{"a torn snapshot is passed over", func(t *testing.T, ctx context.Context, s SnapshotStore) {
			passedOver(t, ctx, s, func(at messages.Sequence) { s.Change(t, at, journal.Torn) })
		}},
		{"a corrupt snapshot is passed over", func(t *testing.T, ctx context.Context, s SnapshotStore) {
			passedOver(t, ctx, s, func(at messages.Sequence) { s.Change(t, at, journal.Corrupt) })
		}},
		{"a snapshot without a piece is passed over", func(t *testing.T, ctx context.Context, s SnapshotStore) {
			passedOver(t, ctx, s, func(at messages.Sequence) { s.Change(t, at, journal.WithoutPiece) })
		}},
		{"an empty snapshot is passed over", func(t *testing.T, ctx context.Context, s SnapshotStore) {
			passedOver(t, ctx, s, func(at messages.Sequence) { s.Change(t, at, func([]byte) []byte { return nil }) })
		}},
		{"a snapshot of which the store has lost a part is passed over", func(t *testing.T, ctx context.Context, s SnapshotStore) {
			passedOver(t, ctx, s, func(at messages.Sequence) { s.Lose(t, at) })
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			c.run(t, ctx, open(t))
		})
	}
}

func noSnapshots(t *testing.T, ctx context.Context, s SnapshotStore) {
	if all, err := s.List(ctx); len(all) != 0 || err != nil {
		t.Errorf("listed are %v, %v", all, err)
	}
	if _, err := s.Load(ctx, 7); !errors.Is(err, journal.ErrNotFound) {
		t.Errorf("loading: %v", err)
	}
	if err := s.Delete(ctx, 7); err != nil {
		t.Errorf("deleting: %v", err)
	}
}

// content is a megabyte and a bit that differs with n.
func content(n int) []byte { return bytes.Repeat(fmt.Appendf(nil, "snapshot %08d.", n), 70_000) }

func save(t *testing.T, ctx context.Context, s SnapshotStore, at messages.Sequence, data []byte) {
	t.Helper()
	if err := s.Save(ctx, at, bytes.NewReader(data)); err != nil {
		t.Fatalf("saving %d: %v", at, err)
	}
}

func wantContent(t *testing.T, ctx context.Context, s SnapshotStore, at messages.Sequence, want []byte) {
	t.Helper()
	r, err := s.Load(ctx, at)
	if err != nil {
		t.Fatalf("loading %d: %v", at, err)
	}
	got, err := io.ReadAll(r)
	if err = errors.Join(err, r.Close()); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("snapshot %d has %d bytes, not the %d that were saved; %v", at, len(got), len(want), err)
	}
}

func wantList(t *testing.T, ctx context.Context, s SnapshotStore, want ...messages.Sequence) {
	t.Helper()
	all, err := s.List(ctx)
	var got []messages.Sequence
	for _, x := range all {
		got = append(got, x.At)
	}
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("listed are %v instead of %v, %v", got, want, err)
	}
}

func saved(t *testing.T, ctx context.Context, s SnapshotStore) {
	sizes := map[messages.Sequence]int{9: 1, 1_000_000: 2, 10: 3}
	for at, n := range sizes {
		save(t, ctx, s, at, content(n)[:n*300_000])
	}
	wantList(t, ctx, s, 1_000_000, 10, 9)
	for at, n := range sizes {
		wantContent(t, ctx, s, at, content(n)[:n*300_000])
	}
	if all, err := s.List(ctx); err != nil || all[0].Bytes != 600_000 {
		t.Errorf("listed are %v, %v", all, err)
	}
	if err := s.Delete(ctx, 10); err != nil {
		t.Fatal(err)
	}
	wantList(t, ctx, s, 1_000_000, 9)
	if _, err := s.Load(ctx, 10); !errors.Is(err, journal.ErrNotFound) {
		t.Errorf("loading what was deleted: %v", err)
	}
}

func replaced(t *testing.T, ctx context.Context, s SnapshotStore) {
	save(t, ctx, s, 5, content(1))
	save(t, ctx, s, 5, content(2))
	wantList(t, ctx, s, 5)
	wantContent(t, ctx, s, 5, content(2))
}

// failing gives some bytes and then an error.
type failing struct {
	from io.Reader
	err  error
}

func (f failing) Read(p []byte) (int, error) {
	n, err := f.from.Read(p)
	if errors.Is(err, io.EOF) {
		err = f.err
	}
	return n, err
}

func failedSave(t *testing.T, ctx context.Context, s SnapshotStore) {
	fault := errors.New("the catalog has a record that cannot be written")
	if err := s.Save(ctx, 5, failing{bytes.NewReader(content(1)), fault}); !errors.Is(err, fault) {
		t.Fatalf("saving: %v", err)
	}
	wantList(t, ctx, s)
}

func endedSave(t *testing.T, ctx context.Context, s SnapshotStore) {
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if err := s.Save(ended, 5, bytes.NewReader(content(1))); err == nil {
		t.Fatal("it says that it is saved")
	}
	wantList(t, ctx, s)
}

func closedEarly(t *testing.T, ctx context.Context, s SnapshotStore) {
	save(t, ctx, s, 5, content(1))
	for range 3 {
		r, err := s.Load(ctx, 5)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(r, make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	wantContent(t, ctx, s, 5, content(1))
}

// passedOver takes two snapshots, damages the newer and recovers from the older, with a log that reaches back no further.
func passedOver(t *testing.T, ctx context.Context, s SnapshotStore, damage func(messages.Sequence)) {
	live := journal.NewCatalog()
	m := claim(t, ctx, s.Log, live, journal.Position{}, "c1")
	var taken []journal.Taken
	for ticket := 1; ticket <= 30; ticket++ {
		records := make([]messages.Record, 200)
		for i := range records {
			b := broker(1000*ticket + i)
			b.FencedReason = fmt.Sprintf("%0200d", i) // some megabytes in all
			records[i] = b
		}
		if err := m.Propose(journal.Ticket(ticket), records); err != nil {
			t.Fatal(err)
		}
		drain(t, ctx, s.Log, m, live)
		if ticket == 10 || ticket == 20 {
			one, err := journal.TakeSnapshot(ctx, live, s, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			taken = append(taken, one)
		}
	}
	older, newer := taken[0].At.Last, taken[1].At.Last
	if upTo, err := journal.Retain(ctx, s.Log, s, live, older, newer); err != nil || upTo != older {
		t.Fatalf("purged to %d instead of %d, %v", upTo, older, err)
	}
	recover := func(from messages.Sequence, unusable int) {
		t.Helper()
		again := journal.NewCatalog()
		r, err := journal.RecoverFrom(ctx, s.Log, s, again)
		if err != nil || r.At != m.Position() || r.From.At.Last != from || len(r.Unusable) != unusable {
			t.Fatalf("recovered %+v, %v", r, err)
		}
		if got, want := len(again.Brokers()), len(live.Brokers()); got != want {
			t.Fatalf("recovered %d brokers, there were %d", got, want)
		}
	}
	recover(newer, 0)
	damage(newer)
	recover(older, 1)
}
