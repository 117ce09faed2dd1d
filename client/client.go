package client

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// Anonymous is the principal of a client without credentials.
const Anonymous = "anonymous"

const (
	headerContentType = "Content-Type"
	typeProtobuf      = "application/protobuf"
	typeJSON          = "application/json"
)

// payloadMargin is left free in a message of the largest size for what surrounds records, in bytes. Brokers leave half of it.
const payloadMargin = 8192

// Client speaks to one cluster over a connection that the caller owns. It is safe for concurrent use.
type Client struct {
	nc        *nats.Conn
	subjects  messages.Subjects
	principal string
	timeout   time.Duration
	trace     func(subject string, took time.Duration, err error)

	ctx        context.Context // of the client's life; it ends with errClientClosed
	cancel     context.CancelCauseFunc
	status     chan nats.Status
	background sync.WaitGroup

	mu     sync.Mutex
	topics map[messages.TopicName]*leaders
}

// Option changes a Client.
type Option func(*Client)

// WithPrincipal sets the name that the client speaks under; default Anonymous.
func WithPrincipal(name string) Option { return func(c *Client) { c.principal = name } }

// WithTimeout bounds one request to the controller when the context has no deadline; default 5 s.
func WithTimeout(d time.Duration) Option { return func(c *Client) { c.timeout = d } }

// WithTrace calls f after each request, with what it took and its error if there was no answer. The calls are concurrent.
func WithTrace(f func(subject string, took time.Duration, err error)) Option {
	return func(c *Client) { c.trace = f }
}

// ConnectOptions are the options that a connection for a Client should have: it reconnects for ever, quickly, and a request
// that waits while the connection is down is not sent later. A server that is there but says nothing is left after 3 to 4.5 s: a
// broker has found another one before the controller that took over fences anybody for silence.
func ConnectOptions(name string) []nats.Option {
	return []nats.Option{
		nats.Name(name), nats.MaxReconnects(-1), nats.ReconnectWait(100 * time.Millisecond),
		nats.ReconnectJitter(100*time.Millisecond, 100*time.Millisecond), nats.ReconnectBufSize(-1), nats.IgnoreAuthErrorAbort(),
		nats.PingInterval(1500 * time.Millisecond), nats.MaxPingsOutstanding(2), nats.Timeout(2 * time.Second),
	}
}

// New returns a client of a cluster; Close ends it. INVALID_NAME for a cluster name that is none.
func New(nc *nats.Conn, cluster messages.ClusterName, opts ...Option) (*Client, error) {
	if err := cluster.Validate(); err != nil {
		return nil, err
	}
	c := &Client{nc: nc, subjects: messages.NewSubjects(cluster), principal: Anonymous, timeout: 5 * time.Second,
		trace: func(string, time.Duration, error) {}, topics: map[messages.TopicName]*leaders{}}
	for _, o := range opts {
		o(c)
	}
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	c.status = nc.StatusChanged(nats.CONNECTED)
	c.background.Go(c.watch)
	return c, nil
}

// watch looks at leaderships anew after each reconnect, because what was said meanwhile was not heard.
func (c *Client) watch() {
	for range c.status { // closed by Close, or by the end of the connection
		c.mu.Lock()
		for _, l := range c.topics {
			l.stir()
		}
		c.mu.Unlock()
	}
}

// Close ends the client's subscriptions and whatever producers and consumers of it are still running: their records and
// calls fail with UNAVAILABLE. The connection stays open. Close may be called more than once.
func (c *Client) Close() error {
	c.cancel(errClientClosed)
	c.nc.RemoveStatusListener(c.status)
	c.mu.Lock()
	var err error
	for _, l := range c.topics {
		err = errors.Join(err, l.close())
	}
	clear(c.topics)
	c.mu.Unlock()
	c.background.Wait()
	return err
}

// Errors that no other try can mend, compared by identity.
var (
	errClientClosed     = messages.Errorf(messages.CodeUnavailable, "the client is closed")
	errConnectionClosed = messages.Errorf(messages.CodeUnavailable, "the NATS connection is closed")
)

