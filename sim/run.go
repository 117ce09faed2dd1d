package sim

import (
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/messages"
)

// Run runs one seed.
func Run(cfg Config) (res Result) {
	if cfg.Chaos <= 0 {
		cfg.Chaos = 30 * time.Second
	}
	if cfg.Quiet <= 0 {
		cfg.Quiet = 60 * time.Second
	}
	w := newWorld(cfg)
	defer func() {
		if reason := recover(); reason != nil {
			w.violated("panic: %v\n%s", reason, debug.Stack())
		}
		w.result.Hash, w.result.Virtual = uint64(w.hash), w.now
		res = w.result
	}()
	if cfg.prepare != nil {
		cfg.prepare(w)
	}
	for _, c := range w.controllers {
		c.boot()
	}
	for _, b := range w.brokers {
		b.boot()
	}
	w.after(3*time.Second, "first topic", w.createTopic)
	w.after(5*time.Second, "nemesis", func() {
		if cfg.script != nil {
			cfg.script(w)
			return
		}
		w.net.loss, w.net.dup = w.rng.Float64()*w.rng.Float64()*0.1, w.rng.Float64()*0.05
		w.net.slow, w.net.delay = w.rng.Float64()*w.rng.Float64()*0.3, w.between(0, 2*time.Second)
		w.store.lossy = w.rng.Float64() * w.rng.Float64() * 0.3
		w.nemesis(cfg.Chaos)
	})
	for w.step(cfg.Chaos) {
	}
	w.now = cfg.Chaos
	if cfg.StoreGoesBack {
		w.goBack()
		return w.result
	}
	if cfg.StoreLosesTail {
		w.loseTail()
		return w.result
	}
	w.mend()
	w.check.settle(cfg.Chaos + cfg.Quiet)
	w.check.final()
	return w.result
}

func newWorld(cfg Config) *world {
	w := &world{cfg: cfg, rng: rand.New(rand.NewPCG(cfg.Seed, 0x9e3779b97f4a7c15)), hash: 14695981039346656037}
	w.net.cut = map[[2]string]int{}
	w.store = &store{w: w, log: journal.NewMemory(), kept: journal.NewMemorySnapshots()}
	w.check = newChecker(w)
	n := cfg.Controllers
	if n <= 0 {
		n = 2 + w.rng.IntN(2)
	}
	for i := range n {
		w.controllers = append(w.controllers, &controller{process: process{w: w, name: fmt.Sprintf("ctl%d", i+1), rate: w.clockRate()},
			catalog: journal.NewCatalog()})
	}
	w.operator = process{w: w, name: "op"}
	w.operator.begin()
	w.sendUnstored = w.chance(0.7)
	powered := w.chance(0.6) // every disk fsyncs
	for i := range 3 + w.rng.IntN(3) {
		w.disks++
		id := messages.BrokerID(fmt.Sprintf("b%d", i+1))
		b := &broker{process: process{w: w, name: string(id), rate: w.clockRate()}, id: id, number: i, disk: newDisk(fmt.Sprintf("disk-%d", w.disks), powered || w.chance(0.5))}
		if b.disk.lies = cfg.Faults.DisksLie; b.disk.lies {
			b.disk.fsyncs = false
		}
		w.brokers = append(w.brokers, b)
	}
	return w
}

// clockRate draws how fast a clock runs: any two differ by at most 5 %, and often by that.
func (w *world) clockRate() float64 {
	return []float64{slowClock, fastClock, slowClock + (fastClock-slowClock)*w.rng.Float64()}[w.rng.IntN(3)]
}

const (
	slowClock = 0.976
	fastClock = slowClock * 1.05
)

// sabotageCatalog lets a rebuilt catalog forget its marks, if that is the fault of the run.
func (w *world) sabotageCatalog(c *journal.Catalog) {
	if !w.cfg.Faults.ForgetMarks || c.Applied() == 0 {
		return
	}
	var forgotten []messages.Record
	c.Partitions(func(_ *messages.Topic, p *messages.Partition) bool {
		q := *p
		q.HighWatermark = 0
		forgotten = append(forgotten, &q)
		return true
	})
	c.ApplyAt(c.Position(), forgotten)
}

// sabotageRecords puts the controller's faults into the records of a step, before they are proposed.
func (w *world) sabotageRecords(records []messages.Record) {
	for _, r := range records {
		p, ok := r.(*messages.Partition)
		if !ok || p.Epoch == 0 {
			continue
		}
		old := w.check.truth.partitions[p.ID]
		if old == nil {
			continue
		}
		if w.cfg.Faults.ElectOutsideISR && p.Leader == "" {
			w.electAnybody(p)
		}
		if w.cfg.Faults.ReuseLeaderEpoch && p.Leader != "" && p.Leader != old.Leader && old.Leader != "" {
			p.LeaderEpoch = old.LeaderEpoch
		}
	}
}

func (w *world) electAnybody(p *messages.Partition) {
	for _, id := range p.Replicas {
		if w.check.truth.brokers[id].CanLead() {
			p.Leader, p.ISR, p.Eligible = id, []messages.BrokerID{id}, nil
			return
		}
	}
}
