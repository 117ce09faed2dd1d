package journal

import (
	"context"
	"errors"
	"fmt"

	"github.com/highwater-io/highwater/messages"
)

// Recover replays a log from its first entry into an empty catalog. It returns where the log ends and the epoch of the
// last claim, 0 if there is none. A log with a gap, a broken hash chain, or an entry of a controller that was not active is
// refused with *Broken: the store has lost or exchanged something, and nothing may be decided from it. One that goes on with
// what only a later version may apply is refused with *TooNew. A single record that cannot be read is left out and reported by Catalog.Damaged.
//
// The end may be stale: another writer may have appended more. Claim finds that out.
func Recover(ctx context.Context, log Log, c *Catalog) (Position, messages.ControllerEpoch, error) {
	return Follow(ctx, log, c, Position{})
}

// Follow replays what a log holds behind a position that the catalog has reached, like Recover; a standby calls it again
// and again. On an error the catalog holds what came before the entry that the error is about, which the returned
// position says too.
func Follow(ctx context.Context, log Log, c *Catalog, from Position) (Position, messages.ControllerEpoch, error) {
	r := replay{catalog: c, at: from, names: names{}}
	last, err := log.Last(ctx)
	if err != nil {
		return r.at, c.Claimed().Epoch, err
	}
	if last < from.Last {
		// The answer may only be stale. If it is not, the next append will show it.
		return r.at, c.Claimed().Epoch, nil
	}
	err = log.Replay(ctx, from.Last+1, r.entry)
	if err == nil && r.at.Last < last {
		err = broken(r.at.Last+1, DefectGap, "the log ends at %d but holds nothing behind %d", last, r.at.Last)
	}
	return r.at, c.Claimed().Epoch, err
}

// replay takes one entry after the other into a catalog.
type replay struct {
	catalog *Catalog
	at      Position
	names   names
}

func (r *replay) entry(seq messages.Sequence, payload []byte) error {
	if seq != r.at.Last+1 {
		return broken(r.at.Last+1, DefectGap, "the next entry that the log holds is %d", seq)
	}
	e, err := DecodeEntry(seq, payload)
	if e == nil {
		return err
	}
	if changed := e.Follows(r.at); changed != nil {
		return changed // then nothing that it says of itself counts
	}
	if err != nil {
		return err
	}
	if e.Needs > r.catalog.reads {
		return tooNew(seq, fmt.Sprintf("entry %d of the journal", seq), e.Controller, e.Needs, r.catalog.reads)
	}
	if err := checkWriter(seq, e, r.catalog.Claimed()); err != nil {
		return err
	}
	for _, record := range e.Records {
		if p, ok := record.(*messages.Partition); ok {
			r.names.intern(p)
		}
	}
	r.catalog.addDamage(seq, e.Damaged)
	r.at = Position{Last: seq, Chain: e.Chain}
	r.catalog.ApplyAt(r.at, e.Records)
	return nil
}

// checkWriter makes sure that an entry is of the active controller, or a claim with an epoch that was never issued.
func checkWriter(seq messages.Sequence, e *Entry, active messages.ControllerClaimed) error {
	for _, record := range e.Records {
		if claim, ok := record.(*messages.ControllerClaimed); ok {
			if claim.Released && !active.Released && claim.Epoch == active.Epoch && claim.Controller == active.Controller {
				continue
			}
			if claim.Released || claim.Epoch <= active.Epoch || claim.Epoch != e.Epoch {
				return broken(seq, DefectEpoch, "controller %q claims epoch %d in an entry of epoch %d, after epoch %d",
					claim.Controller, claim.Epoch, e.Epoch, active.Epoch)
			}
			active = *claim
		}
	}
	if active.Released {
		return broken(seq, DefectEpoch, "controller %q wrote with epoch %d, which %q had released", e.Controller, e.Epoch, active.Controller)
	}
	if e.Epoch != active.Epoch || e.Controller != active.Controller {
		return broken(seq, DefectEpoch, "controller %q wrote with epoch %d while %q was active with epoch %d",
			e.Controller, e.Epoch, active.Controller, active.Epoch)
	}
	return nil
}

// Release makes the end of an active controller's work known: it appends, right behind the catalog's position, that nothing is
// granted or committed under its epoch any more, and who should claim next. The caller has ended everything that appends.
//
// Errors: *Conflict when somebody else has claimed already; *Broken; OUTCOME_UNKNOWN when the context ended first.
func Release(ctx context.Context, log Log, c *Catalog, successor string) error {
	m, err := NewRelease(c, successor)
	if err != nil {
		return err
	}
	return contend(ctx, log, c, m)
}

// NewRelease returns the committer that writes the last entry of the active controller, for a host that drives it by itself;
// see Release. It is over when the committer is idle.
func NewRelease(c *Catalog, successor string) (*Committer, error) {
	last := c.Claimed()
	last.Released, last.Successor = true, successor
	m := NewCommitter(c.Position(), Writer{Controller: last.Controller, Epoch: last.Epoch}, Limits{})
	m.resend = true // behind the last word of an epoch there is no tick of it
	return m, m.Propose(1, []messages.Record{&last})
}

// contend drives a committer against others who may be faster.
func contend(ctx context.Context, log Log, c *Catalog, m *Committer) error {
	err := Drive(ctx, log, m, func(done Committed) { c.ApplyAt(done.At(), done.Records) })
	if deposed := (*Deposed)(nil); errors.As(err, &deposed) {
		return &Conflict{Last: deposed.At}
	}
	return err
}

// names makes equal broker ids share their bytes: a hundred thousand partitions name the same few brokers.
type names map[messages.BrokerID]messages.BrokerID

func (n names) intern(p *messages.Partition) {
	one := func(b *messages.BrokerID) {
		if *b == "" {
			return
		}
		if known, ok := n[*b]; ok {
			*b = known
		} else {
			n[*b] = *b
		}
	}
	for _, set := range [][]messages.BrokerID{p.Replicas, p.ISR, p.Eligible} {
		for i := range set {
			one(&set[i])
		}
	}
	one(&p.Leader)
	one(&p.LastLeader)
}

// Claim makes a controller the active one: it appends ControllerClaimed with the next epoch right behind a position, the
// catalog's, and applies it. Records that belong to the claim, as the identity of a new cluster, go into the same entry.
// From then on every other writer's appends are refused.
//
// Errors: *Conflict when somebody else has appended meanwhile; then Follow, and see whether a claim is still called for.
// *Broken; OUTCOME_UNKNOWN when the context ended first.
func Claim(ctx context.Context, log Log, c *Catalog, at Position, controller string,
	also ...messages.Record) (Position, messages.ControllerEpoch, error) {
	m, err := NewClaim(c, at, controller, also...)
	if err != nil {
		return at, 0, err
	}
	if err := contend(ctx, log, c, m); err != nil {
		return m.Position(), 0, err
	}
	return m.Position(), m.Writer().Epoch, nil
}

// NewClaim returns the committer that writes a claim, for a host that drives it by itself; see Claim. It is over when the
// committer is idle; its writer has the epoch.
func NewClaim(c *Catalog, at Position, controller string, also ...messages.Record) (*Committer, error) {
	epoch := c.Claimed().Epoch + 1
	m := NewCommitter(at, Writer{Controller: controller, Epoch: epoch}, Limits{})
	m.resend = true // a tick of an epoch that is not claimed yet would break the journal; of two equal claims one gets in
	return m, m.Propose(1, append([]messages.Record{&messages.ControllerClaimed{Controller: controller, Epoch: epoch}}, also...))
}
