package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/highwater-io/highwater/broker"
	"github.com/highwater-io/highwater/broker/pebblelog"
	"github.com/highwater-io/highwater/client"
	"github.com/highwater-io/highwater/controller"
	"github.com/highwater-io/highwater/messages"
)

// clusterOptions say what a benchmark needs.
type clusterOptions struct {
	brokers  int // reference brokers, with storage on disk
	sync     pebblelog.Sync
	settings messages.Settings

	// controllers is how many processes of binary are the controllers; 0 is one within this process.
	controllers int
	binary      string
	flags       []string // of each of them
}

// cluster is controllers and brokers. The brokers are in this process, and connected over loopback TCP as separate processes
// would be; so is a controller that is no process of its own.
type cluster struct {
	controller *controller.Controller // nil if there are processes
	processes  *processes             // nil if there is a controller
	client     *client.Client
	nc         *nats.Conn
	closers    []func() error
}

const benchCluster = "bench"

func startCluster(ctx context.Context, dir string, o clusterOptions) (*cluster, error) {
	c := &cluster{}
	err := c.startControllers(ctx, dir, o)
	if err == nil {
		c.nc, err = c.connect(ctx, "bench-client")
	}
	if err == nil {
		c.client, err = client.New(c.nc, benchCluster, client.WithTimeout(time.Minute))
	}
	if err == nil && c.processes != nil {
		_, err = c.processes.steady(ctx, c.nc, c.client)
	}
	for i := 0; err == nil && i < o.brokers; i++ {
		err = c.startBroker(ctx, filepath.Join(dir, fmt.Sprintf("b%d", i+1)), i, o.sync)
	}
	if err != nil {
		c.stop()
		return nil, err
	}
	return c, nil
}

func (c *cluster) startControllers(ctx context.Context, dir string, o clusterOptions) (err error) {
	if o.controllers == 0 {
		c.controller, err = controller.Start(ctx, controller.Config{Cluster: benchCluster, DataDir: filepath.Join(dir, "controller"),
			Listen: "127.0.0.1:0", Settings: o.settings})
		return err
	}
	flags := o.flags
	if o.settings != (messages.Settings{}) {
		flags = append(flags, "--disconnect-grace", o.settings.DisconnectGrace.String())
	}
	if c.processes, err = newProcesses(o.binary, filepath.Join(dir, "controllers"), o.controllers, flags...); err != nil {
		return err
	}
	return c.processes.startAll()
}

func (c *cluster) connect(ctx context.Context, name string) (*nats.Conn, error) {
	if c.processes != nil {
		return c.processes.dial(ctx, name, "")
	}
	return nats.Connect(c.controller.URL(), client.ConnectOptions(name)...)
}

// url is where brokers connect.
func (c *cluster) url() string {
	if c.processes != nil {
		return c.processes.url("")
	}
	return c.controller.URL()
}

func (c *cluster) startBroker(ctx context.Context, dir string, i int, sync pebblelog.Sync) error {
	storage, err := pebblelog.Open(dir, pebblelog.Options{Sync: sync})
	if err != nil {
		return err
	}
	c.closers = append(c.closers, storage.Close)
	id := messages.BrokerID(fmt.Sprintf("b%d", i+1))
	nc, err := c.connect(ctx, string(id))
	if err != nil {
		return err
	}
	c.closers = append(c.closers, func() error { nc.Close(); return nil })
	s, err := broker.Serve(ctx, nc, benchCluster, id, storage, broker.WithRack(messages.RackPath(fmt.Sprintf("r%d", i+1))))
	if err != nil {
		return err
	}
	c.closers = append(c.closers, func() error { s.Close(); return nil })
	select {
	case <-s.Ready():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// stop ends everything, the newest first. What fails then has no part in the measurement.
func (c *cluster) stop() {
	for i := len(c.closers) - 1; i >= 0; i-- {
		_ = c.closers[i]()
	}
	if c.nc != nil {
		c.nc.Close()
	}
	if c.processes != nil {
		c.processes.discard()
	}
	if c.controller == nil {
		return
	}
	bounded, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := c.controller.Stop(bounded); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		fmt.Println(`{"warning":"the controller did not stop in order"}`)
	}
}

const controllersHelp = "controller processes; 0 is one within this process"

// startControllers starts a cluster without brokers.
func (b *bench) startControllers(ctx context.Context, dir string, n int, flags ...string) (*cluster, error) {
	o := clusterOptions{controllers: n, flags: flags}
	if n > 0 {
		var err error
		if o.binary, err = b.buildBinary(ctx, dir); err != nil {
			return nil, err
		}
	}
	return startCluster(ctx, dir, o)
}

// controllerCPU returns a function that returns what processor time the active controller has taken since; 0 where it is no
// process of its own.
func (c *cluster) controllerCPU(ctx context.Context) (func() (time.Duration, error), error) {
	if c.processes == nil {
		return func() (time.Duration, error) { return 0, nil }, nil
	}
	name, err := c.processes.steady(ctx, c.nc, c.client)
	if err != nil {
		return nil, err
	}
	active := c.processes.named(name)
	before, err := active.cpu()
	return func() (time.Duration, error) {
		after, err := active.cpu()
		return after - before, err
	}, err
}
