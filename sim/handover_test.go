package sim

import (
	"testing"
	"time"
)

// The active controller is cut off with all brokers; the next one hands over as soon as it is active. The one after that must
// not fence anybody earlier for it.
func shortTerm(w *world) {
	old := w.active()
	far := []*process{&old.process}
	for _, b := range w.brokers {
		far = append(far, &b.process)
	}
	for _, c := range w.controllers {
		if c != old {
			c.lose(old)
		}
	}
	for _, p := range far {
		for _, c := range w.controllers {
			if c != old {
				w.net.block(p.name, c.name, 1)
				w.net.block(c.name, p.name, 1)
			}
		}
		w.net.block(p.name, storeName, 1)
		w.net.block(storeName, p.name, 1)
	}
	var look func()
	look = func() {
		if next := w.active(); next != old {
			next.stepDown(func() { w.net.block(next.name, storeName, 1) }) // and is not heard of again
			return
		}
		w.after(time.Millisecond, "look", look)
	}
	look()
}

func TestAShortTermIsNotHandedOver(t *testing.T) {
	cfg := Config{Controllers: 3, Chaos: 14 * time.Second, script: shortTerm}
	for cfg.Seed = 1; cfg.Seed <= 30; cfg.Seed++ {
		for _, v := range Run(cfg).Violations {
			t.Errorf("seed %d: %s", cfg.Seed, v)
		}
	}
	cfg.Faults.HandOverAtOnce = true
	caught(t, cfg, "holds a lease")
}
