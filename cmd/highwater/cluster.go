package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/highwater-io/highwater/client"
	"github.com/highwater-io/highwater/messages"
)

func (a *app) clusterCommand() *cobra.Command {
	c := &cobra.Command{Use: "cluster", Short: "Health and description of the cluster, backups, and the doctor of its NATS", Args: cobra.NoArgs}
	c.AddCommand(&cobra.Command{
		Use: "health", Short: "Is everything as it should be? Exits 0 when healthy, 10 when not", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				h, v, err := c.Health(ctx)
				if err != nil {
					return err
				}
				if err := a.print(v, healthTable(h, v)); err != nil {
					return err
				}
				if h.Status != "HEALTHY" {
					return errUnhealthy
				}
				return nil
			})
		},
	}, &cobra.Command{
		Use: "describe", Short: "Identity, settings, brokers and counts", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				o, v, err := c.Overview(ctx)
				if err != nil {
					return err
				}
				return a.print(v, describeTable(o, v))
			})
		},
	}, a.doctorCommand(), a.snapshotCommand(), a.recoverCommand(), a.upgradeCommand())
	return c
}

func healthTable(h messages.HealthView, v messages.View) rows {
	reasons := make([]string, len(h.Reasons))
	for i, r := range h.Reasons {
		reasons[i] = fmt.Sprintf("%s %d", r.Code, r.Count)
	}
	fenced := ""
	if len(h.Brokers.IDs) > 0 {
		fenced = "   fenced: " + joined(h.Brokers.IDs)
	}
	cells := [][]any{
		{"STATUS", fmt.Sprintf("%s   cluster %s   revision %d   as of %s", h.Status, v.Cluster, v.Revision, asOf(v.AsOf))},
		{"REASONS", orDash(strings.Join(reasons, " · "))},
		{"CONTROLLER", fmt.Sprintf("%s (epoch %d, %s)", orDash(h.Controller), v.ControllerEpoch, v.Role)},
		{"BROKERS", fmt.Sprintf("%d of %d active%s", h.Brokers.Active, h.Brokers.Total, fenced)},
		{"PARTITIONS", fmt.Sprintf("%d   offline %d   under min ISR %d   at min ISR %d   under-replicated %d   non-preferred leader %d",
			h.Partitions.Total, h.Partitions.Offline, h.Partitions.UnderMinISR, h.Partitions.AtMinISR, h.Partitions.UnderReplicated, h.Partitions.NonPreferred)},
	}
	if next := nextSteps(h); next != "" {
		cells = append(cells, []any{"NEXT", next})
	}
	return rows{cells: cells, names: []string{h.Status}}
}

// asOf shows when an answer was made and how long ago.
func asOf(text string) string {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return text
	}
	return fmt.Sprintf("%s (%.1f s ago)", t.Local().Format(time.TimeOnly), max(0, time.Since(t).Seconds()))
}

func nextSteps(h messages.HealthView) string {
	var next []string
	if h.Partitions.Offline > 0 {
		next = append(next, "highwater partition list --offline")
	} else if h.Partitions.UnderReplicated > 0 {
		next = append(next, "highwater partition list --under-replicated")
	}
	if len(h.Brokers.IDs) > 0 {
		next = append(next, "highwater broker describe "+string(h.Brokers.IDs[0]))
	}
	return strings.Join(next, "   ·   ")
}

func describeTable(o messages.OverviewView, v messages.View) rows {
	s := o.Settings
	cells := [][]any{
		{"CLUSTER", fmt.Sprintf("%s (id %s)", v.Cluster, o.Health.ClusterID)},
		{"STATUS", o.Health.Status},
		{"CONTROLLER", fmt.Sprintf("%s (epoch %d, %s)", orDash(o.Health.Controller), v.ControllerEpoch, v.Role)},
		{"TOPICS", o.Topics},
		{"PARTITIONS", o.Health.Partitions.Total},
		{"BROKERS", fmt.Sprintf("%d of %d active", o.Health.Brokers.Active, o.Health.Brokers.Total)},
		{"SETTINGS", fmt.Sprintf("session %s   heartbeat %s   disconnect grace %s   replica lag %s   leader ready %s   checkpoint %s",
			s.Session, s.Heartbeat, s.DisconnectGrace, s.ReplicaLag, s.LeaderReady, s.Checkpoint)},
		{"DEFAULTS", fmt.Sprintf("replication factor %d   min ISR %d   partitions per topic at most %d",
			s.DefaultReplicationFactor, s.DefaultMinISR, s.MaxPartitionsPerTopic)},
	}
	for _, b := range o.Brokers {
		cells = append(cells, []any{"BROKER " + string(b.ID), fmt.Sprintf("%s   rack %s   leads %d   holds %d", b.State, orDash(string(b.Rack)), b.Leaders, b.Replicas)})
	}
	return rows{cells: cells, names: []string{string(v.Cluster)}}
}

