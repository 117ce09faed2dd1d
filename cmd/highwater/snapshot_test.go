package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/highwater-io/highwater/controller"
	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/messages"
)

// serveIn runs a controller in a folder; the second result stops it.
func serveIn(t *testing.T, dir string) (string, func()) {
	t.Helper()
	c, err := controller.Start(t.Context(), controller.Config{DataDir: dir, Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	end := func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := c.Stop(ctx); err != nil {
			t.Errorf("stopping: %v", err)
		}
	}
	t.Cleanup(end)
	return c.URL(), end
}

// command runs a command line and wants an exit code; it returns both outputs.
func command(t *testing.T, want int, args ...string) (string, string) {
	t.Helper()
	var out, err bytes.Buffer
	if got := run(args, streams{in: strings.NewReader(""), out: &out, err: &err}); got != want {
		t.Fatalf("%v: exit code %d, want %d\n%s%s", args, got, want, out.String(), err.String())
	}
	return out.String(), err.String()
}

func snapshotJSON(t *testing.T, text string) snapshotView {
	t.Helper()
	var v snapshotView
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return v
}

func TestSnapshotsAreSavedCheckedAndRestored(t *testing.T) {
	url, end := serveIn(t, t.TempDir())
	dir := t.TempDir()
	file := filepath.Join(dir, "backup.hw")
	out, _ := command(t, exitOK, "cluster", "snapshot", "save", file, "--server", url, "-o", "json")
	saved := snapshotJSON(t, out)
	if saved.Cluster != "dev" || saved.ClusterID == "" || saved.Revision < 1 || saved.ControllerEpoch != 1 || saved.Pieces < 3 || saved.Restored != nil {
		t.Errorf("saved is %+v", saved)
	}
	if info, err := os.Stat(file); err != nil || info.Size() != saved.Bytes {
		t.Errorf("the file has %v, %v", info, err)
	}
	if all, err := os.ReadDir(dir); err != nil || len(all) != 1 {
		t.Errorf("beside the file is something: %v, %v", all, err)
	}
	out, _ = command(t, exitOK, "cluster", "snapshot", "check", file, "-o", "json")
	if checked := snapshotJSON(t, out); checked != saved {
		t.Errorf("checked is %+v", checked)
	}
	out, _ = command(t, exitOK, "cluster", "snapshot", "check", file)
	if !strings.Contains(out, "sha256:"+saved.Digest) {
		t.Errorf("the table is\n%s", out)
	}
	end()

	folder := filepath.Join(t.TempDir(), "new")
	out, _ = command(t, exitOK, "cluster", "snapshot", "restore", file, "--data-dir", folder, "-o", "json")
	restored := snapshotJSON(t, out)
	if r := restored.Restored; r == nil || r.Revision <= saved.Revision || r.ControllerEpoch <= saved.ControllerEpoch || r.StoreID == "" {
		t.Fatalf("restored is %+v", restored)
	}
	_, stderr := command(t, exitConflict, "cluster", "snapshot", "restore", file, "--data-dir", folder, "-o", "json")
	if !strings.Contains(stderr, string(messages.CodeClusterMismatch)) {
		t.Errorf("a second time: %s", stderr)
	}
	url, _ = serveIn(t, folder)
	out, _ = command(t, exitOK, "cluster", "describe", "--server", url, "-o", "json")
	if !strings.Contains(out, saved.ClusterID) {
		t.Errorf("the restored cluster is %s", out)
	}
}

func TestSnapshotFilesThatAreNoneAreRefused(t *testing.T) {
	url, _ := serveIn(t, t.TempDir())
	file := filepath.Join(t.TempDir(), "backup.hw")
	command(t, exitOK, "cluster", "snapshot", "save", file, "--server", url)
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, journal.Corrupt(good), 0o600); err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(t.TempDir(), "new")
	for _, args := range [][]string{
		{"cluster", "snapshot", "check", file},
		{"cluster", "snapshot", "check", filepath.Join(t.TempDir(), "none")},
		{"cluster", "snapshot", "restore", file, "--data-dir", folder},
		{"cluster", "snapshot", "restore", file},
		{"cluster", "snapshot", "save", filepath.Join(t.TempDir(), "no", "folder"), "--server", url},
		{"cluster", "snapshot", "save", "--server", url},
	} {
		command(t, exitUsage, args...)
	}
	if _, err := os.Stat(folder); !os.IsNotExist(err) {
		t.Errorf("a corrupt file has made a folder: %v", err)
	}
	// What is there stays as it is when a save fails.
	command(t, exitUnreachable, "cluster", "snapshot", "save", file, "--server", "nats://127.0.0.1:1")
	command(t, exitUnreachable, "cluster", "snapshot", "save", file, "--server", url, "--cluster", "other")
	if now, err := os.ReadFile(file); err != nil || !bytes.Equal(now, good) {
		t.Errorf("the file has changed, %v", err)
	}
}
