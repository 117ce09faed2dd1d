package journal_test

import (
	"testing"

	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/journal/journaltest"
	"github.com/highwater-io/highwater/messages"
)

func TestMemorySnapshotsPassTheSuite(t *testing.T) {
	journaltest.RunSnapshots(t, func(*testing.T) journaltest.SnapshotStore {
		m := journal.NewMemorySnapshots()
		change := func(t *testing.T, at messages.Sequence, f func([]byte) []byte) {
			t.Helper()
			if !m.Change(at, f) {
				t.Fatalf("there is no snapshot of %d", at)
			}
		}
		return journaltest.SnapshotStore{Snapshots: m, Log: journal.NewMemory(), Change: change,
			Lose: func(t *testing.T, at messages.Sequence) { change(t, at, journal.WithoutPiece) }}
	})
}
