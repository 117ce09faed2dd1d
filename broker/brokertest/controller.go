package brokertest

import (
	"crypto/rand"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// Controller is a controller in memory. It has no journal: what it decides is committed at once. All methods may be
// called from any goroutine.
type Controller struct {
	nc       *nats.Conn
	subjects messages.Subjects
	subs     []*nats.Subscription

	mu        sync.Mutex
	name      messages.ClusterName
	clusterID string
	settings  messages.Settings
	seen      messages.Seen
	now       time.Duration // moved by Advance alone
	brokers   map[messages.BrokerID]*member
	names     map[messages.TopicID]messages.TopicName
	parts     map[messages.PartitionID]*messages.Partition
	deletions map[messages.TopicID]*messages.TopicDeletion
	fault     Fault
	deaf      map[messages.BrokerID]bool
	requests  []Request
	reports   []*pb.LeaderReport
	marks     map[messages.PartitionID]messages.Offset
	feeds     uint64
}

// member is one registered broker.
type member struct {
	messages.Broker
	heard     time.Duration
	storageGo bool // its storage has failed
	gone      bool // its process is
	feed      pb.FeedPosition
	applied   *pb.FeedPosition
}

// Request is one request that the controller has got.
type Request struct {
	Verb   messages.BrokerVerb
	Broker messages.BrokerID
	Body   proto.Message
}

// Outcome is what becomes of a request.
type Outcome uint8

// The outcomes: carried out and answered; never arrived; carried out, but the answer is lost.
const (
	Deliver Outcome = iota
	DropRequest
	DropAnswer
)

// Fault decides what becomes of each request. It must not call the Controller.
type Fault func(r Request) Outcome

// StartNATS runs a NATS server on loopback for the time of the test and returns its address.
func StartNATS(t testing.TB) string {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("the NATS server does not start")
	}
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	return s.ClientURL()
}

// Connect makes a connection as a broker should: it never gives up, and buffers nothing while it is disconnected.
func Connect(t testing.TB, url string) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond), nats.ReconnectBufSize(-1),
		nats.RetryOnFailedConnect(true), nats.Timeout(2*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// Settings are short ones for tests: heartbeats every 20 ms, sessions of 600 ms of the controller's own clock.
func Settings() messages.Settings {
	s := messages.DefaultSettings()
	s.Heartbeat, s.Session, s.Checkpoint, s.ReplicaLag = 20*time.Millisecond, 600*time.Millisecond, 50*time.Millisecond, time.Second
	return s
}

// New starts a controller of a cluster on a connection. Close ends it.
func New(nc *nats.Conn, cluster messages.ClusterName, s messages.Settings) (*Controller, error) {
	var id [8]byte
	_, _ = rand.Read(id[:])
	c := &Controller{nc: nc, subjects: messages.NewSubjects(cluster), name: cluster, clusterID: fmt.Sprintf("%x", id), settings: s,
		seen: messages.Seen{Controller: 1, Sequence: 1}, brokers: map[messages.BrokerID]*member{},
		names: map[messages.TopicID]messages.TopicName{}, parts: map[messages.PartitionID]*messages.Partition{},
		deletions: map[messages.TopicID]*messages.TopicDeletion{}, deaf: map[messages.BrokerID]bool{},
		marks: map[messages.PartitionID]messages.Offset{}}
	for verb, h := range c.verbs() {
		sub, err := nc.Subscribe(c.subjects.BrokerWildcard(verb), func(m *nats.Msg) { c.serve(verb, h, m) })
		if err != nil {
			return nil, err
		}
		c.subs = append(c.subs, sub)
	}
	return c, nc.Flush()
}

// Close stops answering; what was decided is kept for Resume.
func (c *Controller) Close() {
	for _, s := range c.subs {
		_ = s.Unsubscribe()
	}
	c.subs = nil
	_ = c.nc.Flush()
}

// Takeover lets the controller go on as another one would: with a higher epoch and new feeds, which stay silent.
func (c *Controller) Takeover() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen.Controller++
	c.seen.Sequence++
	for _, b := range c.brokers {
		c.newFeed(b)
		b.heard = c.now
	}
}

func (c *Controller) newFeed(b *member) {
	c.feeds++
	b.feed.Reset()
	b.feed.Feed = uint64(c.seen.Controller)<<32 | c.feeds
}

// SetFault sets what becomes of requests; nil delivers all.
func (c *Controller) SetFault(f Fault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fault = f
}

// SetDeaf loses all assignments to a broker while set.
func (c *Controller) SetDeaf(b messages.BrokerID, deaf bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deaf[b] = deaf
}

// Advance moves the controller's clock. Brokers that have been silent for a session are fenced.
func (c *Controller) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now += d
	for id, b := range c.brokers {
		if !b.Fenced && c.now-b.heard >= c.settings.Session {
			c.fence(id)
		}
	}
}

// Fence ends the session of a broker as if it had been silent for too long.
func (c *Controller) Fence(id messages.BrokerID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fence(id)
}

// Lose fences a broker whose process is gone. What it has sent before and arrives only now is refused.
func (c *Controller) Lose(id messages.BrokerID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fence(id)
	if b := c.brokers[id]; b != nil {
		b.gone = true
	}
}

// Forget ends the registration of a broker; its requests are stale from then on.
func (c *Controller) Forget(id messages.BrokerID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fence(id)
	delete(c.brokers, id)
}

// Broker returns a broker as registered; false if it is not.
func (c *Controller) Broker(id messages.BrokerID) (messages.Broker, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.brokers[id]
	if b == nil {
		return messages.Broker{}, false
	}
	return b.Broker, true
}

// Applied returns the feed position that a broker has reported and the one that it was sent.
func (c *Controller) Applied(id messages.BrokerID) (reported, sent uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b := c.brokers[id]; b != nil && b.applied.GetFeed() == b.feed.GetFeed() {
		return b.applied.GetPosition(), b.feed.GetPosition()
	}
	return 0, 1
}

// Partition returns the committed state of a partition.
func (c *Controller) Partition(id messages.PartitionID) messages.Partition {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.parts[id]; p != nil {
		return *p
	}
	return messages.Partition{ID: id}
}

// Reports returns the leader reports that have come, oldest first.
func (c *Controller) Reports() []*pb.LeaderReport {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.reports)
}

// Mark returns the high-water mark that was last reported for a partition.
func (c *Controller) Mark(id messages.PartitionID) messages.Offset {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.marks[id]
}

// Requests returns the requests of one verb of one broker, oldest first.
func (c *Controller) Requests(verb messages.BrokerVerb, b messages.BrokerID) []Request {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []Request
	for _, r := range c.requests {
		if r.Verb == verb && r.Broker == b {
			out = append(out, r)
		}
	}
	return out
}

// Deleting reports whether an order to delete a topic has not been confirmed by all brokers yet.
func (c *Controller) Deleting(id messages.TopicID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.deletions[id] != nil
}

// Publish sends an assignment batch to a broker as it is, outside of its feed: for tests of what brokers must refuse.
func (c *Controller) Publish(b messages.BrokerID, batch *pb.AssignmentBatch) error {
	data, err := proto.Marshal(batch)
	if err != nil {
		return err
	}
	return c.nc.Publish(c.subjects.Assignments(b), data)
}

// ClusterID returns the cluster's id.
func (c *Controller) ClusterID() string { return c.clusterID }
