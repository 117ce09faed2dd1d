package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/highwater-io/highwater/client"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

type takeoverFlags struct {
	partitions  []int
	controllers int
	brokers     int
	runs        int
	faults      []string
}

// The faults of a takeover.
const (
	faultKill     = "kill"      // the active one is killed; the leader of the journal's stream is elsewhere
	faultTogether = "together"  // the active one is killed, and the leader of the journal's stream with it
	faultSilent   = "silent"    // the active one is stopped: it is there, but says nothing
	faultStepDown = "step-down" // an operator wants another one
)

func (b *bench) takeoverCommand() *cobra.Command {
	f := takeoverFlags{}
	c := &cobra.Command{
		Use: "takeover", Short: "From the end of the active controller to the first accepted request", Args: cobra.NoArgs,
		Long: `Three controller processes with embedded servers and data on disk; simulated brokers lead the partitions. Something happens to
the active one. Measured from then on: until a request that changes something is committed and answered (accepted_ms; a new
one is sent every 10 ms), and until every broker has an answer to a heartbeat from the new active controller (confirmed_ms).
work_ms is what the new one says that it took from its claim until its subjects were open; unanswered is how many requests had
no answer at all within a second, median of the runs like everything but the _max.

Limits, measured in the same run: plain_ms is from the same moment until a plain stream with the same replicas and sync, whose
leader is where that of the journal is, has acknowledged a message; rtt_ms is a plain request over the same servers;
map_ms is the time to put as many records into a map.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return b.takeover(cmd.Context(), f) },
	}
	c.Flags().IntSliceVar(&f.partitions, "partitions", []int{1_000, 10_000}, "partitions of the cluster; results for each number")
	c.Flags().IntVar(&f.controllers, "controllers", 3, "controller processes")
	c.Flags().IntVar(&f.brokers, "brokers", 6, "simulated brokers")
	c.Flags().IntVar(&f.runs, "runs", 5, "how often each fault; the median is printed")
	c.Flags().StringSliceVar(&f.faults, "faults", []string{faultKill, faultTogether, faultSilent, faultStepDown}, "what happens to the active controller")
	return c
}

// takeoverSample is one run.
type takeoverSample struct {
	accepted, confirmed, plain, rtt time.Duration
	work                            float64
	unanswered                      int
}

func (b *bench) takeover(ctx context.Context, f takeoverFlags) error {
	if f.controllers < 2 || f.runs < 1 || f.brokers < 3 {
		return fmt.Errorf("at least 2 controllers, 3 brokers and 1 run are needed; for one controller see cold-start")
	}
	for _, n := range f.partitions {
		if err := b.takeoverOf(ctx, f, n); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) takeoverOf(ctx context.Context, f takeoverFlags, partitions int) error {
	dir, remove, err := tempDir()
	if err != nil {
		return err
	}
	defer remove()
	t, err := b.stageTakeover(ctx, dir, f, partitions)
	if err != nil {
		return err
	}
	defer t.stop()
	for _, fault := range f.faults {
		var all []takeoverSample
		for range f.runs {
			s, err := t.run(ctx, fault)
			if err != nil {
				return fmt.Errorf("%s: %w", fault, err)
			}
			all = append(all, s)
		}
		if err := b.printTakeover(f, fault, partitions, all); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) printTakeover(f takeoverFlags, fault string, partitions int, all []takeoverSample) error {
	of := func(q float64, what func(takeoverSample) float64) float64 {
		var d []float64
		for _, s := range all {
			d = append(d, what(s))
		}
		slices.Sort(d)
		return d[min(len(d)-1, int(q*float64(len(d))))]
	}
	accepted := func(s takeoverSample) float64 { return ms(s.accepted) }
	confirmed := func(s takeoverSample) float64 { return ms(s.confirmed) }
	plain := of(0.5, func(s takeoverSample) float64 { return ms(s.plain) })
	work := func(s takeoverSample) float64 { return s.work }
	return b.print(result{Bench: "takeover", Params: map[string]any{"fault": fault, "partitions": partitions, "controllers": f.controllers,
		"brokers": f.brokers, "runs": f.runs},
		Figures: map[string]float64{"accepted_ms": of(0.5, accepted), "accepted_max_ms": of(1, accepted), "confirmed_ms": of(0.5, confirmed),
			"confirmed_max_ms": of(1, confirmed), "work_ms": of(0.5, work), "work_max_ms": of(1, work), "plain_ms": plain,
			"ratio": of(0.5, accepted) / plain, "rtt_ms": of(0.5, func(s takeoverSample) float64 { return ms(s.rtt) }), "map_ms": ms(mapping(partitions)),
			"unanswered": of(0.5, func(s takeoverSample) float64 { return float64(s.unanswered) })}})
}

// mapping is how long it takes to put records of partitions into a map.
func mapping(partitions int) time.Duration {
	brokers := []messages.BrokerID{"s0", "s1", "s2"}
	records := make([]*messages.Partition, partitions)
	for i := range records {
		records[i] = &messages.Partition{ID: messages.PartitionID{Index: int32(i)}, Replicas: brokers, ISR: brokers}
	}
	began := time.Now()
	all := map[messages.PartitionID]*messages.Partition{}
	for _, r := range records {
		all[r.ID] = r
	}
	return time.Since(began)
}

// takeoverStage is a cluster of several controllers with brokers and partitions, and a plain stream beside it.
type takeoverStage struct {
	*cluster
	brokers []*simBroker
	serial  int
}

// plainStream is the stream that is measured beside the journal.
const plainStream = "PLAIN"

func (b *bench) stageTakeover(ctx context.Context, dir string, f takeoverFlags, partitions int) (*takeoverStage, error) {
	c, err := b.startControllers(ctx, dir, f.controllers)
	if err != nil {
		return nil, err
	}
	t := &takeoverStage{cluster: c}
	if t.brokers, err = startSimBrokers(ctx, c, f.brokers, &durations{}); err == nil {
		err = createTopics(ctx, c, partitions)
	}
	if err == nil {
		err = addPlainStream(ctx, c.nc, f.controllers)
	}
	if err != nil {
		c.stop()
		return nil, err
	}
	return t, nil
}

// run lets the fault happen once, and puts everything in order again.
func (t *takeoverStage) run(ctx context.Context, fault string) (takeoverSample, error) {
	var out takeoverSample
	if _, err := t.processes.steady(ctx, t.nc, t.client); err != nil {
		return out, err
	}
	if err := t.allConfirmed(ctx, 0); err != nil {
		return out, err
	}
	nc, victim, err := t.arrange(ctx, fault)
	if err != nil {
		return out, err
	}
	defer nc.Close()
	logs := map[*child]int64{}
	for _, c := range t.processes.all {
		logs[c] = c.logSize()
	}
	out.rtt = roundTrip(nc)
	epoch := t.epoch()
	began := time.Now()
	plain := make(chan time.Duration, 1)
	go func() { plain <- untilStored(ctx, nc, began) }()
	if err = t.hurt(ctx, fault, victim); err != nil {
		return out, err
	}
	if out.accepted, out.unanswered, err = t.untilAccepted(ctx, nc, epoch, began); err != nil {
		return out, err
	}
	if err := t.allConfirmed(ctx, epoch); err != nil {
		return out, err
	}
	for _, b := range t.brokers {
		out.confirmed = max(out.confirmed, time.Unix(0, b.answered.Load()).Sub(began))
	}
	out.plain = <-plain
	out.work = t.workOf(logs)
	return out, t.mend(fault, victim)
}

// arrange puts the leaders of the streams where the fault wants them, and returns who is to be hurt and a connection to the
// others.
func (t *takeoverStage) arrange(ctx context.Context, fault string) (nc *nats.Conn, victim *child, err error) {
	journal := messages.JournalStream(benchCluster)
	var at, active string
	err = within(ctx, time.Minute, "the streams' leaders where they are wanted", func(ctx context.Context) (err error) {
		if active, err = t.processes.steady(ctx, t.nc, t.client); err != nil {
			return err
		}
		if at, err = leaderOf(t.nc, journal); err != nil {
			return err
		}
		if err := moveTo(ctx, t.nc, plainStream, at); err != nil || fault != faultTogether {
			return err
		}
		// Whoever takes over moves the leader away from itself a moment later, so this is the moment.
		if _, _, err := t.client.StepDown(ctx); err != nil {
			return err
		}
		err = within(ctx, 5*time.Second, "another active controller", func(ctx context.Context) error {
			now, err := t.processes.active(ctx, t.client, 1)
			if err == nil && now == active {
				err = fmt.Errorf("%s still", now)
			}
			active = now
			return err
		})
		if err != nil {
			return err
		}
		if at, err = leaderOf(t.nc, journal); err == nil && at != active {
			err = fmt.Errorf("%s is active, the leader is at %s", active, at)
		}
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	nc, err = t.processes.dial(ctx, "bench-away", active)
	return nc, t.processes.named(active), err
}

// moveTo moves a stream's leader and waits until it is there.
func moveTo(ctx context.Context, nc *nats.Conn, stream, to string) error {
	asked := time.Time{}
	return within(ctx, 30*time.Second, "the leader of "+stream+" at "+to, func(context.Context) error {
		at, err := leaderOf(nc, stream)
		if err != nil || at == to {
			return err
		}
		if time.Since(asked) > time.Second {
			asked = time.Now()
			if err := lead(nc, stream, to); err != nil {
				return err
			}
		}
		return fmt.Errorf("it is at %s", at)
	})
}

func (t *takeoverStage) hurt(ctx context.Context, fault string, victim *child) error {
	switch fault {
	case faultKill, faultTogether:
		victim.kill()
		return nil
	case faultSilent:
		return victim.cmd.Process.Signal(syscall.SIGSTOP)
	case faultStepDown:
		_, _, err := t.client.StepDown(ctx)
		return err
	}
	return fmt.Errorf("there is no fault %q", fault)
}

func (t *takeoverStage) mend(fault string, victim *child) error {
	switch fault {
	case faultKill, faultTogether:
		return t.processes.start(victim)
	case faultSilent:
		return victim.cmd.Process.Signal(syscall.SIGCONT)
	}
	return nil
}

// epoch is the highest controller epoch that a broker has heard.
func (t *takeoverStage) epoch() uint64 {
	var out uint64
	for _, b := range t.brokers {
		out = max(out, b.heard.Load())
	}
	return out
}

// allConfirmed waits until every broker has heard of an epoch above one, and all of the same.
func (t *takeoverStage) allConfirmed(ctx context.Context, above uint64) error {
	return within(ctx, time.Minute, "every broker's heartbeat is answered", func(context.Context) error {
		now := t.epoch()
		for _, b := range t.brokers {
			if e := b.heard.Load(); e != now || e <= above {
				return fmt.Errorf("%s has heard of epoch %d, another one of %d", b.id, e, now)
			}
		}
		return nil
	})
}

// workOf is what the newest active controller says that its takeover took, in milliseconds.
func (t *takeoverStage) workOf(logs map[*child]int64) float64 {
	for c, from := range logs {
		lines, err := c.logged("controller is active", from)
		if err == nil && len(lines) > 0 {
			took, _ := lines[len(lines)-1]["took"].(float64) // a number, or the log has another form
			return took
		}
	}
	return 0
}

const (
	probeEvery = 10 * time.Millisecond
	probeLimit = time.Second
)

// madeUnder is the controller epoch under which a topic was made.
func madeUnder(r *pb.CreateTopicResponse) uint64 {
	var out uint64
	for _, p := range r.GetPartitions() {
		out = max(out, p.GetSeen().GetControllerEpoch())
	}
	return out
}

// untilAccepted sends a request every 10 ms until one is accepted under a higher controller epoch, and returns when that was
// and how many were never answered.
func (t *takeoverStage) untilAccepted(ctx context.Context, nc *nats.Conn, epoch uint64, began time.Time) (time.Duration, int, error) {
	c, err := client.New(nc, benchCluster, client.WithTimeout(probeLimit))
	if err != nil {
		return 0, 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	accepted := make(chan time.Duration, 1)
	var unanswered atomic.Int64
	var open sync.WaitGroup
	every := time.NewTicker(probeEvery)
	defer every.Stop()
	for {
		t.serial++
		name := fmt.Sprintf("probe%d", t.serial)
		open.Go(func() {
			asked := time.Now()
			ctx, cancel := context.WithTimeout(ctx, probeLimit)
			defer cancel()
			made, err := c.CreateTopic(ctx, &pb.CreateTopicRequest{Name: name, Partitions: 1})
			switch {
			case err == nil && madeUnder(made) > epoch:
				select {
				case accepted <- time.Since(began):
				default: // not the first
				}
			case err != nil && time.Since(asked) >= probeLimit:
				unanswered.Add(1)
			}
		})
		select {
		case took := <-accepted:
			open.Wait()
			return took, int(unanswered.Load()), c.Close()
		case <-ctx.Done():
			return 0, 0, fmt.Errorf("no request was accepted within a minute")
		case <-every.C:
		}
	}
}

// roundTrip is the median of some plain requests.
func roundTrip(nc *nats.Conn) time.Duration {
	sub, err := nc.Subscribe("bench.rtt", func(m *nats.Msg) { _ = m.Respond(nil) })
	if err != nil {
		return 0
	}
	defer func() { _ = sub.Unsubscribe() }()
	var all []time.Duration
	for range 50 {
		sent := time.Now()
		if _, err := nc.Request("bench.rtt", nil, time.Second); err == nil {
			all = append(all, time.Since(sent))
		}
	}
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[len(all)/2]
}
