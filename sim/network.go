package sim

import "time"

// process is something that runs, pauses and dies. Each start is another life; whatever was planned for an earlier life
// does not happen.
type process struct {
	w      *world
	name   string
	up     bool
	paused bool
	life   int
	kept   []func() // what arrived while paused
	// rate is how fast its monotonic clock runs: it shows rate seconds for each second. 0 is 1.
	rate float64
}

// local is what the process's monotonic clock shows.
func (p *process) local() time.Duration {
	if p.rate == 0 {
		return p.w.now
	}
	return time.Duration(float64(p.w.now) * p.rate)
}

// timer plans something in this life of the process, after a time of its own clock.
func (p *process) timer(d time.Duration, label string, run func()) {
	life := p.life
	if p.rate != 0 {
		d = time.Duration(float64(d)/p.rate) + 1
	}
	p.w.after(d, p.name+" "+label, func() { p.enter(life, run) })
}

// enter runs something in a life, at once or when the process goes on.
func (p *process) enter(life int, run func()) {
	switch {
	case !p.up || p.life != life:
	case p.paused:
		p.kept = append(p.kept, func() { p.enter(life, run) })
	default:
		run()
	}
}

func (p *process) begin() {
	p.life++
	p.up, p.paused, p.kept = true, false, nil
}

func (p *process) end() { p.up, p.paused, p.kept = false, false, nil }

func (p *process) resume() {
	if !p.paused {
		return
	}
	p.paused = false
	kept := p.kept
	p.kept = nil
	for _, run := range kept {
		run()
	}
}

// network is what lies between processes.
type network struct {
	cut   map[[2]string]int // directed links that carry nothing, with how many faults cut each
	loss  float64           // share of messages that are lost
	dup   float64           // share that arrive twice
	slow  float64           // share that are late
	delay time.Duration     // of a late message at most
}

func (n *network) block(from, to string, by int) {
	k := [2]string{from, to}
	if n.cut[k] += by; n.cut[k] <= 0 {
		delete(n.cut, k)
	}
}

func (n *network) cuts(from, to string) bool { return n.cut[[2]string{from, to}] > 0 }

// send carries a message to whatever life of the receiver is up when it arrives.
func (w *world) send(from, to *process, label string, run func()) {
	w.carry(from, to, label, -1, run)
}

// answer carries a message to the present life of the receiver only.
func (w *world) answer(from, to *process, label string, life int, run func()) {
	w.carry(from, to, label, life, run)
}

func (w *world) carry(from, to *process, label string, life int, run func()) {
	if w.net.cuts(from.name, to.name) || w.chance(w.net.loss) {
		return
	}
	copies := 1
	if w.net.dup > 0 && w.chance(w.net.dup) {
		copies = 2
	}
	for range copies {
		d := w.between(100*time.Microsecond, 2*time.Millisecond)
		if w.net.slow > 0 && w.chance(w.net.slow) {
			d += w.between(0, w.net.delay)
		}
		w.after(d, from.name+">"+to.name+" "+label, func() {
			if life < 0 {
				to.enter(to.life, run)
			} else {
				to.enter(life, run)
			}
		})
	}
}
