package sim

import (
	"flag"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

var (
	seed  = flag.Uint64("seed", 0, "run only this seed, with a trace if -v is given")
	seeds = flag.Int("seeds", 300, "how many seeds TestSeeds runs")
	first = flag.Uint64("first", 1, "the first seed of TestSeeds")
	ctls  = flag.Int("controllers", 0, "how many controllers; 0 lets the seed choose 2 or 3")
	chaos = flag.Duration("chaos", 20*time.Second, "virtual time in which things go wrong")
)

func TestSeed(t *testing.T) {
	if *seed == 0 {
		*seed = 1
	}
	cfg := Config{Seed: *seed, Chaos: *chaos, Controllers: *ctls}
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
		t.Errorf("repeat it with: go test ./sim -run 'TestSeed$' -seed %d -chaos %v -controllers %d -v", seed, *chaos, *ctls)
	}
}

var _ = io.Discard

func TestSeeds(t *testing.T) {
	var sum Result
	failed := 0
	for s := *first; s < *first+uint64(*seeds) && failed < 3; s++ {
		res := Run(Config{Seed: s, Chaos: *chaos, Controllers: *ctls})
		report(t, s, res)
		if len(res.Violations) > 0 {
			failed++
		}
		sum.add(res)
	}
	t.Logf("%d seeds: %+v", *seeds, sum)
}

func TestSameSeedIsTheSameRun(t *testing.T) {
	for _, s := range []uint64{3, 7, 11} {
		a, b := Run(Config{Seed: s}), Run(Config{Seed: s})
		if a.Hash != b.Hash || a.Events != b.Events {
			t.Errorf("seed %d: %d events with hash %x, then %d with %x", s, a.Events, a.Hash, b.Events, b.Hash)
		}
		if a.Events < 1000 || a.Acknowledged == 0 {
			t.Errorf("seed %d: hardly anything happens: %+v", s, a)
		}
	}
	if Run(Config{Seed: 3}).Hash == Run(Config{Seed: 4}).Hash {
		t.Error("two seeds make the same run")
	}
}

// Each fault of the code under test is seen by a checker, within some seeds.
func TestInjectedFaultsAreCaught(t *testing.T) {
	for _, c := range []struct {
		name   string
		faults Faults
		says   string
	}{
		{"1 elect outside of the ISR", Faults{ElectOutsideISR: true}, "was elected from neither"},
		{"2 reuse a leader epoch", Faults{ReuseLeaderEpoch: true}, "in leader epoch"},
		{"3 acknowledge before commit", Faults{AckBeforeCommit: true}, lost},
		{"3 count an unanswered shrink", Faults{CommitWithoutISR: true}, lost},
		{"3 forget a proposal without an answer", Faults{ForgetLostAnswers: true}, lost},
		{"3 take a refusal for the last word", Faults{TrustRefusals: true}, lost},
		{"3 two leases", Faults{EndlessLease: true}, "both with valid leases"},
		{"3 a lease for what has moved away", Faults{LeaseAtOnce: true}, "both with valid leases"},
		{"4 ignore diverging logs", Faults{IgnoreDivergence: true}, "is now"},
		{"4 serve what is not committed", Faults{ServeUncommitted: true}, "its mark is"},
		{"4 serve without proof", Faults{SkipProof: true, DisksLie: true}, unproven},
		{"5 tell what is not stored", Faults{ReleaseBeforeCommit: true}, "not stored"},
		{"3 fence for silence at once", Faults{FenceAtOnce: true}, "holds a lease"},
		{"5 append without an expected end", Faults{AppendAnywhere: true}, "does not continue entry|was written by"},
		{"2 a controller epoch twice", Faults{ReuseEpoch: true}, "which was issued before"},
		{"1 cut the journal too far", Faults{CutTooFar: true}, "refuses a journal"},
		{"4 a catalog without marks", Faults{ForgetMarks: true}, "the catalog of|the known mark fell"},
	} {
		t.Run(c.name, func(t *testing.T) { caught(t, Config{Faults: c.faults}, c.says) })
	}
}

