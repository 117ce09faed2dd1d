package sim

import (
	"fmt"

	"github.com/highwater-io/highwater/journal"
)

// Exploration says what is explored: two controllers, three brokers and one partition, in every order in which messages may
// arrive, answers fail to come, and processes crash, up to a depth.
//
// A step is one of: a message arrives (whichever of those on their way; one that never arrives is lost), an answer is given up
// (it may still come), a controller crashes and starts again, a standby claims, a broker crashes, starts again, registers, or
// says that it is ready, a controller has not heard a broker for a session, a follower has been behind for the lag, a proposal
// is due again, a client produces. What a process does because of a step, it does at once: actors that tell each other, reads
// of the journal and writes to a disk are no steps of their own. Leases are not looked at, as nothing here takes time.
//
// It runs the registry's, the partition's and the replicas' machines, the committer and the catalog. The outboxes are left
// out: each assignment is a message of its own.
type Exploration struct {
	Scene Scene
	Depth int // steps at most
	// MaxStates ends it early, 0 for never.
	MaxStates int
	// Limits bounds how often each kind of misfortune may happen on one path.
	Limits Misfortunes
	Faults Faults
}

// Misfortunes counts what goes wrong, and what is begun, on one path.
type Misfortunes struct {
	Claims, Timeouts, ControllerCrashes, BrokerCrashes, Silences, Lags, Retries, Produced int
}

// Scene is how it begins.
type Scene string

// The scenes. In all of them c1 is active, b1 leads and min ISR is 1.
const (
	// Calm: all replicas are in the ISR.
	Calm Scene = "calm"
	// Joining: b3 has registered again and is fenced; it has all that the leader has.
	Joining Scene = "joining"
	// Handover: b1 is dead and fenced by c1, whose decision is on its way to the journal.
	Handover Scene = "handover"
	// Contested: as Joining, but c2 has claimed the journal and let b3 in; c1 has not heard of it.
	Contested Scene = "contested"
)

// Explored is what came of it.
type Explored struct {
	States      int // different ones, the first included
	Transitions int // steps that were taken
	Depth       int // at which nothing new was left, or the bound
	Complete    bool
	Violation   string   // the first that was found; nothing is explored behind it
	Path        []string // the steps that lead to it
}

// Explore visits everything that can be reached, nearest first. Two states are taken to be the same when the fingerprints of
// everything in them are.
func Explore(e Exploration) Explored {
	out := Explored{States: 1, Complete: true}
	start := newScene(e)
	seen := map[uint64]struct{}{start.fingerprint(): {}}
	frontier := [][]byte{nil}
	for out.Depth = 0; out.Depth < e.Depth && len(frontier) > 0; out.Depth++ {
		var next [][]byte
		for _, path := range frontier {
			at := replay(e, path)
			for _, i := range at.distinct() {
				w := at
				if at = nil; w == nil {
					w = replay(e, path)
				}
				w.choices()[i].do()
				w.settle()
				out.Transitions++
				to := append(append(make([]byte, 0, len(path)+1), path...), byte(i))
				if v := w.violation(); v != "" {
					out.Violation, out.Path, out.Complete = v, describePath(e, to), false
					return out
				}
				f := w.fingerprint()
				if _, known := seen[f]; known {
					continue
				}
				seen[f] = struct{}{}
				out.States++
				next = append(next, to)
				if e.MaxStates > 0 && out.States >= e.MaxStates {
					out.Complete = false
					return out
				}
			}
		}
		frontier = next
	}
	return out
}

// replay takes the steps of a path.
func replay(e Exploration, path []byte) *model {
	w := newScene(e)
	for _, i := range path {
		w.choices()[i].do()
		w.settle()
	}
	return w
}

func describePath(e Exploration, path []byte) (out []string) {
	w := newScene(e)
	for _, i := range path {
		c := w.choices()[i]
		out = append(out, c.label)
		c.do()
		w.settle()
	}
	return out
}

// choice is one step that can be taken now.
type choice struct {
	label string
	do    func()
}

// choices are the steps that can be taken, in an order that depends on the state alone.
func (w *model) choices() []choice {
	var out []choice
	may := func(limit int, used *int, label string, do func()) {
		if *used < limit {
			out = append(out, choice{label, func() {
				*used++
				do()
			}})
		}
	}
	for i, m := range w.wire {
		out = append(out, choice{m.label, func() { w.deliver(i) }})
	}
	l, u := w.e.Limits, &w.used
	for _, c := range w.controllers {
		if c.waiting != 0 {
			may(l.Timeouts, &u.Timeouts, c.name+" gives an order up", func() { c.answered(journal.Result{Number: c.waiting, Err: errNoAnswer}) })
		}
		if c.committer == nil {
			may(l.Claims, &u.Claims, c.name+" claims", c.claim)
		}
		may(l.ControllerCrashes, &u.ControllerCrashes, c.name+" crashes and starts again", c.crash)
		if c.active {
			for _, b := range w.brokers {
				if rec := c.catalog.Brokers()[b.id]; rec != nil && !rec.Fenced {
					may(l.Silences, &u.Silences, fmt.Sprintf("%s does not hear %s for a session", c.name, b.id), func() { c.silent(b) })
				}
			}
		}
	}
	for _, b := range w.brokers {
		out = append(out, b.choices(may)...)
	}
	return out
}

// distinct returns the choices but those that deliver the like of what another delivers.
func (w *model) distinct() (out []int) {
	twice := map[uint64]bool{}
	for i := range w.choices() {
		if i < len(w.wire) {
			f := fingerprintOf(w.wire[i].content())
			if twice[f] {
				continue
			}
			twice[f] = true
		}
		out = append(out, i)
	}
	return out
}

// mayDo offers a step as long as its limit is not used up.
type mayDo func(limit int, used *int, label string, do func())

// choices are a broker's; those that are bounded go through may.
func (b *explored) choices(may mayDo) (out []choice) {
	l, u := b.w.e.Limits, &b.w.used
	if !b.up {
		return []choice{{string(b.id) + " starts", b.start}}
	}
	may(l.BrokerCrashes, &u.BrokerCrashes, string(b.id)+" crashes", b.crash)
	if b.epoch == 0 {
		for _, c := range b.w.controllers {
			if c.active && !b.registering {
				out = append(out, choice{fmt.Sprintf("%s registers with %s", b.id, c.name), func() { b.register(c) }})
			}
		}
		return out
	}
	if b.r == nil {
		return nil
	}
	for _, c := range b.w.controllers {
		if rec := c.catalog.Brokers()[b.id]; c.active && !c.held() && rec != nil && rec.Epoch == b.epoch && rec.Fenced {
			out = append(out, choice{fmt.Sprintf("%s is ready, says it to %s", b.id, c.name), func() { c.heartbeat(b, true) }})
		}
	}
	if b.proposed != 0 {
		may(l.Timeouts, &u.Timeouts, string(b.id)+" gives a proposal up", b.giveUp)
	}
	if b.leads() {
		if b.r.Status().Proposed != nil && b.proposed == 0 {
			may(l.Retries, &u.Retries, string(b.id)+" proposes again", func() { b.pass(proposalPause) })
		}
		may(l.Lags, &u.Lags, string(b.id)+" waits for the lag", func() { b.pass(2 * settings.ReplicaLag) })
		may(l.Produced, &u.Produced, "a client produces to "+string(b.id), b.produce)
	}
	return out
}
