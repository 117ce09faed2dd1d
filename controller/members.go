package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/highwater-io/highwater/controller/activation"
	"github.com/highwater-io/highwater/messages"
)

// members listens to the other processes and speaks for this one. What it hears is a hint for suspicion and for people;
// what is decided rests on the journal alone.
type members struct {
	c     *Controller
	news  chan struct{} // something has changed that a standby should look at
	stop  chan struct{}
	loops sync.WaitGroup
	subs  []*nats.Subscription

	mu       sync.Mutex
	watch    *activation.Watch
	presence map[string]*nats.Conn // to the embedded server of another; its end is the end of that process or of the way to it
	closed   bool
}

// flushLimit bounds the wait for a server that does not answer.
const flushLimit = 10 * time.Second

func startMembers(ctx context.Context, c *Controller) (*members, error) {
	jitter := rand.N(c.cfg.Suspicion / 8)
	m := &members{c: c, news: make(chan struct{}, 1), stop: make(chan struct{}), presence: map[string]*nats.Conn{},
		watch: activation.New(activation.Config{Name: c.cfg.Name, Suspicion: c.cfg.Suspicion + jitter}, c.now())}
	s, err := c.conns.edge.Subscribe(messages.NewSubjects(c.cfg.Cluster).BeatAll(), m.hear)
	if err != nil {
		return nil, messages.Errorf(messages.CodeUnavailable, "subscription to the beats: %v", err)
	}
	m.subs = append(m.subs, s)
	if c.conns.system != nil && c.server == nil {
		if s, err = c.conns.system.Subscribe("$SYS.ACCOUNT.*.DISCONNECT", m.disconnected); err != nil {
			return nil, messages.Errorf(messages.CodeUnavailable, "subscription to system events: %v", err)
		}
		m.subs = append(m.subs, s)
	}
	ctx, cancel := context.WithTimeout(ctx, flushLimit)
	defer cancel()
	if err := c.conns.edge.FlushWithContext(ctx); err != nil {
		return nil, messages.Errorf(messages.CodeUnavailable, "the subscription to the beats is not confirmed: %v", err)
	}
	m.loops.Go(m.speak)
	return m, nil
}

// close ends speaking and listening, and waits for it.
func (m *members) close() {
	close(m.stop)
	for _, s := range m.subs {
		_ = s.Unsubscribe() // the connection may be closed already
	}
	m.mu.Lock()
	m.closed = true
	var open []*nats.Conn
	for _, nc := range m.presence {
		if nc != nil {
			open = append(open, nc)
		}
	}
	m.mu.Unlock()
	for _, nc := range open {
		nc.Close()
	}
	m.loops.Wait()
}

// own is the beat of this process.
func (m *members) own() activation.Beat {
	b := activation.Beat{Name: m.c.cfg.Name, Role: activation.Standby, URL: withoutSecrets(m.c.URL()), Versions: m.c.cfg.versions, Release: m.c.cfg.release,
		Unfit: m.c.whyUnfit()}
	if t := m.c.current(); t.catalog != nil {
		b.Applied, b.Epoch = t.catalog.Applied(), t.catalog.Claimed().Epoch
		if claimed := messages.ControllerEpoch(m.c.claimed.Load()); claimed > 0 {
			b.Role, b.Epoch = activation.Activating, claimed
		}
		if t.active {
			b.Role, b.Epoch = activation.Active, t.epoch
		}
	}
	b.Server = m.c.conns.edge.ConnectedServerId()
	b.Client, _ = m.c.conns.edge.GetClientID() // not known while disconnected, and then nothing is sent anyway
	return b
}

func (m *members) speak() {
	t := time.NewTicker(m.c.cfg.Beat)
	defer t.Stop()
	for {
		m.say()
		select {
		case <-m.stop:
			return
		case <-t.C:
		}
	}
}

func (m *members) say() {
	b := m.own()
	data, _ := json.Marshal(b)                                                           // strings and numbers can be written
	_ = m.c.conns.edge.Publish(messages.NewSubjects(m.c.cfg.Cluster).Beat(b.Name), data) // a lost beat is followed by the next
}

func (m *members) wake() {
	select {
	case m.news <- struct{}{}:
	default:
	}
}

// known has a question answered from what is known.
func known[T any](m *members, ask func(*activation.Watch) T) T {
	m.mu.Lock()
	defer m.mu.Unlock()
	return ask(m.watch)
}

// note changes what is known.
func (m *members) note(change func(w *activation.Watch, now time.Duration)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(m.watch, m.c.now())
}

