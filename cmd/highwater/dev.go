package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/highwater-io/highwater/broker/pebblelog"
	"github.com/highwater-io/highwater/client"
	"github.com/highwater-io/highwater/controller"
	"github.com/highwater-io/highwater/messages"
)

type devFlags struct {
	controllers int

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
		Use: "dev", Short: "A whole cluster on this machine: NATS, controllers, brokers in racks", Args: cobra.NoArgs,
		Long: `Run a whole cluster on loopback: NATS and a controller in this process, brokers b1, b2, … as child processes in racks r1,
r2, …. With --controllers 3 the controllers c1, c2, c3 are child processes too, whose NATS servers form a cluster that keeps the
journal three times: kill the active one, and another one takes over.

A child that is killed stays dead unless --restart is given. Ctrl-C stops everything in order. With --data-dir the next start goes
on with the same cluster; the number of controllers has to stay what it was.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if d.brokers < 1 || d.racks < 1 || d.port < 0 || d.port > 65535 {
				return usage("--brokers and --racks must be at least 1, --port 0 to 65535")
			}
			if d.controllers != 1 && d.controllers != 3 {
				return usage("--controllers is %d; it must be 1 or 3", d.controllers)
			}
			if _, err := pebblelog.ParseSync(d.fsync); err != nil {
				return err
			}
			run := a.dev
			if d.controllers > 1 {
				run = a.devSeveral
			}
			return a.devFolder(cmd.Context(), d, run)
		},
	}
	f := c.Flags()
	f.IntVar(&d.controllers, "controllers", 1, "number of controllers: 1, or 3 in processes of their own")
	f.IntVar(&d.brokers, "brokers", 3, "number of brokers")
	f.IntVar(&d.racks, "racks", 3, "number of racks that they are spread over")
	f.StringVar(&d.dir, "data-dir", "", "folder for all data; default: a temporary one, removed at the end")
	f.IntVar(&d.port, "port", 4222, "port of NATS on 127.0.0.1 (of c1, with several controllers); 0 takes a free one")
	f.BoolVar(&d.restart, "restart", false, "start a child that has died again after a second")
	f.StringVar(&d.fsync, "fsync", "always", "of the brokers: always or interval")
	return c
}

// devFolder runs a cluster in the folder that is named, or in a temporary one.
func (a *app) devFolder(ctx context.Context, d devFlags, run func(context.Context, devFlags) error) error {
	if d.dir == "" {
		dir, err := os.MkdirTemp("", "highwater-dev-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		d.dir = dir
	}
	for folder, controllers := range map[string]int{"controller": 1, "c1": 3} {
		if _, err := os.Stat(filepath.Join(d.dir, folder)); err == nil && controllers != d.controllers {
			return messages.Errorf(messages.CodeInvalidRequest, "%s holds a cluster of %d controllers, not %d", d.dir, controllers, d.controllers).
				WithHint("use another folder, or --controllers %d; a backup moves a cluster from one to three, see docs/operations.md", controllers)
		}
	}
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return messages.Errorf(messages.CodeInvalidRequest, "the data folder: %v", err)
	}
	return run(ctx, d)
}

// dev runs a cluster whose controller is in this process.
func (a *app) dev(ctx context.Context, d devFlags) error {
	began := time.Now()
	log := a.logger()
	if !a.verbose && !a.trace {
		log = log.Level(zerolog.WarnLevel)
	}
	c, err := controller.Start(ctx, controller.Config{Cluster: messages.ClusterName(a.cluster), DataDir: filepath.Join(d.dir, "controller"),
		Listen: fmt.Sprintf("127.0.0.1:%d", d.port), Logger: &log})
	if err != nil {
		return errNotRunning{err}
	}
	// The client of this process speaks to this cluster, whatever the environment says.
	a.fixed = &access{url: c.URL()}
	err = a.devBrokers(ctx, d, devRun{began: began, over: c.Done()})
	if err == nil {
		err = c.Err()
	}
	if stopped := stopController(ctx, c); err == nil {
		err = stopped
	}
	return err
}

// devRun is what the brokers of dev run with.
type devRun struct {
	began       time.Time
	over        <-chan struct{} // closed when no controller is left
	controllers *children       // nil for the one in this process
}

// devBrokers starts the brokers, says what there is, and waits until the context or the last controller ends; then it stops
// the brokers.
func (a *app) devBrokers(ctx context.Context, d devFlags, run devRun) error {
	ctx, stop := context.WithCancel(ctx)
	group, err := newChildren("broker", d.restart, a.err)
	if err != nil {
		stop()
		return err
	}
	defer group.wait()
	defer stop()
	for i := range d.brokers {
		id, rack := fmt.Sprintf("b%d", i+1), fmt.Sprintf("r%d", i%d.racks+1)
		err := group.start(ctx, child{id: id, rack: rack, log: filepath.Join(d.dir, id+".log"), args: []string{"broker", "run", "--child",
			"--id", id, "--rack", rack, "--data-dir", filepath.Join(d.dir, id), "--fsync", d.fsync, "--server", a.fixed.url, "--cluster", a.cluster}})
		if err != nil {
			return err
		}
	}
	return a.withClient(ctx, func(ctx context.Context, c *client.Client) error {
		switch err := a.devReady(ctx, d, c, group, run); {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		about := devCluster{Cluster: a.cluster, NATS: a.fixed.url, Controller: os.Getpid(), DataDir: d.dir, Brokers: group.list(),
			StartedMs: time.Since(run.began).Milliseconds()}
		if run.controllers != nil {
			about.several(ctx, c, run.controllers.list())
		}
		if err := a.introduce(about); err != nil {
			return err
		}
		if run.controllers != nil {
			defer watchActive(ctx, c, about.Active, run.controllers.say)()
		}
		select {
		case <-ctx.Done():
			fmt.Fprintln(a.err, "stopping")
		case <-run.over:
		}
		return nil
	})
}

// devStart bounds the start of the brokers of dev.
const devStart = 30 * time.Second

// devReady waits until every broker is active and every controller is there. It gives up when a child has ended for good.
func (a *app) devReady(ctx context.Context, d devFlags, c *client.Client, brokers *children, run devRun) error {
	ctx, cancel := context.WithTimeout(ctx, devStart)
	defer cancel()
	var ended <-chan child // none ends where the controller is in this process
	if run.controllers != nil {
		ended = run.controllers.ended
	}
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for {
		h, _, err := c.Health(ctx)
		if err == nil && h.Brokers.Active >= d.brokers && allControllers(ctx, c, d.controllers) {
			return nil
		}
		select {
		case <-ctx.Done():
			return errNotRunning{messages.Errorf(messages.CodeUnavailable, "%d of %d brokers became active; see the logs in %s",
				h.Brokers.Active, d.brokers, d.dir)}
		case dead := <-brokers.ended:
			return errNotRunning{messages.Errorf(messages.CodeUnavailable, "broker %s has ended before it was active; its log is %s", dead.id, dead.log)}
		case dead := <-ended:
			return errNotRunning{messages.Errorf(messages.CodeUnavailable, "controller %s has ended before all were there; its log is %s", dead.id, dead.log)}
		case <-poll.C:
		}
	}
}

// devCluster is what dev says of itself in JSON.
type devCluster struct {
	Cluster    string      `json:"cluster"`
	NATS       string      `json:"nats"`
	Controller int         `json:"controller_pid"` // of several, the one that was active at first
	DataDir    string      `json:"data_dir"`
	Brokers    []devBroker `json:"brokers"`
	StartedMs  int64       `json:"started_ms"` // from the call until all are active

	Active      string          `json:"active,omitempty"` // of several controllers
	Controllers []devController `json:"controllers,omitempty"`
}

type devBroker struct {
	ID   string `json:"id"`
	Rack string `json:"rack"`
	PID  int    `json:"pid"`
	Log  string `json:"log"`
}

func (a *app) introduce(about devCluster) error {
	switch a.output {
	case "json":
		return writeLine(a.out, about)
	case "yaml":
		return a.printYAML(about)
	}
	flag := ""
	if usual, err := a.usual(); about.Controllers == nil && (err != nil || usual.url != a.fixed.url) {
		flag = " -s " + a.fixed.url
	}
	if a.cluster != "dev" {
		flag += " -c " + a.cluster
	}
	var b strings.Builder
	fmt.Fprintf(&b, "cluster %s is running, started in %.1f s\n\n", about.Cluster, float64(about.StartedMs)/1000)
	if about.Controllers == nil {
		fmt.Fprintf(&b, "  NATS        %s\n  controller  pid %d\n", about.NATS, about.Controller)
	}
	for _, x := range about.Controllers {
		fmt.Fprintf(&b, "  controller %s   pid %d   %s   %s\n", x.Name, x.PID, x.URL, x.Role)
	}
	for _, x := range about.Brokers {
		fmt.Fprintf(&b, "  broker %s   pid %d   rack %s\n", x.ID, x.PID, x.Rack)
	}
	fmt.Fprintf(&b, "  data        %s\n\ntry, in another terminal:\n\n", about.DataDir)
	lines := []string{
		"highwater topic create orders --partitions 12",
		"seq 1 1000 | highwater produce orders --report",
		"highwater partition list",
		fmt.Sprintf("kill -9 %d        # broker %s dies", about.Brokers[0].PID, about.Brokers[0].ID),
		"highwater cluster health",
		"highwater consume orders --from-beginning --exit-at-end",
	}
	if about.Controllers != nil {
		lines = append(append([]string{"export NATS_URL=" + about.NATS}, lines...),
			fmt.Sprintf("kill -9 %d        # controller %s, the active one, dies", about.Controller, about.Active), "highwater controller list")
	}
	for _, line := range lines {
		fmt.Fprintf(&b, "  %s\n", strings.Replace(line, "highwater ", "highwater"+flag+" ", 1))
	}
	b.WriteString("\n(from a checkout: go build -o bin/ ./cmd/highwater, then bin/highwater …)\nCtrl-C stops everything.\n")
	_, err := a.out.Write([]byte(b.String()))
	return err
}
