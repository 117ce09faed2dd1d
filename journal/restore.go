package journal

import (
	"context"
	"time"

	"github.com/highwater-io/highwater/messages"
)

// A restored journal goes on so far behind its snapshot that nothing is issued twice that the old one may have issued after
// the snapshot was taken: broker epochs are sequences, and what brokers have seen is compared by controller epoch.
const (
	restoreSequences = 1 << 32
	restoreEpochs    = 1 << 16
)

// RestoredAt is the sequence behind which a journal begins that is restored from a snapshot.
func RestoredAt(s *Snapshot) messages.Sequence { return s.Info.At.Last + restoreSequences }

// moved returns what a snapshot says as the beginning of a journal that goes on behind a sequence.
func (s *Snapshot) moved(to messages.Sequence) *Snapshot {
	m := *s
	m.damage, m.damaged = nil, 0
	m.Info.At = Position{Last: to, Chain: link(s.Info.At.Chain, s.Info.Digest[:])}
	m.Info.Epoch += restoreEpochs
	return &m
}

// EmptyLog is a log that can be told where to begin.
type EmptyLog interface {
	Log
	// Begin makes a log that has never held anything go on behind a sequence. CLUSTER_MISMATCH for one that has.
	Begin(ctx context.Context, behind messages.Sequence) error
}

// Restore begins a journal with a snapshot of another: it stores the snapshot under a position far behind its own, lets the
// empty log go on there, and claims it for a controller, with a controller epoch far above the snapshot's. The cluster keeps
// its id; store is the id of the new journal. It may be repeated with the same snapshot until it has succeeded. Damaged records
// stay behind: they were never in the snapshot.
//
// Errors: CLUSTER_MISMATCH for a log that is not empty, and for a store that keeps snapshots of something else.
func Restore(ctx context.Context, log EmptyLog, in Snapshots, s *Snapshot, by, store string) (Position, messages.ControllerEpoch, error) {
	last, err := log.Last(ctx)
	if err != nil {
		return Position{}, 0, err
	}
	if last > 0 && last != RestoredAt(s) {
		return Position{}, 0, messages.Errorf(messages.CodeClusterMismatch, "the journal is not empty: it ends at %d", last).
			WithHint("a backup is restored into a new store; nothing was changed")
	}
	moved := s.moved(RestoredAt(s))
	kept, err := in.List(ctx)
	if err != nil {
		return Position{}, 0, err
	}
	for _, k := range kept {
		if k.At != moved.Info.At.Last {
			return Position{}, 0, messages.Errorf(messages.CodeClusterMismatch, "the journal is empty, but there is a snapshot of %d", k.At).
				WithHint("it may be all that is left of a cluster; put it aside first. Nothing was changed")
		}
	}
	c := NewCatalog()
	c.load(moved)
	known := c.Identity()
	if known == nil {
		return Position{}, 0, messages.Errorf(messages.CodeInvalidRequest, "the snapshot names no cluster")
	}
	if _, err := TakeSnapshot(ctx, c, in, time.UnixMilli(s.Info.WallUnixMs)); err != nil {
		return Position{}, 0, err
	}
	if last == 0 { // else it has begun already
		if err := log.Begin(ctx, moved.Info.At.Last); err != nil {
			return Position{}, 0, err
		}
	}
	identity := *known
	identity.Store = store
	return Claim(ctx, log, c, moved.Info.At, by, &identity)
}
