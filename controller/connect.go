package controller

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/highwater-io/highwater/messages"
)

// connections are the controller's own: one for the journal, so that its appends do not queue behind everything else, one
// for the edge, and one for system events where there are any.
type connections struct {
	journal *nats.Conn
	edge    *nats.Conn
	system  *nats.Conn // nil where there is no system account
}

func (n *connections) close() {
	for _, nc := range []*nats.Conn{n.edge, n.system, n.journal} {
		if nc != nil {
			nc.Close()
		}
	}
}

// refresh makes the connection of the edge anew when it was interrupted during the term that has ended. A subscription that is drained
// while the connection is away is named to the server again by the reconnect, and then never taken back: the server would go on
// sending it requests that nobody answers.
func (c *Controller) refresh(ctx context.Context) {
	nc := c.conns.edge
	if nc.Stats().Reconnects == c.refreshed && nc.IsConnected() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, refreshLimit)
	defer cancel()
	_ = flushed(ctx, nc) // what is drained is over then
	if err := nc.ForceReconnect(); err != nil {
		c.log.Warn().Err(err).Msg("the connection cannot be made anew")
	}
	if err := flushed(ctx, nc); err != nil {
		c.log.Warn().Err(err).Msg("the connection was made anew and is not there yet")
	}
	c.refreshed = nc.Stats().Reconnects
}

// refreshLimit bounds a refresh.
const refreshLimit = 5 * time.Second

// flushed waits until a server has answered, over reconnects.
func flushed(ctx context.Context, nc *nats.Conn) error {
	for {
		err := nc.FlushWithContext(ctx)
		if err == nil || ctx.Err() != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// connect opens the connections, in process to the embedded server.
func (c *Controller) connect(ctx context.Context) error {
	open := func(to **nats.Conn, name, url string, opts ...nats.Option) (err error) {
		*to, err = c.dial(ctx, name, url, opts...)
		return err
	}
	n := &c.conns
	if s := c.server; s != nil {
		in := nats.InProcessServer(s.server)
		if err := open(&n.journal, "journal", "", in, nats.UserInfo("hw", s.user)); err != nil {
			return err
		}
		if err := open(&n.edge, "edge", "", in, nats.UserInfo("hw", s.user)); err != nil {
			return err
		}
		return open(&n.system, "system", "", in, nats.UserInfo("sys", s.system))
	}
	if err := open(&n.journal, "journal", c.cfg.NATSURL, c.cfg.NATSOptions...); err != nil {
		return err
	}
	if err := open(&n.edge, "edge", c.cfg.NATSURL, c.cfg.NATSOptions...); err != nil {
		return err
	}
	if c.cfg.SystemURL == "" {
		return nil
	}
	return open(&n.system, "system", c.cfg.SystemURL, c.cfg.SystemOptions...)
}

// dial opens one connection and waits for it, as long as the context allows. It reconnects for ever and buffers nothing
// meanwhile: what is late is wrong.
func (c *Controller) dial(ctx context.Context, name, url string, opts ...nats.Option) (*nats.Conn, error) {
	log := c.log.With().Str("connection", name).Logger()
	waiting := newWait(log, withoutSecrets(url))
	nc, err := nats.Connect(url, append([]nats.Option{
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { waiting.failed(err) }),
		nats.Name("highwater-controller-" + c.cfg.Name + "-" + name),
		nats.MaxReconnects(-1), nats.ReconnectWait(100 * time.Millisecond), nats.ReconnectJitter(100*time.Millisecond, 100*time.Millisecond),
		nats.ReconnectBufSize(-1), nats.RetryOnFailedConnect(true), nats.IgnoreAuthErrorAbort(),
		nats.PingInterval(5 * time.Second), nats.MaxPingsOutstanding(2), nats.Timeout(2 * time.Second),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if !c.stopping.Load() {
				log.Warn().Err(err).Msg("disconnected from NATS")
			}
		}),
		nats.ReconnectHandler(func(*nats.Conn) { log.Info().Msg("reconnected to NATS") }),
		nats.ClosedHandler(func(nc *nats.Conn) {
			if !c.stopping.Load() {
				c.fail(messages.Errorf(messages.CodeUnavailable, "the %s connection is closed for good: %v", name, nc.LastError()))
			}
		}),
		nats.ErrorHandler(func(_ *nats.Conn, s *nats.Subscription, err error) {
			e := log.Warn().Err(err)
			if s != nil {
				e = e.Str("subject", s.Subject)
			}
			e.Msg("NATS reports an error")
		}),
	}, opts...)...)
	if err != nil {
		return nil, messages.Errorf(messages.CodeUnavailable, "NATS cannot be reached at %q: %v", withoutSecrets(url), err)
	}
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for !nc.IsConnected() {
		select {
		case <-look.C:
		case <-ctx.Done():
			nc.Close()
			return nil, messages.Errorf(messages.CodeUnavailable, "NATS cannot be reached at %q: %v", withoutSecrets(url), waiting.last())
		}
	}
	return nc, nil
}

// waitLog is the pause between two log lines of a connection that is waited for.
const waitLog = 5 * time.Second

// wait says, not too often, that a connection is waited for and why it does not come about.
type wait struct {
	log zerolog.Logger
	url string

	mu   sync.Mutex
	said time.Time
	err  error
}

func newWait(log zerolog.Logger, url string) *wait { return &wait{log: log, url: url} }

func (w *wait) failed(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if changed := w.err == nil || w.err.Error() != err.Error(); !changed && time.Since(w.said) < waitLog {
		return
	}
	w.err, w.said = err, time.Now()
	w.log.Warn().Err(err).Str("url", w.url).Msg("waiting for NATS")
}

func (w *wait) last() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// withoutSecrets leaves out who the users in a list of URLs are.
func withoutSecrets(list string) string {
	all := strings.Split(list, ",")
	for i, s := range all {
		if at := strings.LastIndex(s, "@"); at >= 0 {
			scheme, _, ok := strings.Cut(s, "://")
			if all[i] = s[at+1:]; ok {
				all[i] = scheme + "://" + all[i]
			}
		}
	}
	return strings.Join(all, ",")
}
