package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/highwater-io/highwater/client"
	"github.com/highwater-io/highwater/internal/freeport"
	"github.com/highwater-io/highwater/messages"
)

// processes are controllers that run as `highwater serve`, each a process with a folder of its own. Several form one cluster
// of embedded servers.
type processes struct {
	binary string
	dir    string
	flags  []string
	all    []*child
}

// child is one of them. It keeps its place when it is started again.
type child struct {
	name, listen, routes, log string
	cmd                       *exec.Cmd
	ended                     chan struct{}
}

// buildBinary returns the program whose processes are measured: the given one, or one that is built from this module.
func (b *bench) buildBinary(ctx context.Context, dir string) (string, error) {
	if b.binary != "" {
		return filepath.Abs(b.binary)
	}
	to := filepath.Join(dir, "highwater")
	out, err := exec.CommandContext(ctx, "go", "build", "-o", to, "github.com/highwater-io/highwater/cmd/highwater").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("the program to measure cannot be built here, name one with --binary: %w\n%s", err, out)
	}
	return to, nil
}

// newProcesses gives n controllers names, folders and ports. Nothing runs yet.
func newProcesses(binary, dir string, n int, flags ...string) (*processes, error) {
	p := &processes{binary: binary, dir: dir, flags: flags}
	for i := range n {
		c := &child{name: fmt.Sprintf("c%d", i+1)}
		c.log = filepath.Join(dir, c.name+".log")
		var err error
		if c.listen, err = freeport.Address(); err != nil {
			return nil, err
		}
		if n > 1 {
			if c.routes, err = freeport.Address(); err != nil {
				return nil, err
			}
		}
		p.all = append(p.all, c)
	}
	return p, os.MkdirAll(dir, 0o700)
}

