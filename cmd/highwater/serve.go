package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/highwater-io/highwater/controller"
	"github.com/highwater-io/highwater/messages"
)

// serveCommand takes its configuration from defaults, a file, the environment and flags; config.go.
func (a *app) serveCommand() *cobra.Command {
	var file string
	var show bool
	c := &cobra.Command{
		Use: "serve", Short: "Run a controller until SIGTERM", Args: cobra.NoArgs,
		Long: `Run one controller with an embedded NATS server (or, with --nats-url, on servers elsewhere). With --cluster-listen and
--routes three of them form a cluster: one is active, the others stand by and take over.

Each value comes from the last of: its default, the file of --config, the environment (HIGHWATER_ and the key, for example
HIGHWATER_DATA_DIR; HIGHWATER_SETTINGS__SESSION for a key within another), the flag. --print-config shows every value and
where it came from.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			loaded, err := loadConfig(file, cmd.Flags())
			if err != nil {
				return err
			}
			if show {
				return loaded.print(a)
			}
			cfg, err := loaded.controller()
			if err != nil {
				return err
			}
			a.cluster = string(cfg.Cluster)
			log := a.logger()
			cfg.Logger = &log
			return a.serve(cmd.Context(), cfg)
		},
	}
	f := c.Flags()
	f.StringVar(&file, "config", "", "YAML file with the same keys")
	f.BoolVar(&show, "print-config", false, "print each value and where it came from, and end")
	configFlags(f)
	return c
}

func (a *app) serve(ctx context.Context, cfg controller.Config) error {
	c, err := controller.Start(ctx, cfg)
	if err != nil {
		return err
	}
	select {
	case <-c.Done():
		return c.Err()
	case <-ctx.Done():
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTime)
	defer cancel()
	go func() {
		secondSignal(bounded)
		cancel()
	}()
	if err := c.Stop(bounded); err != nil {
		return fmt.Errorf("the controller did not stop in order: %w", err)
	}
	return nil
}

// settingsFrom returns the defaults with what the configuration changes.
func settingsFrom(k map[string]time.Duration, replication, minISR int) messages.Settings {
	s := messages.DefaultSettings()
	for name, field := range map[string]*time.Duration{"heartbeat": &s.Heartbeat, "session": &s.Session, "disconnect_grace": &s.DisconnectGrace,
		"leader_ready": &s.LeaderReady, "replica_lag": &s.ReplicaLag, "checkpoint": &s.Checkpoint} {
		if d, ok := k[name]; ok {
			*field = d
		}
	}
	s.DefaultReplicationFactor, s.DefaultMinISR = replication, minISR
	return s
}
