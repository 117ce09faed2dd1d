package controller

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/messages"
)

const (
	// snapshotTimeout bounds one snapshot; the pause after one that failed begins with snapshotRetry and is doubled with each,
	// up to snapshotRetryMax.
	snapshotTimeout  = 10 * time.Minute
	snapshotRetry    = time.Second
	snapshotRetryMax = time.Minute
	// snapshotAlarm is how many failures in a row make the controller unhealthy.
	snapshotAlarm = 3
	// stopShare is the share of the limits from which an orderly stop takes a snapshot; stopSnapshot bounds it.
	stopShare    = 10
	stopSnapshot = 3 * time.Second
)

// snapshotter takes snapshots of the catalog in the background and cuts the journal behind them.
type snapshotter struct {
	cfg     Config
	catalog *journal.Catalog
	store   journal.Snapshots
	log     journal.Purger
	written func() int64 // bytes that the journal has grown by
	logger  zerolog.Logger

	adopts  bool        // the newest good snapshot may be another controller's
	parting func() bool // whether an orderly end is the time for a last snapshot; nil if somebody is to take over instead

	grown  chan struct{} // the journal has grown
	cancel context.CancelFunc
	ended  chan struct{}

	taking sync.Mutex        // over good and base: one snapshot at a time
	good   messages.Sequence // the newest that is known to be whole, 0 for none
	base   int64             // written when the last one was begun

	mu       sync.Mutex
	failures int
	failed   error
}

// start lets snapshots be taken from now on.
func (s *snapshotter) start() {
	s.grown = make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel, s.ended = cancel, make(chan struct{})
	go func() {
		defer close(s.ended)
		if s.adopts {
			s.adopt(ctx)
		}
		s.run(ctx)
	}()
	s.grow() // what was replayed may be enough
}

// grow says that the journal has grown. It never blocks.
func (s *snapshotter) grow() {
	select {
	case s.grown <- struct{}{}:
	default:
	}
}

// adopt looks for the newest whole snapshot that another controller has left. Without one nothing is cut until this
// controller has taken two of its own.
func (s *snapshotter) adopt(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, snapshotTimeout)
	defer cancel()
	s.taking.Lock()
	defer s.taking.Unlock()
	kept, err := s.store.List(ctx)
	for _, k := range kept {
		r, err := s.store.Load(ctx, k.At)
		if err != nil {
			continue
		}
		info, err := journal.CheckSnapshot(r)
		if errors.Join(err, r.Close()) == nil && info.At.Last == k.At && k.At <= s.catalog.Applied() {
			s.good = k.At
			return
		}
	}
	if err != nil && ctx.Err() == nil {
		s.logger.Warn().Err(err).Msg("earlier snapshots cannot be listed")
	}
}

func (s *snapshotter) run(ctx context.Context) {
	interval := time.NewTicker(s.cfg.SnapshotInterval)
	defer interval.Stop()
	for {
		overdue := false
		select {
		case <-ctx.Done():
			return
		case <-s.grown:
		case <-interval.C:
			overdue = true
		}
		for s.due(1) || overdue && s.catalog.Applied() > s.last() {
			if s.take(ctx) == nil {
				interval.Reset(s.cfg.SnapshotInterval)
				break
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(s.pause()):
			}
		}
	}
}

func (s *snapshotter) last() messages.Sequence {
	s.taking.Lock()
	defer s.taking.Unlock()
	return s.good
}

// due reports whether a share of what makes a snapshot due has come together.
func (s *snapshotter) due(share uint64) bool {
	s.taking.Lock()
	defer s.taking.Unlock()
	return uint64(s.catalog.Applied()-s.good)*share >= uint64(s.cfg.SnapshotEntries) ||
		(s.written()-s.base)*int64(share) >= s.cfg.SnapshotBytes
}

// take takes one snapshot and cuts the journal behind the one before.
func (s *snapshotter) take(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, snapshotTimeout)
	defer cancel()
	s.taking.Lock()
	defer s.taking.Unlock()
	began, base := time.Now(), s.written()
	taken, err := journal.TakeSnapshot(ctx, s.catalog, s.store, began)
	if err != nil {
		if ctx.Err() != context.Canceled {
			s.note(err)
		}
		return err
	}
	older := s.good
	s.good, s.base = taken.At.Last, base
	s.logger.Info().Uint64("revision", uint64(taken.At.Last)).Int64("bytes", taken.Bytes).Int("records", taken.Records).
		Int("pieces", taken.Pieces).Dur("took", time.Since(began)).Dur("commits_held", taken.LockHeld).Msg("snapshot taken and read back")
	upTo, err := journal.Retain(ctx, s.log, s.store, s.catalog, older, s.good)
	if err != nil && ctx.Err() != context.Canceled {
		s.note(fmt.Errorf("cutting the journal: %w", err))
		return nil // the snapshot is good; the next one cuts
	}
	s.note(nil)
	if upTo > 0 {
		s.logger.Info().Uint64("up_to", uint64(upTo)).Msg("journal cut behind the snapshot before")
	}
	return nil
}

// note remembers how the last snapshot went.
func (s *snapshotter) note(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed = err; err == nil {
		s.failures = 0
		return
	}
	s.failures++
	s.logger.Warn().Err(err).Int("failures", s.failures).Msg("no snapshot; the journal is not cut")
}

func (s *snapshotter) pause() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return min(s.cfg.snapshotRetry<<min(max(s.failures-1, 0), 10), snapshotRetryMax)
}

// problem returns how many snapshots in a row have failed and why, 0 while that is nothing to be alarmed about.
func (s *snapshotter) problem() (int, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failures < snapshotAlarm {
		return 0, ""
	}
	return s.failures, s.failed.Error()
}

// stop ends the background work, if it has begun, and waits for that as long as the context allows. Where nobody takes over,
// it then takes a snapshot if there is enough in the journal to be worth it, so that the next start is quick; it does not
// matter whether that succeeds.
func (s *snapshotter) stop(ctx context.Context) {
	if s.cancel == nil {
		return
	}
	s.cancel()
	select {
	case <-s.ended:
	case <-ctx.Done():
		return
	}
	if s.parting == nil || !s.parting() || !s.due(stopShare) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, stopSnapshot)
	defer cancel()
	_ = s.take(ctx)
}
