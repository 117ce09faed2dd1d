package sim

import (
	"flag"
	"io"
	"os"
	"testing"
	"time"
)

var (
	seed  = flag.Uint64("seed", 0, "run only this seed, with a trace if -v is given")
	seeds = flag.Int("seeds", 200, "how many seeds TestSeeds runs")
	first = flag.Uint64("first", 1, "the first seed of TestSeeds")
	chaos = flag.Duration("chaos", 20*time.Second, "virtual time in which things go wrong")
)

func TestSeed(t *testing.T) {
	if *seed == 0 {
		*seed = 1
	}
	cfg := Config{Seed: *seed, Chaos: *chaos}
	if testing.Verbose() {
		cfg.Trace = os.Stderr
	}
	res := Run(cfg)
	report(t, *seed, res)
}

func report(t *testing.T, seed uint64, res Result) {
	t.Helper()
	for _, v := range res.Violations {
		t.Errorf("seed %d: %s", seed, v)
	}
	if len(res.Violations) > 0 {
		t.Errorf("repeat it with: go test ./sim -run 'TestSeed$' -seed %d -chaos %v -v", seed, *chaos)
	}
}

var _ = io.Discard

func TestSeeds(t *testing.T) {
	var sum Result
	failed := 0
	for s := *first; s < *first+uint64(*seeds) && failed < 3; s++ {
		res := Run(Config{Seed: s, Chaos: *chaos})
		report(t, s, res)
		if len(res.Violations) > 0 {
			failed++
		}
		sum.Events += res.Events
		sum.Acknowledged += res.Acknowledged
		sum.Read += res.Read
		sum.Elections += res.Elections
		sum.Entries += res.Entries
		sum.Kills += res.Kills
		sum.Virtual += res.Virtual
	}
	t.Logf("%d seeds, %v virtual: %d events, %d records acknowledged, %d read, %d elections, %d starts, %d entries", *seeds,
		sum.Virtual, sum.Events, sum.Acknowledged, sum.Read, sum.Elections, sum.Kills, sum.Entries)
}
