package journal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/highwater-io/highwater/messages"
)

// Snapshots is where snapshots are kept, each under the sequence that it is of. Implementations: MemorySnapshots, and
// journal/jetstream.
type Snapshots interface {
	// Save stores a snapshot and returns when all of it is durable. Another one of the same sequence is replaced. After an
	// error there may be a torn one, which reading finds out.
	Save(ctx context.Context, at messages.Sequence, from io.Reader) error

	// List returns what is there, the newest first, good or not.
	List(ctx context.Context) ([]StoredSnapshot, error)

	// Load opens a snapshot for reading; the context bounds the reading too. ErrNotFound if there is none. Close it.
	Load(ctx context.Context, at messages.Sequence) (io.ReadCloser, error)

	// Delete removes a snapshot, if there is one.
	Delete(ctx context.Context, at messages.Sequence) error
}

// StoredSnapshot is one that is kept somewhere. Nothing is said about its being whole.
type StoredSnapshot struct {
	At    messages.Sequence
	Bytes int64
}

// Purger is a log that can be cut: everything up to a sequence is dropped, the last sequence stays what it is.
type Purger interface {
	Purge(ctx context.Context, upTo messages.Sequence) error
}

// Taken is a snapshot that has been stored and read back.
type Taken struct {
	SnapshotInfo
	LockHeld time.Duration // the longest time for which it kept commits waiting
}

// TakeSnapshot stores a snapshot of a catalog as it is now, and reads it back: it is good once that has succeeded. Commits
// go on meanwhile.
func TakeSnapshot(ctx context.Context, c *Catalog, to Snapshots, now time.Time) (Taken, error) {
	v, err := c.Pin()
	if err != nil {
		return Taken{}, err
	}
	defer v.Close()
	e := NewEncoder(v, now.UnixMilli())
	if err := to.Save(ctx, v.at.Last, e); err != nil {
		return Taken{}, fmt.Errorf("saving the snapshot at %d: %w", v.at.Last, err)
	}
	v.Close()
	got, err := verify(ctx, to, v.at.Last)
	if err != nil {
		return Taken{}, fmt.Errorf("reading back the snapshot at %d: %w", v.at.Last, err)
	}
	if got != e.Info() {
		return Taken{}, bad("the one at %d was read back as another than was written", v.at.Last)
	}
	return Taken{SnapshotInfo: got, LockHeld: v.LockHeld()}, nil
}

func verify(ctx context.Context, from Snapshots, at messages.Sequence) (SnapshotInfo, error) {
	r, err := from.Load(ctx, at)
	if err != nil {
		return SnapshotInfo{}, err
	}
	info, err := CheckSnapshot(r)
	return info, errors.Join(err, r.Close())
}

// Retain keeps two snapshots that are known to be good, and the entries behind the older of them: older snapshots and those
// in between are deleted and the log is purged. Entries from the first damaged record of the catalog on are kept: what this
// version cannot read is not thrown away. It returns the sequence up to which the log was purged, 0 for nothing.
func Retain(ctx context.Context, log Purger, in Snapshots, c *Catalog, older, newer messages.Sequence) (messages.Sequence, error) {
	if older == 0 || older >= newer {
		return 0, nil
	}
	all, err := in.List(ctx)
	if err != nil {
		return 0, err
	}
	for _, s := range all {
		if s.At < newer && s.At != older {
			if err := in.Delete(ctx, s.At); err != nil {
				return 0, err
			}
		}
	}
	if damage, _ := c.Damaged(); len(damage) > 0 {
		older = min(older, damage[0].Sequence-1)
	}
	if older == 0 {
		return 0, nil
	}
	return older, log.Purge(ctx, older)
}
