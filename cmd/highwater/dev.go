package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/highwater-io/highwater/client"
	"github.com/highwater-io/highwater/controller"
	"github.com/highwater-io/highwater/messages"
)

type devFlags struct {
	brokers int
	racks   int
	dir     string
	port    int
	restart bool
	fsync   string
}

func (a *app) devCommand() *cobra.Command {
	var d devFlags
	c := &cobra.Command{
		Use: "dev", Short: "A whole cluster on this machine: NATS, a controller, brokers in racks", Args: cobra.NoArgs,
		Long: `Run a whole cluster on loopback: NATS and a controller in this process, brokers b1, b2, … as child processes in racks r1,
r2, …. A broker that is killed stays dead unless --restart is given. Ctrl-C stops everything in order.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if d.brokers < 1 || d.racks < 1 || d.port < 0 || d.port > 65535 {
				return usage("--brokers and --racks must be at least 1, --port 0 to 65535")
			}
			return a.dev(cmd.Context(), d)
		},
	}
	f := c.Flags()
	f.IntVar(&d.brokers, "brokers", 3, "number of brokers")
	f.IntVar(&d.racks, "racks", 3, "number of racks that they are spread over")
	f.StringVar(&d.dir, "data-dir", "", "folder for all data; default: a temporary one, removed at the end")
	f.IntVar(&d.port, "port", 4222, "port of NATS on 127.0.0.1; 0 takes a free one")
	f.BoolVar(&d.restart, "restart", false, "start a broker that has died again after a second")
	f.StringVar(&d.fsync, "fsync", "always", "of the brokers: always or interval")
	return c
}

func (a *app) dev(ctx context.Context, d devFlags) error {
	dir := d.dir
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "highwater-dev-"); err != nil {
			return err
		}
		defer os.RemoveAll(dir)
	}
	log := a.logger().Level(devLevel(a.verbose))
	c, err := controller.Start(ctx, controller.Config{Cluster: messages.ClusterName(a.cluster), DataDir: filepath.Join(dir, "controller"),
		Listen: fmt.Sprintf("127.0.0.1:%d", d.port), Logger: &log})
	if err != nil {
		return err
	}
	a.server = c.URL()
	group := &children{app: a, flags: d, dir: dir, url: c.URL()}
	err = group.run(ctx, c)
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTime)
	defer cancel()
	return errors.Join(err, c.Stop(bounded), c.Err())
}

// children are the broker processes of dev.
type children struct {
	app   *app
	flags devFlags
	dir   string
	url   string
	wait  sync.WaitGroup
	mu    sync.Mutex
	pids  []int
}

// run starts the brokers, says what there is, and waits until the context or the controller ends; then it stops the brokers.
func (g *children) run(ctx context.Context, c *controller.Controller) error {
	a := g.app
	self, err := os.Executable()
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer func() {
		stop()
		g.wait.Wait()
	}()
	g.pids = make([]int, g.flags.brokers)
	for i := range g.flags.brokers {
		if err := g.start(ctx, self, i); err != nil {
			return err
		}
	}
	if err := g.ready(ctx); err != nil {
		return err
	}
	g.introduce()
	select {
	case <-ctx.Done():
		fmt.Fprintln(a.err, "stopping")
	case <-c.Done():
	}
	return nil
}

// ready waits until every broker is active.
func (g *children) ready(ctx context.Context) error {
	nc, err := g.app.connect("highwater-dev")
	if err != nil {
		return err
	}
	defer nc.Close()
	c, err := client.New(nc, messages.ClusterName(g.app.cluster))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	for {
		h, _, err := c.Health(ctx)
		if err == nil && h.Brokers.Active >= g.flags.brokers {
			return nil
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return messages.Errorf(messages.CodeUnavailable, "only %d of %d brokers became active; see their logs in %s", h.Brokers.Active, g.flags.brokers, g.dir)
			}
			return nil
		case <-poll.C:
		}
	}
}

func (g *children) introduce() {
	a := g.app
	flag := ""
	if g.url != "nats://127.0.0.1:4222" {
		flag = " -s " + g.url
	}
	if a.cluster != "dev" {
		flag += " -c " + a.cluster
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	fmt.Fprintf(a.out, "cluster %s is running\n\n  NATS        %s\n  controller  pid %d\n", a.cluster, g.url, os.Getpid())
	for i, pid := range g.pids {
		fmt.Fprintf(a.out, "  broker b%d   pid %d   rack r%d\n", i+1, pid, i%g.flags.racks+1)
	}
	fmt.Fprintf(a.out, "  data        %s\n\ntry, in another terminal:\n\n", g.dir)
	for _, line := range []string{
		"highwater topic create orders --partitions 12",
		"seq 1 1000 | highwater produce orders --report",
		"highwater partition list",
		fmt.Sprintf("kill -9 %d        # broker b1 dies", g.pids[0]),
		"highwater cluster health",
		"highwater consume orders --from-beginning --exit-at-end",
	} {
		fmt.Fprintf(a.out, "  %s\n", withFlag(line, flag))
	}
	fmt.Fprintf(a.out, "\n(from a checkout: go build -o bin/ ./cmd/highwater, then bin/highwater …)\nCtrl-C stops everything.\n")
}

// withFlag adds flags to the highwater command in a line, where there is one.
func withFlag(line, flag string) string {
	const program = "highwater "
	for i := 0; i+len(program) <= len(line); i++ {
		if line[i:i+len(program)] == program {
			return line[:i] + "highwater" + flag + line[i+len("highwater"):]
		}
	}
	return line
}

// start starts broker number i and looks after it.
func (g *children) start(ctx context.Context, self string, i int) error {
	id := fmt.Sprintf("b%d", i+1)
	logFile, err := os.OpenFile(filepath.Join(g.dir, id+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	launch := func() (*exec.Cmd, io.Closer, error) {
		cmd := exec.Command(self, "broker", "run", "--child", "--id", id, "--rack", fmt.Sprintf("r%d", i%g.flags.racks+1),
			"--data-dir", filepath.Join(g.dir, id), "--fsync", g.flags.fsync, "--server", g.url, "--cluster", g.app.cluster)
		cmd.Stdout, cmd.Stderr = logFile, logFile
		cmd.Env = append(os.Environ(), "NATS_CONTEXT=", "NATS_CREDS=")
		hold, err := cmd.StdinPipe()
		if err != nil {
			return nil, nil, err
		}
		if err := cmd.Start(); err != nil {
			return nil, nil, err
		}
		g.mu.Lock()
		g.pids[i] = cmd.Process.Pid
		g.mu.Unlock()
		return cmd, hold, nil
	}
	cmd, hold, err := launch()
	if err != nil {
		return errors.Join(err, logFile.Close())
	}
	g.wait.Go(func() {
		defer logFile.Close()
		for {
			err := attend(ctx, cmd, hold)
			if ctx.Err() != nil {
				return
			}
			fmt.Fprintf(g.app.err, "broker %s (pid %d) has ended: %v; its log is %s\n", id, cmd.Process.Pid, err, logFile.Name())
			if !g.flags.restart {
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Second):
			}
			if cmd, hold, err = launch(); err != nil {
				fmt.Fprintf(g.app.err, "broker %s cannot be started again: %v\n", id, err)
				return
			}
			fmt.Fprintf(g.app.err, "broker %s is started again, pid %d\n", id, cmd.Process.Pid)
		}
	})
	return nil
}

// attend waits for the end of a broker. When the context ends it lets go of the broker's standard input, upon which the
// broker leaves in order; one that does not is killed.
func attend(ctx context.Context, cmd *exec.Cmd, hold io.Closer) error {
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	_ = hold.Close() // closed already if the broker has just ended
	select {
	case err := <-ended:
		return err
	case <-time.After(shutdownTime):
		return errors.Join(errors.New("the broker did not end in order and was killed"), cmd.Process.Kill(), <-ended)
	}
}
