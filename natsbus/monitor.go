package natsbus

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// ServiceName is the name of the micro service that monitors find by `nats micro ls`.
const ServiceName = "highwater"

// maxWaiters bounds the inquiries that wait for a revision; revisionPoll is how often they look.
const (
	maxWaiters   = 256
	revisionPoll = 2 * time.Millisecond
)

// endpoint is one thing that can be asked. Subjects with wildcards name things; those come as args, unescaped.
type endpoint struct {
	name    string
	subject string // behind mon.v1.
	serve   func(e *Edge, q *inquiry) (data any, next string, err error)
}

func endpoints() []endpoint {
	return []endpoint{
		{"health", "health", (*Edge).viewHealth},
		{"overview", "overview", (*Edge).viewOverview},
		{"brokers", "brokers", (*Edge).viewBrokers},
		{"broker", "broker.*", (*Edge).viewBroker},
		{"topics", "topics", (*Edge).viewTopics},
		{"topic", "topic.*", (*Edge).viewTopic},
		{"partitions", "partitions", (*Edge).viewPartitions},
		{"partition", "partition.*.*", (*Edge).viewPartition},
		{"controllers", "controllers", (*Edge).viewControllers},
		{"upgrade", "upgrade", (*Edge).viewUpgrade},
		{"leadership", "leadership", (*Edge).viewLeadership},
	}
}

// inquiry is one question of a monitor.
type inquiry struct {
	args   []string // what the wildcards of the subject stand for
	query  messages.ListQuery
	json   bool
	budget int // bytes that the data of the answer may have
}

// monitor is the micro service.
type monitor struct {
	service micro.Service
	waiters chan struct{}
}

func (e *Edge) startMonitor() (*monitor, error) {
	service, err := micro.AddService(e.cfg.Conn, micro.Config{
		Name: ServiceName, Version: Version, Description: "cluster manager for partitioned, replicated logs",
		Metadata: map[string]string{"cluster": string(e.cfg.Cluster), "controller": e.cfg.Controller},
		ErrorHandler: func(_ micro.Service, err *micro.NATSError) {
			e.cfg.Logger.Warn().Str("subject", err.Subject).Str("error", err.Description).Msg("monitoring service")
		},
	})
	if err != nil {
		return nil, messages.Errorf(messages.CodeUnavailable, "monitoring service: %v", err)
	}
	m := &monitor{service: service, waiters: make(chan struct{}, maxWaiters)}
	for _, p := range endpoints() {
		handler := micro.HandlerFunc(func(r micro.Request) { e.inquire(m, p, r) })
		if err := service.AddEndpoint(p.name, handler, micro.WithEndpointSubject(e.subjects.Monitor(e.place()+p.subject))); err != nil {
			m.stop()
			return nil, messages.Errorf(messages.CodeUnavailable, "monitoring endpoint %s: %v", p.name, err)
		}
	}
	return m, nil
}

// place is what a standby's endpoints begin with: it is asked by name, so that nobody who has just changed something is told
// by one that lags that it is not there.
func (e *Edge) place() string {
	if e.cfg.Standby == nil {
		return ""
	}
	return "at." + messages.EscapeToken(e.cfg.Controller) + "."
}

func (m *monitor) stop() {
	if m != nil {
		_ = m.service.Stop() // it fails only where the connection is closed, and then nothing is left to stop
	}
}

// inquire answers a monitor. It reads the catalog at once, unless a revision is asked for that is not there yet: then it
// waits beside the other inquiries.
func (e *Edge) inquire(m *monitor, p endpoint, r micro.Request) {
	q, err := e.readInquiry(p, r)
	if err != nil || q.query.MinRevision <= e.cfg.Catalog.Applied() {
		h, data, failed := e.answerInquiry(p, q, err)
		if failed != nil {
			_ = r.Error(string(failed.Code), clip(failed.Message, 500), data, micro.WithHeaders(micro.Headers(h)))
			return
		}
		_ = r.Respond(data, micro.WithHeaders(micro.Headers(h))) // a lost connection; the monitor asks again
		return
	}
	later := func(err error) {
		h, data, failed := e.answerInquiry(p, q, err)
		if failed != nil {
			setErrorHeaders(h.Set, failed)
		}
		if r.Reply() != "" {
			e.out.put(&nats.Msg{Subject: r.Reply(), Header: h, Data: data}, nil)
		}
	}
	select {
	case m.waiters <- struct{}{}:
	default:
		later(busy("%d inquiries wait for a revision already", maxWaiters))
		return
	}
	started := e.goWork(func() {
		defer func() { <-m.waiters }()
		later(e.awaitRevision(q.query.MinRevision))
	})
	if !started {
		<-m.waiters
	}
}

