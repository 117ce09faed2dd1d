package main

import (
	"context"
	"fmt"
	"path/filepath"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

func (b *bench) createCommand() *cobra.Command {
	var partitions, topics, controllers int
	c := &cobra.Command{
		Use: "create", Short: "Create topics, beside committing the same records to a stream with fsync", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return b.create(cmd.Context(), topics, partitions, controllers)
		},
	}
	c.Flags().IntVar(&controllers, "controllers", 0, controllersHelp)
	c.Flags().IntVar(&topics, "topics", 10, "topics to create, one after the other")
	c.Flags().IntVar(&partitions, "partitions", 1000, "partitions of each")
	return c
}

func (b *bench) create(ctx context.Context, topics, partitions, controllers int) error {
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
	latency := &durations{}
	began := time.Now()
	for i := range topics {
		sent := time.Now()
		if _, err := c.client.CreateTopic(ctx, &pb.CreateTopicRequest{Name: fmt.Sprintf("t%d", i), Partitions: uint32(partitions)}); err != nil {
			return err
		}
		latency.add(time.Since(sent))
	}
	ours := time.Since(began)
	plain, err := plainCreate(ctx, c, filepath.Join(dir, "plain"), topics, partitions)
	if err != nil {
		return err
	}
	total := float64(topics * partitions)
	return b.print(result{Bench: "create", Params: map[string]any{"topics": topics, "partitions": partitions, "brokers": 6, "controllers": controllers},
		Figures: map[string]float64{"partitions_per_second": total / ours.Seconds(), "topic_p50_ms": latency.quantile(0.5),
			"topic_p99_ms": latency.quantile(0.99), "plain_partitions_per_second": total / plain.Seconds(), "ratio": ours.Seconds() / plain.Seconds()}})
}

// plainCreate commits the same records: to a stream of a server of its own, or to one beside the journal of several.
func plainCreate(ctx context.Context, c *cluster, dir string, topics, partitions int) (time.Duration, error) {
	p, err := plainBeside(ctx, c, dir)
	if err != nil {
		return 0, err
	}
	defer p.stop()
	brokers := []string{"s0", "s1", "s2"}
	began := time.Now()
	for t := range topics {
		records := make([]*pb.Record, partitions)
		for i := range records {
			records[i] = recordOf(&pb.Assignment{TopicId: []byte{byte(t + 1), 15: 1}, Partition: int32(i), Replicas: brokers, Isr: brokers, Leader: "s0", MinIsr: 2})
		}
		if err := p.commit(ctx, records); err != nil {
			return 0, err
		}
	}
	return time.Since(began), nil
}

func (b *bench) heartbeatsCommand() *cobra.Command {
	var brokers, controllers int
	var duration time.Duration
	c := &cobra.Command{
		Use: "heartbeats", Short: "Heartbeats of many brokers, beside plain requests of the same size", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return b.heartbeats(cmd.Context(), brokers, controllers, duration)
		},
	}
	c.Flags().IntVar(&controllers, "controllers", 0, controllersHelp+"; then controller_cores is the processor time of the active one")
	c.Flags().IntVar(&brokers, "brokers", 1000, "simulated brokers")
	c.Flags().DurationVar(&duration, "duration", 10*time.Second, "how long is measured")
	return c
}

func (b *bench) heartbeats(ctx context.Context, brokers, controllers int, duration time.Duration) error {
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
	latency := &durations{}
	all, err := startSimBrokers(ctx, c, brokers, latency)
	if err != nil {
		return err
	}
	latency.clear()
	own, err := c.controllerCPU(ctx)
	if err != nil {
		return err
	}
	cpu, err := cpuDuring(ctx, duration)
	if err != nil {
		return err
	}
	took, err := own()
	if err != nil {
		return err
	}
	sent := latency.count()
	p50, p99, slowest := latency.quantile(0.5), latency.quantile(0.99), latency.quantile(1)
	health, _, err := c.client.Health(ctx)
	if err != nil {
		return err
	}
	plain, err := plainRequests(ctx, c.nc, sent, duration)
	if err != nil {
		return err
	}
	return b.print(result{Bench: "heartbeats", Params: map[string]any{"brokers": brokers, "heartbeat_ms": ms(all[0].beat), "seconds": duration.Seconds(), "controllers": controllers},
		Figures: map[string]float64{"per_second": float64(sent) / duration.Seconds(), "p50_ms": p50, "p99_ms": p99, "max_ms": slowest, "fenced": float64(health.Brokers.Fenced),
			"controller_cores": took.Seconds() / duration.Seconds(), "plain_max_ms": plain.latency.quantile(1),
			"cpu_cores": cpu.Seconds() / duration.Seconds(), "plain_cpu_cores": plain.cpu.Seconds() / duration.Seconds(),
			"plain_p50_ms": plain.latency.quantile(0.5), "plain_p99_ms": plain.latency.quantile(0.99)}})
}

// cpuDuring lets a time pass and returns the processor time that this process, clients and all, took in it.
func cpuDuring(ctx context.Context, d time.Duration) (time.Duration, error) {
	before, err := cpuTime()
	if err != nil {
		return 0, err
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	after, err := cpuTime()
	return after - before, err
}

// cpuOf returns the processor time that this process took while f ran.
func cpuOf(f func() error) (time.Duration, error) {
	before, err := cpuTime()
	if err != nil {
		return 0, err
	}
	if err := f(); err != nil {
		return 0, err
	}
	after, err := cpuTime()
	return after - before, err
}

func cpuTime() (time.Duration, error) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, err
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}

type plainLoad struct {
	cpu     time.Duration
	latency *durations
}

// plainRequests sends as many requests of a heartbeat's size in the same time to a responder that does nothing.
func plainRequests(ctx context.Context, nc *nats.Conn, n int, d time.Duration) (plainLoad, error) {
	out := plainLoad{latency: &durations{}}
	answer, err := proto.Marshal(&pb.HeartbeatResponse{LeaseMs: 2700, Seen: &pb.Seen{ControllerEpoch: 1, Sequence: 1000}})
	if err != nil {
		return out, err
	}
	question, err := proto.Marshal(&pb.HeartbeatRequest{Broker: "s999", Incarnation: "run-999-1234567890123456789", BrokerEpoch: 1000,
		Feed: &pb.FeedPosition{Feed: 1 << 60, Position: 3}, Ready: true})
	if err != nil {
		return out, err
	}
	sub, err := nc.Subscribe("bench.plain", func(m *nats.Msg) { _ = m.Respond(answer) })
	if err != nil {
		return out, err
	}
	defer func() { _ = sub.Unsubscribe() }()
	before, err := cpuTime()
	if err != nil {
		return out, err
	}
	pace := time.NewTicker(d / time.Duration(max(n, 1)))
	defer pace.Stop()
	done := make(chan error, 64)
	free := make(chan struct{}, 64)
	for range n {
		<-pace.C
		select {
		case err := <-done:
			return out, err
		case free <- struct{}{}:
		}
		go func() {
			defer func() { <-free }()
			sent := time.Now()
			if _, err := nc.RequestWithContext(ctx, "bench.plain", question); err != nil {
				select {
				case done <- err:
				default:
				}
				return
			}
			out.latency.add(time.Since(sent))
		}()
	}
	for range cap(free) {
		free <- struct{}{}
	}
	after, err := cpuTime()
	out.cpu = after - before
	return out, err
}
