package sim

import "time"

// active returns the controller that is active, of several that take themselves for it the latest; nil if there is none.
func (w *world) active() *controller {
	var best *controller
	for _, c := range w.controllers {
		if c.up && c.term != nil && (best == nil || c.term.epoch > best.term.epoch) {
			best = c
		}
	}
	return best
}

// someController draws one, most often the active one.
func (w *world) someController() *controller {
	if c := w.active(); c != nil && w.chance(0.6) {
		return c
	}
	return w.controllers[w.rng.IntN(len(w.controllers))]
}

// troubleController makes something go wrong with a controller.
func (w *world) troubleController(c *controller) {
	switch w.rng.IntN(9) {
	case 0, 1:
		w.restart(c)
		if o := w.someController(); w.chance(0.2) {
			w.restart(o)
		}
	case 2, 3:
		w.pause(&c.process, w.between(100*time.Millisecond, 6*time.Second))
	case 4:
		w.cutFor(c.name, storeName, w.between(200*time.Millisecond, 8*time.Second))
	case 5:
		for _, b := range w.brokers {
			w.cutFor(c.name, b.name, w.between(200*time.Millisecond, 6*time.Second))
		}
	case 6:
		w.cutFromOthers(c, w.between(200*time.Millisecond, 8*time.Second))
		if w.chance(0.3) {
			w.cutFor(c.name, storeName, w.between(200*time.Millisecond, 8*time.Second))
		}
	case 7:
		if c.term != nil && !c.paused {
			restart := w.chance(0.5)
			c.stepDown(func() {
				if restart {
					w.restart(c)
				}
			})
		}
	case 8:
		o := w.someController()
		w.say("the connection of %s to %s ends", c.name, o.name)
		if o != c {
			c.lose(o)
		}
	}
}

func (w *world) restart(c *controller) {
	if !c.up {
		return
	}
	c.die()
	w.after(w.between(50*time.Millisecond, 4*time.Second), "restart "+c.name, c.bootUnlessUp)
}

// split cuts everything in two: one side has the journal, the other often the controller that is active.
func (w *world) split(d time.Duration) {
	far, near := []string{}, []string{storeName}
	side := func(name string, p float64) {
		if w.chance(p) {
			far = append(far, name)
		} else {
			near = append(near, name)
		}
	}
	active := w.active()
	for _, c := range w.controllers {
		side(c.name, map[bool]float64{true: 0.7, false: 0.25}[c == active])
	}
	apart := 0.4
	if w.chance(0.3) {
		apart = 1 // a registry that misses nobody has nothing to wait for the journal with, and goes on granting
	}
	for _, b := range w.brokers {
		side(b.name, apart)
	}
	w.say("%v are cut from %v for %v", far, near, d)
	for _, a := range far {
		for _, b := range near {
			w.net.block(a, b, 1)
			w.net.block(b, a, 1)
			w.after(d, "mend", func() {
				w.net.block(a, b, -1)
				w.net.block(b, a, -1)
			})
		}
	}
}

// cutFromOthers cuts a controller from the others, who may take that for its end.
func (w *world) cutFromOthers(c *controller, d time.Duration) {
	for _, o := range w.controllers {
		if o != c {
			w.cutFor(c.name, o.name, d)
			if w.chance(0.5) {
				w.after(w.between(0, 100*time.Millisecond), "cut off "+c.name, func() { o.lose(c) })
			}
		}
	}
}