func (e *Edge) awaitRevision(least messages.Sequence) error {
	deadline := time.NewTimer(e.cfg.RevisionWait)
	defer deadline.Stop()
	poll := time.NewTicker(revisionPoll)
	defer poll.Stop()
	for e.cfg.Catalog.Applied() < least {
		select {
		case <-poll.C:
		case <-e.life.Done():
			return messages.Errorf(messages.CodeUnavailable, "the controller is stopping")
		case <-deadline.C:
			return messages.Errorf(messages.CodeUnavailable, "revision %d was not reached within %v, the last one is %d",
				least, e.cfg.RevisionWait, e.cfg.Catalog.Applied())
		}
	}
	return nil
}

func (e *Edge) readInquiry(p endpoint, r micro.Request) (*inquiry, error) {
	q := &inquiry{json: true, budget: e.budget()}
	isJSON, err := wantsJSON(nats.Header(r.Headers()), true)
	if err != nil {
		return q, err
	}
	if !isJSON && p.name != "leadership" {
		return q, messages.Errorf(messages.CodeInvalidRequest, "%s answers in JSON only", p.name)
	}
	q.json = isJSON
	if len(r.Data()) > e.cfg.MaxRequestBytes {
		return q, messages.Errorf(messages.CodeTooLarge, "the request has %d bytes, the limit is %d", len(r.Data()), e.cfg.MaxRequestBytes)
	}
	if q.args, err = e.argsOf(p, r.Subject()); err != nil {
		return q, err
	}
	if !isJSON {
		return q, q.readProtobuf(r.Data())
	}
	return q, q.readJSON(r.Data())
}

// argsOf returns what the wildcards of an endpoint's subject stand for.
func (e *Edge) argsOf(p endpoint, subject string) ([]string, error) {
	have := strings.Split(strings.TrimPrefix(subject, e.subjects.Monitor(e.place())), ".")
	want := strings.Split(p.subject, ".")
	var args []string
	for i, t := range want {
		if t != "*" || i >= len(have) {
			continue
		}
		arg, ok := messages.UnescapeToken(have[i])
		if !ok {
			return nil, messages.Errorf(messages.CodeInvalidRequest, "the token %q of the subject cannot be read", clip(have[i], 64)).
				WithHint("write every byte outside [A-Za-z0-9_-] as =XX")
		}
		args = append(args, arg)
	}
	return args, nil
}

func (q *inquiry) readJSON(data []byte) error {
	if len(bytes.TrimSpace(data)) == 0 {
		return q.checkLimit()
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&q.query); err != nil {
		return messages.Errorf(messages.CodeInvalidRequest, "the body cannot be read as JSON: %s", clip(err.Error(), 300))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return messages.Errorf(messages.CodeInvalidRequest, "the body has more than one JSON value")
	}
	return q.checkLimit()
}

func (q *inquiry) readProtobuf(data []byte) error {
	m := &pb.LeadershipQuery{}
	if err := decode(data, false, m); err != nil {
		return err
	}
	q.query = messages.ListQuery{Limit: int(m.GetLimit()), Cursor: m.GetCursor(), MinRevision: messages.Sequence(m.GetMinRevision())}
	if m.GetTopic() != "" {
		q.query.Filter = map[string]string{"topic": m.GetTopic()}
	}
	return q.checkLimit()
}

// Limits of a list's page.
const (
	defaultLimit = 500
	maxLimit     = 5000
)

func (q *inquiry) checkLimit() error {
	if q.query.Limit < 0 || q.query.Limit > maxLimit {
		return messages.Errorf(messages.CodeInvalidRequest, "the limit is %d; it may be 1 to %d", q.query.Limit, maxLimit)
	}
	if q.query.Limit == 0 {
		q.query.Limit = defaultLimit
	}
	return nil
}

