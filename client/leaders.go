package client

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// leaders follows the leadership of one topic.
type leaders struct {
	client *Client
	name   messages.TopicName
	sub    *nats.Subscription

	mu         sync.Mutex
	partitions map[int32]*pb.Leadership
	changed    chan struct{} // closed and replaced with every change
	asked      time.Time     // when the last snapshot was asked for
}

// follow returns the leadership of a topic; the first call for a topic subscribes and takes a snapshot.
func (c *Client) follow(ctx context.Context, name messages.TopicName) (*leaders, error) {
	if err := name.Validate(); err != nil {
		return nil, err
	}
	c.mu.Lock()
	l, ok := c.topics[name]
	if !ok && c.closed {
		c.mu.Unlock()
		return nil, messages.Errorf(messages.CodeUnavailable, "the client is closed")
	}
	if !ok {
		l = &leaders{client: c, name: name, partitions: map[int32]*pb.Leadership{}, changed: make(chan struct{})}
		sub, err := c.nc.Subscribe(c.subjects.LeadershipTopic(name), l.hear)
		if err != nil {
			c.mu.Unlock()
			return nil, unreachable("subscribe to leaderships", err)
		}
		l.sub = sub
		c.topics[name] = l
	}
	c.mu.Unlock()
	if ok && l.count() > 0 {
		return l, nil
	}
	if err := l.refresh(ctx); err != nil {
		return nil, err
	}
	if l.count() == 0 {
		return nil, messages.Errorf(messages.CodeUnknownTopic, "there is no topic %s", name)
	}
	return l, nil
}

func (l *leaders) close() error { return l.sub.Unsubscribe() }

func (l *leaders) hear(m *nats.Msg) {
	var p pb.Leadership
	if proto.Unmarshal(m.Data, &p) == nil {
		l.learn(&p)
	}
}

// refresh takes a snapshot.
func (l *leaders) refresh(ctx context.Context) error {
	cursor := ""
	for {
		var page pb.LeadershipPage
		err := l.client.call(ctx, l.client.subjects.Monitor("leadership"), &pb.LeadershipQuery{Topic: string(l.name), Cursor: cursor}, &page)
		if err != nil {
			return asUnreachable("read the leaderships of "+string(l.name), err)
		}
		if e := messages.ErrorFromProto(page.GetError()); e != nil {
			return e
		}
		for _, p := range page.GetPartitions() {
			l.learn(p)
		}
		if cursor = page.GetNext(); cursor == "" {
			return nil
		}
	}
}

// learn keeps what is newer: of one topic id the higher epochs, of two topic ids the later word.
func (l *leaders) learn(p *pb.Leadership) {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.partitions[p.GetPartition()]
	if old != nil && !newer(p, old) {
		return
	}
	l.partitions[p.GetPartition()] = p
	close(l.changed)
	l.changed = make(chan struct{})
}

func newer(p, old *pb.Leadership) bool {
	if string(p.GetTopicId()) != string(old.GetTopicId()) {
		return messages.SeenFromProto(old.GetSeen()).Before(messages.SeenFromProto(p.GetSeen()))
	}
	if p.GetDeleted() != old.GetDeleted() {
		return p.GetDeleted()
	}
	if p.GetLeaderEpoch() != old.GetLeaderEpoch() {
		return p.GetLeaderEpoch() > old.GetLeaderEpoch()
	}
	return p.GetPartitionEpoch() > old.GetPartitionEpoch()
}

func (l *leaders) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, p := range l.partitions {
		if !p.GetDeleted() {
			n++
		}
	}
	return n
}

// of returns what is known of a partition, nil if nothing, and a channel that is closed with the next change of the topic.
func (l *leaders) of(partition int32) (*pb.Leadership, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.partitions[partition], l.changed
}

// id returns the topic id that is known, zero if none.
func (l *leaders) id() messages.TopicID {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.partitions {
		if id, err := messages.ParseTopicID(p.GetTopicId()); err == nil && !p.GetDeleted() {
			return id
		}
	}
	return messages.TopicID{}
}

// refreshPause is how often a snapshot is asked for at most, by all who wait for a leader of the topic together.
const refreshPause = 200 * time.Millisecond

// pause waits for a change of the topic's leadership, at most for d. When that passes without one, a snapshot is taken, in
// case a notice was lost; its failure is no error, the caller tries again anyway.
func (l *leaders) pause(ctx context.Context, changed <-chan struct{}, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
	}
	l.mu.Lock()
	due := time.Since(l.asked) >= refreshPause
	if due {
		l.asked = time.Now()
	}
	l.mu.Unlock()
	if due {
		bounded, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_ = l.refresh(bounded) // the controller may be down; leaders go on without it
	}
	return ctx.Err()
}
