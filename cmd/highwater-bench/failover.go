package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

type failoverFlags struct {
	partitions int
	brokers    int
	runs       int
	grace      time.Duration
}

func (b *bench) failoverCommand() *cobra.Command {
	var f failoverFlags
	c := &cobra.Command{
		Use: "failover", Short: "From the end of a broker's connection to the last assignment at the survivors", Args: cobra.NoArgs,
		Long: `One of the simulated brokers loses its connection. Measured: until every partition that it led has a leader that knows of it
(last_leader_ms) and until every survivor has every new assignment (last_assignment_ms), both with the disconnect grace;
work_ms is last_assignment_ms without it. Beside it, in the same run: committing the same records to a journal stream with
fsync, and delivering the same assignments to as many subscribers.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return b.failover(cmd.Context(), f) },
	}
	c.Flags().IntVar(&f.partitions, "partitions", 10_000, "partitions of the cluster")
	c.Flags().IntVar(&f.brokers, "brokers", 6, "simulated brokers")
	c.Flags().IntVar(&f.runs, "runs", 3, "how often; the median is printed")
	c.Flags().DurationVar(&f.grace, "grace", 100*time.Millisecond, "disconnect grace of the cluster")
	return c
}

// failoverSample is one run.
type failoverSample struct {
	affected, led             int
	leader, assignment, plain time.Duration
}

func (b *bench) failover(ctx context.Context, f failoverFlags) error {
	if f.brokers < 4 || f.partitions < 1 || f.runs < 1 {
		return fmt.Errorf("at least 4 brokers, 1 partition and 1 run are needed")
	}
	var all []failoverSample
	for range f.runs {
		s, err := failoverOnce(ctx, f)
		if err != nil {
			return err
		}
		all = append(all, s)
	}
	median := func(of func(failoverSample) time.Duration) float64 {
		var d []time.Duration
		for _, s := range all {
			d = append(d, of(s))
		}
		slices.Sort(d)
		return ms(d[len(d)/2])
	}
	work := median(func(s failoverSample) time.Duration { return s.assignment - f.grace })
	plain := median(func(s failoverSample) time.Duration { return s.plain })
	return b.print(result{Bench: "failover", Params: map[string]any{"partitions": f.partitions, "brokers": f.brokers, "runs": f.runs, "grace_ms": ms(f.grace)},
		Figures: map[string]float64{"affected": float64(all[0].affected), "led": float64(all[0].led),
			"last_leader_ms":     median(func(s failoverSample) time.Duration { return s.leader }),
			"last_assignment_ms": median(func(s failoverSample) time.Duration { return s.assignment }),
			"work_ms":            work, "plain_ms": plain, "ratio": work / plain}})
}

func failoverOnce(ctx context.Context, f failoverFlags) (failoverSample, error) {
	var out failoverSample
	dir, remove, err := tempDir()
	if err != nil {
		return out, err
	}
	defer remove()
	settings := messages.DefaultSettings()
	settings.DisconnectGrace = f.grace
	c, err := startCluster(ctx, dir, clusterOptions{settings: settings})
	if err != nil {
		return out, err
	}
	defer c.stop()
	brokers, err := startSimBrokers(ctx, c, f.brokers, &durations{})
	if err != nil {
		return out, err
	}
	if err := createTopics(ctx, c, f.partitions); err != nil {
		return out, err
	}
	victim := brokers[0]
	w, err := watchFailover(ctx, c, victim.id)
	if err != nil {
		return out, err
	}
	defer w.nc.Close()
	began := time.Now()
	victim.close()
	if err := w.wait(ctx); err != nil {
		return out, err
	}
	out.affected, out.led = w.affected, w.led
	out.leader, out.assignment = w.lastLeader.Sub(began), w.lastAssignment.Sub(began)
	out.plain, err = plainFailover(ctx, filepath.Join(dir, "plain"), w.final, f.brokers-1)
	return out, err
}

// createTopics makes topics of at most a thousand partitions.
func createTopics(ctx context.Context, c *cluster, partitions int) error {
	for i := 0; partitions > 0; i++ {
		n := min(partitions, 1000)
		partitions -= n
		if _, err := c.client.CreateTopic(ctx, &pb.CreateTopicRequest{Name: fmt.Sprintf("t%d", i), Partitions: uint32(n)}); err != nil {
			return err
		}
	}
	return nil
}

// failoverWatch follows the assignments of all survivors on a connection of its own.
type failoverWatch struct {
	nc     *nats.Conn
	victim string

	mu                         sync.Mutex
	affected, led              int
	assignments                map[string]bool // survivor/partition that is still to come
	leaders                    map[string]bool // partition whose new leader is still to come
	lastLeader, lastAssignment time.Time
	final                      []*pb.Assignment
	done                       chan struct{}
}

func watchFailover(ctx context.Context, c *cluster, victim messages.BrokerID) (*failoverWatch, error) {
	list, err := c.client.Partitions(ctx, messages.ListQuery{Limit: 5000, Filter: map[string]string{"broker": string(victim)}})
	if err != nil {
		return nil, err
	}
	w := &failoverWatch{victim: string(victim), assignments: map[string]bool{}, leaders: map[string]bool{}, done: make(chan struct{})}
	for _, p := range list {
		key := fmt.Sprintf("%s/%d", p.TopicID, p.Partition)
		w.affected++
		if p.Leader == victim {
			w.led++
			w.leaders[key] = true
		}
		for _, r := range p.Replicas {
			if r != victim {
				w.assignments[string(r)+"/"+key] = true
			}
		}
	}
	if w.nc, err = c.connect("bench-watch"); err != nil {
		return nil, err
	}
	for _, b := range brokersOf(list) {
		if b == victim {
			continue
		}
		if _, err := w.nc.Subscribe(messages.NewSubjects(benchCluster).Assignments(b), w.hear); err != nil {
			return nil, err
		}
	}
	return w, w.nc.Flush()
}

func brokersOf(list []messages.PartitionView) []messages.BrokerID {
	var out []messages.BrokerID
	for _, p := range list {
		for _, r := range p.Replicas {
			if !slices.Contains(out, r) {
				out = append(out, r)
			}
		}
	}
	return out
}

func (w *failoverWatch) hear(m *nats.Msg) {
	now := time.Now()
	var batch pb.AssignmentBatch
	if proto.Unmarshal(m.Data, &batch) != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range batch.GetAssignments() {
		if slices.Contains(a.GetIsr(), w.victim) || a.GetLeader() == w.victim || a.GetLeader() == "" {
			continue
		}
		id, err := messages.ParseTopicID(a.GetTopicId())
		if err != nil {
			continue
		}
		key := fmt.Sprintf("%s/%d", id, a.GetPartition())
		if waited := batch.GetBroker() + "/" + key; w.assignments[waited] {
			delete(w.assignments, waited)
			w.lastAssignment = now
			w.final = append(w.final, a)
		}
		if a.GetLeader() == batch.GetBroker() && w.leaders[key] {
			delete(w.leaders, key)
			w.lastLeader = now
		}
	}
	if len(w.assignments) == 0 && len(w.leaders) == 0 && w.done != nil {
		close(w.done)
		w.done = nil
	}
}

func (w *failoverWatch) wait(ctx context.Context) error {
	w.mu.Lock()
	done := w.done
	w.mu.Unlock()
	if done == nil {
		return nil
	}
	select {
	case <-done:
		return nil
	case <-time.After(time.Minute):
		w.mu.Lock()
		defer w.mu.Unlock()
		return fmt.Errorf("%d assignments and %d leaders did not come within a minute", len(w.assignments), len(w.leaders))
	case <-ctx.Done():
		return ctx.Err()
	}
}
