package natsbus

import (
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"sync"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// verb is one request that the controller takes. The table of them is verbs().
type verb struct {
	subject   string // to subscribe to
	textual   bool   // JSON unless the sender says otherwise
	session   bool   // admitted from the room of the sessions
	request   func() proto.Message
	failure   func(*pb.Error) proto.Message
	principal func(messages.Subjects, string) (string, bool)
	// cost is the number of items of a body, an error if there are too many; nil costs one.
	cost  func(proto.Message) (int, error)
	serve func(*Edge, *exchange, proto.Message)
}

// Limits of what waits in a subscription before NATS drops it. Callbacks do not wait, so only a burst gets near.
const (
	pendingMessages = 200_000
	pendingBytes    = 256 << 20
)

// subscribe opens the subject of every verb, without a queue group: there is one active controller.
func (e *Edge) subscribe() error {
	for _, v := range verbs(e.subjects) {
		s, err := e.cfg.Conn.Subscribe(v.subject, func(m *nats.Msg) { e.receive(v, m) })
		if err != nil {
			return messages.Errorf(messages.CodeUnavailable, "subscription to %s: %v", v.subject, err)
		}
		e.keep(s)
	}
	if e.cfg.System == nil {
		e.cfg.Logger.Warn().Msg("no system events: a dead broker is noticed by the end of its session only")
		return nil
	}
	s, err := e.cfg.System.Subscribe(disconnectSubject, e.disconnected)
	if err != nil {
		return messages.Errorf(messages.CodeUnavailable, "subscription to system events: %v", err)
	}
	e.keep(s)
	return nil
}

// subscription is one that lets requests in, and what to call when it calls back no more; once is enough.
type subscription struct {
	sub   *nats.Subscription
	ended func()
}

func (e *Edge) keep(s *nats.Subscription) {
	e.intake.Add(1)
	ended := sync.OnceFunc(e.intake.Done)
	s.SetClosedHandler(func(string) { ended() })
	if err := s.SetPendingLimits(pendingMessages, pendingBytes); err != nil {
		e.cfg.Logger.Warn().Err(err).Str("subject", s.Subject).Msg("limits of a subscription not set")
	}
	e.subs = append(e.subs, subscription{s, ended})
}

// receive takes one request in: it is read, its sender is checked, it is admitted, and served. It never waits.
func (e *Edge) receive(v *verb, m *nats.Msg) {
	x := &exchange{edge: e, reply: m.Reply, json: v.textual, failure: v.failure}
	defer func() {
		if fault := recover(); fault != nil {
			e.cfg.Logger.Error().Str("subject", m.Subject).Str("fault", fmt.Sprint(fault)).Bytes("stack", debug.Stack()).
				Msg("a request could not be taken in")
			x.refuse(messages.Errorf(messages.CodeInternal, "the request could not be taken in"))
		}
	}()
	body, err := e.read(v, x, m)
	if err == nil && v.textual {
		err = e.storeAway()
	}
	if err == nil {
		err = e.admit(v, x, body)
	}
	if err != nil {
		e.refused.Add(1)
		x.refuse(err)
		return
	}
	v.serve(e, x, body)
}

// read decodes a request and checks that it speaks for the principal of its subject.
func (e *Edge) read(v *verb, x *exchange, m *nats.Msg) (proto.Message, error) {
	var err error
	if x.json, err = wantsJSON(m.Header, v.textual); err != nil {
		return nil, err
	}
	principal, ok := v.principal(e.subjects, m.Subject)
	if !ok || principal == "" {
		return nil, messages.Errorf(messages.CodeInvalidRequest, "the subject has no readable principal").
			WithHint("write every byte outside [A-Za-z0-9_-] as =XX")
	}
	x.principal = principal
	if len(m.Data) > e.cfg.MaxRequestBytes {
		return nil, messages.Errorf(messages.CodeTooLarge, "the request has %d bytes, the limit is %d", len(m.Data), e.cfg.MaxRequestBytes)
	}
	body := v.request()
	if err := decode(m.Data, x.json, body); err != nil {
		return nil, err
	}
	if b, ok := body.(interface{ GetBroker() string }); ok {
		if err := messages.BrokerID(b.GetBroker()).Validate(); err != nil {
			return nil, err
		}
		if b.GetBroker() != principal {
			return nil, messages.Errorf(messages.CodeDenied, "%q may not speak for broker %q", clip(principal, 64), b.GetBroker())
		}
	}
	return body, nil
}

// admit takes credits for a request, or says when to come back.
func (e *Edge) admit(v *verb, x *exchange, body proto.Message) error {
	cost := 1
	if v.cost != nil {
		n, err := v.cost(body)
		if err != nil {
			return err
		}
		cost = max(1, n)
	}
	pool := e.work
	if v.session {
		pool = e.sessions
	}
	taken, ok := pool.take(cost)
	if !ok {
		return busy("%d items are waiting already", pool.outstanding())
	}
	x.pool, x.cost = pool, taken
	return nil
}

// storeAway refuses an operator's request at once while nothing can be stored: it would only wait, and its outcome would not be
// known. What waits already is settled when the store is back, so this ends by itself.
func (e *Edge) storeAway() error {
	for _, p := range e.cfg.Problems() {
		if p.Code == messages.ProblemStore {
			return messages.Errorf(messages.CodeUnavailable, "nothing can be stored at the moment: %s", clip(p.Detail, 300)).
				WithHint("see `highwater cluster health`; ask again when the journal is written to")
		}
	}
	return nil
}

// busy says that there is no room, and when to come back; the times are spread, so that not everybody comes at once.
func busy(format string, args ...any) *messages.Error {
	err := messages.Errorf(messages.CodeBusy, format, args...)
	err.RetryAfterMs = 100 + rand.Uint32N(200)
	return err
}
