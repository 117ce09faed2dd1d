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
			if _, err := pebblelog.ParseSync(d.fsync); err != nil {
				return err
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
	if d.dir == "" {
		dir, err := os.MkdirTemp("", "highwater-dev-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		d.dir = dir
	}
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
	err = a.devBrokers(ctx, d, c.Done())
	if err == nil {
		err = c.Err()
	}
	if stopped := stopController(ctx, c); err == nil {
		err = stopped
	}
	return err
}

// devBrokers starts the brokers, says what there is, and waits until the context or the controller ends; then it stops the
// brokers.
func (a *app) devBrokers(ctx context.Context, d devFlags, controllerDone <-chan struct{}) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	group := newChildren(self, d.restart, a.err)
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
	switch err := a.devReady(ctx, d, group); {
	case ctx.Err() != nil:
		return nil
	case err != nil:
		return err
	}
	if err := a.introduce(d, group.list()); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		fmt.Fprintln(a.err, "stopping")
	case <-controllerDone:
	}
	return nil
}

// devStart bounds the start of the brokers of dev.
const devStart = 30 * time.Second

// devReady waits until every broker is active. It gives up when one has ended for good.
func (a *app) devReady(ctx context.Context, d devFlags, group *children) error {
	return a.withClient(ctx, func(ctx context.Context, c *client.Client) error {
		ctx, cancel := context.WithTimeout(ctx, devStart)
		defer cancel()
		poll := time.NewTicker(20 * time.Millisecond)
		defer poll.Stop()
		for {
			h, _, err := c.Health(ctx)
			if err == nil && h.Brokers.Active >= d.brokers {
				return nil
			}
			select {
			case <-ctx.Done():
				return errNotRunning{messages.Errorf(messages.CodeUnavailable, "%d of %d brokers became active; see their logs in %s",
					h.Brokers.Active, d.brokers, d.dir)}
			case ended := <-group.ended:
				return errNotRunning{messages.Errorf(messages.CodeUnavailable, "broker %s has ended before it was active; its log is %s", ended.id, ended.log)}
			case <-poll.C:
			}
		}
	})
}

// devCluster is what dev says of itself in JSON.
type devCluster struct {
	Cluster    string      `json:"cluster"`
	NATS       string      `json:"nats"`
	Controller int         `json:"controller_pid"`
	DataDir    string      `json:"data_dir"`
	Brokers    []devBroker `json:"brokers"`
}

type devBroker struct {
	ID   string `json:"id"`
	Rack string `json:"rack"`
	PID  int    `json:"pid"`
	Log  string `json:"log"`
}

func (a *app) introduce(d devFlags, brokers []devBroker) error {
	about := devCluster{Cluster: a.cluster, NATS: a.fixed.url, Controller: os.Getpid(), DataDir: d.dir, Brokers: brokers}
	switch a.output {
	case "json":
		return writeLine(a.out, about)
	case "yaml":
		return a.printYAML(about)
	}
	flag := ""
	if usual, err := a.usual(); err != nil || usual.url != a.fixed.url {
		flag = " -s " + a.fixed.url
	}
	if a.cluster != "dev" {
		flag += " -c " + a.cluster
	}
	var b strings.Builder
	fmt.Fprintf(&b, "cluster %s is running\n\n  NATS        %s\n  controller  pid %d\n", about.Cluster, about.NATS, about.Controller)
	for _, x := range brokers {
		fmt.Fprintf(&b, "  broker %s   pid %d   rack %s\n", x.ID, x.PID, x.Rack)
	}
	fmt.Fprintf(&b, "  data        %s\n\ntry, in another terminal:\n\n", d.dir)
	for _, line := range []string{
		"highwater topic create orders --partitions 12",
		"seq 1 1000 | highwater produce orders --report",
		"highwater partition list",
		fmt.Sprintf("kill -9 %d        # broker %s dies", brokers[0].PID, brokers[0].ID),
		"highwater cluster health",
		"highwater consume orders --from-beginning --exit-at-end",
	} {
		fmt.Fprintf(&b, "  %s\n", strings.Replace(line, "highwater ", "highwater"+flag+" ", 1))
	}
	b.WriteString("\n(from a checkout: go build -o bin/ ./cmd/highwater, then bin/highwater …)\nCtrl-C stops everything.\n")
	_, err := a.out.Write([]byte(b.String()))
	return err
}