// start starts one of them.
func (p *processes) start(c *child) error {
	args := []string{"serve", "--cluster", benchCluster, "--name", c.name, "--data-dir", filepath.Join(p.dir, c.name), "--listen", c.listen}
	if len(p.all) > 1 {
		var routes []string
		for _, o := range p.all {
			routes = append(routes, o.routes)
		}
		args = append(args, "--cluster-listen", c.routes, "--routes", strings.Join(routes, ","))
	}
	log, err := os.OpenFile(c.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	c.cmd, c.ended = exec.Command(p.binary, append(args, p.flags...)...), make(chan struct{})
	c.cmd.Stdout, c.cmd.Stderr = log, log
	if err := c.cmd.Start(); err != nil {
		return err
	}
	go func(cmd *exec.Cmd, ended chan struct{}) {
		_ = cmd.Wait() // how it ended is seen by who ends it
		close(ended)
	}(c.cmd, c.ended)
	return nil
}

func (p *processes) startAll() error {
	for _, c := range p.all {
		if err := p.start(c); err != nil {
			return err
		}
	}
	return nil
}

// kill ends a process with -9 and returns when it is gone.
func (c *child) kill() {
	if c.cmd == nil {
		return
	}
	_ = c.cmd.Process.Kill() // it may have ended
	<-c.ended
}

// end ends processes in order; one that takes longer than half a minute is killed.
func (p *processes) end() error {
	var late error
	for _, c := range p.all {
		if c.cmd != nil {
			_ = c.cmd.Process.Signal(syscall.SIGTERM)
		}
	}
	patience := time.NewTimer(30 * time.Second)
	defer patience.Stop()
	for _, c := range p.all {
		if c.cmd == nil {
			continue
		}
		select {
		case <-c.ended:
		case <-patience.C:
			late = errors.New("a controller did not end in order")
			c.kill()
		}
	}
	return late
}

// discard kills whatever runs.
func (p *processes) discard() {
	for _, c := range p.all {
		if c.cmd != nil {
			_ = c.cmd.Process.Signal(syscall.SIGCONT)
		}
		c.kill()
	}
}

// url is where to connect: to any of them, or with a name to any but that one.
func (p *processes) url(but string) string {
	var urls []string
	for _, c := range p.all {
		if c.name != but {
			urls = append(urls, "nats://"+c.listen)
		}
	}
	return strings.Join(urls, ",")
}

func (p *processes) named(name string) *child {
	return p.all[slices.IndexFunc(p.all, func(c *child) bool { return c.name == name })]
}

// logged returns the lines of a process's log with a message, from an offset of the file on.
func (c *child) logged(message string, from int64) ([]map[string]any, error) {
	raw, err := os.ReadFile(c.log)
	if err != nil {
		return nil, err
	}
	var out []map[string]any
	for line := range strings.Lines(string(raw[min(from, int64(len(raw))):])) {
		var fields map[string]any
		if strings.Contains(line, message) && json.Unmarshal([]byte(line), &fields) == nil && fields["message"] == message {
			out = append(out, fields)
		}
	}
	return out, nil
}

// logSize is where the log of a process ends now.
func (c *child) logSize() int64 {
	info, err := os.Stat(c.log)
	if err != nil {
		return 0
	}
	return info.Size()
}

// dial connects to the processes once one of them listens.
func (p *processes) dial(ctx context.Context, name, but string) (*nats.Conn, error) {
	opts := append(client.ConnectOptions(name), nats.IgnoreDiscoveredServers())
	var nc *nats.Conn
	err := within(ctx, time.Minute, "a connection", func(context.Context) (err error) {
		nc, err = nats.Connect(p.url(but), opts...)
		return err
	})
	return nc, err
}

// within tries again and again until a condition is true.
func within(ctx context.Context, limit time.Duration, what string, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	poll := time.NewTicker(2 * time.Millisecond)
	defer poll.Stop()
	for {
		err := f(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: not within %s: %w", what, limit, err)
		case <-poll.C:
		}
	}
}

// active returns the one active controller, once there are enough standbys beside it.
func (p *processes) active(ctx context.Context, c *client.Client, standbys int) (string, error) {
	if len(p.all) == 1 {
		bounded, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, _, err := c.Health(bounded)
		return p.all[0].name, err
	}
	bounded, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	list, err := c.Controllers(bounded)
	if err != nil {
		return "", err
	}
	name, others := "", 0
	for _, v := range list {
		switch {
		case v.AgeMs > 600: // gone
		case v.Role == "standby":
			others++
		case name != "":
			return "", fmt.Errorf("two are active: %+v", list)
		default:
			name = v.Name
		}
	}
	if name == "" || others < standbys {
		return "", fmt.Errorf("%+v", list)
	}
	return name, nil
}

// leaderOf returns the process whose server leads a stream, once every replica has what the leader has.
func leaderOf(nc *nats.Conn, stream string) (string, error) {
	m, err := nc.Request("$JS.API.STREAM.INFO."+stream, nil, time.Second)
	if err != nil {
		return "", err
	}
	var at struct {
		Cluster struct {
			Leader   string `json:"leader"`
			Replicas []struct {
				Name    string `json:"name"`
				Current bool   `json:"current"`
				Offline bool   `json:"offline"`
			} `json:"replicas"`
		} `json:"cluster"`
	}
	if err := json.Unmarshal(m.Data, &at); err != nil || at.Cluster.Leader == "" {
		return "", errors.Join(err, fmt.Errorf("%s has no leader", stream))
	}
	for _, r := range at.Cluster.Replicas {
		if !r.Current || r.Offline {
			return "", fmt.Errorf("the replica of %s at %s is behind", stream, r.Name)
		}
	}
	return at.Cluster.Leader, nil
}

// lead moves the leader of a stream to a process. It does not wait for it.
func lead(nc *nats.Conn, stream, to string) error {
	body, err := json.Marshal(map[string]any{"placement": map[string]string{"preferred": to}})
	if err == nil {
		_, err = nc.Request("$JS.API.STREAM.LEADER.STEPDOWN."+stream, body, time.Second)
	}
	return err
}

// steady waits until the journal's stream is led by another process than the active controller, and returns that.
func (p *processes) steady(ctx context.Context, nc *nats.Conn, c *client.Client) (active string, err error) {
	err = within(ctx, 2*time.Minute, "an active controller apart from the leader of its stream", func(ctx context.Context) error {
		if active, err = p.active(ctx, c, len(p.all)-1); err != nil || len(p.all) == 1 {
			return err
		}
		at, err := leaderOf(nc, messages.JournalStream(benchCluster))
		if err == nil && at == active {
			err = fmt.Errorf("both are %s", active)
		}
		return err
	})
	return active, err
}

// cpuOfProcess is the processor time that a process has taken so far, and resident its memory in bytes.
func (c *child) cpu() (time.Duration, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:]))
	var user, system int64
	if len(fields) < 13 {
		return 0, fmt.Errorf("unknown form of /proc: %s", raw)
	}
	if _, err := fmt.Sscan(fields[11]+" "+fields[12], &user, &system); err != nil {
		return 0, err
	}
	const ticks = 100 // of a second, on every Linux that Go runs on
	return time.Duration(user+system) * time.Second / ticks, nil
}

// resident is the memory of a process that is in RAM, in bytes.
func (c *child) resident() (int64, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(raw)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			var kib int64
			_, err := fmt.Sscan(rest, &kib)
			return kib << 10, err
		}
	}
	return 0, errors.New("no VmRSS in /proc")
}
