// Command highwater-bench measures a Highwater cluster and, in the same run, the limit that the same machine sets: the plain
// cost of what has to happen in any case, or another system with the same setting. Figures of shared machines are noisy;
// compare the ratios.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"
)

// bench is what all benchmarks share.
type bench struct {
	out    io.Writer
	output string
	binary string // of highwater; "" is built
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := (&bench{out: os.Stdout}).root().ExecuteContext(ctx); err != nil {
		os.Exit(1)
	}
}

// root is the command line.
func (b *bench) root() *cobra.Command {
	root := &cobra.Command{Use: "highwater-bench", Short: "Measure a cluster beside its limit in the same run", SilenceUsage: true}
	root.PersistentFlags().StringVarP(&b.output, "output", "o", "json", "json: one object a result; text: one line a result")
	root.PersistentFlags().StringVar(&b.binary, "binary", "", "the highwater program whose processes are measured; without it, one is built from this module")
	root.AddCommand(b.failoverCommand(), b.createCommand(), b.heartbeatsCommand(), b.memoryCommand(), b.produceCommand(),
		b.takeoverCommand(), b.coldStartCommand(), b.snapshotCommand(), b.fencingCommand())
	return root
}

// result is one measured line. Figures keep the order in which they were put.
type result struct {
	Bench   string             `json:"bench"`
	Params  map[string]any     `json:"params"`
	Figures map[string]float64 `json:"figures"`
}

func (b *bench) print(r result) error {
	if b.output == "text" {
		_, err := fmt.Fprintf(b.out, "%s %v %v\n", r.Bench, r.Params, r.Figures)
		return err
	}
	return json.NewEncoder(b.out).Encode(r)
}

// durations gathers samples from several goroutines.
type durations struct {
	mu   sync.Mutex
	list []time.Duration
}

func (d *durations) add(x time.Duration) {
	d.mu.Lock()
	d.list = append(d.list, x)
	d.mu.Unlock()
}

func (d *durations) clear() {
	d.mu.Lock()
	d.list = nil
	d.mu.Unlock()
}

func (d *durations) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.list)
}

// quantile returns the value below which a share of the samples lies, in milliseconds; 0 without samples.
func (d *durations) quantile(q float64) float64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.list) == 0 {
		return 0
	}
	slices.Sort(d.list)
	return ms(d.list[min(len(d.list)-1, int(q*float64(len(d.list))))])
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
