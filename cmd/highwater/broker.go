package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/highwater-io/highwater/broker"
	"github.com/highwater-io/highwater/broker/pebblelog"
	"github.com/highwater-io/highwater/client"
	"github.com/highwater-io/highwater/messages"
)

// shutdownTime bounds an orderly stop.
const shutdownTime = 25 * time.Second

type brokerFlags struct {
	id       string
	rack     string
	dir      string
	fsync    string
	interval time.Duration
	weight   uint32
	child    bool
}

func (a *app) brokerCommand() *cobra.Command {
	c := a.brokerRun("broker", "List and describe brokers, or run the reference broker")
	c.AddCommand(a.brokerRun("run", "Run one reference broker until SIGTERM"), a.brokerList(), a.brokerDescribe(), a.brokerForget())
	return c
}

// brokerRun is both `broker` and `broker run`.
func (a *app) brokerRun(use, short string) *cobra.Command {
	var b brokerFlags
	c := &cobra.Command{
		Use: use, Short: short, Args: cobra.NoArgs,
		Long: `Run one reference broker. On SIGTERM or interrupt it hands its leaderships over, leaves in order and exits; a second
signal ends it at once.`,
		Example: "  highwater broker run --id b1 --rack eu/1/a --data-dir /var/lib/highwater/b1",
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.runBroker(cmd.Context(), b) },
	}
	f := c.Flags()
	f.StringVar(&b.id, "id", "", "broker id, 1 to 64 of [A-Za-z0-9_-] (required)")
	f.StringVar(&b.rack, "rack", "", "failure domains of the broker, most significant first: region/zone/rack")
	f.StringVar(&b.dir, "data-dir", "", "folder for the broker's log (required)")
	f.StringVar(&b.fsync, "fsync", "always", "always: durable before it is acknowledged; interval: a power loss takes the last moments")
	f.DurationVar(&b.interval, "fsync-interval", time.Second, "pause between two fsyncs with --fsync=interval")
	f.Uint32Var(&b.weight, "weight", 100, "relative capacity, 1 to 1000")
	f.BoolVar(&b.child, "child", false, "end in order when standard input ends, and leave interrupts to the parent")
	f.Lookup("child").Hidden = true
	return c
}

func (a *app) runBroker(ctx context.Context, b brokerFlags) error {
	if b.id == "" || b.dir == "" {
		return usage("a broker needs --id and --data-dir")
	}
	if b.weight < 1 || b.weight > 1000 {
		return usage("--weight is %d; it must be 1 to 1000", b.weight)
	}
	id := messages.BrokerID(b.id)
	rack, err := messages.ParseRackPath(b.rack)
	if err := errors.Join(id.Validate(), messages.ClusterName(a.cluster).Validate(), err); err != nil {
		return err
	}
	sync, err := pebblelog.ParseSync(b.fsync)
	if err != nil {
		return err
	}
	if b.child {
		var cancel context.CancelFunc
		ctx, cancel = a.childContext(ctx)
		defer cancel()
	}
	storage, err := pebblelog.Open(b.dir, pebblelog.Options{Sync: sync, Interval: b.interval})
	if err != nil {
		return err
	}
	err = a.serveBroker(ctx, storage, id, []broker.Option{
		broker.WithRack(rack), broker.WithWeight(b.weight), broker.WithLogger(a.logger()), broker.WithVersion(version()),
	})
	if closing := storage.Close(); err == nil {
		err = closing
	}
	return err
}

func (a *app) serveBroker(ctx context.Context, storage broker.Storage, id messages.BrokerID, opts []broker.Option) error {
	log := a.logger().With().Str("broker", string(id)).Logger()
	nc, err := a.awaitConnection(ctx, "highwater-broker-"+string(id), log)
	if err != nil || nc == nil {
		return err
	}
	defer nc.Close()
	s, err := broker.Serve(ctx, nc, messages.ClusterName(a.cluster), id, storage, opts...)
	if err != nil {
		return err
	}
	select {
	case <-s.Done():
		s.Close()
		return s.Err()
	case <-ctx.Done():
	}
	log.Info().Msg("stopping: handing over leaderships")
	bounded, cancel := stopContext(nc)
	defer cancel()
	if err := s.Shutdown(bounded); err != nil {
		return errNotRunning{fmt.Errorf("the broker did not stop in order: %w", err)}
	}
	log.Info().Msg("stopped")
	return nil
}

