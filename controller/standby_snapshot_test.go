package controller

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/messages"
)

// deafLog replays nothing while it is deaf.
type deafLog struct {
	journal.Log
	deaf atomic.Bool
}

func (l *deafLog) Replay(ctx context.Context, from messages.Sequence, f func(messages.Sequence, []byte) error) error {
	if l.deaf.Load() {
		return errors.New("the line is dead")
	}
	return l.Log.Replay(ctx, from, f)
}

func TestAStandbyFromWhomTheJournalWasCutBeginsWithTheSnapshotAndGoesOnTakingThem(t *testing.T) {
	lag := &deafLog{}
	all := pair(t, 2, func(i int, c *Config) {
		c.SnapshotEntries = 10
		if i == 1 {
			c.wrapLog = func(under journal.Log) journal.Log {
				lag.Log = under
				return lag
			}
		}
	})
	first, second := all[0], all[1]
	before := second.current().catalog
	lag.deaf.Store(true)
	behind := before.Applied()
	commit(t, first, cluster(t, first, 2), 60)
	eventually(t, "the journal to be cut behind the standby", func() bool { return firstEntry(t, first) > uint64(behind)+1 })
	if second.current().catalog.Applied() > behind+1 {
		t.Fatalf("the standby has followed from %d to %d", behind, second.current().catalog.Applied())
	}
	lag.deaf.Store(false)
	eventually(t, "the standby to be there again", func() bool {
		now := second.current().catalog
		return now != before && now.Applied() >= first.current().catalog.Applied()
	})
	if got, want := state(second.current().catalog), state(first.current().catalog); !slices.Equal(got, want) {
		t.Errorf("the standby knows of %d things, there are %d", len(got), len(want))
	}
	if second.Err() != nil {
		t.Error(second.Err())
	}

	left := first.current().shots
	first.order(orderStepDown)
	eventually(t, "the other one to be active", second.Active)
	select {
	case <-left.ended:
	case <-time.After(5 * time.Second):
		t.Error("snapshots are taken after the end of the term")
	}
	if first.store.grown.Load() != nil {
		t.Error("somebody is still told that the journal grows")
	}
	eventually(t, "an earlier snapshot to be adopted", func() bool { return second.current().shots.last() > 0 })
	last, cut := second.current().shots.last(), firstEntry(t, second)
	commit(t, second, cluster(t, second, 2), 60)
	eventually(t, "further snapshots and cuts", func() bool { return second.current().shots.last() > last && firstEntry(t, second) > cut })
	if kept, err := second.kept.List(t.Context()); err != nil || len(kept) > 3 {
		t.Errorf("kept are %v, %v", kept, err)
	}
	if len(readAll(t, connect(t, second.URL()))) == 0 {
		t.Error("the active controller gives out no snapshot")
	}
}
