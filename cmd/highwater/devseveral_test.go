package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

func TestDevWithThreeControllersLosesTheActiveOneAndGoesOn(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not", "there")
	d, about := dev(t, "--controllers", "3", "--data-dir", dir)
	if len(about.Controllers) != 3 || about.Active == "" || about.StartedMs < 1 || strings.Count(about.NATS, "nats://") != 3 {
		t.Fatalf("dev says %+v", about)
	}
	on(t, about, "", "topic", "create", "t", "-p", "6")
	on(t, about, "a\nb\n", "produce", "t")
	must(t, syscall.Kill(about.Controller, syscall.SIGKILL))
	d.says(fmt.Sprintf(`controller %s \(pid %d\) has ended: signal: killed; its log is `, about.Active, about.Controller))
	if next := d.says(`controller (c\d) is active now, epoch \d+`); next == about.Active {
		t.Errorf("%s is active although it is dead", next)
	}
	on(t, about, "c\n", "produce", "t")
	on(t, about, "", "topic", "create", "u")
	d.signal(os.Interrupt)
	if code := d.ends(); code != 0 || strings.Contains(d.stderr(), "in order") {
		t.Errorf("ends with %d: %s", code, d.stderr())
	}
	nothingIsLeft(t, about)
	for _, c := range about.Controllers {
		if log := logOf(t, devBroker{Log: c.Log}); c.Name != about.Active && strings.Contains(log, "stop in order") {
			t.Errorf("controller %s did not end in order:\n%s", c.Name, log)
		}
	}
	d, about = dev(t, "--controllers", "3", "--data-dir", dir)
	if got := strings.Fields(on(t, about, "", "consume", "t", "--from-beginning", "--exit-at-end")); len(got) != 3 {
		t.Errorf("after the next start %v is read", got)
	}
	on(t, about, "", "topic", "describe", "u")
	d.signal(syscall.SIGKILL)
	d.ends()
	nothingIsLeft(t, about)
}

func nothingIsLeft(t *testing.T, about devCluster) {
	t.Helper()
	for _, c := range about.Controllers {
		eventually(t, fmt.Sprintf("controller %s (pid %d) to end", c.Name, c.PID), func() bool { return !alive(c.PID) })
	}
	gone(t, about)
}

func TestDevWithThreeControllersStartsADeadOneAgain(t *testing.T) {
	d := startDaemon(t, "dev", "--controllers", "3", "--brokers", "1", "--racks", "1", "--port", "0", "--restart")
	var said strings.Builder
	for !strings.Contains(said.String(), "Ctrl-C stops everything.") {
		line, err := d.out.ReadString('\n')
		must(t, err)
		said.WriteString(line)
	}
	for _, want := range []string{`is running, started in \d+\.\d s`, `controller c1   pid \d+   nats://127.0.0.1:\d+   (active|standby)`, `export NATS_URL=nats://`,
		`kill -9 \d+        # controller c\d, the active one, dies`, `\n  highwater topic create orders`} {
		if !regexp.MustCompile(want).MatchString(said.String()) {
			t.Errorf("it does not say %s:\n%s", want, said.String())
		}
	}
	pid := regexp.MustCompile(`controller c2   pid (\d+)`).FindStringSubmatch(said.String())[1]
	var n int
	_, err := fmt.Sscan(pid, &n)
	must(t, err)
	must(t, syscall.Kill(n, syscall.SIGKILL))
	d.says(`controller c2 is started again, pid \d+`)
	url := regexp.MustCompile(`NATS_URL=(\S+)`).FindStringSubmatch(said.String())[1]
	eventually(t, "the controller to stand by", func() bool {
		out, _, _ := highwater(t, "", "controller", "list", "-s", url, "--no-headers")
		return strings.Count(out, "standby") == 2 && strings.Count(out, " active ") == 1
	})
	d.signal(os.Interrupt)
	if code := d.ends(); code != 0 {
		t.Errorf("ends with %d: %s", code, d.stderr())
	}
}

func TestDevKeepsTheNumberOfControllersOfAFolder(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "controller"), 0o700))
	for want, args := range map[string][]string{"holds a cluster of 1 controllers, not 3": {"--controllers", "3"}, "it must be 1 or 3": {"--controllers", "2"}} {
		if _, errs, code := highwater(t, "", append(args, "dev", "--data-dir", dir)...); code != exitUsage || !strings.Contains(errs, want) {
			t.Errorf("ends with %d: %s", code, errs)
		}
	}
}
