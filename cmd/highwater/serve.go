package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/highwater-io/highwater/controller"
)

// serveCommand takes its configuration from defaults, a file, the environment and flags; config.go.
func (a *app) serveCommand() *cobra.Command {
	var file string
	var show, child bool
	c := &cobra.Command{
		Use: "serve", Short: "Run a controller until SIGTERM", Args: cobra.NoArgs,
		Long: `Run one controller with an embedded NATS server (or, with --nats-url, on servers elsewhere). With --cluster-listen and
--routes three of them form a cluster: one is active, the others stand by and take over.

Each value comes from the last of: its default, the file of --config, the environment (HIGHWATER_ and the key, for example
HIGHWATER_DATA_DIR; HIGHWATER_SETTINGS__SESSION for a key within another), the flag. --print-config shows every value and
where it came from. Behind those, NATS elsewhere is reached by NATS's own variables (NATS_URL, NATS_CREDS, …) and contexts; without
--data-dir, NATS_URL or NATS_CONTEXT are enough to use it.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			loaded, err := loadConfig(file, cmd.Flags())
			if err != nil {
				return err
			}
			if show {
				_, _ = loaded.controller() // which adds what NATS's variables say; what is wrong is shown and not refused
				return loaded.print(a)
			}
			cfg, err := loaded.controller()
			if err != nil {
				return err
			}
			a.cluster = string(cfg.Cluster)
			log := a.logger()
			cfg.Logger = &log
			ctx := cmd.Context()
			if child {
				var cancel context.CancelFunc
				ctx, cancel = a.childContext(ctx)
				defer cancel()
			}
			return a.serve(ctx, cfg)
		},
	}
	f := c.Flags()
	f.StringVar(&file, "config", "", "YAML file with the same keys")
	f.BoolVar(&show, "print-config", false, "print each value and where it came from, and end")
	f.BoolVar(&child, "child", false, "end in order when standard input ends, and leave interrupts to the parent")
	f.Lookup("child").Hidden = true
	configFlags(f)
	return c
}

func (a *app) serve(ctx context.Context, cfg controller.Config) error {
	if cfg.InsecureNoAuth && cfg.NATSURL == "" {
		cfg.Logger.Warn().Str("listen", cfg.Listen).Msg("there is no authentication: whoever reaches this address can do everything")
	}
	c, err := controller.Start(ctx, cfg)
	if err != nil && ctx.Err() != nil {
		cfg.Logger.Info().Err(err).Msg("stopped before it was ready")
		return nil
	}
	if err != nil {
		if cfg.NATSURL == "" {
			err = errNotRunning{err}
		}
		return err
	}
	select {
	case <-c.Done():
		return errNotRunning{c.Err()}
	case <-ctx.Done():
	}
	return stopController(ctx, c)
}

// stopController stops a controller in order, within shutdownTime.
func stopController(ctx context.Context, c *controller.Controller) error {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTime)
	defer cancel()
	if err := c.Stop(bounded); err != nil {
		return errNotRunning{fmt.Errorf("the controller did not stop in order: %w", err)}
	}
	return nil
}
