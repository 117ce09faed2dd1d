package sim

import (
	"context"
	"errors"
	"time"

	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/messages"
)

// snapshotEvery is how many entries make a snapshot due.
const snapshotEvery = 15

// snapshotter is what an active controller knows of its snapshots.
type snapshotter struct {
	good   messages.Sequence // the newest that is known to be whole
	taking bool
}

// adopt looks for the newest whole snapshot that another controller has left.
func (t *term) adopt() {
	kept, _ := t.w.store.kept.List(context.Background())
	for _, k := range kept {
		if k.At <= t.catalog.Applied() && t.w.store.whole(k.At) {
			t.shots.good = k.At
			return
		}
	}
}

func (t *term) snapshotWhenDue() {
	if t.w.cfg.StoreGoesBack || t.shots.taking || t.catalog.Applied()-t.shots.good < snapshotEvery {
		return
	}
	v, err := t.catalog.Pin()
	if err != nil {
		t.w.violated("%s cannot take a snapshot: %v", t.name, err)
		return
	}
	t.shots.taking = true
	at := t.catalog.Applied()
	t.later(t.w.between(time.Millisecond, 400*time.Millisecond), "snapshot", func() {
		err := t.w.store.keep(&t.process, at, journal.NewEncoder(v, t.w.now.Milliseconds()))
		v.Close()
		if err != nil {
			t.later(time.Second, "snapshot again", func() { t.shots.taking = false })
			return
		}
		t.later(t.w.between(time.Millisecond, 100*time.Millisecond), "retain", func() { t.retain(at) })
	})
}

// retain cuts the journal behind the snapshot before.
func (t *term) retain(at messages.Sequence) {
	t.shots.taking = false
	older := t.shots.good
	t.shots.good = at
	t.w.result.Snapshots++
	if t.w.cfg.Faults.CutTooFar && older != 0 {
		_ = t.w.store.log.Purge(context.Background(), at+5)
	}
	if t.w.net.cuts(t.name, storeName) {
		return // the next one cuts
	}
	upTo, err := journal.Retain(context.Background(), t.w.store.log, t.w.store.kept, t.catalog, older, at)
	if err == nil && upTo > 0 {
		t.w.result.Cuts++
		t.w.say("%s cuts the journal up to %d", t.name, upTo)
	}
}

// keep stores a snapshot and reads it back. It may fail in the middle.
func (s *store) keep(from *process, at messages.Sequence, e *journal.Encoder) error {
	switch {
	case s.w.net.cuts(from.name, storeName):
		return errNoAnswer
	case s.w.chance(s.lossy):
		s.w.say("%s: the snapshot of %d is torn", from.name, at)
		s.kept.FailSaves(errNoAnswer, true)
	}
	err := s.kept.Save(context.Background(), at, e)
	s.kept.FailSaves(nil, false)
	if err == nil && !s.whole(at) {
		s.w.violated("the snapshot of %d is not whole", at)
	}
	return err
}

func (s *store) whole(at messages.Sequence) bool {
	r, err := s.kept.Load(context.Background(), at)
	if err != nil {
		return false
	}
	_, err = journal.CheckSnapshot(r)
	return errors.Join(err, r.Close()) == nil
}

// spoil damages the newest snapshot, if all that are kept are whole.
func (s *store) spoil() {
	kept, _ := s.kept.List(context.Background())
	if len(kept) < 2 {
		return
	}
	for _, k := range kept {
		if !s.whole(k.At) {
			return
		}
	}
	change := journal.Corrupt
	if s.w.chance(0.5) {
		change = journal.Torn
	}
	s.w.say("the snapshot of %d is damaged", kept[0].At)
	s.kept.Change(kept[0].At, change)
}