func (a *app) partitionCommand() *cobra.Command {
	c := &cobra.Command{Use: "partition", Short: "Partitions: who leads, who follows, what is missing", Args: cobra.NoArgs}
	var topic, broker, rack string
	flags := map[string]*bool{"under-replicated": new(bool), "under-min-isr": new(bool), "offline": new(bool), "non-preferred": new(bool)}
	list := &cobra.Command{
		Use: "list", Short: "List partitions, the worst first", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			filter := map[string]string{}
			for k, v := range map[string]string{"topic": topic, "broker": broker, "rack": rack} {
				if v != "" {
					filter[k] = v
				}
			}
			for name, on := range flags {
				if *on {
					filter[strings.ReplaceAll(name, "-", "_")] = "true"
				}
			}
			return a.withClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				p, err := c.Partitions(ctx, messages.ListQuery{Filter: filter})
				if err != nil {
					return err
				}
				slices.SortStableFunc(p, func(a, b messages.PartitionView) int { return cmp.Compare(severity(a), severity(b)) })
				return a.print(orEmpty(p), partitionTable(p))
			})
		},
	}
	f := list.Flags()
	f.StringVar(&topic, "topic", "", "only this topic")
	f.StringVar(&broker, "broker", "", "only partitions with a replica on this broker")
	f.StringVar(&rack, "rack", "", "only partitions with a replica in this rack")
	for name, on := range flags {
		f.BoolVar(on, name, false, "only partitions that are "+strings.ReplaceAll(name, "-", " "))
	}
	c.AddCommand(list, &cobra.Command{
		Use: "describe TOPIC PARTITION", Short: "Everything that is known of one partition", Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			index, err := parseIndex(args[1])
			if err != nil {
				return err
			}
			return a.withClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				p, err := c.Partition(ctx, messages.TopicName(args[0]), index)
				if err != nil {
					return err
				}
				return a.print(p, describePartition(p))
			})
		},
	})
	return c
}

// severity orders partitions, the worst first.
func severity(p messages.PartitionView) int {
	switch {
	case p.State == "offline":
		return 0
	case p.State == "under_min_isr":
		return 1
	case p.State == "under_replicated":
		return 2
	case p.RackViolation:
		return 3
	}
	return 4
}

func parseIndex(s string) (int32, error) {
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || n < 0 {
		return 0, usage("%q is no partition number", s)
	}
	return int32(n), nil
}

func partitionTable(list []messages.PartitionView) rows {
	t := rows{header: []string{"topic", "partition", "state", "leader", "epoch", "replicas", "isr", "missing"},
		wide: []string{"eligible", "partition epoch", "min isr", "high watermark", "reason"}}
	for _, p := range list {
		t.cells = append(t.cells, []any{p.Topic, p.Partition, p.State, orDash(string(p.Leader)), p.LeaderEpoch, marked(p.Replicas, p.Leader),
			joined(p.ISR), joined(p.Missing), joined(p.Eligible), p.Epoch, p.MinISR, p.HighWatermark, orDash(p.Reason)})
		t.names = append(t.names, fmt.Sprintf("%s/%d", p.Topic, p.Partition))
	}
	return t
}

func describePartition(p messages.PartitionView) rows {
	return rows{names: []string{fmt.Sprintf("%s/%d", p.Topic, p.Partition)}, cells: [][]any{
		{"PARTITION", fmt.Sprintf("%s/%d (topic id %s)", p.Topic, p.Partition, p.TopicID)},
		{"STATE", p.State},
		{"LEADER", fmt.Sprintf("%s   leader epoch %d   proven %t   last leader %s", orDash(string(p.Leader)), p.LeaderEpoch, p.LeaderProven, orDash(string(p.LastLeader)))},
		{"REPLICAS", marked(p.Replicas, p.Leader)},
		{"ISR", fmt.Sprintf("%s   min ISR %d", joined(p.ISR), p.MinISR)},
		{"MISSING", joined(p.Missing)},
		{"ELIGIBLE", joined(p.Eligible)},
		{"EPOCH", p.Epoch},
		{"HIGH WATERMARK", fmt.Sprintf("%d (as last journaled)", p.HighWatermark)},
		{"RACK VIOLATION", p.RackViolation},
		{"REASON", orDash(p.Reason)},
	}}
}

// orEmpty makes an empty list of a nil one, so that JSON has [] and not null.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

func age(ms *int64) string {
	if ms == nil {
		return "-"
	}
	return (time.Duration(*ms) * time.Millisecond).String()
}
