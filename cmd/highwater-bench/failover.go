package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
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
	partitions []int
	brokers    int
	runs       int
	grace      time.Duration
	profile    string

	controllers int
}

func (b *bench) failoverCommand() *cobra.Command {
	var f failoverFlags
	c := &cobra.Command{
		Use: "failover", Short: "From the end of a broker's connection to the last assignment at the survivors", Args: cobra.NoArgs,
		Long: `One of the simulated brokers loses its connection. Measured: until every partition that it led has a leader that knows of it
(last_leader_ms) and until every survivor has every new assignment (last_assignment_ms), both with the disconnect grace;
work_ms is last_assignment_ms without it, cpu_ms the processor time of the process meanwhile.

plain_ms is what cannot be saved, measured in the same run with nothing else on the machine: a NATS server with a stream that
fsyncs, to which the same records (their reasons included) are appended, encoded in entries of the journal's limits; and
then the same assignments, encoded and delivered over TCP, to as many connections as listen in the measured cluster (each
survivor's to its own, all of them to one more), which decode them. There are the fewest batches that the outboxes' limit
allows.

On our side of the ratio only, because a controller has to do it but neither records nor assignments need it: noticing the
end of the connection, the commit of the fenced broker before anything else, one decision per partition, the hash chain,
the catalog, one leadership message per partition into the stream of last values; and, because the survivors are at work
already when the last assignments leave, their confirmations (one per new leader) with the records and answers that
follow. Brokers, observer and both servers share the processors of this machine with the controller.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return b.failover(cmd.Context(), f) },
	}
	c.Flags().IntSliceVar(&f.partitions, "partitions", []int{1_000, 10_000, 30_000}, "partitions of the cluster; one result for each number")
	c.Flags().IntVar(&f.controllers, "controllers", 0, controllersHelp+", which is what cpu_ms counts")
	c.Flags().IntVar(&f.brokers, "brokers", 6, "simulated brokers")
	c.Flags().IntVar(&f.runs, "runs", 3, "how often; the median is printed")
	c.Flags().DurationVar(&f.grace, "grace", 100*time.Millisecond, "disconnect grace of the cluster")
	c.Flags().StringVar(&f.profile, "cpuprofile", "", "write a CPU profile of the measured part of each run to FILE.1, FILE.2, …")
	return c
}

// failoverSample is one run.
type failoverSample struct {
	affected, led           int
	leader, assignment, cpu time.Duration
	plain, plainCPU         time.Duration
}

func (b *bench) failover(ctx context.Context, f failoverFlags) error {
	if f.brokers < 4 || len(f.partitions) == 0 || slices.Min(f.partitions) < 1 || f.runs < 1 {
		return fmt.Errorf("at least 4 brokers, 1 partition and 1 run are needed")
	}
	for _, n := range f.partitions {
		if err := b.failoverOf(ctx, f, n); err != nil {
			return err
		}
	}
	return nil
}

// failoverOf measures with a number of partitions and prints the medians.
func (b *bench) failoverOf(ctx context.Context, f failoverFlags, partitions int) error {
	var all []failoverSample
	for run := range f.runs {
		profile := ""
		if f.profile != "" {
			profile = fmt.Sprintf("%s.%d", f.profile, run+1)
		}
		s, err := b.failoverOnce(ctx, f, partitions, profile)
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
	return b.print(result{Bench: "failover", Params: map[string]any{"partitions": partitions, "brokers": f.brokers, "controllers": f.controllers, "runs": f.runs, "grace_ms": ms(f.grace)},
		Figures: map[string]float64{"affected": float64(all[0].affected), "led": float64(all[0].led),
			"last_leader_ms":     median(func(s failoverSample) time.Duration { return s.leader }),
			"last_assignment_ms": median(func(s failoverSample) time.Duration { return s.assignment }),
			"work_ms":            work, "plain_ms": plain, "ratio": work / plain,
			"cpu_ms":       median(func(s failoverSample) time.Duration { return s.cpu }),
			"plain_cpu_ms": median(func(s failoverSample) time.Duration { return s.plainCPU })}})
}

func (b *bench) failoverOnce(ctx context.Context, f failoverFlags, partitions int, profile string) (failoverSample, error) {
	var out failoverSample
	dir, remove, err := tempDir()
	if err != nil {
		return out, err
	}
	defer remove()
	binary := ""
	if f.controllers > 0 {
		if binary, err = b.buildBinary(ctx, dir); err != nil {
			return out, err
		}
	}
	work, err := realFailover(ctx, f, partitions, realRun{dir: dir, binary: binary, profile: profile, sample: &out})
	if err != nil {
		return out, err
	}
	out.plain, out.plainCPU, err = plainFailover(ctx, filepath.Join(dir, "plain"), work)
	return out, err
}

// realRun says where one measured failover keeps its files, and where its figures go.
type realRun struct {
	dir, binary, profile string
	sample               *failoverSample
}

// realFailover kills a broker of a cluster, and returns what had to be stored and delivered because of it.
func realFailover(ctx context.Context, f failoverFlags, partitions int, r realRun) (plainWork, error) {
	settings := messages.DefaultSettings()
	settings.DisconnectGrace = f.grace
	c, err := startCluster(ctx, r.dir, clusterOptions{settings: settings, controllers: f.controllers, binary: r.binary})
	if err != nil {
		return plainWork{}, err
	}
	defer c.stop()
	brokers, err := startSimBrokers(ctx, c, f.brokers, &durations{})
	if err != nil {
		return plainWork{}, err
	}
	if err := createTopics(ctx, c, partitions); err != nil {
		return plainWork{}, err
	}
	victim := brokers[0]
	w, err := watchFailover(ctx, c, victim.id)
	if err != nil {
		return plainWork{}, err
	}
	defer w.nc.Close()
	stop, err := startProfile(r.profile)
	if err != nil {
		return plainWork{}, err
	}
	runtime.GC()
	began := time.Now()
	r.sample.cpu, err = cpuOf(func() error {
		victim.close()
		return w.wait(ctx)
	})
	stop()
	if err != nil {
		return plainWork{}, err
	}
	r.sample.affected, r.sample.led = w.affected, w.led
	r.sample.leader, r.sample.assignment = w.lastLeader.Sub(began), w.lastAssignment.Sub(began)
	records, err := failoverRecords(ctx, c, victim.id)
	return plainWork{records: records, assignments: w.final}, err
}

// failoverRecords returns the records of a failover as they were committed, before the new leaders confirmed.
func failoverRecords(ctx context.Context, c *cluster, victim messages.BrokerID) ([]*pb.Record, error) {
	list, err := c.client.Partitions(ctx, messages.ListQuery{Limit: 5000, Filter: map[string]string{"broker": string(victim)}})
	if err != nil {
		return nil, err
	}
	out := make([]*pb.Record, len(list))
	for i, v := range list {
		out[i] = messages.RecordToProto(&messages.Partition{ID: messages.PartitionID{Topic: v.TopicID, Index: v.Partition},
			Replicas: v.Replicas, ISR: v.ISR, Eligible: v.Eligible, Leader: v.Leader, LeaderEpoch: v.LeaderEpoch, Epoch: v.Epoch,
			MinISR: v.MinISR, LastLeader: v.LastLeader, HighWatermark: v.HighWatermark, LeaderProven: v.LeaderEpoch == 0, Reason: v.Reason})
	}
	return out, nil
}

// startProfile begins to write a CPU profile; the function that it returns ends it.
func startProfile(path string) (stop func(), err error) {
	if path == "" {
		return func() {}, nil
	}
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return func() {
		pprof.StopCPUProfile()
		_ = file.Close() // the profile is for a look, nothing rests on it
	}, nil
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

// awaited is a partition's assignment to one survivor.
type awaited struct {
	survivor  string
	partition messages.PartitionID
}

// failoverWatch follows the assignments of all survivors on a connection of its own.
type failoverWatch struct {
	nc     *nats.Conn
	victim string

	mu                         sync.Mutex
	affected, led              int
	assignments                map[awaited]bool              // that are still to come
	leaders                    map[messages.PartitionID]bool // partitions whose new leader is still to come
	lastLeader, lastAssignment time.Time
	final                      map[string][]*pb.Assignment // by survivor
	done                       chan struct{}
}

func watchFailover(ctx context.Context, c *cluster, victim messages.BrokerID) (*failoverWatch, error) {
	list, err := c.client.Partitions(ctx, messages.ListQuery{Limit: 5000, Filter: map[string]string{"broker": string(victim)}})
	if err != nil {
		return nil, err
	}
	w := &failoverWatch{victim: string(victim), assignments: map[awaited]bool{}, final: map[string][]*pb.Assignment{}, leaders: map[messages.PartitionID]bool{}, done: make(chan struct{})}
	for _, p := range list {
		key := messages.PartitionID{Topic: p.TopicID, Index: p.Partition}
		w.affected++
		if p.Leader == victim {
			w.led++
			w.leaders[key] = true
		}
		for _, r := range p.Replicas {
			if r != victim {
				w.assignments[awaited{string(r), key}] = true
			}
		}
	}
	if w.nc, err = c.connect(ctx, "bench-watch"); err != nil {
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
		key := messages.PartitionID{Topic: id, Index: a.GetPartition()}
		if waited := (awaited{batch.GetBroker(), key}); w.assignments[waited] {
			delete(w.assignments, waited)
			w.lastAssignment = now
			w.final[batch.GetBroker()] = append(w.final[batch.GetBroker()], a)
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
