package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// dev starts `dev` and returns it with what it says of itself.
func dev(t *testing.T, args ...string) (*daemon, devCluster) {
	t.Helper()
	d := startDaemon(t, append([]string{"dev", "--port", "0", "-o", "json"}, args...)...)
	line, err := d.out.ReadString('\n')
	if err != nil {
		t.Fatalf("dev says nothing: %v\n%s", err, d.stderr())
	}
	var about devCluster
	must(t, json.Unmarshal([]byte(line), &about))
	return d, about
}

func alive(pid int) bool { return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

func gone(t *testing.T, c devCluster) {
	t.Helper()
	for _, b := range c.Brokers {
		eventually(t, fmt.Sprintf("broker %s (pid %d) to end", b.ID, b.PID), func() bool { return !alive(b.PID) })
	}
}

func logOf(t *testing.T, b devBroker) string {
	t.Helper()
	raw, err := os.ReadFile(b.Log)
	must(t, err)
	return string(raw)
}

// on runs a command against a dev cluster and must succeed.
func on(t *testing.T, c devCluster, stdin string, args ...string) string {
	t.Helper()
	out, errs, code := highwater(t, stdin, append(args, "-s", c.NATS)...)
	if code != 0 {
		t.Fatalf("%v ends with %d: %s", args, code, errs)
	}
	return out
}

func TestDevStopsInOrderAndLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	d, about := dev(t, "--data-dir", dir)
	if len(about.Brokers) != 3 || about.Brokers[2].Rack != "r3" || about.Controller != d.cmd.Process.Pid || about.DataDir != dir {
		t.Errorf("dev says %+v", about)
	}
	on(t, about, "", "topic", "create", "t", "-p", "6")
	on(t, about, "a\nb\nc\n", "produce", "t")
	stopsInOrder(t, d, about, syscall.SIGINT)
	d, about = dev(t, "--data-dir", dir)
	if got := strings.Fields(on(t, about, "", "consume", "t", "--from-beginning", "--exit-at-end")); len(got) != 3 {
		t.Errorf("after the next start %v is read", got)
	}
	stopsInOrder(t, d, about, syscall.SIGTERM)
}

func stopsInOrder(t *testing.T, d *daemon, about devCluster, s os.Signal) {
	t.Helper()
	d.signal(s)
	if code := d.ends(); code != 0 {
		t.Errorf("ends with %d: %s", code, d.stderr())
	}
	if said := d.stderr(); said != "stopping\n" {
		t.Errorf("says %q", said)
	}
	for _, b := range about.Brokers {
		if alive(b.PID) {
			t.Errorf("broker %s goes on", b.ID)
		}
		if log := logOf(t, b); !strings.Contains(log, `"message":"stopped"`) || strings.Contains(log, `"level":"error"`) {
			t.Errorf("broker %s did not end in order:\n%s", b.ID, log)
		}
	}
}

func TestDevTellsPeopleWhatToTry(t *testing.T) {
	d := startDaemon(t, "dev", "--port", "0", "--brokers", "2", "--racks", "1", "-c", "mine")
	var b strings.Builder
	for !strings.Contains(b.String(), "Ctrl-C stops everything.") {
		line, err := d.out.ReadString('\n')
		must(t, err)
		b.WriteString(line)
	}
	for _, want := range []string{"cluster mine is running", "NATS        nats://127.0.0.1:", "broker b2   pid ", "rack r1", " -c mine topic create orders", "kill -9 "} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, b.String())
		}
	}
	_, dir, _ := strings.Cut(b.String(), "  data        ")
	dir, _, _ = strings.Cut(dir, "\n")
	if _, err := os.Stat(filepath.Join(dir, "b1")); err != nil {
		t.Error(err)
	}
	d.signal(os.Interrupt)
	d.ends()
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the temporary folder %s is left: %v", dir, err)
	}
}

func TestAKilledBrokerStaysDead(t *testing.T) {
	d, about := dev(t)
	on(t, about, "", "topic", "create", "t", "-p", "3")
	must(t, syscall.Kill(about.Brokers[0].PID, syscall.SIGKILL))
	d.says(`broker b1 \(pid \d+\) has ended: signal: killed; its log is `)
	var out string
	eventually(t, "the health to show it", func() bool {
		var code int
		out, _, code = highwater(t, "", "cluster", "health", "-s", about.NATS)
		return code == exitUnhealthy
	})
	for _, want := range []string{"STATUS       DEGRADED", "BROKER_FENCED 1", "2 of 3 active   fenced: b1", "highwater broker describe b1"} {
		if !strings.Contains(out, want) {
			t.Errorf("health does not say %q:\n%s", want, out)
		}
	}
	out = on(t, about, "", "partition", "list", "--under-replicated", "--no-headers")
	if n := strings.Count(out, "\n"); n != 3 || !strings.Contains(out, "under_replicated") {
		t.Errorf("under-replicated partitions:\n%s", out)
	}
	on(t, about, "x\n", "produce", "t")
	d.signal(os.Interrupt)
	if code := d.ends(); code != 0 || strings.Contains(d.stderr(), "started again") {
		t.Errorf("ends with %d: %s", code, d.stderr())
	}
	gone(t, about)
}

