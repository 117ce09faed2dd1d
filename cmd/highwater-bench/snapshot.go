package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

type snapshotFlags struct {
	partitions  []int
	controllers int
	every       int
	snapshots   int
}

func (b *bench) snapshotCommand() *cobra.Command {
	f := snapshotFlags{}
	c := &cobra.Command{
		Use: "snapshot", Short: "What a snapshot takes, and the longest pause of commits meanwhile", Args: cobra.NoArgs,
		Long: `One client makes one topic after the other while the controller takes snapshots. Measured: the time of a snapshot until it is
stored and read back (snapshot_ms), the longest time between two answers to the client while one was being taken (pause_max_ms),
and the longest time for which the snapshot itself kept commits from the catalog (held_ms).

Limits, measured in the same run: between_max_ms and between_p50_ms are the times between two answers while no snapshot was
being taken; encode_ms is the time to encode as many records in this process, without storing them, and marshal_ms
to encode them as one entry each.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return b.snapshot(cmd.Context(), f) },
	}
	c.Flags().IntSliceVar(&f.partitions, "partitions", []int{1_000, 10_000, 100_000}, "partitions of the cluster; one result for each number")
	c.Flags().IntVar(&f.controllers, "controllers", 1, "controller processes")
	c.Flags().IntVar(&f.every, "every", 500, "entries of the journal between two snapshots")
	c.Flags().IntVar(&f.snapshots, "snapshots", 3, "snapshots that are waited for")
	return c
}

func (b *bench) snapshot(ctx context.Context, f snapshotFlags) error {
	if f.controllers < 1 || f.every < 1 || f.snapshots < 1 {
		return errors.New("at least 1 controller, 1 entry and 1 snapshot are needed")
	}
	for _, n := range f.partitions {
		if err := b.snapshotOf(ctx, f, n); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) snapshotOf(ctx context.Context, f snapshotFlags, partitions int) error {
	dir, remove, err := tempDir()
	if err != nil {
		return err
	}
	defer remove()
	c, err := b.startControllers(ctx, dir, f.controllers, "--snapshot-entries", strconv.Itoa(f.every))
	if err != nil {
		return err
	}
	defer c.stop()
	if _, err := startSimBrokers(ctx, c, 6, &durations{}); err != nil {
		return err
	}
	if err := createTopics(ctx, c, partitions); err != nil {
		return err
	}
	active, err := c.processes.steady(ctx, c.nc, c.client)
	if err != nil {
		return err
	}
	commits, taken, err := commitDuring(ctx, c, c.processes.named(active), f.snapshots)
	if err != nil {
		return err
	}
	during, between, gaps := &durations{}, &durations{}, 0
	for i := 1; i < len(commits); i++ {
		if taken.overlap(commits[i-1], commits[i]) {
			during.add(commits[i].Sub(commits[i-1]))
			gaps++
		} else {
			between.add(commits[i].Sub(commits[i-1]))
		}
	}
	encode, marshal, err := plainEncoding(partitions)
	if err != nil {
		return err
	}
	return b.print(result{Bench: "snapshot", Params: map[string]any{"partitions": partitions, "controllers": f.controllers, "snapshots": len(taken)},
		Figures: map[string]float64{"snapshot_ms": taken.of(func(s shot) float64 { return ms(s.took) }), "bytes": taken.of(func(s shot) float64 { return s.bytes }),
			"held_ms": taken.of(func(s shot) float64 { return s.held }), "pause_max_ms": during.quantile(1), "pause_p50_ms": during.quantile(0.5),
			"commits_meanwhile": float64(gaps), "between_max_ms": between.quantile(1), "between_p50_ms": between.quantile(0.5),
			"encode_ms": ms(encode), "marshal_ms": ms(marshal)}})
}

// shot is one snapshot that a controller has taken.
type shot struct {
	ended time.Time
	took  time.Duration
	held  float64
	bytes float64
}

type shots []shot

// overlap reports whether one of them was being taken at some time between two moments.
func (s shots) overlap(from, to time.Time) bool {
	for _, x := range s {
		if from.Before(x.ended) && to.After(x.ended.Add(-x.took)) {
			return true
		}
	}
	return false
}

func (s shots) of(what func(shot) float64) float64 {
	var all []float64
	for _, x := range s {
		all = append(all, what(x))
	}
	return median(all)
}

// commitDuring lets one client commit, one request after the other, until some snapshots have been taken, and returns when
// the answers came.
func commitDuring(ctx context.Context, c *cluster, active *child, n int) ([]time.Time, shots, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	from := active.logSize()
	var commits []time.Time
	var taken shots
	looked := time.Now()
	for i := 0; len(taken) < n; i++ {
		if _, err := c.client.CreateTopic(ctx, &pb.CreateTopicRequest{Name: fmt.Sprintf("commit%d", i), Partitions: 1}); err != nil {
			return nil, nil, err
		}
		now := time.Now()
		commits = append(commits, now)
		if now.Sub(looked) < 5*time.Millisecond {
			continue
		}
		looked = now
		lines, err := active.logged("snapshot taken and read back", from)
		if err != nil {
			return nil, nil, err
		}
		for _, l := range lines[min(len(taken), len(lines)):] {
			number := func(key string) float64 { f, _ := l[key].(float64); return f } // 0 if the log has another form
			taken = append(taken, shot{ended: now, took: time.Duration(number("took") * 1e6), held: number("commits_held"), bytes: number("bytes")})
		}
	}
	return commits, taken, nil
}

// plainEncoding is how long it takes to encode the records of partitions as a snapshot, and one by one.
func plainEncoding(partitions int) (snapshot, single time.Duration, err error) {
	brokers := []messages.BrokerID{"s0", "s1", "s2"}
	records := []messages.Record{&messages.Cluster{Name: benchCluster, ID: "x", Settings: messages.DefaultSettings(), Store: "x"},
		&messages.Topic{ID: messages.TopicID{1}, Name: "t", Partitions: partitions}}
	for i := range partitions {
		records = append(records, &messages.Partition{ID: messages.PartitionID{Topic: messages.TopicID{1}, Index: int32(i)}, Replicas: brokers, ISR: brokers,
			Leader: "s0", LeaderEpoch: 1, Epoch: 1, MinISR: 2, LeaderProven: true})
	}
	catalog := journal.NewCatalog()
	catalog.ApplyAt(journal.Position{Last: 1, Chain: [32]byte{1}}, records)
	began := time.Now()
	view, err := catalog.Pin()
	if err != nil {
		return 0, 0, err
	}
	defer view.Close()
	e := journal.NewEncoder(view, began.UnixMilli())
	for !e.Over() {
		if _, err := e.Next(); err != nil {
			return 0, 0, err
		}
	}
	snapshot = time.Since(began)
	began = time.Now()
	for _, r := range records {
		if _, err := proto.Marshal(messages.RecordToProto(r)); err != nil {
			return 0, 0, err
		}
	}
	return snapshot, time.Since(began), nil
}
