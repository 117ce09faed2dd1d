package journal

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/highwater-io/highwater/messages"
)

// Recovery says how a catalog was rebuilt.
type Recovery struct {
	At    Position
	Epoch messages.ControllerEpoch // of the last claim, 0 if there is none
	// From is the snapshot that was used; its Pieces are 0 where the whole log was replayed.
	From SnapshotInfo
	// Replayed is how many entries of the log were applied behind the snapshot.
	Replayed uint64
	// Unusable are the newer snapshots that were passed over, with the reasons.
	Unusable []Unusable
}

// Unusable is a snapshot that was passed over.
type Unusable struct {
	At  messages.Sequence
	Err error
}

// String says which one it is and why.
func (u Unusable) String() string { return fmt.Sprintf("%d: %v", u.At, u.Err) }

// RecoverFrom rebuilds an empty catalog from the newest good snapshot and the entries of the log behind it. A snapshot that
// is torn or changed, or that does not fit the log, is passed over for the one before, and at last for a replay of the whole
// log, and is reported. The errors are those of Recover, *TooNew also for a snapshot: a log that does not reach back to what the snapshot holds is *Broken,
// and so is one that ends before it.
func RecoverFrom(ctx context.Context, log Log, in Snapshots, c *Catalog) (Recovery, error) {
	var r Recovery
	var chosen *Snapshot
	kept, err := in.List(ctx)
	for again := true; again && err == nil; {
		chosen, r.Unusable, err = choose(ctx, log, in, kept, c.reads)
		again = false
		if err == nil && len(kept) > 0 && !reaches(ctx, log, chosen) {
			// Whoever is active may have taken a snapshot and cut the log meanwhile. Then the newest one is another.
			before := kept[0]
			kept, err = in.List(ctx)
			again = len(kept) > 0 && kept[0] != before
		}
	}
	if err != nil {
		return r, err
	}
	if chosen != nil {
		c.load(chosen)
		r.From, r.At = chosen.Info, chosen.Info.At
	}
	from := r.At.Last
	r.At, r.Epoch, err = Follow(ctx, log, c, r.At)
	r.Replayed = uint64(r.At.Last - from)
	if b := (*Broken)(nil); errors.As(err, &b) && len(r.Unusable) > 0 {
		err = broken(b.At, b.Defect, "%s; snapshots that cannot be used: %s", b.Detail, list(r.Unusable))
	}
	return r, err
}

// choose returns the newest snapshot that can be used, nil for none, and those that had to be passed over.
func choose(ctx context.Context, log Log, in Snapshots, kept []StoredSnapshot, reads messages.Version) (*Snapshot, []Unusable, error) {
	last, err := log.Last(ctx)
	if err != nil {
		return nil, nil, err
	}
	if len(kept) > 0 && last < kept[0].At {
		return nil, nil, broken(last+1, DefectGap, "the log ends at %d, but there is a snapshot of %d: it has lost what is between", last, kept[0].At)
	}
	var unusable []Unusable
	for _, k := range kept {
		s, err := read(ctx, in, k.At, reads)
		if err == nil {
			err = fits(ctx, log, last, s.Info.At)
		}
		if ctx.Err() != nil {
			return nil, unusable, context.Cause(ctx)
		}
		if err == nil {
			return s, unusable, nil
		}
		if messages.CodeOf(err) == messages.CodeUnavailable {
			return nil, unusable, err // it may be as good as any; another try will tell
		}
		if newer := (*TooNew)(nil); errors.As(err, &newer) {
			return nil, unusable, err // an older one would only lead to the entry that this build is too old for
		}
		unusable = append(unusable, Unusable{k.At, err})
	}
	return nil, unusable, nil
}

// reaches reports whether the log goes on right behind a snapshot, or behind nothing.
func reaches(ctx context.Context, log Log, s *Snapshot) bool {
	at := messages.Sequence(0)
	if s != nil {
		at = s.Info.At.Last
	}
	if _, err := log.Get(ctx, at+1); !errors.Is(err, ErrNotFound) {
		return err == nil
	}
	last, err := log.Last(ctx)
	return err == nil && last == at
}

func list(all []Unusable) string {
	out := make([]string, len(all))
	for i, u := range all {
		out[i] = u.String()
	}
	return strings.Join(out, "; ")
}

func read(ctx context.Context, in Snapshots, at messages.Sequence, reads messages.Version) (*Snapshot, error) {
	r, err := in.Load(ctx, at)
	if err != nil {
		return nil, err
	}
	s, err := readSnapshot(r, reads)
	if err = errors.Join(err, r.Close()); err != nil {
		return nil, err
	}
	if s.Info.At.Last != at {
		return nil, bad("it is of %d, but kept under %d", s.Info.At.Last, at)
	}
	return s, nil
}

// fits makes sure that a snapshot is of the same history as the log: the entry at its position, or else the one behind it,
// must have the same hash chain. Where the log holds neither, there is nothing to contradict it.
func fits(ctx context.Context, log Log, last messages.Sequence, at Position) error {
	payload, err := log.Get(ctx, at.Last)
	if err == nil {
		e, err := DecodeEntry(at.Last, payload)
		if err == nil && e.Chain != at.Chain {
			err = bad("entry %d of the log has another hash chain: it is of another history", at.Last)
		}
		return err
	}
	if !errors.Is(err, ErrNotFound) || at.Last == last {
		return ignore(err)
	}
	payload, err = log.Get(ctx, at.Last+1)
	if err != nil {
		return ignore(err) // a gap, which the replay finds
	}
	e, err := DecodeEntry(at.Last+1, payload)
	if err != nil {
		return err
	}
	if e.Follows(at) != nil {
		return bad("entry %d of the log does not continue its hash chain: it is of another history", at.Last+1)
	}
	return nil
}

func ignore(err error) error {
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}
