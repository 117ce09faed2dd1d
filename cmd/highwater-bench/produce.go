package main

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/highwater-io/highwater/broker/pebblelog"
	"github.com/highwater-io/highwater/client"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// load is what a produce benchmark applies to either system.
type load struct {
	inFlight   int
	size       int
	partitions int
	duration   time.Duration
}

func (b *bench) produceCommand() *cobra.Command {
	l := load{}
	var inFlight []int
	var fsync []string
	c := &cobra.Command{
		Use: "produce", Short: "acks=all on three brokers, beside a JetStream R3 stream with the same sync setting", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, sync := range fsync {
				for _, n := range inFlight {
					l.inFlight = n
					if err := b.produce(cmd.Context(), sync, l); err != nil {
						return err
					}
				}
			}
			return nil
		},
	}
	f := c.Flags()
	f.IntSliceVar(&inFlight, "in-flight", []int{64, 1024}, "records that wait for their acknowledgement at most")
	f.StringSliceVar(&fsync, "fsync", []string{"always", "interval"}, "sync settings to measure")
	f.IntVar(&l.size, "size", 256, "bytes of a record")
	f.IntVar(&l.partitions, "partitions", 1, "partitions of the topic, and as many streams")
	f.DurationVar(&l.duration, "duration", 5*time.Second, "how long each system is loaded")
	return c
}

func (b *bench) produce(ctx context.Context, fsync string, l load) error {
	dir, remove, err := tempDir()
	if err != nil {
		return err
	}
	defer remove()
	mode, err := pebblelog.ParseSync(fsync)
	if err != nil {
		return err
	}
	ours, latency, err := produceHighwater(ctx, filepath.Join(dir, "highwater"), mode, l)
	if err != nil {
		return fmt.Errorf("highwater: %w", err)
	}
	stream, err := startReplicatedStream(ctx, filepath.Join(dir, "jetstream"), mode == pebblelog.Always, l.partitions)
	if err != nil {
		return err
	}
	defer stream.stop()
	theirs, theirLatency, err := stream.load(ctx, l)
	if err != nil {
		return fmt.Errorf("jetstream: %w", err)
	}
	return b.print(result{Bench: "produce", Params: map[string]any{"fsync": fsync, "in_flight": l.inFlight, "bytes": l.size,
		"partitions": l.partitions, "acks": "all", "brokers": 3, "seconds": l.duration.Seconds()},
		Figures: map[string]float64{"records_per_second": ours, "p50_ms": latency.quantile(0.5), "p99_ms": latency.quantile(0.99), "max_ms": latency.quantile(1),
			"jetstream_r3_per_second": theirs, "jetstream_r3_p50_ms": theirLatency.quantile(0.5),
			"jetstream_r3_p99_ms": theirLatency.quantile(0.99), "ratio": ours / theirs}})
}

func produceHighwater(ctx context.Context, dir string, mode pebblelog.Sync, l load) (float64, *durations, error) {
	c, err := startCluster(ctx, dir, clusterOptions{brokers: 3, sync: mode})
	if err != nil {
		return 0, nil, err
	}
	defer c.stop()
	if _, err := c.client.CreateTopic(ctx, &pb.CreateTopicRequest{Name: "bench", Partitions: uint32(l.partitions)}); err != nil {
		return 0, nil, err
	}
	p, err := c.client.NewProducer(ctx, "bench", client.ProducerOptions{MaxInFlight: l.inFlight})
	if err != nil {
		return 0, nil, err
	}
	latencies := &durations{}
	var mu sync.Mutex
	var failed error
	acked := 0
	payload := make([]byte, l.size)
	begin := time.Now()
	for i := 0; time.Since(begin) < l.duration && ctx.Err() == nil; i++ {
		sent := time.Now()
		err := p.Send(ctx, client.Record{Partition: int32(i % l.partitions), Value: payload}, func(r client.Result) {
			latencies.add(time.Since(sent))
			mu.Lock()
			defer mu.Unlock()
			if r.Err != nil {
				failed = r.Err
			} else {
				acked++
			}
		})
		if err != nil {
			return 0, nil, err
		}
	}
	err = p.Close(ctx)
	elapsed := time.Since(begin)
	if err == nil {
		err = failed
	}
	return float64(acked) / elapsed.Seconds(), latencies, err
}
