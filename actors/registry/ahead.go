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
	err         *messages.Error
}

// ahead refuses whoever has seen more than this controller holds. No committed position and no epoch that was ever given to
// a broker is above Applied: the store went back in time, or another controller is active.
func (t *step) ahead(b messages.BrokerID, as messages.IncarnationID, seen *pb.Seen, epoch uint64) *messages.Error {
	s := messages.SeenFromProto(seen)
	known := t.brokers[b]
	if known == nil || uint64(known.Epoch) != epoch {
		s.Sequence = max(s.Sequence, messages.Sequence(epoch))
	}
	var err *messages.Error
	switch {
	case s.Controller > t.env.Controller:
		err = messages.Errorf(messages.CodeNotActiveController,
			"the broker has heard of controller epoch %d, this controller has epoch %d", s.Controller, t.env.Controller)
	case s.Sequence > t.env.Applied:
		err = messages.Errorf(messages.CodeNotActiveController, "the broker has seen journal position %d, this controller's "+
			"journal ends at %d: the store went back in time, or another controller is active", s.Sequence, t.env.Applied).
			WithHint("do not start the broker with empty storage; restore the journal, or see `highwater cluster doctor`")
	default:
		if c, ok := t.state.claims[b]; ok && c.incarnation == as {
			return t.stand(b, c)
		}
		return nil
	}
	t.event(PositionAhead{Broker: b, Seen: s})
	if known != nil && as.Validate() == nil {
		return t.stand(b, claim{incarnation: as, err: err})
	}
	return err
}

func (t *step) stand(b messages.BrokerID, c claim) *messages.Error {
	c.heard = t.env.Now
	t.state.claims[b] = c
	return c.err
}

// doubt says why nothing may be decided, nil if it may. While a registered broker is heard that knows better than the
// journal, what the journal says is not the state of the cluster: to fence, to elect or to delete by it would give epochs
// anew and move leaderships that are not there. Strangers raise no doubt, and a single claim raises it for one session.
func (t *step) doubt() *messages.Error {
	for _, b := range sortedKeys(t.state.claims) {
		c := t.state.claims[b]
		if t.brokers[b] == nil || t.env.Now-c.heard >= t.settings.Session {
			delete(t.state.claims, b)
			continue
		}
		return messages.Errorf(messages.CodeNotActiveController,
			"nothing is decided while broker %s is heard, which knows more than the journal: %s", b, c.err.Message).
			WithHint("restore the newest journal, or stop that broker")
	}
	return nil
}