// hear takes the beat of another process.
func (m *members) hear(msg *nats.Msg) {
	var b activation.Beat
	if err := json.Unmarshal(msg.Data, &b); err != nil || b.Name == "" {
		m.c.log.Warn().Err(err).Str("subject", msg.Subject).Msg("a beat cannot be read")
		return
	}
	if b.Name == m.c.cfg.Name {
		return
	}
	m.mu.Lock()
	m.watch.Hear(m.c.now(), b)
	if _, attended := m.presence[b.Name]; m.c.server != nil && !attended && !m.closed && b.URL != "" {
		m.presence[b.Name] = nil // somebody dials
		m.loops.Go(func() { m.attend(b.Name, b.URL) })
	}
	m.mu.Unlock()
	m.wake()
	if t := m.c.current(); t.active && known(m, func(w *activation.Watch) bool { return w.Deposed(t.epoch) }) {
		m.c.order(orderDeposed)
	}
}

// presenceTimeout bounds the dialling of another process's server.
const presenceTimeout = time.Second

// attend keeps a connection to the server of another process, whose end is noticed at once when the process dies. A
// connection may also end because this process was not running for a while, so nobody is given up who still lets
// connections in.
func (m *members) attend(name, url string) {
	ended := make(chan struct{})
	nc, err := nats.Connect(url, nats.Name("highwater-presence-"+m.c.cfg.Name), nats.NoReconnect(), nats.Timeout(presenceTimeout),
		nats.IgnoreDiscoveredServers(), nats.ClosedHandler(func(*nats.Conn) { close(ended) }))
	if err != nil {
		m.forget(name)
		return
	}
	m.mu.Lock()
	closed := m.closed
	m.presence[name] = nc
	m.mu.Unlock()
	if closed {
		nc.Close()
	}
	<-ended
	if m.forget(name) {
		return
	}
	if again, err := nats.Connect(url, nats.NoReconnect(), nats.Timeout(presenceTimeout), nats.IgnoreDiscoveredServers()); err == nil {
		again.Close()
		m.c.log.Info().Str("other", name).Msg("the connection to another controller has ended, but it lets new ones in")
		return // the next beat makes a new one
	}
	m.note(func(w *activation.Watch, _ time.Duration) { w.Lose(name) })
	m.wake()
}

// forget notes that there is no connection to a process, and returns whether there are to be none any more.
func (m *members) forget(name string) (closed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.presence, name)
	return m.closed
}

// disconnected takes the word of a server that the connection of some client has ended.
func (m *members) disconnected(msg *nats.Msg) {
	var n struct {
		Server struct {
			ID string `json:"id"`
		} `json:"server"`
		Client struct {
			ID uint64 `json:"id"`
		} `json:"client"`
	}
	if json.Unmarshal(msg.Data, &n) != nil || n.Client.ID == 0 {
		return
	}
	m.note(func(w *activation.Watch, _ time.Duration) {
		for _, o := range w.Members() {
			if o.Server == n.Server.ID && o.Client == n.Client.ID {
				w.Lose(o.Name)
			}
		}
	})
	m.wake()
}

// suspicion says why the active controller is taken to be gone, "" if it is not.
func (m *members) suspicion(claimed messages.ControllerClaimed) string {
	return known(m, func(w *activation.Watch) string { return w.Suspicion(m.c.now(), claimed) })
}

// successor returns the standby that is furthest, "" if there is none.
func (m *members) successor() string {
	return known(m, func(w *activation.Watch) string { return w.Successor(m.c.now()) })
}

// silenceKept is for how long people are told of a process that is not heard any more.
const silenceKept = time.Hour

// list is what monitors are told.
func (m *members) list() []messages.ControllerView {
	now := m.c.now()
	silent := func(o activation.Member) bool { return o.Lost || now-o.Heard > m.c.cfg.Suspicion }
	all := append(known(m, (*activation.Watch).Members), activation.Member{Beat: m.own(), Heard: now})
	slices.SortFunc(all, func(a, b activation.Member) int { return cmp.Compare(a.Name, b.Name) })
	all = slices.DeleteFunc(all, func(o activation.Member) bool { return now-o.Heard > silenceKept })
	views := make([]messages.ControllerView, len(all))
	for i, o := range all {
		views[i] = messages.ControllerView{Silent: silent(o), Name: o.Name, Role: string(o.Role), ControllerEpoch: o.Epoch, Applied: o.Applied, URL: o.URL,
			AgeMs: max(0, now-o.Heard).Milliseconds(), Versions: o.Versions.Or(), Release: o.Release, Unfit: o.Unfit}
	}
	return views
}
