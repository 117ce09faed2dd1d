package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"

	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/journal/jetstream"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

func (b *bench) memoryCommand() *cobra.Command {
	var partitions, controllers int
	c := &cobra.Command{
		Use: "memory", Short: "Bytes of a partition at rest in the controller, beside the bytes of its record", Args: cobra.NoArgs,
		Long: `Topics are made in a cluster with 6 simulated brokers. bytes_per_partition is what the heap of the active controller has grown by
for each partition, after a collection; the brokers, which keep nothing, and the embedded server are in the same process.
standby_bytes_per_partition is the heap of the catalog that a standby has, rebuilt from the same journal.

With --controllers 3 they are processes of their own, and what is measured is the growth of their memory in RAM, with the
servers, the streams that are in memory, and what was not collected yet: rss_active and rss_standby, bytes a partition.

Limit: record_bytes is the partition's record in the journal.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if controllers > 0 {
				return b.residentMemory(cmd.Context(), partitions, controllers)
			}
			return b.memory(cmd.Context(), partitions)
		},
	}
	c.Flags().IntVar(&partitions, "partitions", 100_000, "partitions to create")
	c.Flags().IntVar(&controllers, "controllers", 0, controllersHelp)
	return c
}

func (b *bench) memory(ctx context.Context, partitions int) error {
	dir, remove, err := tempDir()
	if err != nil {
		return err
	}
	defer remove()
	active, total, err := activeMemory(ctx, dir, partitions)
	if err != nil {
		return err
	}
	standby, err := catalogMemory(ctx, filepath.Join(dir, "controller"))
	if err != nil {
		return err
	}
	n := float64(partitions)
	return b.print(result{Bench: "memory", Params: map[string]any{"partitions": partitions},
		Figures: map[string]float64{"bytes_per_partition": float64(active) / n, "standby_bytes_per_partition": float64(standby) / n,
			"record_bytes": float64(recordSize()), "heap_mib": float64(total) / (1 << 20)}})
}

// activeMemory is what the heap grows by with the partitions, and what it has then.
func activeMemory(ctx context.Context, dir string, partitions int) (grown, total int64, err error) {
	c, err := startCluster(ctx, dir, clusterOptions{})
	if err != nil {
		return 0, 0, err
	}
	defer c.stop()
	if _, err := startSimBrokers(ctx, c, 6, &durations{}); err != nil {
		return 0, 0, err
	}
	before := heap()
	if err := createTopics(ctx, c, partitions); err != nil {
		return 0, 0, err
	}
	after := heap()
	return after - before, after, nil
}

// catalogMemory is what the heap grows by when a catalog is rebuilt from the store of a controller that has stopped.
func catalogMemory(ctx context.Context, store string) (int64, error) {
	p, err := startPlainIn(filepath.Join(store, "nats-single"), "HW")
	if err != nil {
		return 0, err
	}
	defer p.stop()
	log, err := jetstream.Ensure(ctx, p.js, benchCluster, 1)
	if err != nil {
		return 0, err
	}
	kept, err := jetstream.EnsureSnapshots(ctx, p.js, benchCluster, 1)
	if err != nil {
		return 0, err
	}
	if last, err := log.Last(ctx); err != nil || last == 0 {
		return 0, errors.Join(err, fmt.Errorf("there is no journal in %s", store))
	}
	catalog := journal.NewCatalog()
	if _, err := journal.RecoverFrom(ctx, log, kept, catalog); err != nil {
		return 0, err
	}
	with := heap()
	runtime.KeepAlive(catalog) // and from here on nobody has it
	return with - heap(), nil
}

// residentMemory measures processes.
func (b *bench) residentMemory(ctx context.Context, partitions, controllers int) error {
	dir, remove, err := tempDir()
	if err != nil {
		return err
	}
	defer remove()
	c, err := b.startControllers(ctx, dir, controllers)
	if err != nil {
		return err
	}
	defer c.stop()
	if _, err := startSimBrokers(ctx, c, 6, &durations{}); err != nil {
		return err
	}
	before, err := c.resident()
	if err != nil {
		return err
	}
	if err := createTopics(ctx, c, partitions); err != nil {
		return err
	}
	active, err := c.processes.steady(ctx, c.nc, c.client)
	if err != nil {
		return err
	}
	after, err := c.resident()
	if err != nil {
		return err
	}
	figures := map[string]float64{"record_bytes": float64(recordSize())}
	for name, bytes := range after {
		role := "rss_standby"
		if name == active {
			role = "rss_active"
		}
		figures[role] = max(figures[role], float64(bytes-before[name])/float64(partitions))
	}
	return b.print(result{Bench: "memory", Params: map[string]any{"partitions": partitions, "controllers": controllers}, Figures: figures})
}

// resident is the memory of each controller process.
func (c *cluster) resident() (map[string]int64, error) {
	out := map[string]int64{}
	for _, p := range c.processes.all {
		n, err := p.resident()
		if err != nil {
			return nil, err
		}
		out[p.name] = n
	}
	return out, nil
}

// recordSize is the size of a partition's record.
func recordSize() int {
	brokers := []string{"s0", "s1", "s2"}
	return proto.Size(recordOf(&pb.Assignment{TopicId: make([]byte, 16), Replicas: brokers, Isr: brokers, Leader: "s0", MinIsr: 2}))
}

// startPlainIn starts a plain server on a folder, which may have streams of an account already.
func startPlainIn(store, account string) (*plainServer, error) {
	p, err := newPlain(store, account)
	if err != nil {
		return nil, err
	}
	if p.nc, err = nats.Connect("", nats.InProcessServer(p.server)); err == nil {
		p.js, err = js.New(p.nc)
	}
	if err != nil {
		p.stop()
		return nil, err
	}
	return p, nil
}

func heap() int64 {
	runtime.GC()
	runtime.GC() // what the first one made free of finalizers
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
