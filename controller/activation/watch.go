package activation

import (
	"cmp"
	"slices"
	"time"

	"github.com/highwater-io/highwater/messages"
)

// Role is what a controller process says that it is.
type Role string

// The roles.
const (
	Active     Role = "active"
	Activating Role = "activating" // has claimed, and takes no requests yet
	Standby    Role = "standby"
)

// Beat is what every controller process says of itself, again and again.
type Beat struct {
	Name    string                   `json:"name"`
	Role    Role                     `json:"role"`
	Epoch   messages.ControllerEpoch `json:"controller_epoch"` // its own if it is active, else the one that it follows
	Applied messages.Sequence        `json:"applied"`          // how far its catalog is
	URL     string                   `json:"url"`
	Server  string                   `json:"server_id,omitempty"` // the connection that it speaks through
	Client  uint64                   `json:"client_id,omitempty"`
	// Versions are what it knows, Release what it says of its build; Unfit says why it must not become active, if so.
	Versions messages.VersionRange `json:"versions"`
	Release  string                `json:"release,omitempty"`
	Unfit    string                `json:"unfit,omitempty"`
}

// Member is what is known of another process.
type Member struct {
	Beat
	Heard time.Duration // when the last beat came
	Lost  bool          // it is known to be gone, unless a beat comes
}

// successorLead is how long the others leave a successor that was named the first claim.
const successorLead = 500 * time.Millisecond

// refusedPause is the time between two claims while the active controller is known to be gone.
const refusedPause = 100 * time.Millisecond

// silencePause is the time between two claims while it is only not heard.
const silencePause = 500 * time.Millisecond

// yieldFor is how long a controller that has stepped down lets the others come first.
const yieldFor = 5 * time.Second

// Config says who watches, and with how much patience.
type Config struct {
	Name string
	// Suspicion is the silence of the active controller after which it is taken to be gone. Two that suspect at the same
	// moment only compete; give each some jitter.
	Suspicion time.Duration
}

// Watch is what one process knows of the others. Times are monotonic, from any origin that is the same in all calls. It is
// not safe for concurrent use.
type Watch struct {
	cfg    Config
	others map[string]*Member

	since  time.Duration // silence counts from here at the earliest
	stood  time.Duration // what was heard before says nothing of who is gone
	again  time.Duration // not before then is another claim made after one that was refused
	yield  time.Duration // until then this one has stepped down
	looked time.Duration // the last look

	released   messages.ControllerEpoch // the last epoch that was seen to be released
	releasedAt time.Duration
}

// New makes a watch that has heard nobody.
func New(c Config, now time.Duration) *Watch {
	return &Watch{cfg: c, others: map[string]*Member{}, since: now, stood: now, looked: now}
}

// Stand begins a standby's term: what was or was not heard before says nothing. One that has stepped down lets the others
// come first for a while.
func (w *Watch) Stand(now time.Duration, steppedDown bool) {
	w.since, w.stood, w.looked, w.yield = now, now, now, 0
	if steppedDown {
		w.yield = now + yieldFor
	}
}

// Hear takes the beat of another process.
func (w *Watch) Hear(now time.Duration, b Beat) {
	if b.Name == "" || b.Name == w.cfg.Name {
		return
	}
	m := w.others[b.Name]
	if m == nil {
		m = &Member{}
		w.others[b.Name] = m
	}
	m.Beat, m.Heard, m.Lost = b, now, false
}

// Lose notes that a process is gone, until it is heard again.
func (w *Watch) Lose(name string) {
	if m := w.others[name]; m != nil {
		m.Lost = true
	}
}

// Look is called at short, regular intervals. A process that was not running itself for a good part of the suspicion
// cannot tell silence from deafness, and listens anew first.
func (w *Watch) Look(now time.Duration) {
	if now-w.looked > w.cfg.Suspicion/2 {
		w.since, w.stood = now, now
	}
	w.looked = now
}

// Awake says that this process has been running all the time until now.
func (w *Watch) Awake(now time.Duration) { w.looked = now }

// Refused notes that a claim was not accepted: somebody is there after all, or the journal is not. Who is there is heard soon. One
// whose connection has ended, or who stays silent, is gone all the same: what came before the claim was its last entry.
func (w *Watch) Refused(now time.Duration) {
	w.since, w.looked, w.again = max(w.since, now-w.cfg.Suspicion+silencePause), now, now+refusedPause
}

// Suspicion says why the controller that has claimed the journal last is to be replaced, "" if it is not.
func (w *Watch) Suspicion(now time.Duration, claimed messages.ControllerClaimed) string {
	named := claimed.Released && claimed.Successor == w.cfg.Name
	if now < w.yield && !named { // whoever hands over to one that has stepped down means it
		return ""
	}
	if claimed.Released && claimed.Epoch != w.released {
		w.released, w.releasedAt = claimed.Epoch, now
	}
	active, known := w.active(claimed.Epoch)
	silent := now - w.since
	if known {
		silent = now - max(active.Heard, w.since)
	}
	switch {
	case known && active.Epoch > claimed.Epoch && silent <= w.cfg.Suspicion && !active.Lost:
		return "" // its claim has only not been read yet
	case named || claimed.Released && now-w.releasedAt > successorLead:
		return "handed over"
	case known && active.Lost && active.Heard >= w.stood && now >= w.again:
		return "its connection has ended"
	case claimed.Released:
		return "" // the one that is named comes first
	case silent > w.cfg.Suspicion:
		return "not heard for " + silent.Round(time.Millisecond).String()
	}
	return ""
}

// active returns the process that was heard last of those that have claimed an epoch or a later one.
func (w *Watch) active(epoch messages.ControllerEpoch) (Member, bool) {
	var best *Member
	for _, m := range w.others {
		if m.Role != Standby && m.Epoch >= epoch && (best == nil || m.Heard > best.Heard || m.Heard == best.Heard && m.Name < best.Name) {
			best = m
		}
	}
	if best == nil {
		return Member{}, false
	}
	return *best, true
}

// News reports whether somebody speaks of entries behind a position.
func (w *Watch) News(at messages.Sequence) bool {
	for _, m := range w.others {
		if m.Applied > at {
			return true
		}
	}
	return false
}

// Deposed reports whether the controller of an epoch has a successor that was heard.
func (w *Watch) Deposed(epoch messages.ControllerEpoch) bool {
	for _, m := range w.others {
		if m.Role != Standby && m.Epoch > epoch {
			return true
		}
	}
	return false
}

// Successor returns the standby that is furthest of those that were heard just now, "" if there is none.
func (w *Watch) Successor(now time.Duration) string {
	var best *Member
	for _, m := range w.others {
		if m.Lost || m.Role != Standby || m.Unfit != "" || now-m.Heard >= w.cfg.Suspicion {
			continue
		}
		if best == nil || m.Applied > best.Applied || m.Applied == best.Applied && m.Name < best.Name {
			best = m
		}
	}
	if best == nil {
		return ""
	}
	return best.Name
}

// Members returns everybody who was ever heard, by name.
func (w *Watch) Members() []Member {
	all := make([]Member, 0, len(w.others))
	for _, m := range w.others {
		all = append(all, *m)
	}
	slices.SortFunc(all, func(a, b Member) int { return cmp.Compare(a.Name, b.Name) })
	return all
}