// budget returns how large the data of an answer may be: what NATS takes, less the envelope, and at most 1 MiB.
func (e *Edge) budget() int {
	const envelope, most = 8 << 10, 1 << 20
	return int(max(envelope, min(e.cfg.Conn.MaxPayload()-envelope, most)))
}

// answerInquiry returns headers and body of an answer, and the error if it is one.
func (e *Edge) answerInquiry(p endpoint, q *inquiry, err error) (nats.Header, []byte, *messages.Error) {
	at := e.cfg.Catalog.Applied() // before the reading: what is read is at least this new
	var data any
	var next string
	if err == nil {
		data, next, err = p.serve(e, q)
	}
	h := nats.Header{}
	if err != nil {
		failed := messages.AsError(err)
		h.Set(headerContentType, typeJSON)
		if !q.json {
			h.Set(headerContentType, typeProtobuf)
			body, _ := proto.Marshal(&pb.LeadershipPage{Error: failed.Proto()}) // a message of strings can be written
			return h, body, failed
		}
		return h, errorJSON(failed), failed
	}
	var body []byte
	if q.json {
		h.Set(headerContentType, typeJSON)
		body, err = json.Marshal(e.envelope(p, at, data, next))
	} else {
		h.Set(headerContentType, typeProtobuf)
		page := data.(*pb.LeadershipPage)
		page.Seen, page.Next = messages.SeenToProto(messages.Seen{Controller: e.epoch(), Sequence: at}), next
		body, err = proto.Marshal(page)
	}
	if err != nil {
		failed := messages.Errorf(messages.CodeInternal, "the answer cannot be written: %v", err)
		return h, errorJSON(failed), failed
	}
	return h, body, nil
}

func (e *Edge) envelope(p endpoint, at messages.Sequence, data any, next string) messages.View {
	v := messages.View{
		Type: "highwater.mon.v1." + p.name + "_response", Cluster: e.cfg.Cluster, Revision: at,
		AsOf: time.Now().UTC().Format("2006-01-02T15:04:05.000Z07:00"), ServedBy: e.cfg.Controller, Role: "active",
		ControllerEpoch: e.epoch(), Data: data,
	}
	if s := e.cfg.Standby; s != nil {
		age, stale := s.Age()
		v.Role, v.AgeMs, v.Stale = "standby", age.Milliseconds(), stale
	}
	if next != "" {
		v.Next = &next
	}
	return v
}

// viewControllers serves mon.v1.controllers.
func (e *Edge) viewControllers(*inquiry) (any, string, error) { return e.cfg.Controllers(), "", nil }

// errorJSON writes an error the way the command line shows it.
func errorJSON(err *messages.Error) []byte {
	p := err.Proto()
	body := map[string]any{"code": p.GetCode(), "message": p.GetMessage(), "hint": p.GetHint(), "retryable": p.GetRetryable()}
	if p.GetRetryAfterMs() > 0 {
		body["retry_after_ms"] = p.GetRetryAfterMs()
	}
	data, _ := json.Marshal(map[string]any{"error": body}) // strings, a bool and a number can be written
	return data
}

// Inquire answers an inquiry of this process itself, as the service would: the JSON envelope of an endpoint such as "health"
// or "topic.<name>". For the dashboard and HTTP.
func (e *Edge) Inquire(what string, query messages.ListQuery) ([]byte, error) {
	name, _, _ := strings.Cut(what, ".")
	for _, p := range endpoints() {
		if p.name != name || strings.Count(p.subject, ".") != strings.Count(what, ".") {
			continue
		}
		args, err := e.argsOf(p, e.subjects.Monitor(e.place()+what))
		if err != nil {
			return nil, err
		}
		q := &inquiry{args: args, query: query, json: true, budget: e.budget()}
		if err := q.checkLimit(); err != nil {
			return nil, err
		}
		_, body, failed := e.answerInquiry(p, q, nil)
		if failed != nil {
			return nil, failed
		}
		return body, nil
	}
	return nil, messages.Errorf(messages.CodeInvalidRequest, "nothing can be asked under %q", clip(what, 64))
}
