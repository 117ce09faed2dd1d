package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/highwater-io/highwater/client"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

func (a *app) upgradeCommand() *cobra.Command {
	c := &cobra.Command{Use: "upgrade", Short: "The version of the cluster, and who knows which", Args: cobra.NoArgs}
	c.AddCommand(&cobra.Command{
		Use: "status", Short: "Which version is finalized, and what is in the way of the next", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				u, v, err := c.Upgrade(ctx)
				if err != nil {
					return err
				}
				return a.print(v, upgradeTable(u))
			})
		},
	}, a.upgradeFinalize())
	return c
}

func upgradeTable(u messages.UpgradeView) rows {
	var controllers []string
	for _, c := range u.Controllers {
		controllers = append(controllers, fmt.Sprintf("%s %s", c.Name, c.Versions))
	}
	var brokers []string
	for _, v := range slices.Sorted(maps.Keys(u.Brokers)) {
		brokers = append(brokers, fmt.Sprintf("%d up to %d", u.Brokers[v], v))
	}
	cells := [][]any{
		{"STATE", u.State},
		{"FINALIZED", u.Version},
		{"TARGET", u.Target},
		{"CONTROLLERS", orDash(strings.Join(controllers, "   "))},
		{"BROKERS", orDash(strings.Join(brokers, "   "))},
	}
	for _, b := range u.Blockers {
		cells = append(cells, []any{"BLOCKER", fmt.Sprintf("%s %s knows %s: %s", b.Kind, b.Name, b.Versions, b.Detail)})
	}
	if u.State == "READY" {
		cells = append(cells, []any{"NEXT", "highwater cluster upgrade finalize"})
	}
	return rows{cells: cells, names: []string{u.State}}
}

// finalizedView is what finalizing an upgrade has done.
type finalizedView struct {
	From     uint32            `json:"from"`
	To       uint32            `json:"to"`
	Revision messages.Sequence `json:"revision"`
	DryRun   bool              `json:"dry_run"`
	Changed  bool              `json:"changed"`
}

func (a *app) upgradeFinalize() *cobra.Command {
	var to uint32
	var dryRun, yes bool
	c := &cobra.Command{
		Use: "finalize", Short: "Raise the version of the cluster; there is no way back", Args: cobra.NoArgs,
		Long: `Raise the version of the cluster, to the highest that the active controller knows unless --to names one. From then on what
later versions have brought is written, and builds that do not know the version are refused for good. Until then every process
may be run with the build before. It is refused while a controller or a broker is there that does not know the version.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !yes && !dryRun && !a.confirmed("After this the builds before cannot be run any more. Type finalize to confirm: ", "finalize") {
				return usage("finalizing an upgrade cannot be taken back; confirm with --yes")
			}
			return a.withClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				if to == 0 {
					u, _, err := c.Upgrade(ctx)
					if err != nil {
						return err
					}
					to = uint32(u.Target)
				}
				out, err := c.FinalizeUpgrade(ctx, &pb.FinalizeUpgradeRequest{Version: to, DryRun: dryRun})
				if err != nil {
					return err
				}
				v := finalizedView{From: out.GetFrom(), To: out.GetTo(), Revision: messages.Sequence(out.GetRevision()), DryRun: dryRun,
					Changed: out.GetFrom() != out.GetTo() && !dryRun}
				return a.print(v, rows{header: []string{"from", "to", "changed"}, cells: [][]any{{v.From, v.To, v.Changed}},
					names: []string{fmt.Sprint(v.To)}})
			})
		},
	}
	f := c.Flags()
	f.Uint32Var(&to, "to", 0, "the version; 0 is the highest that the active controller knows")
	f.BoolVar(&dryRun, "dry-run", false, "say whether it could be done, change nothing")
	f.BoolVarP(&yes, "yes", "y", false, "confirm")
	return c
}

func (a *app) brokerForget() *cobra.Command {
	var dryRun, yes bool
	c := &cobra.Command{
		Use: "forget BROKER", Short: "End the registration of a broker that is gone for good", Args: cobra.ExactArgs(1),
		Long: `End the registration of a broker that is gone for good. It is refused while the broker may be alive, and while it has replicas.
A broker that returns under the id later is a new one.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !yes && !dryRun && !a.confirmed("This ends the registration of broker "+printable(args[0])+". Type its id to confirm: ", args[0]) {
				return usage("forgetting broker %s ends its registration; confirm with --yes", args[0])
			}
			return a.withClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				revision, err := c.ForgetBroker(ctx, messages.BrokerID(args[0]), dryRun)
				if err != nil {
					return err
				}
				return a.print(map[string]any{"id": args[0], "revision": revision, "dry_run": dryRun},
					rows{header: []string{"broker", "forgotten"}, cells: [][]any{{args[0], !dryRun}}, names: []string{args[0]}})
			})
		},
	}
	c.Flags().BoolVar(&dryRun, "dry-run", false, "validate only")
	c.Flags().BoolVarP(&yes, "yes", "y", false, "confirm")
	return c
}
