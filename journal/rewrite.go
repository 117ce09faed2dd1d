package journal

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/highwater-io/highwater/messages"
)

// A recovered journal raises the epochs of partitions by so much, above the highest that anybody names.
const recoverStints = 1 << 20

// Salvage rebuilds as much as there is of a log that may be damaged: everything before its first fault, or the newest good
// snapshot if that reaches further. The fault is nil for a log in order. *TooNew and what is wrong with the servers are errors.
func Salvage(ctx context.Context, log Log, in Snapshots, reads messages.Version) (*Catalog, *Broken, error) {
	c := NewCatalogReading(reads)
	_, err := RecoverFrom(ctx, log, in, c)
	if err == nil {
		return c, nil, nil
	}
	var fault *Broken
	if !errors.As(err, &fault) {
		return nil, nil, err
	}
	kept, err := in.List(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, k := range kept {
		if k.At <= c.Applied() {
			break
		}
		s, err := read(ctx, in, k.At, reads)
		if err != nil {
			continue // the one before
		}
		c = NewCatalogReading(reads)
		c.load(s)
		break
	}
	return c, fault, nil
}

// Witnessed is the highest of everything that brokers have seen.
type Witnessed struct {
	Seen messages.Seen
	// Brokers are the epochs under which brokers say that they lost nothing; 0 or absent for one that does not say so.
	Brokers map[messages.BrokerID]messages.BrokerEpoch
	// Replicas are the copies of partitions that brokers hold.
	Replicas map[messages.PartitionID][]Copy
}

// Copy is how far one replica has come.
type Copy struct {
	Broker        messages.BrokerID
	LeaderEpoch   messages.LeaderEpoch // the last one that its log has a start of
	LogEnd        messages.Offset
	HighWatermark messages.Offset
	Epoch         messages.PartitionEpoch // the highest that it was assigned, 0 if that is not known
}

// ahead reports whether a copy may hold records that another lacks.
func (c Copy) ahead(o Copy) bool {
	return c.LeaderEpoch > o.LeaderEpoch || c.LeaderEpoch == o.LeaderEpoch && c.LogEnd > o.LogEnd
}

// Heir is who claims a journal that was rewritten, and the id that the journal has from then on.
type Heir struct{ Controller, Store string }

// RewritableLog is a log that can be made to begin anew.
type RewritableLog interface {
	Log
	// Restart drops every entry and goes on behind a sequence above the last one.
	Restart(ctx context.Context, behind messages.Sequence) error
}

// Rewrite makes a journal go on with what a catalog holds, above everything that brokers have seen: it stores the catalog as
// a snapshot far behind the log's end, drops the entries, and claims the log there for a controller. All brokers are fenced
// until they register again; nobody leads; in the ISR of a partition are the copies that nobody is ahead of, and what they
// hold below the highest known mark must be there before one leads. It may be repeated until it has succeeded.
//
// Errors: INVALID_REQUEST for a catalog that names no cluster: there is nothing to go on with.
func Rewrite(ctx context.Context, log RewritableLog, in Snapshots, c *Catalog, w Witnessed, by Heir) (Position, messages.ControllerEpoch, error) {
	known := c.Identity()
	if known == nil {
		return Position{}, 0, messages.Errorf(messages.CodeInvalidRequest, "the journal names no cluster: there is nothing to go on with").
			WithHint("restore a backup: highwater cluster snapshot restore")
	}
	last, err := log.Last(ctx)
	if err != nil {
		return Position{}, 0, err
	}
	s, err := snapshotOfCatalog(c)
	if err != nil {
		return Position{}, 0, err
	}
	last = max(last, s.Info.At.Last, w.Seen.Sequence)
	for _, b := range c.Brokers() {
		last = max(last, messages.Sequence(b.Epoch))
	}
	for _, e := range w.Brokers {
		last = max(last, messages.Sequence(e))
	}
	moved := s.moved(last + restoreSequences)
	moved.Info.Epoch = max(s.Info.Epoch, w.Seen.Controller) + restoreEpochs
	for i, r := range moved.records {
		moved.records[i] = w.settle(r)
	}
	fresh := NewCatalogReading(c.reads)
	fresh.load(moved)
	if _, err := TakeSnapshot(ctx, fresh, in, time.UnixMilli(s.Info.WallUnixMs)); err != nil {
		return Position{}, 0, err
	}
	if err := log.Restart(ctx, moved.Info.At.Last); err != nil {
		return Position{}, 0, err
	}
	identity := *known
	identity.Store = by.Store
	return Claim(ctx, log, fresh, moved.Info.At, by.Controller, &identity)
}

// snapshotOfCatalog makes a snapshot without storing it.
func snapshotOfCatalog(c *Catalog) (*Snapshot, error) {
	v, err := c.Pin()
	if err != nil {
		return nil, err
	}
	defer v.Close()
	return readSnapshot(NewEncoder(v, time.Now().UnixMilli()), c.reads)
}

// settle returns a record as it is to be behind a recovery.
func (w Witnessed) settle(r messages.Record) messages.Record {
	switch r := r.(type) {
	case *messages.Broker:
		b := *r
		b.Fenced, b.Stopping, b.FencedReason = true, false, "the journal was recovered"
		b.Epoch = max(b.Epoch, w.Brokers[b.ID])
		return &b
	case *messages.Partition:
		return w.partition(r)
	}
	return r
}

func (w Witnessed) partition(r *messages.Partition) *messages.Partition {
	p := *r
	if p.Leader != "" {
		p.LastLeader = p.Leader
	}
	p.Leader, p.LeaderProven, p.Reason = "", false, "the journal was recovered"
	var best []Copy
	for _, c := range w.Replicas[p.ID] {
		p.LeaderEpoch, p.Epoch = max(p.LeaderEpoch, c.LeaderEpoch), max(p.Epoch, c.Epoch)
		p.HighWatermark = max(p.HighWatermark, c.HighWatermark)
		switch {
		case !slices.Contains(p.Replicas, c.Broker):
		case len(best) == 0 || c.ahead(best[0]):
			best = []Copy{c}
		case !best[0].ahead(c):
			best = append(best, c)
		}
	}
	p.LeaderEpoch += recoverStints
	p.Epoch += recoverStints
	if len(best) == 0 {
		return &p
	}
	p.ISR, p.Eligible = nil, nil
	for _, b := range p.Replicas {
		if slices.ContainsFunc(best, func(c Copy) bool { return c.Broker == b }) {
			p.ISR = append(p.ISR, b)
		}
	}
	return &p
}
