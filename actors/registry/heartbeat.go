package registry

import (
	"time"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// heartbeat notes contact and answers with the lease. It counts from its arrival, however long it was on its way.
func (t *step) heartbeat(principal string, r *pb.HeartbeatRequest) (*pb.HeartbeatResponse, *messages.Error) {
	if err := speaksFor(principal, r.GetBroker()); err != nil {
		return nil, err
	}
	id := messages.BrokerID(r.GetBroker())
	b := t.brokers[id]
	mine := b != nil && r.GetBrokerEpoch() == uint64(b.Epoch) && r.GetIncarnation() == string(b.Incarnation)
	if err := t.ahead(id, messages.IncarnationID(r.GetIncarnation()), r.GetSeen(), r.GetBrokerEpoch()); err != nil {
		if mine { // it lives: silence must not be held against it
			t.touch(t.state.session(id), t.env.Now)
		}
		return nil, err
	}
	if !mine {
		return nil, errStale(b, r.GetBrokerEpoch())
	}
	if err := checkConnection(r.GetConnection()); err != nil {
		return nil, err
	}
	ses := t.state.session(id)
	if !t.hear(ses, connectionOf(r.GetConnection())) {
		return t.lease(ses, 0, b.Fenced), nil
	}
	if err := t.doubt(); err != nil { // who leads goes on, and that is all
		if b.Fenced || ses.gone {
			return nil, err
		}
		return t.lease(ses, t.grant(), false), nil
	}
	return t.contact(ses, b, r), nil
}

// contact decides what a heartbeat that counts changes.
func (t *step) contact(ses *session, b *messages.Broker, r *pb.HeartbeatRequest) *pb.HeartbeatResponse {
	fenced, stopping := b.Fenced, b.Stopping
	switch {
	case r.GetStorageFailed():
		if !fenced {
			t.fence(b, reasonStorageFailed)
			fenced = true
		}
	case r.GetWantsStop():
		if !fenced && !stopping {
			t.beginStop(b)
		}
	case fenced && !stopping && r.GetReady():
		fenced = !t.unfence(ses, b)
	}
	// In the step that begins the stop, an election may still be under way that knows nothing of it: ask again.
	ses.mayStop = r.GetWantsStop() && fenced || stopping && (fenced || t.idle(b.ID))
	if fenced || ses.gone {
		return t.lease(ses, 0, fenced)
	}
	return t.lease(ses, t.grant(), false)
}

// grant is the lease that this controller may grant now: none once the journal has taken nothing for too long, because a
// successor may be fencing already whom it would be granted to.
func (t *step) grant() time.Duration {
	if t.env.GrantUntil != 0 && t.env.Now > t.env.GrantUntil {
		return 0
	}
	return t.settings.Lease()
}

func (t *step) beginStop(b *messages.Broker) {
	c := *b
	c.Stopping = true
	t.record(&c)
	t.broadcast(b.ID, actors.BrokerChanged{Broker: b.ID})
	t.event(BrokerStopping{Broker: b.ID})
}

// lease returns the answer to a heartbeat. The lease is the SDK's to reckon, from the moment it sent the heartbeat.
func (t *step) lease(ses *session, d time.Duration, fenced bool) *pb.HeartbeatResponse {
	return &pb.HeartbeatResponse{LeaseMs: uint32(d / time.Millisecond), Fenced: fenced, MayStop: ses.mayStop, Seen: t.seen(),
		Unfenced: ses.unfenced}
}

// speaksFor is DENIED unless a broker speaks for itself.
func speaksFor(principal, broker string) *messages.Error {
	if principal != broker || broker == "" {
		return messages.Errorf(messages.CodeDenied, "%.80q may not speak for broker %.80q", principal, broker)
	}
	return nil
}

func errStale(b *messages.Broker, epoch uint64) *messages.Error {
	if b == nil {
		return messages.Errorf(messages.CodeStaleBrokerEpoch, "the broker is not registered").WithHint("register again")
	}
	return messages.Errorf(messages.CodeStaleBrokerEpoch,
		"broker %s has epoch %d and incarnation %s now, the request came under epoch %d",
		b.ID, b.Epoch, b.Incarnation, epoch).WithHint("register again")
}
