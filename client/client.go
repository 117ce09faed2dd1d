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

// Client speaks to one cluster over a connection that the caller owns. It is safe for concurrent use.
type Client struct {
	nc        *nats.Conn
	subjects  messages.Subjects
	principal string
	timeout   time.Duration

	mu     sync.Mutex
	topics map[messages.TopicName]*leaders
	closed bool
}

// Option changes a Client.
type Option func(*Client)

// WithPrincipal sets the name that the client speaks under; default Anonymous.
func WithPrincipal(name string) Option { return func(c *Client) { c.principal = name } }

// WithTimeout bounds one request to the controller when the context has no deadline; default 5 s.
func WithTimeout(d time.Duration) Option { return func(c *Client) { c.timeout = d } }

// ConnectOptions are the options that a connection for a Client should have: it reconnects for ever, quickly, and a request
// that waits while the connection is down is not sent later.
func ConnectOptions(name string) []nats.Option {
	return []nats.Option{
		nats.Name(name), nats.MaxReconnects(-1), nats.ReconnectWait(100 * time.Millisecond),
		nats.ReconnectJitter(100*time.Millisecond, 100*time.Millisecond), nats.ReconnectBufSize(-1), nats.IgnoreAuthErrorAbort(),
		nats.PingInterval(5 * time.Second), nats.MaxPingsOutstanding(2), nats.Timeout(2 * time.Second),
	}
}

// New returns a client of a cluster. INVALID_NAME for a cluster name that is none.
func New(nc *nats.Conn, cluster messages.ClusterName, opts ...Option) (*Client, error) {
	if err := cluster.Validate(); err != nil {
		return nil, err
	}
	c := &Client{nc: nc, subjects: messages.NewSubjects(cluster), principal: Anonymous, timeout: 5 * time.Second,
		topics: map[messages.TopicName]*leaders{}}
	for _, o := range opts {
		o(c)
	}
	return c, nil
}

// Close ends the client's subscriptions. The connection stays open.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	var err error
	for _, l := range c.topics {
		err = errors.Join(err, l.close())
	}
	c.topics = map[messages.TopicName]*leaders{}
	return err
}

// unreachable says that nobody answers.
func unreachable(what string, err error) *messages.Error {
	if errors.Is(err, nats.ErrNoResponders) {
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

// call sends a protobuf request and reads a protobuf answer.
func (c *Client) call(ctx context.Context, subject string, in, out proto.Message) error {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	return c.exchange(ctx, subject, in, out)
}

func (c *Client) exchange(ctx context.Context, subject string, in, out proto.Message) error {
	body, err := proto.Marshal(in)
	if err != nil {
		return messages.Errorf(messages.CodeInvalidRequest, "the request cannot be written: %v", err)
	}
	if limit := c.nc.MaxPayload(); limit > 0 && int64(len(body)) > limit {
		return messages.Errorf(messages.CodeTooLarge, "the request has %d bytes, the server's limit is %d", len(body), limit)
	}
	m := nats.NewMsg(subject)
	m.Header.Set(headerContentType, typeProtobuf)
	m.Data = body
	answer, err := c.nc.RequestMsgWithContext(ctx, m)
	if err != nil {
		return err
	}
	if err := proto.Unmarshal(answer.Data, out); err != nil {
		return messages.Errorf(messages.CodeInternal, "the answer on %s cannot be read: %v", subject, err)
	}
	return nil
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
	m := nats.NewMsg(c.subjects.Monitor(endpoint))
	m.Header.Set(headerContentType, typeJSON)
	m.Data = body
	answer, err := c.nc.RequestMsgWithContext(ctx, m)
	if err != nil {
		return messages.View{}, unreachable("read "+endpoint, err)
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
