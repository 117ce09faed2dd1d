package controller

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/messages"
)

// AwaitRestore as Config.Restore says that another process of the cluster begins the journal with a backup.
const AwaitRestore = "elsewhere"

// restoreFirst begins an empty journal with a backup, or waits until another process has done so: before that nobody may claim
// it, for an empty journal becomes a new cluster.
func (c *Controller) restoreFirst(ctx context.Context) error {
	if c.cfg.Restore == "" {
		return nil
	}
	switch _, err := os.Stat(filepath.Join(c.cfg.DataDir, markFile)); {
	case err == nil:
		c.log.Info().Msg("this folder has served the cluster already: nothing is restored")
		return nil
	case !errors.Is(err, os.ErrNotExist):
		return messages.Errorf(messages.CodeUnavailable, "the mark of the data folder cannot be read: %v", err)
	}
	step, err := c.awaitOther, error(nil)
	if c.cfg.Restore != AwaitRestore {
		if step, err = c.restoreOnce(); err != nil {
			return err
		}
	}
	for {
		done, err := step(ctx)
		if done || fatal(err) || ctx.Err() != nil || err != nil && c.alone() {
			return err
		}
		c.log.Debug().Err(err).Msg("the journal has not begun yet")
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(openPause):
		}
	}
}

// awaitOther reports whether the journal has an entry.
func (c *Controller) awaitOther(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, openPatience)
	defer cancel()
	return c.begun(ctx)
}

// begun reports whether the journal has an entry: one that is only told where to begin has none.
func (c *Controller) begun(ctx context.Context) (bool, error) {
	last, err := c.store.Last(ctx)
	if err != nil || last == 0 {
		return false, err
	}
	if _, err = c.store.Get(ctx, last); errors.Is(err, journal.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// restoreOnce reads the backup and returns one try to restore it, which may be repeated.
func (c *Controller) restoreOnce() (func(context.Context) (bool, error), error) {
	f, err := os.Open(c.cfg.Restore)
	if err != nil {
		return nil, messages.Errorf(messages.CodeInvalidRequest, "the backup cannot be opened: %v", err)
	}
	s, err := journal.ReadSnapshot(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	if s.Info.Cluster != c.cfg.Cluster {
		return nil, messages.Errorf(messages.CodeClusterMismatch, "the backup is of cluster %q, not %q", s.Info.Cluster, c.cfg.Cluster)
	}
	store := newClusterID()
	return func(ctx context.Context) (bool, error) {
		began := time.Now()
		begun, err := c.begun(ctx)
		if err != nil {
			return false, err
		}
		if begun {
			return c.restoredBefore(ctx, s)
		}
		at, epoch, err := journal.Restore(ctx, c.empty, c.kept, s, c.cfg.Name, store)
		if err != nil {
			return false, err
		}
		c.log.Info().Uint64("backup", uint64(s.Info.At.Last)).Uint64("revision", uint64(at.Last)).Uint64("controller_epoch", uint64(epoch)).
			Str("store_id", store).Dur("took", time.Since(began)).Msg("the backup is restored")
		return true, writeMark(c.cfg.DataDir, s.Info.ClusterID)
	}, nil
}

// restoredBefore goes on with a journal that began with this very backup, as after a start that was cut short.
func (c *Controller) restoredBefore(ctx context.Context, s *journal.Snapshot) (bool, error) {
	last, err := c.store.Last(ctx)
	if err != nil {
		return false, err
	}
	if last <= journal.RestoredAt(s) {
		return false, messages.Errorf(messages.CodeClusterMismatch, "the journal is not empty: it ends at %d", last).
			WithHint("a backup is restored into new folders, and every other process is started with --restore %s; nothing was changed", AwaitRestore)
	}
	c.log.Info().Uint64("revision", uint64(last)).Msg("the journal has begun with this backup already")
	return true, writeMark(c.cfg.DataDir, s.Info.ClusterID)
}
