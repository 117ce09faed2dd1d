package registry

import (
	"fmt"
	"time"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
)

// Wait is for how long after its activation a controller has to reckon with grants of predecessors: their validity and a tenth
// of it, because this clock may be faster than theirs, as with sessions and leases. One that hands over before it has waited
// must not say that nothing is granted any more.
func Wait(validity time.Duration) time.Duration { return validity + validity/10 }

// activate begins the soft state: who is unfenced has a whole session to be heard (heartbeats are not journaled), from the
// moment on that anybody can be heard, and what a predecessor may not have come to is done again.
func (t *step) activate(restarted bool, validity time.Duration) {
	from := t.env.Now
	if !restarted {
		from += Wait(validity)
	}
	for _, id := range sortedKeys(t.brokers) {
		b := t.brokers[id]
		if b.Suspect {
			t.broadcast(id, actors.BrokerRestarted{Broker: id, Epoch: b.Epoch})
		}
		if b.Fenced {
			continue
		}
		t.touch(t.state.session(id), from)
		if !restarted {
			t.tell(actors.Outbox(id), actors.Flush{}) // brings it up, so that the broker learns of the new feed
		}
	}
	t.resumeDeletions()
	t.armTick()
}

// tick looks for who was silent for too long, and for creations that the placer has not answered. An unfenced broker whose
// session has ended (its fence was not committed) gets another one, so that none is ever out of sight.
func (t *step) tick() {
	for id, b := range t.brokers {
		if ses := t.state.sessions[id]; !b.Fenced && (ses == nil || !ses.live) {
			t.touch(t.state.session(id), t.env.Now)
		}
	}
	if t.state.deaf || t.doubt() != nil {
		t.spare()
	}
	t.expireSessions()
	t.expireCreations()
	t.armTick()
}

// armTick sets the next tick: at the next deadline, but within an eighth of a session.
func (t *step) armTick() {
	after := t.settings.Session / ticksPerSession
	if _, deadline := t.front(); deadline > 0 {
		after = min(after, deadline-t.env.Now)
	}
	after = max(after, minTick)
	t.state.tickDue = t.env.Now + after
	t.fx.Wakes = append(t.fx.Wakes, actors.Wake{After: after, Msg: actors.Tick{}})
}

// noticeStall looks at the clock before anything is decided: if the pending tick is late by more than half a session, this
// process was not running, and nothing can be said about who was silent. Everyone gets a fresh session.
func (t *step) noticeStall() {
	due := t.state.tickDue
	if due == 0 || t.env.Now-due <= t.settings.Session/2 {
		return
	}
	t.event(ControllerStalled{Late: t.env.Now - due})
	t.state.tickDue = t.env.Now
	t.spare()
	for _, c := range t.state.creations {
		c.deadline = t.env.Now + placementTimeout
	}
}

// spare gives everyone a fresh session: what was not heard is not held against anybody.
func (t *step) spare() {
	for _, ses := range t.state.sessions {
		if ses.live {
			ses.contact = max(ses.contact, t.env.Now)
		}
	}
}

// expireSessions ends the sessions that are over, oldest contact first.
func (t *step) expireSessions() {
	for range maxFencesPerStep {
		ses, deadline := t.front()
		if ses == nil || deadline > t.env.Now {
			return
		}
		reason := fmt.Sprintf("not heard for %v", (t.env.Now - ses.contact).Round(time.Millisecond))
		if ses.mayStop {
			reason = reasonStopped
		}
		t.giveUp(ses, reason)
	}
}

// giveUp ends the session of a broker that is gone and fences it.
func (t *step) giveUp(ses *session, reason string) {
	ses.end()
	switch b := t.brokers[ses.broker]; {
	case b == nil:
		t.forgetSession(ses)
	case b.Fenced:
		t.event(SessionEnded{Broker: b.ID})
	default:
		t.fence(b, reason)
	}
}

// forgetSession drops what is known of a broker that is not registered any more.
func (t *step) forgetSession(ses *session) {
	t.state.bind(ses, connection{})
	delete(t.state.sessions, ses.broker)
}

// alive reports whether the incarnation that holds a broker id must be taken to be running.
func (t *step) alive(b messages.BrokerID) bool {
	ses := t.state.sessions[b]
	return ses != nil && ses.live && !ses.gone && !ses.mayStop && t.env.Now < ses.contact+t.settings.Session
}
