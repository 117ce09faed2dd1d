package sim

import (
	"context"
	"time"

	"github.com/highwater-io/highwater/broker/replica"
	"github.com/highwater-io/highwater/messages"
)

// goBack runs on with a journal that has forgotten every topic. Brokers that live have seen later positions, so they take
// nothing from it; one that starts anew has not, and must still delete nothing.
func (w *world) goBack() {
	w.mend()
	for _, c := range w.controllers {
		c.die()
	}
	back := messages.Sequence(2 + len(w.brokers))
	w.say("the store goes back to %d", back)
	w.store.back = back
	w.store.log.Truncate(back)
	w.check.wentBack(back)
	was := map[*hosted]string{}
	for _, b := range w.brokers[1:] {
		for _, p := range b.order {
			was[b.replicas[p]] = describe(b.replicas[p].r.Status())
		}
	}
	held := len(w.brokers[0].disk.current)
	for _, c := range w.controllers {
		c.boot()
	}
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

// loseTail runs on with a journal that has lost its last entries, in the middle of everything. While the brokers that have
// seen more are alive, nothing is decided: no epoch is given out again, nothing is deleted, and what is acknowledged stays.
func (w *world) loseTail() {
	w.mend()
	for end := w.now + 3*time.Second; w.step(end); {
	}
	if w.chance(0.5) { // so that what is lost is a registration too
		w.killAndRestart(w.brokers[0], false)
		for end := w.now + w.between(time.Second, 8*time.Second); w.step(end); {
		}
	}
	last, _ := w.store.log.Last(context.Background())
	back := last - messages.Sequence(1+w.rng.IntN(4))
	if w.chance(0.4) {
		back = last - messages.Sequence(1+w.rng.IntN(30))
	}
	kept, _ := w.store.kept.List(context.Background())
	if w.store.log.Truncate(max(back, 2)); w.chance(0.5) {
		for _, k := range kept { // they lie in the same store
			if k.At > back {
				_ = w.store.kept.Delete(context.Background(), k.At)
			}
		}
	}
	back, _ = w.store.log.Last(context.Background())
	w.say("the store goes back from %d to %d", last, back)
	w.store.back = back
	w.check.wentBack(back)
	for _, c := range w.controllers {
		if w.chance(0.3) {
			w.restart(c)
		}
	}
	if w.chance(0.5) {
		w.killAndRestart(w.brokers[1], false)
	}
	for end := w.now + w.cfg.Quiet; w.step(end); {
	}
	w.check.final()
}
