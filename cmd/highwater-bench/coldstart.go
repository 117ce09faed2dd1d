package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/highwater-io/highwater/client"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

type coldStartFlags struct {
	partitions  []int
	controllers int
	runs        int
}

func (b *bench) coldStartCommand() *cobra.Command {
	f := coldStartFlags{}
	c := &cobra.Command{
		Use: "cold-start", Short: "From the start of the processes of a stopped cluster to the first accepted request", Args: cobra.NoArgs,
		Long: `A cluster with partitions and 6 simulated brokers is stopped, and its processes are started again, all at the same moment.
Measured from just before that, medians: until somebody is active and answers monitors (ready_ms), and until a request that
changes something is committed and answered (accepted_ms). stopped: it had been stopped in order. killed: all were killed
with -9. work_ms is what the controller says of its own work, from its process's first step (alone) or its claim (of several) on;
cpu_ms the processor time of all controllers until the accepted request, which other work on the machine does not change.

Limits, measured in the same run: empty_ms is accepted_ms of a cluster without a partition, map_ms the time to put as many
records into a map.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return b.coldStart(cmd.Context(), f) },
	}
	c.Flags().IntSliceVar(&f.partitions, "partitions", []int{1_000, 10_000, 100_000}, "partitions of the cluster; results for each number")
	c.Flags().IntVar(&f.controllers, "controllers", 1, "controller processes")
	c.Flags().IntVar(&f.runs, "runs", 3, "how often each; the median is printed")
	return c
}

// coldSample is one start.
type coldSample struct{ ready, accepted, work, cpu float64 }

func (b *bench) coldStart(ctx context.Context, f coldStartFlags) error {
	if f.controllers < 1 || f.runs < 1 {
		return errors.New("at least 1 controller and 1 run are needed")
	}
	dir, remove, err := tempDir()
	if err != nil {
		return err
	}
	defer remove()
	binary, err := b.buildBinary(ctx, dir)
	if err != nil {
		return err
	}
	var empty coldSample
	for i, n := range append([]int{0}, f.partitions...) {
		s, err := coldStage(ctx, clusterOptions{controllers: f.controllers, binary: binary}, filepath.Join(dir, fmt.Sprint(i)), n)
		if err != nil {
			return err
		}
		for _, killed := range []bool{false, true} {
			median, err := s.again(ctx, killed, f.runs)
			if err != nil {
				s.stop()
				return err
			}
			if n == 0 {
				empty = median
				continue
			}
			how := map[bool]string{false: "stopped", true: "killed"}[killed]
			err = b.print(result{Bench: "cold-start", Params: map[string]any{"partitions": n, "controllers": f.controllers, "how": how, "runs": f.runs},
				Figures: map[string]float64{"ready_ms": median.ready, "accepted_ms": median.accepted, "work_ms": median.work, "cpu_ms": median.cpu,
					"empty_ms": empty.accepted, "map_ms": ms(mapping(n)), "ratio": median.accepted / empty.accepted}})
			if err != nil {
				s.stop()
				return err
			}
		}
		s.stop()
	}
	return nil
}

// coldStarts is a cluster that is stopped and started again.
type coldStarts struct {
	*cluster
	serial int
}

func coldStage(ctx context.Context, o clusterOptions, dir string, partitions int) (*coldStarts, error) {
	c, err := startCluster(ctx, dir, o)
	if err != nil {
		return nil, err
	}
	if _, err = startSimBrokers(ctx, c, 6, &durations{}); err == nil {
		err = createTopics(ctx, c, partitions)
	}
	if err != nil {
		c.stop()
		return nil, err
	}
	return &coldStarts{cluster: c}, nil
}

// again stops the cluster and starts it, some times, and returns the medians.
func (c *coldStarts) again(ctx context.Context, killed bool, runs int) (coldSample, error) {
	var ready, accepted, work, cpu []float64
	for range runs {
		s, err := c.once(ctx, killed)
		if err != nil {
			return s, err
		}
		ready, accepted, work = append(ready, s.ready), append(accepted, s.accepted), append(work, s.work)
		cpu = append(cpu, s.cpu)
	}
	return coldSample{median(ready), median(accepted), median(work), median(cpu)}, nil
}

func median(all []float64) float64 {
	slices.Sort(all)
	return all[len(all)/2]
}

func (c *coldStarts) once(ctx context.Context, killed bool) (coldSample, error) {
	var out coldSample
	if killed {
		c.processes.discard()
	} else if err := c.processes.end(); err != nil {
		return out, err
	}
	logs := map[*child]int64{}
	for _, p := range c.processes.all {
		logs[p] = p.logSize()
	}
	began := time.Now()
	if err := c.processes.startAll(); err != nil {
		return out, err
	}
	nc, err := c.processes.dial(ctx, "bench-cold", "")
	if err != nil {
		return out, err
	}
	defer nc.Close()
	asker, err := client.New(nc, benchCluster, client.WithTimeout(time.Second))
	if err != nil {
		return out, err
	}
	defer func() { _ = asker.Close() }()
	err = within(ctx, 2*time.Minute, "an active controller", func(ctx context.Context) error {
		_, err := c.processes.active(ctx, asker, 0)
		return err
	})
	if err != nil {
		return out, err
	}
	out.ready = ms(time.Since(began))
	c.serial++
	err = within(ctx, 2*time.Minute, "an accepted request", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		_, err := asker.CreateTopic(ctx, &pb.CreateTopicRequest{Name: fmt.Sprintf("probe%d", c.serial), Partitions: 1})
		return err
	})
	out.accepted = ms(time.Since(began))
	for _, p := range c.processes.all {
		if took, err := p.cpu(); err == nil {
			out.cpu += ms(took)
		}
	}
	for p, from := range logs {
		for _, message := range []string{"controller is active", "controller is ready"} {
			if lines, err := p.logged(message, from); err == nil && len(lines) > 0 && out.work == 0 && lines[0]["controller_epoch"] != 0.0 {
				out.work, _ = lines[0]["took"].(float64)
			}
		}
	}
	return out, err
}
