package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/highwater-io/highwater/messages"
)

// beat is what every process says of itself, again and again. It is a hint for suspicion and for people: what is decided
// rests on the journal alone.
type beat struct {
	Name     string                   `json:"name"`
	Role     string                   `json:"role"`
	Epoch    messages.ControllerEpoch `json:"controller_epoch"`
	Applied  messages.Sequence        `json:"applied"`
	URL      string                   `json:"url"`
	Server   string                   `json:"server_id,omitempty"` // the connection that it speaks through
	Client   uint64                   `json:"client_id,omitempty"`
	Handover *handover                `json:"handover,omitempty"`
}

// handover is the last word of an active controller that leaves of its own accord: it grants nothing and commits nothing
// any more. The successor claims at once, the others a little later.
type handover struct {
	Epoch     messages.ControllerEpoch `json:"controller_epoch"`
	Successor string                   `json:"successor"`
}

// member is what is known of another process.
type member struct {
	last     beat
	heard    time.Time
	presence *nats.Conn // to its embedded server; its end is the end of the process or of the way to it
	dialing  bool
	lost     bool // its connection has ended since the last beat
}

// members listens to the other processes and speaks for this one.
type members struct {
	c     *Controller
	news  chan struct{} // something has changed that a standby should look at
	stop  chan struct{}
	loops sync.WaitGroup
	subs  []*nats.Subscription

	mu     sync.Mutex
	others map[string]*member
	left   handover // the newest word of leaving
	closed bool
}

// flushLimit bounds the wait for a server that does not answer.
const flushLimit = 10 * time.Second

func startMembers(ctx context.Context, c *Controller) (*members, error) {
	m := &members{c: c, news: make(chan struct{}, 1), stop: make(chan struct{}), others: map[string]*member{}}
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
	m.loops.Wait()
	for _, s := range m.subs {
		_ = s.Unsubscribe() // the connection may be closed already
	}
	m.mu.Lock()
	m.closed = true
	var open []*nats.Conn
	for _, o := range m.others {
		if o.presence != nil {
			open = append(open, o.presence)
		}
	}
	m.mu.Unlock()
	for _, nc := range open {
		nc.Close()
	}
}

// own is the beat of this process.
func (m *members) own() beat {
	b := beat{Name: m.c.cfg.Name, Role: "standby", URL: m.c.URL()}
	if t := m.c.current(); t.catalog != nil {
		b.Applied, b.Epoch = t.catalog.Applied(), t.catalog.Claimed().Epoch
		if t.active {
			b.Role, b.Epoch = "active", t.epoch
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
		m.say(m.own())
		select {
		case <-m.stop:
			return
		case <-t.C:
		}
	}
}

func (m *members) say(b beat) {
	data, _ := json.Marshal(b)                                                           // strings and numbers can be written
	_ = m.c.conns.edge.Publish(messages.NewSubjects(m.c.cfg.Cluster).Beat(b.Name), data) // a lost beat is followed by the next
}

// leave says that this process has ended its active term.
func (m *members) leave(ctx context.Context, h handover) {
	b := m.own()
	b.Role, b.Handover = "standby", &h
	m.say(b)
	_ = m.c.conns.edge.FlushWithContext(ctx) // without it the others wait for the silence
}

func (m *members) wake() {
	select {
	case m.news <- struct{}{}:
	default:
	}
}

// hear takes the beat of another process.
func (m *members) hear(msg *nats.Msg) {
	var b beat
	if err := json.Unmarshal(msg.Data, &b); err != nil || b.Name == "" {
		m.c.log.Warn().Err(err).Str("subject", msg.Subject).Msg("a beat cannot be read")
		return
	}
	if b.Name == m.c.cfg.Name {
		return
	}
	m.mu.Lock()
	o := m.others[b.Name]
	if o == nil {
		o = &member{}
		m.others[b.Name] = o
	}
	o.last, o.heard, o.lost = b, time.Now(), false
	if b.Handover != nil && b.Handover.Epoch > m.left.Epoch {
		m.left = *b.Handover
	}
	if m.c.server != nil && o.presence == nil && !o.dialing && !m.closed && b.URL != "" {
		o.dialing = true
		m.loops.Go(func() { m.attend(b.Name, b.URL) })
	}
	m.mu.Unlock()
	m.wake()
	if t := m.c.current(); t.active && b.Role == "active" && b.Epoch > t.epoch {
		m.c.order(orderDeposed)
	}
}

// attend keeps a connection to the server of another process, whose end is noticed at once when the process dies.
func (m *members) attend(name, url string) {
	var nc *nats.Conn
	nc, err := nats.Connect(url, nats.Name("highwater-presence-"+m.c.cfg.Name), nats.NoReconnect(), nats.Timeout(time.Second),
		nats.IgnoreDiscoveredServers(), nats.ClosedHandler(func(*nats.Conn) { m.gone(name) }))
	m.mu.Lock()
	o := m.others[name]
	o.dialing = false
	if err == nil && !m.closed && nc.IsConnected() {
		o.presence, nc = nc, nil
	}
	m.mu.Unlock()
	if nc != nil {
		nc.Close()
	}
}

// gone notes the end of a presence connection. The next beat makes a new one.
func (m *members) gone(name string) {
	m.mu.Lock()
	if o := m.others[name]; o != nil && o.presence != nil {
		o.presence, o.lost = nil, true
	}
	m.mu.Unlock()
	m.wake()
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
	m.mu.Lock()
	for _, o := range m.others {
		if o.last.Server == n.Server.ID && o.last.Client == n.Client.ID {
			o.lost = true
		}
	}
	m.mu.Unlock()
	m.wake()
}

// active returns what is known of the process that is active under an epoch or a later one: when it was heard last, how
// far its journal was, and whether its connection has ended since.
func (m *members) active(epoch messages.ControllerEpoch) (heard time.Time, applied messages.Sequence, lost bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, o := range m.others {
		if o.last.Role == "active" && o.last.Epoch >= epoch && o.heard.After(heard) {
			heard, applied, lost = o.heard, o.last.Applied, o.lost
		}
	}
	return heard, applied, lost
}

// handedOver reports whether the controller of an epoch has left of its own accord, and to whom.
func (m *members) handedOver(epoch messages.ControllerEpoch) (successor string, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.left.Successor, epoch > 0 && m.left.Epoch == epoch
}

// successor returns the standby that is furthest, "" if there is none.
func (m *members) successor() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	best := beat{}
	for _, o := range m.others {
		fresh := !o.lost && time.Since(o.heard) < m.c.cfg.Suspicion
		if fresh && o.last.Role == "standby" && (best.Name == "" || o.last.Applied > best.Applied || o.last.Applied == best.Applied && o.last.Name < best.Name) {
			best = o.last
		}
	}
	return best.Name
}

// list is what monitors are told.
func (m *members) list() []messages.ControllerView {
	view := func(b beat, age time.Duration) messages.ControllerView {
		return messages.ControllerView{Name: b.Name, Role: b.Role, ControllerEpoch: b.Epoch, Applied: b.Applied, URL: b.URL, AgeMs: age.Milliseconds()}
	}
	all := []messages.ControllerView{view(m.own(), 0)}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, o := range m.others {
		all = append(all, view(o.last, time.Since(o.heard)))
	}
	slices.SortFunc(all, func(a, b messages.ControllerView) int { return cmp.Compare(a.Name, b.Name) })
	return all
}
