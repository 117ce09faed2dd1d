package sim

import (
	"testing"
	"time"
)

// The active controller is cut off, with all brokers, right after the journal has taken an entry of it, and another one is
// told at once. The clocks of the one side are slow and that of the other is 5 % faster: still no broker that the new one
// fences holds a lease.
func TestClocksThatDifferBy5PercentKeepLeasesApart(t *testing.T) {
	cut := 0
	for s := uint64(1); s <= 80; s++ {
		res := Run(Config{Seed: s, Controllers: 2, Chaos: 12 * time.Second, prepare: func(w *world) {
			w.controllers[0].rate, w.controllers[1].rate = slowClock, fastClock
			for _, b := range w.brokers {
				b.rate = slowClock
			}
		}, script: func(w *world) {
			slow, fast := w.controllers[0], w.controllers[1]
			fast.stepDown(func() {}) // if it is active
			w.after(2*time.Second, "cut", func() {
				if w.active() == slow {
					cut++
					cutBehindTheNextEntry(w, slow, fast)
				}
			})
		}})
		for _, v := range res.Violations {
			t.Errorf("seed %d: %s", s, v)
		}
	}
	if cut < 60 {
		t.Errorf("only %d runs were of any use", cut)
	}
}

func cutBehindTheNextEntry(w *world, old, other *controller) {
	last := w.check.truth.last
	var look func()
	look = func() {
		if w.check.truth.last == last {
			w.after(100*time.Microsecond, "look", look)
			return
		}
		far := []*process{&old.process}
		for _, b := range w.brokers {
			far = append(far, &b.process)
		}
		for _, p := range far {
			for _, near := range []string{storeName, other.name} {
				w.net.block(p.name, near, 1)
				w.net.block(near, p.name, 1)
			}
		}
		other.lose(old)
		end := time.Duration(float64(old.term.grantUntil)/old.rate) - w.now
		for _, b := range w.brokers {
			w.after(end-2500*time.Microsecond, "last heartbeat", b.heartbeat)
		}
	}
	look()
}
