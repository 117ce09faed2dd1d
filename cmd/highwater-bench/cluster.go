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
}

// cluster is a controller and brokers in this process, connected over loopback TCP as separate processes would be.
type cluster struct {
	controller *controller.Controller
	client     *client.Client
	nc         *nats.Conn
	closers    []func() error
}

const benchCluster = "bench"

func startCluster(ctx context.Context, dir string, o clusterOptions) (*cluster, error) {
	c := &cluster{}
	var err error
	c.controller, err = controller.Start(ctx, controller.Config{Cluster: benchCluster, DataDir: filepath.Join(dir, "controller"),
		Listen: "127.0.0.1:0", Settings: o.settings})
	if err != nil {
		return nil, err
	}
	if c.nc, err = c.connect("bench-client"); err == nil {
		c.client, err = client.New(c.nc, benchCluster, client.WithTimeout(time.Minute))
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

func (c *cluster) connect(name string) (*nats.Conn, error) {
	return nats.Connect(c.controller.URL(), client.ConnectOptions(name)...)
}

func (c *cluster) startBroker(ctx context.Context, dir string, i int, sync pebblelog.Sync) error {
	storage, err := pebblelog.Open(dir, pebblelog.Options{Sync: sync})
	if err != nil {
		return err
	}
	c.closers = append(c.closers, storage.Close)
	id := messages.BrokerID(fmt.Sprintf("b%d", i+1))
	nc, err := c.connect(string(id))
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
	bounded, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := c.controller.Stop(bounded); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		fmt.Println(`{"warning":"the controller did not stop in order"}`)
	}
}
