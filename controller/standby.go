package controller

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/highwater-io/highwater/controller/activation"
	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/messages"
)

// Times of a standby.
const (
	standbyLook = 50 * time.Millisecond // between two looks at whether the active one is there
	followQuiet = time.Second           // between two looks at the journal when no beat speaks of news
	followLimit = 500 * time.Millisecond
	claimLimit  = 30 * time.Second // of one claim; the journal's servers may have to elect first
	gapPatience = 20 * time.Second // until missing entries are taken for lost
)

// standby follows the journal into its catalog until it has become the writer of it.
type standby struct {
	c       *Controller
	catalog *journal.Catalog
	at      journal.Position
	from    journal.Recovery
	tried   time.Time    // last look at the journal
	marked  bool         // the data folder remembers the cluster
	gap     time.Time    // since when the journal seems to lack entries, zero if it does not
	current atomic.Int64 // nanoseconds since c.origin: when the catalog was last known to have everything
}

func (c *Controller) newStandby() *standby {
	s := &standby{c: c, catalog: c.newCatalog()}
	c.unfit.Store(nil)
	s.current.Store(int64(c.now()))
	return s
}

// age is for how long the catalog may have missed something.
func (s *standby) age() (time.Duration, bool) {
	age := s.c.now() - time.Duration(s.current.Load())
	return age, age > 2*followQuiet+s.c.cfg.Suspicion
}

// recover rebuilds the catalog from a snapshot and the journal behind it, and checks that it is of this cluster.
func (s *standby) recover(ctx context.Context) error {
	for {
		err := s.rebuild(ctx)
		if err == nil {
			_, err = s.c.identity(s.catalog, s.at)
		}
		if err == nil || s.c.unfitFor(err) {
			return nil
		}
		if fatal(err) || ctx.Err() != nil {
			return err
		}
		s.c.log.Debug().Err(err).Msg("the journal cannot be read yet")
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// rebuild begins with a catalog of its own.
func (s *standby) rebuild(ctx context.Context) (err error) {
	began := time.Now()
	s.catalog = s.c.newCatalog()
	s.from, err = s.c.recover(ctx, s.catalog)
	s.at = s.from.At
	return s.judge(began, err)
}

// errCut says that the journal was cut behind a snapshot that this standby has not read.
var errCut = errors.New("the journal has been cut further than this standby has read")

// follow reads on. It returns errCut when the catalog has to be built anew.
func (s *standby) follow(ctx context.Context) (err error) {
	began := time.Now()
	s.at, _, err = journal.Follow(ctx, s.c.store, s.catalog, s.at)
	if err = s.judge(began, err); s.gap.IsZero() {
		return err
	}
	kept, listing := s.c.kept.List(ctx)
	if listing == nil && len(kept) > 0 && kept[0].At > s.at.Last {
		return errCut
	}
	return err
}

// judge notes how reading the journal went. A gap is forgiven for a while.
func (s *standby) judge(began time.Time, err error) error {
	s.tried = began
	var broken *journal.Broken
	switch {
	case err == nil:
		s.gap = time.Time{}
		s.current.Store(int64(began.Sub(s.c.origin)))
	case errors.As(err, &broken) && broken.Defect == journal.DefectGap:
		// Of several servers one may know of entries that another has not got yet.
		if s.gap.IsZero() {
			s.gap = began
		}
		if began.Sub(s.gap) < gapPatience {
			return messages.Errorf(messages.CodeUnavailable, "the journal's servers do not agree yet: %s", broken.Detail)
		}
	}
	return err
}

// fatal reports whether an error is one that a person has to look at.
func fatal(err error) bool {
	var broken *journal.Broken
	code := messages.CodeOf(err)
	return errors.As(err, &broken) || code == messages.CodeClusterMismatch || code == messages.CodeUnsupportedVersion || code == messages.CodeInvalidRequest
}

// stand follows until a claim has succeeded. It returns an error when the context has ended, errCut, or one that is fatal.
func (s *standby) stand(ctx context.Context, steppedDown bool) (claimed, error) {
	look := time.NewTicker(standbyLook)
	defer look.Stop()
	m := s.c.members
	m.note(func(w *activation.Watch, now time.Duration) { w.Stand(now, steppedDown) })
	for {
		select {
		case <-ctx.Done():
			return claimed{}, ctx.Err()
		case <-m.news:
		case <-look.C:
		}
		m.note((*activation.Watch).Look)
		if s.c.unreadable() {
			continue
		}
		suspected := m.suspicion(s.catalog.Claimed()) != ""
		if err := s.keepUp(ctx, suspected); err != nil {
			return claimed{}, err
		}
		s.c.reconsider(s.catalog.Identity())
		why := ""
		if suspected && s.gap.IsZero() && s.c.whyUnfit() == "" {
			why = m.suspicion(s.catalog.Claimed()) // of whoever the journal names now
		}
		if why == "" {
			m.note((*activation.Watch).Awake) // reading is not standing still
			continue
		}
		s.c.log.Info().Str("reason", why).Uint64("revision", uint64(s.at.Last)).Msg("claiming the journal")
		by, err := s.claim(ctx)
		if err == nil {
			return by, nil
		}
		if s.c.unfitFor(err) {
			continue
		}
		if fatal(err) || ctx.Err() != nil {
			return claimed{}, err
		}
		s.c.log.Info().Err(err).Msg("the claim was not accepted")
		m.note((*activation.Watch).Refused)
	}
}

// keepUp reads what is new in the journal, if there is reason to think that something is.
func (s *standby) keepUp(ctx context.Context, suspected bool) error {
	news := known(s.c.members, func(w *activation.Watch) bool { return w.News(s.at.Last) })
	if !suspected && !news && time.Since(s.tried) < followQuiet {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, followLimit)
	defer cancel()
	if err := s.follow(ctx); err != nil && !s.c.unfitFor(err) {
		if fatal(err) || errors.Is(err, errCut) {
			return err
		}
		s.c.log.Debug().Err(err).Msg("the journal cannot be read")
		return nil
	}
	if s.marked || s.catalog.Identity() == nil {
		return nil
	}
	err := s.c.remember(s.catalog) // an empty journal is a lost one from now on
	s.marked = err == nil
	return err
}

// claim appends the claim right behind what this standby has read.
func (s *standby) claim(ctx context.Context) (claimed, error) {
	also, err := s.c.identity(s.catalog, s.at)
	if err != nil {
		return claimed{}, err
	}
	by := claimed{sent: time.Now(), handed: s.catalog.Claimed().Released, from: s.from}
	ctx, cancel := context.WithTimeout(ctx, claimLimit)
	defer cancel()
	at, epoch, err := journal.Claim(ctx, impatient{s.c.store}, s.catalog, s.at, s.c.cfg.Name, also...)
	if err != nil {
		return claimed{}, err
	}
	by.at, by.epoch = at, epoch
	s.at = at
	return by, s.c.remember(s.catalog)
}

// impatient bounds every call, so that a claim finds out soon when the journal takes entries again.
type impatient struct{ journal.Log }

const claimPatience = time.Second

// Append bounds the append.
func (l impatient) Append(ctx context.Context, expected messages.Sequence, payload []byte) (messages.Sequence, error) {
	ctx, cancel := context.WithTimeout(ctx, claimPatience)
	defer cancel()
	return l.Log.Append(ctx, expected, payload)
}

// Get bounds the reading.
func (l impatient) Get(ctx context.Context, at messages.Sequence) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, claimPatience)
	defer cancel()
	return l.Log.Get(ctx, at)
}
