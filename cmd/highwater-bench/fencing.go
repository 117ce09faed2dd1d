package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"
)

type fencingFlags struct {
	replicas    int
	brokers     int
	controllers int
	runs        int
	every       time.Duration
}

func (b *bench) fencingCommand() *cobra.Command {
	f := fencingFlags{}
	c := &cobra.Command{
		Use: "fencing", Short: "Longest gap in answering heartbeats while a broker with many replicas is fenced", Args: cobra.NoArgs,
		Long: `A broker's connection ends; the others send heartbeats one after the other, each a short time after the answer to the one
before. Measured: the longest time between two answers to one of them, and the slowest answer, from the end of the connection
until the last assignment is at the last survivor and a second more (gap_max_ms, slowest_ms; the worst of all runs, gap_p50_ms is
the median of the runs).

Limits, measured in the same run: rest_ is the same in the seconds before; plain_ is what plain requests see at the same
time that are answered by this process, over the same server and at the same pace: the price of two processes at work.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return b.fencing(cmd.Context(), f) },
	}
	c.Flags().IntVar(&f.replicas, "replicas", 10_000, "replicas on the broker that is fenced")
	c.Flags().IntVar(&f.brokers, "brokers", 6, "simulated brokers")
	c.Flags().IntVar(&f.controllers, "controllers", 1, "controller processes")
	c.Flags().IntVar(&f.runs, "runs", 3, "how often")
	c.Flags().DurationVar(&f.every, "every", 2*time.Millisecond, "pause between an answer and the next heartbeat")
	return c
}

// fencingSample is one run.
type fencingSample struct{ gap, slowest, rest, plain, total time.Duration }

func (b *bench) fencing(ctx context.Context, f fencingFlags) error {
	if f.brokers < 4 || f.replicas < 1 || f.runs < 1 || f.controllers < 1 {
		return errors.New("at least 4 brokers, 1 replica, 1 controller and 1 run are needed")
	}
	var worst fencingSample
	var gaps, totals []float64
	for range f.runs {
		s, err := b.fencingOnce(ctx, f)
		if err != nil {
			return err
		}
		worst.gap, worst.slowest = max(worst.gap, s.gap), max(worst.slowest, s.slowest)
		worst.rest, worst.plain = max(worst.rest, s.rest), max(worst.plain, s.plain)
		gaps, totals = append(gaps, ms(s.gap)), append(totals, ms(s.total))
	}
	return b.print(result{Bench: "fencing", Params: map[string]any{"replicas": f.replicas, "brokers": f.brokers, "controllers": f.controllers, "runs": f.runs},
		Figures: map[string]float64{"gap_max_ms": ms(worst.gap), "gap_p50_ms": median(gaps), "slowest_ms": ms(worst.slowest), "rest_gap_max_ms": ms(worst.rest),
			"plain_gap_max_ms": ms(worst.plain), "ratio": ms(worst.gap) / ms(worst.plain), "last_assignment_ms": median(totals)}})
}

func (b *bench) fencingOnce(ctx context.Context, f fencingFlags) (fencingSample, error) {
	var out fencingSample
	dir, remove, err := tempDir()
	if err != nil {
		return out, err
	}
	defer remove()
	c, err := b.startControllers(ctx, dir, f.controllers)
	if err != nil {
		return out, err
	}
	defer c.stop()
	brokers, err := startSimBrokers(ctx, c, f.brokers, &durations{})
	if err != nil {
		return out, err
	}
	const factor = 3 // replicas of a partition
	if err := createTopics(ctx, c, f.replicas*f.brokers/factor); err != nil {
		return out, err
	}
	w, err := watchFailover(ctx, c, brokers[0].id)
	if err != nil {
		return out, err
	}
	defer w.nc.Close()
	rest := startGaps(ctx, f.every, brokers[1:], nil)
	if _, err := cpuDuring(ctx, 2*time.Second); err != nil {
		return out, err
	}
	out.rest, _, _ = rest.end()
	g := startGaps(ctx, f.every, brokers[1:], w.nc)
	began := time.Now()
	brokers[0].close()
	err = w.wait(ctx)
	if err == nil {
		_, err = cpuDuring(ctx, time.Second) // so that a gap has an end
	}
	out.gap, out.slowest, out.plain = g.end()
	out.total = w.lastAssignment.Sub(began)
	return out, err
}

// gaps are requests one after the other, and the longest times without an answer.
type gaps struct {
	stop    context.CancelFunc
	running sync.WaitGroup

	mu                     sync.Mutex
	longest, slow, ofPlain time.Duration
}

// startGaps lets brokers send heartbeats, and with a connection also plain requests of somebody who answers at once.
func startGaps(ctx context.Context, every time.Duration, brokers []*simBroker, nc *nats.Conn) *gaps {
	g := &gaps{}
	ctx, g.stop = context.WithCancel(ctx)
	for _, b := range brokers {
		g.running.Go(func() {
			longest, slow := repeat(ctx, every, func() error { return b.heartbeat(ctx) })
			g.mu.Lock()
			defer g.mu.Unlock()
			g.longest, g.slow = max(g.longest, longest), max(g.slow, slow)
		})
	}
	if nc == nil {
		return g
	}
	g.running.Go(func() {
		sub, err := nc.Subscribe("bench.answer", func(m *nats.Msg) { _ = m.Respond(make([]byte, 64)) })
		if err != nil {
			return
		}
		defer func() { _ = sub.Unsubscribe() }()
		longest, _ := repeat(ctx, every, func() error {
			_, err := nc.RequestWithContext(ctx, "bench.answer", make([]byte, 128))
			return err
		})
		g.mu.Lock()
		defer g.mu.Unlock()
		g.ofPlain = longest
	})
	return g
}

// repeat asks until the context ends, and returns the longest time between two answers and the longest one for an answer.
func repeat(ctx context.Context, every time.Duration, ask func() error) (gap, slow time.Duration) {
	last := time.Now()
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return gap, slow
		case <-t.C:
		}
		sent := time.Now()
		if ask() == nil {
			now := time.Now()
			gap, slow, last = max(gap, now.Sub(last)), max(slow, now.Sub(sent)), now
		}
		t.Reset(every)
	}
}

// end stops the asking and returns the longest gap, the slowest answer, and the longest gap of the plain requests.
func (g *gaps) end() (gap, slow, plain time.Duration) {
	g.stop()
	g.running.Wait()
	return g.longest, g.slow, g.ofPlain
}
