package main

import (
	"bufio"
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
					fmt.Fprintf(a.err, "warning: %s\n", printable(w))
				}
				if a.verbose {
					for _, line := range out.GetExplanation() {
						fmt.Fprintf(a.err, "placed: %s\n", printable(line))
					}
				}
				return a.print(created(out, r.GetDryRun()), createdTable(out, r.GetDryRun()))
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
		brokers := strings.Split(p, ",")
		for i := range brokers {
			brokers[i] = strings.TrimSpace(brokers[i])
		}
		out = append(out, &pb.ReplicaList{Brokers: brokers})
	}
	return out
}

type createdTopic struct {
	ID          string             `json:"id"`
	Name        string             `json:"name"`
	Revision    uint64             `json:"revision"`
	DryRun      bool               `json:"dry_run"`
	Partitions  []createdPartition `json:"partitions"`
	Warnings    []string           `json:"warnings"`
	Explanation []string           `json:"explanation"`
}

type createdPartition struct {
	Partition int32    `json:"partition"`
	Leader    string   `json:"leader"`
	Replicas  []string `json:"replicas"`
}

func created(out *pb.CreateTopicResponse, dryRun bool) createdTopic {
	t := createdTopic{Name: out.GetName(), Revision: out.GetRevision(), DryRun: dryRun, Partitions: []createdPartition{}, Warnings: orEmpty(out.GetWarnings()), Explanation: orEmpty(out.GetExplanation())}
	if id, err := messages.ParseTopicID(out.GetTopicId()); err == nil {
		t.ID = id.String()
	}
	for _, p := range out.GetPartitions() {
		t.Partitions = append(t.Partitions, createdPartition{Partition: p.GetPartition(), Leader: p.GetLeader(), Replicas: p.GetReplicas()})
	}
	return t
}

func createdTable(out *pb.CreateTopicResponse, dryRun bool) rows {
	t := rows{header: []string{"topic", "partition", "leader", "replicas"}, names: []string{out.GetName()}}
	if dryRun {
		t.header[0] = "topic (dry run)"
	}
	for _, p := range out.GetPartitions() {
		t.cells = append(t.cells, []any{out.GetName(), p.GetPartition(), p.GetLeader(), strings.Join(p.GetReplicas(), ",")})
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
				if a.output == "table" || a.output == "wide" {
					if err := a.print(nil, describeTopic(t)); err != nil {
						return err
					}
				}
				list := partitionTable(t.Detail)
				list.names = []string{string(t.Name)}
				if err := a.print(t, list); err != nil {
					return err
				}
				if t.DetailRemaining > 0 {
					fmt.Fprintf(a.err, "and %d more: highwater partition list --topic %s\n", t.DetailRemaining, t.Name)
				}
				return nil
			})
		},
	}
}

func describeTopic(t messages.TopicView) rows {
	return rows{cells: [][]any{
		{"TOPIC", fmt.Sprintf("%s   id %s", t.Name, t.ID)},
		{"PARTITIONS", fmt.Sprintf("%d   replication factor %d   min ISR %d", t.Partitions, t.ReplicationFactor, t.MinISR)},
		{"LABELS", labelText(t.Labels)},
		{"CREATED", time.UnixMilli(t.CreatedUnixMs).UTC().Format(time.RFC3339)},
	}}
}

func (a *app) topicDelete() *cobra.Command {
	var dryRun, yes bool
	c := &cobra.Command{
		Use: "delete TOPIC", Short: "Delete a topic and what brokers hold of it", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !yes && !dryRun && !a.confirmed("This deletes the records of topic "+printable(args[0])+". Type its name to confirm: ", args[0]) {
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

// confirmed asks a person on a terminal to type a word. Nobody else is asked.
func (a *app) confirmed(prompt, word string) bool {
	if !isTerminal(a.in) || !isTerminal(a.err) {
		return false
	}
	fmt.Fprint(a.err, prompt)
	line, err := bufio.NewReader(a.in).ReadString('\n')
	return err == nil && strings.TrimSpace(line) == word
}