// awaitConnection connects to NATS, with growing pauses for as long as nobody listens: a broker may be started before the
// controller that embeds the server. No connection and no error when the context ends first.
func (a *app) awaitConnection(ctx context.Context, name string, log zerolog.Logger) (*nats.Conn, error) {
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		nc, err := a.connect(name)
		if messages.CodeOf(err) != messages.CodeUnavailable {
			return nc, err
		}
		log.Warn().Err(err).Msg("waiting for NATS")
		jittered := time.NewTimer(pause/2 + rand.N(pause/2))
		select {
		case <-jittered.C:
		case <-ctx.Done():
			jittered.Stop()
			return nil, nil
		}
	}
}

// goneTime is how long a broker that stops waits for NATS to come back, so that somebody can let it go.
const goneTime = time.Second

// stopContext bounds an orderly stop: by shutdownTime, or when NATS has been gone for goneTime.
func stopContext(nc *nats.Conn) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTime)
	go func() {
		look := time.NewTicker(goneTime / 10)
		defer look.Stop()
		for last := time.Now(); time.Since(last) < goneTime; {
			select {
			case <-ctx.Done():
				return
			case <-look.C:
			}
			if nc.IsConnected() {
				last = time.Now()
			}
		}
		cancel()
	}()
	return ctx, cancel
}

// childContext ends also with standard input, which the parent holds open: a broker never outlives the process that started
// it, however that ends. Interrupts of the terminal reach the whole group and are left to the parent.
func (a *app) childContext(ctx context.Context) (context.Context, context.CancelFunc) {
	signal.Ignore(os.Interrupt)
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, a.in) // any end of it is the end
		cancel()
	}()
	return ctx, cancel
}

func (a *app) brokerList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List brokers with what they lead and hold", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				list, err := c.Brokers(ctx, messages.ListQuery{})
				if err != nil {
					return err
				}
				return a.print(orEmpty(list), brokerTable(list))
			})
		},
	}
}

func brokerTable(list []messages.BrokerView) rows {
	t := rows{header: []string{"broker", "state", "rack", "leaders", "replicas", "in sync", "heartbeat age"},
		wide: []string{"host", "pid", "epoch", "fsyncs", "weight", "storage", "version", "fenced because"}}
	for _, b := range list {
		t.cells = append(t.cells, []any{b.ID, b.State, orDash(string(b.Rack)), b.Leaders, b.Replicas, b.InSync, age(b.HeartbeatAgeMs),
			b.Host, b.PID, b.Epoch, b.Fsyncs, b.Weight, b.Storage, orDash(b.Version), orDash(b.FencedReason)})
		t.names = append(t.names, string(b.ID))
	}
	return t
}

func (a *app) brokerDescribe() *cobra.Command {
	return &cobra.Command{
		Use: "describe BROKER", Short: "One broker with the topics and partitions that it holds", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				b, err := c.Broker(ctx, messages.BrokerID(args[0]))
				if err != nil {
					return err
				}
				if a.output == "table" || a.output == "wide" {
					if err := a.print(nil, describeBroker(b)); err != nil {
						return err
					}
				}
				if err := a.print(b, heldTable(b)); err != nil {
					return err
				}
				if b.PartitionsRemaining > 0 {
					fmt.Fprintf(a.err, "and %d more: highwater partition list --broker %s\n", b.PartitionsRemaining, b.ID)
				}
				return nil
			})
		},
	}
}

func describeBroker(b messages.BrokerView) rows {
	return rows{cells: [][]any{
		{"BROKER", fmt.Sprintf("%s   epoch %d   incarnation %s", b.ID, b.Epoch, b.Incarnation)},
		{"STATE", b.State + map[bool]string{true: " (" + b.FencedReason + ")"}[b.FencedReason != ""]},
		{"RACK", orDash(string(b.Rack))},
		{"PROCESS", fmt.Sprintf("host %s   pid %d   version %s", b.Host, b.PID, orDash(b.Version))},
		{"STORAGE", fmt.Sprintf("%s   fsyncs %t   weight %d", b.Storage, b.Fsyncs, b.Weight)},
		{"HEARTBEAT", age(b.HeartbeatAgeMs)},
		{"CARRIES", fmt.Sprintf("leads %d   holds %d   in sync %d", b.Leaders, b.Replicas, b.InSync)},
	}}
}

func heldTable(b messages.BrokerView) rows {
	t := rows{header: []string{"topic", "partition", "role", "state", "replicas", "isr"}, names: []string{string(b.ID)}}
	for _, p := range b.Partitions {
		role := "follower"
		if p.Leader == b.ID {
			role = "leader"
		}
		t.cells = append(t.cells, []any{p.Topic, p.Partition, role, p.State, marked(p.Replicas, p.Leader), joined(p.ISR)})
	}
	return t
}
