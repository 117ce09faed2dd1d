package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/highwater-io/highwater/client"
	"github.com/highwater-io/highwater/messages"
)

// controllerState is ok, or why the controller must not become active.
func controllerState(c messages.ControllerView) string {
	if c.Unfit != "" {
		return "UNFIT: " + printable(c.Unfit)
	}
	if c.Silent {
		return "silent"
	}
	return "ok"
}

func (a *app) controllerCommand() *cobra.Command {
	c := &cobra.Command{Use: "controller", Short: "Which controller is active, and which stand by", Args: cobra.NoArgs}
	c.AddCommand(&cobra.Command{
		Use: "list", Short: "List the controller processes", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				list, err := c.Controllers(ctx)
				if err != nil {
					return err
				}
				t := rows{header: []string{"name", "role", "epoch", "applied", "heard", "versions", "state", "url"}}
				for _, x := range list {
					heard := (time.Duration(x.AgeMs) * time.Millisecond).String() + " ago"
					t.cells = append(t.cells, []any{x.Name, x.Role, x.ControllerEpoch, x.Applied, heard, x.Versions, controllerState(x), orDash(x.URL)})
					t.names = append(t.names, x.Name)
				}
				return a.print(list, t)
			})
		},
	}, &cobra.Command{
		Use: "step-down", Short: "Have the active controller hand over to a standby", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				from, to, err := c.StepDown(ctx)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(a.out, "%s hands over to %s\n", from, to)
				return err
			})
		},
	})
	return c
}
