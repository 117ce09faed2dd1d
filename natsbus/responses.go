package natsbus

import (
	"sync"
	"time"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// responses remembers which brokers do what they are told. One whose heart beats may be deaf all the same: what is sent to it
// does not arrive, or nothing is done about it. It loses what it does not take up, and monitors are told.
type responses struct {
	mu      sync.Mutex
	brokers map[messages.BrokerID]*response
}

// response is what is known of one registration.
type response struct {
	epoch messages.BrokerEpoch
	// sent is the last position of its feed that was sent, applied the last that it has told of.
	sent, applied feedAt
	// behind is since when it has applied nothing although there was something; zero when it has all.
	behind time.Time
	// unproven: it has let its time pass as a leader, and has not answered to another leadership since.
	unproven bool
}

type feedAt struct {
	feed     messages.Sequence
	position uint64
}

func newResponses() *responses { return &responses{brokers: map[messages.BrokerID]*response{}} }

// of returns what is known of a registration. The caller holds mu.
func (r *responses) of(b *messages.Broker) *response {
	known := r.brokers[b.ID]
	if known == nil || known.epoch != b.Epoch {
		known = &response{epoch: b.Epoch}
		r.brokers[b.ID] = known
	}
	return known
}

// sent notes that a batch of assignments is on its way.
func (r *responses) sent(b *messages.Broker, at feedAt, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.of(b)
	if known.sent = at; known.behind.IsZero() {
		known.behind = now
	}
}

// beat notes the position that a heartbeat tells of.
func (r *responses) beat(b *messages.Broker, at *pb.FeedPosition, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.of(b)
	applied := feedAt{messages.Sequence(at.GetFeed()), at.GetPosition()}
	moved := applied != known.applied
	known.applied = applied
	switch {
	case applied.feed == known.sent.feed && applied.position >= known.sent.position:
		known.behind = time.Time{}
	case moved && !known.behind.IsZero():
		known.behind = now // it is on its way
	}
}

// led notes whether a broker has answered to a leadership in time.
func (r *responses) led(b *messages.Broker, inTime bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.of(b).unproven = !inTime
}

// missing reports whether a broker does not do what it is told, and has not for longer than it may take.
func (r *responses) missing(b *messages.Broker, now time.Time, patience time.Duration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.brokers[b.ID]
	return known != nil && known.epoch == b.Epoch && (known.unproven || !known.behind.IsZero() && now.Sub(known.behind) > patience)
}

// noteResponses looks for answers to leaderships among the events of an actor.
func (e *Edge) noteResponses(events []actors.Event) {
	for _, ev := range events {
		r, ok := ev.(actors.Response)
		if !ok {
			continue
		}
		id, inTime := r.Response()
		if b := e.cfg.Catalog.Brokers()[id]; b != nil {
			e.responses.led(b, inTime)
		}
	}
}

// unresponsive reports whether an unfenced broker is deaf to what it is told.
func (e *Edge) unresponsive(b *messages.Broker) bool {
	patience := messages.DefaultSettings().LeaderReady
	if c := e.cfg.Catalog.Identity(); c != nil && c.Settings.LeaderReady > 0 {
		patience = c.Settings.LeaderReady
	}
	return e.responses.missing(b, time.Now(), patience)
}
