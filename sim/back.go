package sim

import (
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
