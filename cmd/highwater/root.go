package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"
	"github.com/synadia-io/orbit.go/natscontext"

	"github.com/highwater-io/highwater/client"
	"github.com/highwater-io/highwater/messages"
)

// streams are what a command reads and writes: results go to out, everything else to err.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// app is what all commands share.
type app struct {
	streams
	server    string
	context   string
	creds     string
	cluster   string
	timeout   time.Duration
	output    string
	noHeaders bool
	verbose   bool
}

// run runs one command line and returns its exit code.
func run(ctx context.Context, args []string, s streams) int {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	a := &app{streams: s}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(s.in)
	root.SetOut(s.out)
	root.SetErr(s.err)
	return a.exit(ctx, root.ExecuteContext(ctx))
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "highwater",
		Short: "Cluster manager for partitioned, replicated logs",
		Long: `Highwater keeps the registry of brokers and topics of a cluster, gives every partition a leader and followers on
different brokers and racks, and elects a new leader when one fails, without losing an acknowledged record.

Start here:  highwater dev`,
		SilenceUsage: true, SilenceErrors: true,
	}
	f := root.PersistentFlags()
	f.StringVarP(&a.server, "server", "s", env("NATS_URL", nats.DefaultURL), "NATS server URL (also NATS_URL)")
	f.StringVar(&a.context, "context", env("NATS_CONTEXT", ""), "NATS context to connect with (also NATS_CONTEXT)")
	f.StringVar(&a.creds, "creds", env("NATS_CREDS", ""), "NATS credentials file (also NATS_CREDS)")
	f.StringVarP(&a.cluster, "cluster", "c", env("HIGHWATER_CLUSTER", "dev"), "cluster name (also HIGHWATER_CLUSTER)")
	f.DurationVar(&a.timeout, "timeout", 10*time.Second, "bound of one request")
	f.StringVarP(&a.output, "output", "o", "table", "table, wide, json, yaml or name")
	f.BoolVar(&a.noHeaders, "no-headers", false, "tables without their first line")
	f.BoolVarP(&a.verbose, "verbose", "v", false, "more log lines on standard error")
	root.PersistentPreRunE = func(*cobra.Command, []string) error { return checkOutput(a.output) }
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage("%v", err) })
	root.AddCommand(a.serveCommand(), a.brokerCommand(), a.devCommand(), a.clusterCommand(), a.controllerCommand(), a.topicCommand(), a.partitionCommand(),
		a.produceCommand(), a.consumeCommand(), a.versionCommand(), a.errorsCommand())
	return root
}

func env(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}

// connect connects to NATS by context file or URL. It fails at once when nobody listens.
func (a *app) connect(name string) (*nats.Conn, error) {
	opts := client.ConnectOptions(name)
	if a.creds != "" {
		opts = append(opts, nats.UserCredentials(a.creds))
	}
	var nc *nats.Conn
	var err error
	if a.context != "" {
		nc, _, err = natscontext.Connect(a.context, opts...)
	} else {
		nc, err = nats.Connect(a.server, opts...)
	}
	if err != nil {
		where := a.server
		if a.context != "" {
			where = "context " + a.context
		}
		return nil, messages.Errorf(messages.CodeUnavailable, "cannot connect to NATS at %s: %v", where, err).
			WithHint("is the cluster running? `highwater dev` starts one; --server or NATS_URL names another address")
	}
	return nc, nil
}

// withClient runs f with a connected client and closes everything after it.
func (a *app) withClient(ctx context.Context, f func(context.Context, *client.Client) error) error {
	nc, err := a.connect("highwater-cli")
	if err != nil {
		return err
	}
	defer nc.Close()
	c, err := client.New(nc, messages.ClusterName(a.cluster), client.WithTimeout(a.timeout))
	if err != nil {
		return err
	}
	defer c.Close()
	return f(ctx, c)
}