// A store that went back in time is no order to delete, and is not followed.
func TestStoreThatWentBack(t *testing.T) {
	deleted := false
	for s := uint64(1); s <= 10; s++ {
		cfg := Config{Seed: s, Chaos: 12 * time.Second, Quiet: 10 * time.Second, StoreGoesBack: true}
		for _, v := range Run(cfg).Violations {
			t.Errorf("seed %d: %s", s, v)
		}
		cfg.Faults.DeleteUnlisted = true
		for _, v := range Run(cfg).Violations {
			deleted = deleted || strings.Contains(v, "without a stored order")
		}
	}
	if !deleted {
		t.Error("6: no checker has seen that replicas are deleted which a snapshot does not list")
	}
}

// A store that loses its last entries while everybody is alive: what brokers have seen keeps the registry from deciding, so
// that nothing is deleted, no broker epoch is given twice, no lease is broken, and what was acknowledged stays.
func TestB119StoreThatLosesItsTail(t *testing.T) {
	run := func(s uint64, f Faults) []string {
		return Run(Config{Seed: s, Chaos: 8 * time.Second, Quiet: 20 * time.Second, StoreLosesTail: true, Faults: f}).Violations
	}
	for s := uint64(1); s <= 60; s++ {
		for _, v := range run(s, Faults{}) {
			if !undoubted.MatchString(v) {
				t.Errorf("seed %d: %s", s, v)
			}
		}
	}
	for s := uint64(1); s <= 300; s++ {
		for _, v := range run(s, Faults{ForgetSeen: true}) {
			if !undoubted.MatchString(v) {
				t.Logf("seed %d: %s", s, v)
				return
			}
		}
	}
	t.Error("6: that brokers do not say what they have seen is not seen")
}

// undoubted is what partitions still decide from an older journal, because they do not ask whether the registry doubts it:
// the same partition epoch with another content. That is not promised yet.
var undoubted = regexp.MustCompile("another state with partition epoch|is given out and not stored|is published and not stored|two states with")

const (
	lost     = "which is not on ISR member|was acknowledged as|acknowledged true|although everything before was acknowledged"
	unproven = "the known mark is"
)

// With disks that lie records get lost, but no leader serves without what is known to be committed.
func TestProofHoldsWhereDisksLie(t *testing.T) {
	for s := uint64(1); s <= 30; s++ {
		for _, v := range Run(Config{Seed: s, Faults: Faults{DisksLie: true}, Quiet: 5 * time.Second}).Violations {
			if strings.Contains(v, unproven) {
				t.Errorf("seed %d: %s", s, v)
			}
		}
	}
}

// An active controller that is cut off with all brokers misses nobody, and would go on granting.
func TestGrantsWithoutEndAreCaught(t *testing.T) {
	caught(t, Config{Faults: Faults{EndlessGrants: true}, Chaos: 14 * time.Second, Controllers: 2, script: func(w *world) {
		for _, c := range w.controllers {
			if c != w.active() {
				cutBehindTheNextEntry(w, w.active(), c)
			}
		}
	}}, "holds a lease")
}

func caught(t *testing.T, cfg Config, says string) {
	t.Helper()
	const limit = 400
	cfg.Quiet = 20 * time.Second
	for cfg.Seed = 1; cfg.Seed <= limit; cfg.Seed++ {
		for _, v := range Run(cfg).Violations {
			if regexp.MustCompile(says).MatchString(v) {
				t.Logf("seed %d: %s", cfg.Seed, v)
				return
			}
		}
	}
	t.Errorf("no checker has said %q in %d seeds", says, limit)
}

func (r *Result) add(x Result) {
	r.Events += x.Events
	r.Virtual += x.Virtual
	r.Acknowledged += x.Acknowledged
	r.Read += x.Read
	r.Elections += x.Elections
	r.Starts += x.Starts
	r.Entries += x.Entries
	r.Truncations += x.Truncations
	r.Renewals += x.Renewals
	r.Deletions += x.Deletions
	r.Terms += x.Terms
	r.HandOvers += x.HandOvers
	r.Depositions += x.Depositions
	r.Refused += x.Refused
	r.Forks += x.Forks
	r.Refusals += x.Refusals
	r.Snapshots += x.Snapshots
	r.Cuts += x.Cuts
	r.FromSnapshot += x.FromSnapshot
	r.Unusable += x.Unusable
}