func TestAKilledBrokerComesBackWithRestart(t *testing.T) {
	d, about := dev(t, "--restart")
	must(t, syscall.Kill(about.Brokers[1].PID, syscall.SIGKILL))
	pid := d.says(`broker b2 is started again, pid (\d+)`)
	eventually(t, "the broker to be active under its new pid", func() bool {
		out, _, _ := highwater(t, "", "broker", "list", "-s", about.NATS, "-o", "wide", "--no-headers")
		return strings.Contains(out, " "+pid+" ") && strings.Count(out, "active") == 3
	})
	d.signal(os.Interrupt)
	if code := d.ends(); code != 0 {
		t.Errorf("ends with %d: %s", code, d.stderr())
	}
	gone(t, about)
}

func TestBrokersDoNotOutliveDev(t *testing.T) {
	d, about := dev(t)
	d.signal(syscall.SIGKILL)
	d.ends()
	gone(t, about)
}

func TestDevGivesUpWhenABrokerCannotRun(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "b2"), nil, 0o600)) // where its folder should be
	out, errs, code := highwater(t, "", "dev", "--port", "0", "--data-dir", dir, "-o", "json")
	if code != exitFailed || out != "" || !strings.Contains(errs, "broker b2 has ended before it was active") {
		t.Errorf("ends with %d: %s%s", code, out, errs)
	}
}

func TestDataOfAnotherClusterOrBrokerIsRefused(t *testing.T) {
	dir := t.TempDir()
	d, _ := dev(t, "--data-dir", dir, "--brokers", "1")
	d.signal(os.Interrupt)
	d.ends()
	_, other := dev(t, "--brokers", "1")
	for id, args := range map[string][]string{"another cluster": {"--id", "b1"}, "another broker": {"--id", "b7"}} {
		_, errs, code := highwater(t, "", append(args, "broker", "--data-dir", filepath.Join(dir, "b1"), "-s", other.NATS, "-o", "json")...)
		if code != exitConflict || !strings.Contains(errs, `"code":"CLUSTER_MISMATCH"`) {
			t.Errorf("%s: ends with %d: %s", id, code, errs)
		}
	}
}

func TestAFolderOrPortInUseIsAFailure(t *testing.T) {
	dir := t.TempDir()
	serve := startDaemon(t, "serve", "--data-dir", dir, "--listen", "127.0.0.1:0")
	address := strings.TrimPrefix(serve.says(`"url":"([^"]+)"`), "nats://")
	for name, args := range map[string][]string{"folder": {"--data-dir", dir, "--listen", "127.0.0.1:0"}, "port": {"--data-dir", t.TempDir(), "--listen", address}} {
		if _, errs, code := highwater(t, "", append(args, "serve")...); code != exitFailed || !strings.Contains(errs, "UNAVAILABLE") {
			t.Errorf("%s in use: ends with %d: %s", name, code, errs)
		}
	}
}

func TestTheSecondSignalEndsAProcessAtOnce(t *testing.T) {
	_, about := dev(t, "--brokers", "2")
	on(t, about, "", "topic", "create", "t", "--replication-factor", "2", "--min-isr", "1")
	// A broker that waits for NATS after the first signal would end; one that hands over needs the controller, which is stopped.
	must(t, syscall.Kill(about.Controller, syscall.SIGSTOP))
	defer func() { must(t, syscall.Kill(about.Controller, syscall.SIGCONT)) }()
	pid := about.Brokers[0].PID
	must(t, syscall.Kill(pid, syscall.SIGTERM))
	eventually(t, "the broker to begin its stop", func() bool { return strings.Contains(logOf(t, about.Brokers[0]), "stopping") })
	must(t, syscall.Kill(pid, syscall.SIGTERM))
	eventually(t, "the broker to end", func() bool { return defunct(pid) })
}

// defunct reports whether a process has ended, though its parent, which is stopped, has not taken note of it.
func defunct(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return !alive(pid)
	}
	_, state, _ := strings.Cut(string(raw), ") ")
	return strings.HasPrefix(state, "Z")
}

func TestABrokerThatWaitsForNATSCanBeStopped(t *testing.T) {
	b := startDaemon(t, "broker", "--id", "b1", "--data-dir", t.TempDir(), "-s", "nats://127.0.0.1:1")
	b.says("waiting for NATS")
	b.signal(syscall.SIGTERM)
	if code := b.ends(); code != 0 {
		t.Errorf("ends with %d", code)
	}
}

func TestAnInterruptedCommandSaysSo(t *testing.T) {
	signal.Ignore(os.Interrupt) // of this process; its children reset it
	defer signal.Reset(os.Interrupt)
	d, about := dev(t, "--brokers", "1")
	on(t, about, "", "topic", "create", "t", "--replication-factor", "1", "--min-isr", "1")
	c := startDaemon(t, "consume", "t", "-s", about.NATS, "--from-beginning", "-v")
	on(t, about, "x\n", "produce", "t")
	if line, err := c.out.ReadString('\n'); line != "x\n" {
		t.Fatalf("reads %q, %v", line, err)
	}
	c.signal(os.Interrupt)
	if code := c.ends(); code != exitInterrupted || !strings.Contains(c.stderr(), "interrupted") {
		t.Errorf("ends with %d: %s", code, c.stderr())
	}
	d.signal(os.Interrupt)
	d.ends()
}
