package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"highwater": main})
}

const patience = 30 * time.Second

// daemon is a running process of this program, whose log is shown when the test fails.
type daemon struct {
	t    *testing.T
	cmd  *exec.Cmd
	log  string
	out  *bufio.Reader
	done chan struct{}
	err  error
}

func startDaemon(t *testing.T, args ...string) *daemon {
	t.Helper()
	return startDaemonIn(t, nil, args...)
}

// startDaemonIn starts a process with more in its environment.
func startDaemonIn(t *testing.T, env []string, args ...string) *daemon {
	t.Helper()
	log, err := os.CreateTemp(t.TempDir(), "log")
	must(t, err)
	defer log.Close()
	d := &daemon{t: t, cmd: exec.Command("highwater", args...), log: log.Name(), done: make(chan struct{})}
	d.cmd.Env, d.cmd.Stderr = append(cleanEnv(), env...), log
	r, w, err := os.Pipe()
	must(t, err)
	d.cmd.Stdout, d.out = w, bufio.NewReader(r)
	must(t, d.cmd.Start())
	must(t, w.Close())
	go func() {
		d.err = d.cmd.Wait()
		close(d.done)
	}()
	t.Cleanup(func() {
		d.signal(syscall.SIGKILL)
		<-d.done
		must(t, r.Close())
		if t.Failed() {
			t.Logf("%v says:\n%s", args, d.stderr())
		}
	})
	return d
}

func (d *daemon) signal(s os.Signal) {
	if err := d.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		d.t.Errorf("signal %v: %v", s, err)
	}
}

func (d *daemon) stderr() string {
	raw, err := os.ReadFile(d.log)
	must(d.t, err)
	return string(raw)
}

// says waits for a line on standard error that matches, and returns what its group matches.
func (d *daemon) says(pattern string) string {
	d.t.Helper()
	p, found := regexp.MustCompile(pattern), []string(nil)
	eventually(d.t, pattern, func() bool {
		select {
		case <-d.done:
			d.t.Fatalf("ended with %v before it said %s:\n%s", d.err, pattern, d.stderr())
		default:
		}
		found = p.FindStringSubmatch(d.stderr())
		return found != nil
	})
	return found[len(found)-1]
}

// ends waits for the end and returns the exit code.
func (d *daemon) ends() int {
	d.t.Helper()
	select {
	case <-d.done:
	case <-time.After(patience):
		d.t.Fatalf("%v goes on:\n%s", d.cmd.Args, d.stderr())
	}
	return d.cmd.ProcessState.ExitCode()
}

// cleanEnv is the environment without what would speak to a cluster of the person who runs the tests.
func cleanEnv() []string {
	out := []string{"XDG_CONFIG_HOME=/nowhere"} // no context is selected
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "NATS_") && !strings.HasPrefix(kv, "HIGHWATER_") && !strings.HasPrefix(kv, "XDG_CONFIG_HOME=") {
			out = append(out, kv)
		}
	}
	return out
}

func highwater(t *testing.T, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "highwater", args...)
	var out, errs strings.Builder
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = cleanEnv(), strings.NewReader(stdin), &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	for deadline := time.Now().Add(patience); !condition(); <-poll.C {
		if time.Now().After(deadline) {
			t.Fatalf("in vain waited for %s", what)
		}
	}
}

// TestScripts runs what people type against a controller and three brokers, each a process of its own.
func TestScripts(t *testing.T) {
	dir := t.TempDir()
	serve := startDaemon(t, "serve", "--data-dir", filepath.Join(dir, "c1"), "--listen", "127.0.0.1:0", "--cluster", "test")
	url := serve.says(`"url":"([^"]+)"`)
	for i := 1; i <= 3; i++ {
		b := fmt.Sprintf("b%d", i)
		startDaemon(t, "broker", "run", "--id", b, "--rack", fmt.Sprintf("eu/r%d", i), "--data-dir", filepath.Join(dir, b), "-s", url, "-c", "test")
	}
	eventually(t, "a healthy cluster", func() bool {
		out, _, _ := highwater(t, "", "cluster", "health", "-s", url, "-c", "test", "-o", "json")
		return strings.Contains(out, `"active": 3`)
	})
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	nobody := "nats://" + silent.Addr().String()
	must(t, silent.Close())
	// The scripts run in parallel, and are over when this returns.
	t.Run("with a cluster", func(t *testing.T) {
		testscript.Run(t, testscript.Params{
			Dir: "testdata", RequireExplicitExec: true, RequireUniqueNames: true,
			Setup: func(e *testscript.Env) error {
				for _, kv := range []string{"NATS_URL=" + url, "HIGHWATER_CLUSTER=test", "URL=" + url, "NOBODY=" + nobody, "PID=" + strconv.Itoa(serve.cmd.Process.Pid)} {
					name, value, _ := strings.Cut(kv, "=")
					e.Setenv(name, value)
				}
				return nil
			},
			Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits, "json": checkJSON, "jsonlines": checkJSONLines},
		})
	})
	serve.signal(syscall.SIGTERM)
	if code := serve.ends(); code != 0 {
		t.Errorf("serve ends with %d after SIGTERM:\n%s", code, serve.stderr())
	}
}

// exits CODE PROGRAM ARGUMENT… runs a program that must end with an exit code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARGUMENT…")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	code := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			ts.Fatalf("%v: %v", args[1:], err)
		}
		code = exit.ExitCode()
	}
	if code != want {
		ts.Fatalf("%v ends with %d, want %d; it says:\n%s%s", args[1:], code, want, ts.ReadFile("stdout"), ts.ReadFile("stderr"))
	}
	for _, file := range []string{"stdout", "stderr"} {
		if strings.ContainsRune(ts.ReadFile(file), '\x1b') {
			ts.Fatalf("%v writes escape codes to %s without a terminal", args[1:], file)
		}
	}
}

// json FILE PATH PATTERN checks the value at a path like partitions.0.leader; `len` at its end gives a length.
func checkJSON(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 3 {
		ts.Fatalf("usage: json FILE PATH PATTERN")
	}
	var v any
	if err := json.Unmarshal([]byte(ts.ReadFile(args[0])), &v); err != nil {
		ts.Fatalf("%s is no JSON: %v", args[0], err)
	}
	got := fmt.Sprint(at(v, args[1]))
	if regexp.MustCompile("^(?:"+args[2]+")$").MatchString(got) == neg {
		ts.Fatalf("%s of %s is %q, which is %s %q", args[1], args[0], got, map[bool]string{false: "not", true: ""}[neg], args[2])
	}
}

func at(v any, path string) any {
	for _, key := range strings.Split(path, ".") {
		switch x := v.(type) {
		case map[string]any:
			value, ok := x[key]
			if !ok {
				return "(missing)"
			}
			v = value
		case []any:
			i, err := strconv.Atoi(key)
			switch {
			case key == "len":
				v = len(x)
			case err != nil || i >= len(x):
				return "(missing)"
			default:
				v = x[i]
			}
		default:
			return "(missing)"
		}
	}
	if f, ok := v.(float64); ok {
		return strconv.FormatFloat(f, 'f', -1, 64)
	}
	return v
}

// jsonlines FILE N checks that a file has N lines, each a JSON object.
func checkJSONLines(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: jsonlines FILE N")
	}
	n := 0
	for line := range strings.Lines(ts.ReadFile(args[0])) {
		var v map[string]any
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			ts.Fatalf("line %q is no JSON object: %v", line, err)
		}
		n++
	}
	if fmt.Sprint(n) != args[1] {
		ts.Fatalf("%s has %d lines, want %s", args[0], n, args[1])
	}
}