// coded gives an error of NATS a code. A context that was cancelled stays recognisable by errors.Is.
func coded(what string, err error) error {
	var known *messages.Error
	switch {
	case errors.As(err, &known), errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, nats.ErrNoResponders):
		return messages.Errorf(messages.CodeUnavailable, "%s: no active controller answers", what).
			WithHint("is a controller running, and is this its cluster name?")
	}
	return messages.Errorf(messages.CodeUnavailable, "%s: %v", what, err)
}

func (c *Client) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, c.timeout)
}

// answer is a protobuf answer, which may be an error.
type answer interface {
	proto.Message
	GetError() *pb.Error
}

// What nobody listens to is sent again for a while: one controller may have gone and another be about to take over.
const (
	takeover      = 700 * time.Millisecond
	takeoverPause = 20 * time.Millisecond
)

// patiently asks again as long as nobody listens, and the context and the patience last.
func patiently(ctx context.Context, ask func() error) error {
	for end := time.Now().Add(takeover); ; {
		err := ask()
		if !errors.Is(err, nats.ErrNoResponders) || time.Now().After(end) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(takeoverPause):
		}
	}
}

// call asks the controller; its errors are coded.
func (c *Client) call(ctx context.Context, what, subject string, in proto.Message, out answer) error {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	if err := patiently(ctx, func() error { return c.exchange(ctx, subject, in, out) }); err != nil {
		return coded(what, err)
	}
	if e := messages.ErrorFromProto(out.GetError()); e != nil {
		return e
	}
	return nil
}

// exchange sends a protobuf request and reads a protobuf answer. Its errors are those of NATS, of the context, or coded.
func (c *Client) exchange(ctx context.Context, subject string, in, out proto.Message) error {
	body, err := proto.Marshal(in)
	if err != nil {
		return messages.Errorf(messages.CodeInvalidRequest, "the request cannot be written: %v", err)
	}
	answer, err := c.request(ctx, subject, typeProtobuf, body)
	if err != nil {
		return err
	}
	if err := proto.Unmarshal(answer.Data, out); err != nil {
		return messages.Errorf(messages.CodeInternal, "the answer on %s cannot be read: %v", subject, err)
	}
	return nil
}

func (c *Client) request(ctx context.Context, subject, contentType string, body []byte) (*nats.Msg, error) {
	began := time.Now()
	answer, err := c.nc.RequestMsgWithContext(ctx, &nats.Msg{Subject: subject, Header: nats.Header{headerContentType: {contentType}}, Data: body})
	switch {
	case errors.Is(err, nats.ErrConnectionClosed):
		err = errConnectionClosed
	case errors.Is(err, nats.ErrMaxPayload):
		err = messages.Errorf(messages.CodeTooLarge, "the request has %d bytes, the server's limit is %d with its headers", len(body), c.nc.MaxPayload())
	}
	c.trace(subject, time.Since(began), err)
	return answer, err
}

// largest returns the bytes of records that fit one request.
func (c *Client) largest() int {
	limit := int(c.nc.MaxPayload())
	return limit - min(payloadMargin, limit/2)
}

// view asks a monitoring endpoint; data is what the answer's data is read into.
func (c *Client) view(ctx context.Context, endpoint string, query, data any) (messages.View, error) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	var body []byte
	if query != nil {
		var err error
		if body, err = json.Marshal(query); err != nil {
			return messages.View{}, messages.Errorf(messages.CodeInvalidRequest, "the query cannot be written: %v", err)
		}
	}
	var answer *nats.Msg
	err := patiently(ctx, func() (err error) {
		answer, err = c.request(ctx, c.subjects.Monitor(endpoint), typeJSON, body)
		return err
	})
	if err != nil {
		return messages.View{}, coded("read "+endpoint, err)
	}
	var failed struct {
		Error *pb.Error `json:"error"`
	}
	if err := json.Unmarshal(answer.Data, &failed); err == nil && failed.Error != nil {
		return messages.View{}, messages.ErrorFromProto(failed.Error)
	}
	v := messages.View{Data: data}
	if err := json.Unmarshal(answer.Data, &v); err != nil {
		return messages.View{}, messages.Errorf(messages.CodeInternal, "the answer of %s cannot be read: %v", endpoint, err)
	}
	return v, nil
}
