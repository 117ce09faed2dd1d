package sim

import (
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"github.com/highwater-io/highwater/broker/replica"
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
	w.ctl.start()
	for _, b := range w.brokers {
		b.boot()
	}
	w.after(3*time.Second, "first topic", w.createTopic)
	w.after(5*time.Second, "nemesis", func() {
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
	w.mend()
	w.check.settle(cfg.Chaos + cfg.Quiet)
	w.check.final()
	return w.result
}

// goBack runs on with a journal that has forgotten every topic. Brokers that live have seen later positions, so they take
// nothing from it; one that starts anew has not, and must still delete nothing.
func (w *world) goBack() {
	w.mend()
	w.say("the store goes back")
	w.ctl.end()
	back := messages.Sequence(1 + len(w.brokers))
	w.store.log.Truncate(back)
	w.check.truth.last, w.check.truth.claim = back, 1
	w.check.truth.brokers = map[messages.BrokerID]*messages.Broker{}
	was := map[*hosted]string{}
	for _, b := range w.brokers[1:] {
		for _, p := range b.order {
			was[b.replicas[p]] = describe(b.replicas[p].r.Status())
		}
	}
	held := len(w.brokers[0].disk.current)
	w.ctl.start()
	w.killAndRestart(w.brokers[0], false)
	for end := w.now + w.cfg.Quiet; w.step(end); {
	}
	for _, b := range w.brokers[1:] {
		for _, p := range b.order {
			if s := b.replicas[p].r.Status(); was[b.replicas[p]] == "" || s.Role == replica.RoleNone {
				w.violated("%s has taken an assignment of %s from a store that went back: %s", b.incarnation, short(p), describe(s))
			}
		}
	}
	if n := len(w.brokers[0].disk.current); n < held {
		w.violated("%s held %d replicas and holds %d", w.brokers[0].name, held, n)
	}
}

func newWorld(cfg Config) *world {
	w := &world{cfg: cfg, rng: rand.New(rand.NewPCG(cfg.Seed, 0x9e3779b97f4a7c15)), hash: 14695981039346656037}
	w.net.cut = map[[2]string]int{}
	w.store = &store{w: w, log: journal.NewMemory()}
	w.check = newChecker(w)
	w.ctl = &controller{process: process{w: w, name: "ctl"}}
	w.operator = process{w: w, name: "op"}
	w.operator.begin()
	w.sendUnstored = w.chance(0.7)
	powered := w.chance(0.6) // every disk fsyncs
	for i := range 3 + w.rng.IntN(3) {
		w.disks++
		id := messages.BrokerID(fmt.Sprintf("b%d", i+1))
		b := &broker{process: process{w: w, name: string(id)}, id: id, number: i, disk: newDisk(fmt.Sprintf("disk-%d", w.disks), powered || w.chance(0.5))}
		if b.disk.lies = cfg.Faults.DisksLie; b.disk.lies {
			b.disk.fsyncs = false
		}
		w.brokers = append(w.brokers, b)
	}
	return w
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
