package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"golang.org/x/term"

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
	given     map[string]*string // the flags of accessKeys, by key
	fixed     *access            // what to connect to whatever else is said; nil for that
	cluster   string
	timeout   time.Duration
	output    string
	noHeaders bool
	noColor   bool
	verbose   bool
	trace     bool
}

// run runs one command line and returns its exit code. The first interrupt or SIGTERM ends the context, the second one the
// process.
func run(args []string, s streams) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	defer context.AfterFunc(ctx, stop)()
	a := &app{streams: s}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(s.in)
	root.SetOut(s.out)
	root.SetErr(s.err)
	err := root.ExecuteContext(ctx)
	if wantsJSON(args) {
		a.output = "json" // also for a command line that was refused before the flag was read
	}
	return a.exit(ctx, err)
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "highwater",
		Short: "Cluster manager for partitioned, replicated logs",
		Long: `Highwater keeps the registry of brokers and topics of a cluster, gives every partition a leader and followers on
different brokers and racks, and elects a new leader when one fails, without losing an acknowledged record.

Exit codes: 0 done or healthy · 1 failed · 2 usage, or confirmation needed · 3 NATS or active controller unreachable ·
4 denied · 5 not found · 6 conflict · 10 answered: unhealthy · 130 interrupted.

Start here:  highwater dev`,
		SilenceUsage: true, SilenceErrors: true,
	}
	f := root.PersistentFlags()
	a.accessFlags(f)
	f.StringVarP(&a.cluster, "cluster", "c", env("HIGHWATER_CLUSTER", "dev"), "cluster name (also HIGHWATER_CLUSTER)")
	f.DurationVar(&a.timeout, "timeout", 10*time.Second, "bound of one request to the controller")
	f.StringVarP(&a.output, "output", "o", "table", "table, wide, json, yaml or name")
	f.BoolVar(&a.noHeaders, "no-headers", false, "tables without their first line")
	f.BoolVar(&a.noColor, "no-color", os.Getenv("NO_COLOR") != "", "no colours in logs on a terminal (also NO_COLOR)")
	f.BoolVarP(&a.verbose, "verbose", "v", false, "more log lines on standard error")
	f.BoolVar(&a.trace, "trace", false, "a line on standard error for each request, with what it took")
	root.PersistentPreRunE = func(*cobra.Command, []string) error { return checkOutput(a.output) }
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage("%v", err) })
	root.AddCommand(a.serveCommand(), a.brokerCommand(), a.devCommand(), a.clusterCommand(), a.controllerCommand(), a.topicCommand(), a.partitionCommand(),
		a.produceCommand(), a.consumeCommand(), a.versionCommand(), a.errorsCommand())
	root.InitDefaultCompletionCmd()
	checkArguments(root)
	return root
}

// checkArguments makes the complaints about arguments of all commands usage errors. A command that only groups others
// refuses what is none of them, and shows them when there is nothing.
func checkArguments(c *cobra.Command) {
	check := c.Args
	if check == nil {
		check = cobra.NoArgs
	}
	c.Args = func(c *cobra.Command, args []string) error {
		if err := check(c, args); err != nil {
			return usage("%v", err)
		}
		return nil
	}
	if !c.Runnable() {
		c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	}
	for _, sub := range c.Commands() {
		checkArguments(sub)
	}
}

func env(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}

// connect connects to NATS; access.go says how. It fails at once when nobody listens.
func (a *app) connect(name string) (*nats.Conn, error) {
	x, err := a.access()
	if err != nil {
		return nil, err
	}
	nc, err := nats.Connect(x.url, append(client.ConnectOptions(name), x.opts...)...)
	switch {
	case errors.Is(err, nats.ErrAuthorization):
		return nil, messages.Errorf(messages.CodeDenied, "NATS at %s refuses the credentials: %v", x.where(), err)
	case err != nil:
		return nil, messages.Errorf(messages.CodeUnavailable, "cannot connect to NATS at %s: %v", x.where(), err).
			WithHint("is the cluster running? `highwater dev` starts one; --server or NATS_URL names another address")
	}
	return nc, nil
}

// withClient runs f with a connected client and closes everything after it.
func (a *app) withClient(ctx context.Context, f func(context.Context, *client.Client) error) error {
	opts := []client.Option{client.WithTimeout(a.timeout)}
	if a.trace {
		opts = append(opts, client.WithTrace(func(subject string, took time.Duration, err error) {
			outcome := "answered"
			if err != nil {
				outcome = err.Error()
			}
			fmt.Fprintf(a.err, "trace: %s %s %s\n", subject, took.Round(time.Microsecond), outcome)
		}))
	}
	nc, err := a.connect("highwater-cli")
	if err != nil {
		return err
	}
	defer nc.Close()
	c, err := client.New(nc, messages.ClusterName(a.cluster), opts...)
	if err != nil {
		return err
	}
	return errors.Join(f(ctx, c), c.Close())
}

// logger writes JSON lines, or lines for people on a terminal.
func (a *app) logger() zerolog.Logger {
	level := zerolog.InfoLevel
	switch {
	case a.trace:
		level = zerolog.TraceLevel
	case a.verbose:
		level = zerolog.DebugLevel
	}
	out := a.err
	if isTerminal(a.err) {
		out = zerolog.ConsoleWriter{Out: a.err, NoColor: a.noColor, TimeFormat: time.TimeOnly}
	}
	return zerolog.New(out).Level(level).With().Timestamp().Str("cluster", a.cluster).Logger()
}

// isTerminal reports whether a person is at the other end of a stream.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
