package sim

import (
	"container/heap"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"time"
)

// Config is what a run is made of. The zero value of each field but Seed takes its default.
type Config struct {
	Seed uint64
	// Chaos is how long things go wrong; default 30 s of virtual time. Then everything is mended, and the run ends when the
	// cluster is well again, or after Quiet.
	Chaos time.Duration
	Quiet time.Duration // default 60 s
	// Controllers is how many controllers there are; 0 draws 2 or 3.
	Controllers int
	// Trace gets a line for everything that happens, nil for none.
	Trace io.Writer
	// StoreGoesBack has the journal lose, at the end of the chaos, all that it got since the brokers registered, as if an old
	// copy of its disk was put back. Then the run goes on for Quiet, with nothing mended.
	StoreGoesBack bool
	// prepare changes the world before it begins; script goes wrong in place of the nemesis, when the cluster has a topic.
	prepare, script func(*world)
	// StoreLosesTail has it lose, with all processes alive, what it got last: one entry or many.
	StoreLosesTail bool
	// Faults are put into the code under test.
	Faults Faults
}

// Result is what became of a run.
type Result struct {
	Violations []string // of the invariants, at most maxViolations
	Hash       uint64   // of everything that happened, in order
	Events     int
	Virtual    time.Duration

	Acknowledged int // records with acks=all
	Read         int // records
	Elections    int
	Starts       int // of broker processes
	Entries      int // of the journal
	Truncations  int
	Renewals     int // of partition epochs, after a proposal got lost
	Deletions    int // of replicas

	Terms        int // of active controllers
	HandOvers    int // terms that ended with a release of the journal
	Depositions  int // terms that ended because of a successor
	Refused      int // claims that were not accepted
	Forks        int // of the journal, after it went back
	Refusals     int // of a journal that is not to be trusted
	Snapshots    int
	Cuts         int // of the journal, behind a snapshot
	FromSnapshot int // catalogs that were rebuilt from one
	Unusable     int // snapshots that were passed over meanwhile
}

const maxViolations = 20

// world is the clock and everything that happens by it.
type world struct {
	cfg   Config
	now   time.Duration
	queue events
	count uint64
	rng   *rand.Rand
	hash  hasher

	check       *checker
	store       *store
	controllers []*controller
	brokers     []*broker
	clients     []*client
	net         network
	result      Result

	operator process
	// sendUnstored: leaders of this run let followers fetch what they have not stored yet.
	sendUnstored bool
	disks        int      // made so far
	made         int      // topics
	topics       []string // that exist, oldest first
}

// hasher mixes what happens into one number.
type hasher uint64

func (h *hasher) mix(v uint64) { *h = (*h ^ hasher(v)) * 0x100000001b3 }
func (h *hasher) text(s string) {
	f := fnv.New64a()
	_, _ = io.WriteString(f, s)
	h.mix(f.Sum64())
}

// event is something that happens at a time. Of those at one time the one that was planned first comes first.
type event struct {
	at    time.Duration
	order uint64
	label string
	run   func()
}

type events []*event

// Len is for container/heap.
func (e events) Len() int { return len(e) }

// Less is for container/heap.
func (e events) Less(i, j int) bool {
	if e[i].at != e[j].at {
		return e[i].at < e[j].at
	}
	return e[i].order < e[j].order
}

// Swap is for container/heap.
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }

// Push is for container/heap.
func (e *events) Push(x any) { *e = append(*e, x.(*event)) }

// Pop is for container/heap.
func (e *events) Pop() any {
	old := *e
	x := old[len(old)-1]
	old[len(old)-1] = nil
	*e = old[:len(old)-1]
	return x
}

// after plans something.
func (w *world) after(d time.Duration, label string, run func()) {
	w.count++
	heap.Push(&w.queue, &event{at: w.now + max(d, 0), order: w.count, label: label, run: run})
}

// step lets the next thing happen; false if there is none before the end.
func (w *world) step(end time.Duration) bool {
	if len(w.queue) == 0 || w.queue[0].at > end {
		return false
	}
	e := heap.Pop(&w.queue).(*event)
	w.now = e.at
	w.result.Events++
	w.hash.mix(uint64(e.at))
	w.hash.text(e.label)
	e.run()
	return true
}

// between draws a time, most often near the lower end.
func (w *world) between(lo, hi time.Duration) time.Duration {
	f := w.rng.Float64()
	return lo + time.Duration(f*f*float64(hi-lo))
}

func (w *world) chance(p float64) bool { return w.rng.Float64() < p }

// say adds a line to the trace.
func (w *world) say(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	w.hash.text(line)
	if w.cfg.Trace != nil {
		fmt.Fprintf(w.cfg.Trace, "%10.4f %s\n", w.now.Seconds(), line)
	}
}

// violated notes that an invariant does not hold.
func (w *world) violated(format string, args ...any) {
	line := fmt.Sprintf("at %.4fs: ", w.now.Seconds()) + fmt.Sprintf(format, args...)
	w.say("VIOLATION %s", line)
	if len(w.result.Violations) < maxViolations {
		w.result.Violations = append(w.result.Violations, line)
	}
}
