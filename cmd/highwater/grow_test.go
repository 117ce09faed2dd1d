package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/highwater-io/highwater/messages"
)

// trio is three controllers in processes of their own, whose NATS servers form a cluster.
type trio struct {
	t              *testing.T
	dir            string
	listen, routes []string
	running        map[string]*daemon
}

func newTrio(t *testing.T) *trio {
	t.Helper()
	r := &trio{t: t, dir: t.TempDir(), running: map[string]*daemon{}}
	var err error
	r.listen, r.routes, err = devPorts(devFlags{controllers: 3})
	must(t, err)
	return r
}

func (r *trio) url() string { return "nats://" + strings.Join(r.listen, ",nats://") }

func (r *trio) start(name string, args ...string) *daemon {
	i := int(name[1] - '1')
	d := startDaemon(r.t, append([]string{"serve", "--name", name, "--data-dir", filepath.Join(r.dir, name), "--listen", r.listen[i],
		"--cluster-listen", r.routes[i], "--routes", strings.Join(r.routes, ","), "-v"}, args...)...)
	r.running[name] = d
	return d
}

// settled waits until one of three is active and the others stand by, and returns its name.
func (r *trio) settled(standbys int) string {
	r.t.Helper()
	active := ""
	eventually(r.t, "one active controller", func() bool {
		out, _, _ := highwater(r.t, "", "controller", "list", "-s", r.url(), "-o", "json")
		var all, alive []messages.ControllerView
		if json.Unmarshal([]byte(out), &all) != nil {
			return false
		}
		for _, c := range all {
			if c.AgeMs < 1000 {
				alive = append(alive, c)
			}
		}
		active = activeOf(alive)
		return active != "" && len(alive) == 1+standbys
	})
	return active
}

func TestOneControllerGrowsToThreeByABackup(t *testing.T) {
	dir := t.TempDir()
	file, data := filepath.Join(dir, "backup.hw"), filepath.Join(dir, "b1")
	alone := startDaemon(t, "serve", "--data-dir", filepath.Join(dir, "alone"), "--listen", "127.0.0.1:0")
	url := alone.says(`"url":"([^"]+)"`)
	broker := startDaemon(t, "broker", "run", "--id", "b1", "--data-dir", data, "-s", url)
	registered(t, url)
	at := devCluster{NATS: url}
	on(t, at, "", "topic", "create", "t", "-p", "2", "--replication-factor", "1", "--min-isr", "1")
	on(t, at, "a\nb\nc\n", "produce", "t")
	broker.signal(syscall.SIGTERM)
	broker.ends()
	on(t, at, "", "cluster", "snapshot", "save", file)
	alone.signal(syscall.SIGTERM)
	if code := alone.ends(); code != 0 {
		t.Fatalf("it ends with %d", code)
	}

	r := newTrio(t)
	for _, name := range []string{"c1", "c2"} {
		r.start(name, "--restore", "elsewhere")
	}
	restoring := r.start("c3", "--restore", file)
	restoring.says("the backup is restored")
	r.settled(2)
	startDaemon(t, "broker", "run", "--id", "b1", "--data-dir", data, "-s", r.url())
	registered(t, r.url())
	at.NATS = r.url()
	if got := strings.Fields(on(t, at, "", "consume", "t", "--from-beginning", "--exit-at-end")); len(got) != 3 {
		t.Errorf("after the backup is restored %v is read", got)
	}
	on(t, at, "d\n", "produce", "t")

	// The flags may stay: neither a start of one nor of all restores again.
	on(t, at, "", "topic", "create", "later", "-p", "1", "--replication-factor", "1", "--min-isr", "1")
	active := r.settled(2)
	r.running[active].signal(syscall.SIGKILL)
	r.running[active].ends()
	r.settled(1)
	r.start(active, "--restore", file).says("this folder has served the cluster already: nothing is restored")
	r.settled(2)
	if out := on(t, at, "", "topic", "list", "--no-headers"); !strings.Contains(out, "later") {
		t.Errorf("what came after the backup is gone:\n%s", out)
	}
}

// registered waits until a broker is active.
func registered(t *testing.T, url string) {
	t.Helper()
	last := ""
	defer func() {
		if t.Failed() {
			t.Log("health said last: " + last)
		}
	}()
	eventually(t, "an active broker", func() bool {
		out, errs, _ := highwater(t, "", "cluster", "health", "-s", url, "-o", "json")
		last = out + errs
		return strings.Contains(out, `"active": 1`)
	})
}

func TestABackupIsNotRestoredOverAnotherCluster(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "backup.hw")
	alone := startDaemon(t, "serve", "--data-dir", filepath.Join(dir, "alone"), "--listen", "127.0.0.1:0")
	on(t, devCluster{NATS: alone.says(`"url":"([^"]+)"`)}, "", "cluster", "snapshot", "save", file)
	r := newTrio(t)
	for i := range 3 {
		r.start(fmt.Sprintf("c%d", i+1))
	}
	r.settled(2)
	mark := filepath.Join(r.dir, "c3", "cluster-id")
	eventually(t, "the folder to remember the cluster", func() bool { _, err := os.Stat(mark); return err == nil })
	r.running["c3"].signal(syscall.SIGTERM)
	r.running["c3"].ends()
	must(t, os.Remove(mark)) // as if it had never been there
	late := r.start("c3", "--restore", file)
	if code := late.ends(); code != exitConflict || !strings.Contains(late.stderr(), "the journal is not empty") {
		t.Errorf("it ends with %d", code)
	}
	if out, _, code := highwater(t, "", "cluster", "health", "-s", r.url()); code != exitUnhealthy || !strings.Contains(out, "CONTROLLER_SILENT 1") {
		t.Errorf("of the other two health ends with %d: %s", code, out)
	}
	for want, args := range map[string][]string{
		"no other process can restore":   {"--data-dir", filepath.Join(dir, "x"), "--restore", "elsewhere"},
		"is for embedded servers":        {"--nats-url", r.url(), "--restore", file},
		"the backup cannot be opened":    {"--data-dir", filepath.Join(dir, "y"), "--listen", "127.0.0.1:0", "--restore", file + "x"},
		`the backup is of cluster "dev"`: {"--data-dir", filepath.Join(dir, "z"), "--listen", "127.0.0.1:0", "--restore", file, "--cluster", "prod"},
	} {
		if _, errs, code := highwater(t, "", append(args, "serve")...); code != exitUsage && code != exitConflict || !strings.Contains(errs, want) {
			t.Errorf("ends with %d: %s", code, errs)
		}
	}
}

func TestAProcessThatWaitsForABackupCanBeStopped(t *testing.T) {
	r := newTrio(t)
	for i := range 3 {
		r.start(fmt.Sprintf("c%d", i+1), "--restore", "elsewhere")
	}
	for _, d := range r.running {
		d.says("the journal has not begun yet")
	}
	for _, d := range r.running {
		d.signal(syscall.SIGTERM)
	}
	for _, d := range r.running {
		if code := d.ends(); code != 0 {
			t.Errorf("it ends with %d:\n%s", code, d.stderr())
		}
	}
}
