package registry

import (
	"time"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// claim is the word of a registered broker that it has seen more than the journal holds. It stands for as long as the same
// incarnation is heard, also when the journal has grown past the position since: what grew is another history.
type claim struct {
	incarnation messages.IncarnationID
	heard       time.Duration
	seen        messages.Seen
	err         *messages.Error
}

// claimStands is for how long a claim stands that is not repeated, at least. A broker that is not registered asks again within
// five seconds.
const claimStands = 15 * time.Second

// ahead refuses whoever has seen more than this controller holds. No committed position and no epoch that was ever given to
// a broker is above Applied: the store went back in time, or another controller is active.
func (t *step) ahead(b messages.BrokerID, as messages.IncarnationID, seen *pb.Seen, epoch uint64) *messages.Error {
	s := messages.SeenFromProto(seen)
	older := s.Controller < t.env.Controller && t.env.Claimed > 0 && s.Sequence >= t.env.Claimed
	known := t.brokers[b]
	if known == nil || uint64(known.Epoch) != epoch {
		s.Sequence = max(s.Sequence, messages.Sequence(epoch))
	}
	var err *messages.Error
	switch {
	case s.Controller > t.env.Controller:
		err = messages.Errorf(messages.CodeNotActiveController,
			"the broker has heard of controller epoch %d, this controller has epoch %d", s.Controller, t.env.Controller)
	case older:
		err = messages.Errorf(messages.CodeStoreWentBack, "the broker has seen journal position %d of controller epoch %d, in this "+
			"journal epoch %d begins at %d: the store went back in time", s.Sequence, s.Controller, t.env.Controller, t.env.Claimed)
	case s.Sequence > t.env.Applied:
		err = messages.Errorf(messages.CodeStoreWentBack, "the broker has seen journal position %d, this controller's "+
			"journal ends at %d: the store went back in time, or another controller is active", s.Sequence, t.env.Applied).
			WithHint("do not start the broker with empty storage; restore the journal, or see `highwater cluster recover --help`")
	default:
		if c, ok := t.state.claims[b]; ok && c.incarnation == as {
			return t.stand(b, c)
		}
		return nil
	}
	if known == nil || as.Validate() != nil {
		t.event(PositionAhead{Broker: b, Seen: s, Reason: err.Message})
		return err
	}
	if c, ok := t.state.claims[b]; !ok || c.incarnation != as || c.seen.Before(s) { // else it has been said
		t.event(PositionAhead{Broker: b, Seen: s, Registered: true, Reason: err.Message})
	}
	return t.stand(b, claim{incarnation: as, seen: s, err: err})
}

func (t *step) stand(b messages.BrokerID, c claim) *messages.Error {
	c.heard = t.env.Now
	t.state.claims[b] = c
	return c.err
}

// doubt says why nothing may be decided, nil if it may. While a registered broker is heard that knows better than the
// journal, what the journal says is not the state of the cluster: to fence, to elect or to delete by it would give epochs
// anew and move leaderships that are not there. Strangers raise no doubt, and a claim that is not repeated ends.
func (t *step) doubt() *messages.Error {
	for _, b := range sortedKeys(t.state.claims) {
		c := t.state.claims[b]
		if t.brokers[b] == nil || t.env.Now-c.heard >= max(t.settings.Session, claimStands) {
			delete(t.state.claims, b)
			t.event(ClaimEnded{Broker: b})
			continue
		}
		return messages.Errorf(messages.CodeStoreWentBack,
			"nothing is decided while broker %s is heard, which knows more than the journal: %s", b, c.err.Message).
			WithHint("restore the newest journal, or see `highwater cluster recover --help`")
	}
	return nil
}
