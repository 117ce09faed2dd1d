package broker

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// bus is what a session needs of NATS.
type bus interface {
	// request asks and waits for one answer; an error without a code means that there was none.
	request(ctx context.Context, subject string, body []byte) ([]byte, error)
	// subscribe delivers into ch, and drops what does not fit. The feed's positions show such a loss.
	subscribe(subject string, ch chan *nats.Msg) (unsubscribe func(), err error)
	// watch returns changes of the connection until stop is called; events may be dropped while nobody reads.
	watch() (events <-chan nats.Status, stop func())
	connected() bool
	connection() *pb.Connection
}

var errNoAnswer = errors.New("no answer")

// natsBus is the bus over a connection that belongs to the caller.
type natsBus struct{ nc *nats.Conn }

// request does not queue while disconnected: a request that waits for a reconnect would be carried out late.
func (b natsBus) request(ctx context.Context, subject string, body []byte) ([]byte, error) {
	if !b.nc.IsConnected() {
		return nil, errNoAnswer
	}
	m, err := b.nc.RequestWithContext(ctx, subject, body)
	if err != nil {
		return nil, err
	}
	return m.Data, nil
}

func (b natsBus) subscribe(subject string, ch chan *nats.Msg) (func(), error) {
	sub, err := b.nc.ChanSubscribe(subject, ch)
	if err != nil {
		return nil, err
	}
	// The subscription is at the server before anything is said that makes the controller publish to it. Without a
	// connection there is nothing to wait for: it is made again when there is one, before anything else.
	if err := b.nc.FlushTimeout(2 * time.Second); err != nil && b.nc.IsClosed() {
		return nil, err
	}
	return func() { _ = sub.Unsubscribe() }, nil
}

func (b natsBus) watch() (<-chan nats.Status, func()) {
	ch := b.nc.StatusChanged(nats.CONNECTED, nats.RECONNECTING, nats.DISCONNECTED, nats.CLOSED)
	return ch, func() { b.nc.RemoveStatusListener(ch) }
}

func (b natsBus) connected() bool { return b.nc.IsConnected() }

func (b natsBus) connection() *pb.Connection {
	id, err := b.nc.GetClientID()
	if err != nil {
		return nil
	}
	return &pb.Connection{ServerId: b.nc.ConnectedServerId(), ClientId: id}
}

// checkPrincipal defaults the principal to the broker id.
func principalOf(c config, id messages.BrokerID) string {
	if c.principal != "" {
		return c.principal
	}
	return string(id)
}

func (b natsBus) closed() bool { return b.nc.IsClosed() }
