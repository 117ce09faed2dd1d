package broker

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/highwater-io/highwater/messages"
)

// Handler is told what this broker is to be for each partition. Calls for one partition come one after another, those of
// different partitions may come at once. Returning nil acknowledges; a call that is overtaken by newer decisions may be
// left out. The context of a call ends with the registration, and for BecomeLeader with the leadership.
type Handler interface {
	// AddReplica makes room for a replica; it is called once for each partition in a process, before its roles. An
	// error is tried again after a pause.
	AddReplica(ctx context.Context, a Assignment) error
	// BecomeLeader starts to lead. It calls l.Report with where its log is, and returns nil when it serves; an error, or
	// a log that ends below the floor, declines the leadership.
	BecomeLeader(ctx context.Context, l *Leadership) error
	// BecomeFollower follows the leader, if there is one, and serves no more. An error is tried again after a pause.
	BecomeFollower(ctx context.Context, a Assignment) error
	// RemoveReplica deletes a replica's data: its topic has been deleted. An error is tried again after a pause.
	RemoveReplica(ctx context.Context, p Partition) error
}

// Member is a broker's place in the cluster.
type Member struct {
	s     *session
	roles *roles
}

// Join registers a broker and drives its handler from then on. It returns when registered; ctx bounds only that. With no
// controller there it goes on trying. The connection belongs to the caller and must stay open; it should never give up
// reconnecting (nats.MaxReconnects(-1)) and not buffer meanwhile (nats.ReconnectBufSize(-1)). Errors:
// ErrClusterMismatch, ErrIncompatible, ErrDenied, ErrBrokerIDInUse after the in-use timeout, INVALID_NAME, INVALID_RACK.
func Join(ctx context.Context, nc *nats.Conn, cluster messages.ClusterName, id ID, h Handler, opts ...Option) (*Member, error) {
	return join(ctx, natsBus{nc}, cluster, id, h, newConfig(opts))
}

func join(ctx context.Context, b bus, cluster messages.ClusterName, id ID, h Handler, cfg config) (*Member, error) {
	r := newRoles(id, h, cfg.concurrency)
	s, err := newSession(b, cluster, id, cfg, r)
	if err != nil {
		return nil, err
	}
	r.attach(s)
	if err := s.start(ctx); err != nil {
		return nil, err
	}
	return &Member{s: s, roles: r}, nil
}

// Ready is closed when the broker has been unfenced for the first time.
func (m *Member) Ready() <-chan struct{} { return m.s.firstReady }

// Report states where this broker's replica of a partition is. The latest counts; it never blocks. Marks of partitions
// that this broker leads go to the controller at the checkpoint interval.
func (m *Member) Report(p messages.PartitionID, progress Progress) { m.roles.report(p, progress) }

// Shutdown leaves in order: the controller moves this broker's leaderships to others and takes it out of every ISR,
// while the handler goes on; then the member ends. If ctx ends first the member ends all the same, and ctx's error is
// returned.
func (m *Member) Shutdown(ctx context.Context) error {
	err := m.s.stop(ctx)
	m.s.close()
	m.roles.wait()
	return err
}

// Close leaves at once, as a crash would.
func (m *Member) Close() {
	m.s.close()
	m.roles.wait()
}

// Done is closed when the member has ended; Err then says why, nil after Shutdown or Close.
func (m *Member) Done() <-chan struct{} { return m.s.done }

// Err returns why the member ended, nil while it has not.
func (m *Member) Err() error { return m.s.failure() }

// State is a member as seen from outside.
type State struct {
	Broker      ID
	ClusterID   string
	Incarnation messages.IncarnationID
	Epoch       messages.BrokerEpoch
	Settings    messages.Settings
	Fenced      bool
	Stopping    bool
	Seen        messages.Seen
	// Lease is how much longer the lease holds; 0 for none.
	Lease time.Duration
	// LastHeartbeat is when the last answered heartbeat was sent.
	LastHeartbeat time.Time
	Partitions    int
	Leading       int
	// Unknown are held topic ids that the controller has never heard of.
	Unknown []messages.TopicID
}

// State returns the member's state.
func (m *Member) State() State {
	st := m.s.state()
	m.roles.count(&st)
	return st
}

func (s *session) state() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return State{Broker: s.id, ClusterID: s.clusterID, Incarnation: s.incarnation, Epoch: s.reg.epoch, Settings: s.reg.settings,
		Fenced: s.fenced, Stopping: s.stopping, Seen: s.seen, Lease: max(0, time.Until(s.lease.ends())), LastHeartbeat: s.lastBeat}
}

func (s *session) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// stop asks the controller to let this broker go and waits until it may.
func (s *session) stop(ctx context.Context) error {
	s.mu.Lock()
	s.stopping = true
	// Leaderships move while this broker is still heard, so the lease has to end before the controller is asked.
	s.lease.end()
	every := max(s.reg.settings.Heartbeat/5, 10*time.Millisecond)
	s.mu.Unlock()
	s.kick()
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-s.mayStop:
			return nil
		case <-s.done:
			return s.failure()
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-t.C:
			s.kick()
		}
	}
}
