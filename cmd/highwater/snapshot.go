package main

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/highwater-io/highwater/client"
	"github.com/highwater-io/highwater/controller"
	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/messages"
)

// snapshotView is what the commands say of a snapshot file.
type snapshotView struct {
	File            string                   `json:"file"`
	Cluster         messages.ClusterName     `json:"cluster"`
	ClusterID       string                   `json:"cluster_id"`
	Revision        messages.Sequence        `json:"revision"`
	Controller      string                   `json:"controller"`
	ControllerEpoch messages.ControllerEpoch `json:"controller_epoch"`
	TakenAt         time.Time                `json:"taken_at"`
	Records         int                      `json:"records"`
	Pieces          int                      `json:"pieces"`
	Bytes           int64                    `json:"bytes"`
	Digest          string                   `json:"digest"`
	Restored        *restoredView            `json:"restored,omitempty"`
}

// restoredView is what a restore has made of it.
type restoredView struct {
	Revision        messages.Sequence        `json:"revision"`
	ControllerEpoch messages.ControllerEpoch `json:"controller_epoch"`
	StoreID         string                   `json:"store_id"`
}

func viewOf(file string, i journal.SnapshotInfo) snapshotView {
	return snapshotView{File: file, Cluster: i.Cluster, ClusterID: i.ClusterID, Revision: i.At.Last, Controller: i.Controller,
		ControllerEpoch: i.Epoch, TakenAt: time.UnixMilli(i.WallUnixMs).UTC(), Records: i.Records, Pieces: i.Pieces, Bytes: i.Bytes,
		Digest: hex.EncodeToString(i.Digest[:])}
}

func (v snapshotView) table() rows {
	cells := [][]any{
		{"FILE", v.File},
		{"CLUSTER", fmt.Sprintf("%s (id %s)", v.Cluster, v.ClusterID)},
		{"REVISION", fmt.Sprintf("%d   controller %s   epoch %d", v.Revision, orDash(v.Controller), v.ControllerEpoch)},
		{"TAKEN", v.TakenAt.Format(time.RFC3339)},
		{"SIZE", fmt.Sprintf("%d bytes   %d records   %d pieces", v.Bytes, v.Records, v.Pieces)},
		{"DIGEST", "sha256:" + v.Digest},
	}
	if r := v.Restored; r != nil {
		cells = append(cells, []any{"RESTORED", fmt.Sprintf("revision %d   epoch %d   store id %s", r.Revision, r.ControllerEpoch, r.StoreID)},
			[]any{"NEXT", "highwater serve with the same --cluster and --data-dir"})
	}
	return rows{cells: cells, names: []string{v.File}}
}

func (a *app) snapshotCommand() *cobra.Command {
	c := &cobra.Command{Use: "snapshot", Short: "Back up the cluster's metadata, and restore it into a new store", Args: cobra.NoArgs}
	c.AddCommand(&cobra.Command{
		Use: "save FILE", Short: "Write the metadata of the running cluster to a file", Args: cobra.ExactArgs(1),
		Long: `Write everything that the controller has committed to a file: brokers, topics, partitions, unfinished deletions. Records
of topics are not in it; they are with the brokers. The file is checked before it takes its name; one that is there is replaced.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				v, err := saveSnapshot(ctx, c, args[0])
				if err != nil {
					return err
				}
				return a.print(v, v.table())
			})
		},
	}, &cobra.Command{
		Use: "check FILE", Short: "Check every digest of a file and say what it holds", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			info, err := checkSnapshot(args[0])
			if err != nil {
				return err
			}
			v := viewOf(args[0], info)
			return a.print(v, v.table())
		},
	}, a.restoreCommand())
	return c
}

func (a *app) restoreCommand() *cobra.Command {
	var cfg controller.Config
	c := &cobra.Command{
		Use: "restore FILE", Short: "Begin a new store with the metadata of a file", Args: cobra.ExactArgs(1),
		Long: `Begin a new journal, in a new data folder or on servers elsewhere (--nats-url), with what a file holds. A journal that is not
empty is refused. The cluster keeps its name and id, so its brokers go on; the journal has a new store id, and its revisions and
controller epochs continue far above the file's.

What was decided after the file was written is lost. Restore only when the journal itself is lost, and see docs/operations.md
about the brokers.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := openSnapshot(args[0])
			if err != nil {
				return err
			}
			defer f.Close()
			log := a.logger()
			cfg.Cluster, cfg.Logger = messages.ClusterName(a.cluster), &log
			if err := a.elsewhere(&cfg); err != nil {
				return err
			}
			r, err := controller.Restore(cmd.Context(), cfg, bufio.NewReader(f))
			if err != nil {
				return err
			}
			v := viewOf(args[0], r.Backup)
			v.Restored = &restoredView{Revision: r.At, ControllerEpoch: r.Epoch, StoreID: r.Store}
			return a.print(v, v.table())
		},
	}
	f := c.Flags()
	f.StringVar(&cfg.DataDir, "data-dir", "", "data folder of the new controller")
	f.StringVar(&cfg.Name, "name", "c1", "name of the controller that claims the new journal")
	f.StringVar(a.given["nats_url"], "nats-url", "", "NATS servers elsewhere instead of the embedded one, separated by commas; the same as --server")
	f.StringVar(a.given["nats_creds"], "nats-creds", "", "credentials file for --nats-url; the same as --creds")
	f.IntVar(&cfg.JournalReplicas, "journal-replicas", 1, "servers that keep the new journal: 1, 3 or 5")
	return c
}

func openSnapshot(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, messages.Errorf(messages.CodeInvalidRequest, "the snapshot cannot be opened: %v", err)
	}
	return f, nil
}

func checkSnapshot(path string) (journal.SnapshotInfo, error) {
	f, err := openSnapshot(path)
	if err != nil {
		return journal.SnapshotInfo{}, err
	}
	info, err := journal.CheckSnapshot(bufio.NewReader(f))
	return info, errors.Join(err, f.Close())
}

// saveSnapshot writes a snapshot beside its file, checks it, and only then gives it the name.
func saveSnapshot(ctx context.Context, c *client.Client, path string) (snapshotView, error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*")
	if err != nil {
		return snapshotView{}, messages.Errorf(messages.CodeInvalidRequest, "the file cannot be made: %v", err)
	}
	defer os.Remove(f.Name()) // it is gone if it has taken its name
	err = c.ReadSnapshot(ctx, f)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return snapshotView{}, err
	}
	info, err := checkSnapshot(f.Name())
	if messages.CodeOf(err) == messages.CodeUnsupportedVersion {
		return snapshotView{}, err // it may well be whole
	}
	if err != nil {
		return snapshotView{}, fmt.Errorf("what came from the controller is not whole: %w", err)
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return snapshotView{}, messages.Errorf(messages.CodeInvalidRequest, "the file cannot be named: %v", err)
	}
	return viewOf(path, info), syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
