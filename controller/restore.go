package controller

import (
	"context"
	"errors"
	"io"
	"time"

	js "github.com/nats-io/nats.go/jetstream"

	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/journal/jetstream"
	"github.com/highwater-io/highwater/messages"
)

// Restored says what a restore has made of a backup.
type Restored struct {
	Backup journal.SnapshotInfo
	At     messages.Sequence        // where the new journal ends
	Epoch  messages.ControllerEpoch // that it was claimed with
	Store  string                   // the id of the new journal
}

// Restore begins the journal of a cluster with a backup, in the data folder or on the servers that the configuration names, and
// ends; Start goes on from there. The cluster keeps its id, so its brokers go on too; sequences and controller epochs continue far
// above the backup's. What was decided after the backup is not in it.
//
// Errors: *journal.BadSnapshot for a backup that is torn or changed, and then nothing has been touched; CLUSTER_MISMATCH for a
// journal that is not empty, a folder of another cluster, or a backup of a cluster with another name; those of Start.
func Restore(ctx context.Context, cfg Config, from io.Reader) (Restored, error) {
	s, err := journal.ReadSnapshot(from)
	if err != nil {
		return Restored{}, err
	}
	if cfg.embedded() {
		cfg.Listen = "127.0.0.1:0" // nobody is to come
	}
	if err := cfg.Validate(); err != nil {
		return Restored{}, err
	}
	cfg = cfg.withDefaults()
	if s.Info.Cluster != cfg.Cluster {
		return Restored{}, messages.Errorf(messages.CodeClusterMismatch, "the backup is of cluster %q, not %q", s.Info.Cluster, cfg.Cluster).
			WithHint("restore it with --cluster %s", s.Info.Cluster)
	}
	c := newController(cfg)
	out := Restored{Backup: s.Info, Store: newClusterID()}
	steps := []func(context.Context) error{c.lock, c.checkFolder(s.Info.ClusterID), c.serve, c.connect, func(ctx context.Context) error {
		return c.restore(ctx, s, &out)
	}}
	for _, step := range steps {
		if err = step(ctx); err != nil {
			break
		}
	}
	c.stopping.Store(true)
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
	defer cancel()
	return out, errors.Join(err, c.shutdown(bounded))
}

// checkFolder refuses the folder of another cluster.
func (c *Controller) checkFolder(id string) func(context.Context) error {
	return func(context.Context) error {
		if c.cfg.DataDir == "" {
			return nil
		}
		return checkMark(c.cfg.DataDir, id)
	}
}

func (c *Controller) restore(ctx context.Context, s *journal.Snapshot, out *Restored) error {
	began := time.Now()
	client, err := js.New(c.conns.journal)
	if err != nil {
		return messages.Errorf(messages.CodeInternal, "JetStream context: %v", err)
	}
	log, err := jetstream.Ensure(ctx, client, c.cfg.Cluster, c.cfg.JournalReplicas)
	if err != nil {
		return err
	}
	kept, err := jetstream.EnsureSnapshots(ctx, client, c.cfg.Cluster, c.cfg.JournalReplicas)
	if err != nil {
		return err
	}
	at, epoch, err := journal.Restore(ctx, log, kept, s, c.cfg.Name, out.Store)
	if err != nil {
		return err
	}
	out.At, out.Epoch = at.Last, epoch
	c.log.Info().Uint64("backup", uint64(s.Info.At.Last)).Uint64("revision", uint64(at.Last)).Uint64("controller_epoch", uint64(epoch)).
		Str("store_id", out.Store).Dur("took", time.Since(began)).Msg("the backup is restored")
	if c.cfg.DataDir == "" {
		return nil
	}
	return writeMark(c.cfg.DataDir, s.Info.ClusterID)
}
