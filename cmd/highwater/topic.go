package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/highwater-io/highwater/client"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

func (a *app) topicCommand() *cobra.Command {
	c := &cobra.Command{Use: "topic", Short: "Create, list, describe and delete topics", Args: cobra.NoArgs}
	c.AddCommand(a.topicCreate(), a.topicList(), a.topicDescribe(), a.topicDelete())
	return c
}

func (a *app) topicCreate() *cobra.Command {
	r := &pb.CreateTopicRequest{}
	var assignment string
	var labels map[string]string
	c := &cobra.Command{
		Use: "create TOPIC", Short: "Make a topic; answers when it is committed", Args: cobra.ExactArgs(1),
		Example: "  highwater topic create orders --partitions 12\n  highwater topic create audit --assignment b1,b2,b3:b2,b3,b1",
		RunE: func(cmd *cobra.Command, args []string) error {
			r.Name, r.Labels = args[0], labels
			if assignment != "" {
				if cmd.Flags().Changed("partitions") || cmd.Flags().Changed("replication-factor") {
					return usage("--assignment says the partitions and the replication factor already")
				}
				r.Partitions, r.Assignment = 0, parseAssignment(assignment)
			}
			return a.withClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				out, err := c.CreateTopic(ctx, r)
				if err != nil {
					return err
				}
				for _, w := range out.GetWarnings() {
					fmt.Fprintf(a.err, "warning: %s\n", w)
				}
				return a.print(created(out), createdTable(out, r.GetDryRun(), a.verbose))
			})
		},
	}
	f := c.Flags()
	f.Uint32VarP(&r.Partitions, "partitions", "p", 1, "number of partitions")
	f.Uint32VarP(&r.ReplicationFactor, "replication-factor", "r", 0, "replicas of each partition; 0: the cluster's default")
	f.Uint32Var(&r.MinIsr, "min-isr", 0, "in-sync replicas that acks=all needs; 0: the cluster's default")
	f.StringToStringVar(&labels, "label", nil, "label of the topic, key=value; may be repeated")
	f.StringVar(&assignment, "assignment", "", "replicas by hand: brokers with ',' between them, partitions with ':'")
	f.BoolVar(&r.DryRun, "dry-run", false, "validate and place, store nothing")
	return c
}

func parseAssignment(s string) []*pb.ReplicaList {
	var out []*pb.ReplicaList
	for _, p := range strings.Split(s, ":") {
		out = append(out, &pb.ReplicaList{Brokers: strings.Split(p, ",")})
	}
	return out
}

type createdTopic struct {
	ID          string             `json:"id"`
	Name        string             `json:"name"`
	Revision    uint64             `json:"revision"`
	Partitions  []createdPartition `json:"partitions"`
	Warnings    []string           `json:"warnings"`
	Explanation []string           `json:"explanation"`
}

type createdPartition struct {
	Partition int32    `json:"partition"`
	Leader    string   `json:"leader"`
	Replicas  []string `json:"replicas"`
}

func created(out *pb.CreateTopicResponse) createdTopic {
	t := createdTopic{Name: out.GetName(), Revision: out.GetRevision(), Warnings: orEmpty(out.GetWarnings()), Explanation: orEmpty(out.GetExplanation())}
	if id, err := messages.ParseTopicID(out.GetTopicId()); err == nil {
		t.ID = id.String()
	}
	for _, p := range out.GetPartitions() {
		t.Partitions = append(t.Partitions, createdPartition{Partition: p.GetPartition(), Leader: p.GetLeader(), Replicas: p.GetReplicas()})
	}
	return t
}

func createdTable(out *pb.CreateTopicResponse, dryRun, explain bool) rows {
	t := rows{header: []string{"topic", "partition", "leader", "replicas"}, names: []string{out.GetName()}}
	if dryRun {
		t.header[0] = "topic (dry run)"
	}
	for _, p := range out.GetPartitions() {
		t.cells = append(t.cells, []any{out.GetName(), p.GetPartition(), p.GetLeader(), strings.Join(p.GetReplicas(), ",")})
	}
	if explain {
		for _, line := range out.GetExplanation() {
			t.cells = append(t.cells, []any{"", "", "", line})
		}
	}
	return t
}

func (a *app) topicList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List topics", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				list, err := c.Topics(ctx, messages.ListQuery{})
				if err != nil {
					return err
				}
				t := rows{header: []string{"topic", "partitions", "replication", "min isr", "offline", "under-replicated"}, wide: []string{"id", "created", "labels"}}
				for _, x := range list {
					t.cells = append(t.cells, []any{x.Name, x.Partitions, x.ReplicationFactor, x.MinISR, x.Counts.Offline, x.Counts.UnderReplicated,
						x.ID, time.UnixMilli(x.CreatedUnixMs).UTC().Format(time.RFC3339), labelText(x.Labels)})
					t.names = append(t.names, string(x.Name))
				}
				return a.print(orEmpty(list), t)
			})
		},
	}
}

func labelText(labels map[string]string) string {
	if len(labels) == 0 {
		return "-"
	}
	raw, err := json.Marshal(labels) // sorted by key
	if err != nil {
		return "-"
	}
	return string(raw)
}

func (a *app) topicDescribe() *cobra.Command {
	return &cobra.Command{
		Use: "describe TOPIC", Short: "One topic with its partitions", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				t, err := c.Topic(ctx, messages.TopicName(args[0]))
				if err != nil {
					return err
				}
				return a.print(t, partitionTable(t.Detail))
			})
		},
	}
}

func (a *app) topicDelete() *cobra.Command {
	var dryRun, yes bool
	c := &cobra.Command{
		Use: "delete TOPIC", Short: "Delete a topic and what brokers hold of it", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !yes && !dryRun {
				return usage("deleting topic %s deletes its records; confirm with --yes", args[0])
			}
			return a.withClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				out, err := c.DeleteTopic(ctx, &pb.DeleteTopicRequest{Name: args[0], DryRun: dryRun})
				if err != nil {
					return err
				}
				id, err := messages.ParseTopicID(out.GetTopicId())
				if err != nil {
					return err
				}
				return a.print(map[string]any{"name": args[0], "id": id, "revision": out.GetRevision(), "dry_run": dryRun},
					rows{header: []string{"topic", "id", "deleted"}, cells: [][]any{{args[0], id, !dryRun}}, names: []string{args[0]}})
			})
		},
	}
	c.Flags().BoolVar(&dryRun, "dry-run", false, "validate only")
	c.Flags().BoolVarP(&yes, "yes", "y", false, "confirm")
	return c
}
