package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// leaders follows the leadership of one topic name, as long as somebody uses it.
type leaders struct {
	client *Client
	name   messages.TopicName
	sub    *nats.Subscription
	users  int // guarded by Client.mu

	mu         sync.Mutex
	partitions map[int32]*standing
	whole      topic     // as of the last snapshot
	asked      time.Time // when the last snapshot in the background began
}

// topic is what a name stands for.
type topic struct {
	id         messages.TopicID
	partitions int32
}

// standing is what is known of one partition. Copies of it are snapshots.
type standing struct {
	leadership *pb.Leadership // nil: nothing
	// news is closed with the next word about the partition.
	news chan struct{}
	// reign ends when a newer leader epoch, another topic of the name, or the end of the topic becomes known, with errMoved;
	// and with the client.
	reign context.Context
	end   context.CancelCauseFunc
}

// follow returns the leadership of a topic and what the name stands for now; release gives it back. The controller is
// asked; when it cannot be reached, what others here know already is good enough.
func (c *Client) follow(ctx context.Context, name messages.TopicName) (*leaders, topic, error) {
	if err := name.Validate(); err != nil {
		return nil, topic{}, err
	}
	l, err := c.use(name)
	if err != nil {
		return nil, topic{}, err
	}
	t, err := l.refresh(ctx)
	if errors.Is(err, &messages.Error{Code: messages.CodeUnavailable}) {
		if known, ok := l.known(); ok {
			t, err = known, nil
		}
	}
	if err == nil && t.partitions == 0 {
		err = messages.Errorf(messages.CodeUnknownTopic, "there is no topic %s", name)
	}
	if err != nil {
		c.release(l)
		return nil, topic{}, err
	}
	return l, t, nil
}

// use returns the leaders of a name, with a subscription that is older than whatever is asked after it.
func (c *Client) use(name messages.TopicName) (*leaders, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		return nil, errClientClosed
	}
	l, ok := c.topics[name]
	if !ok {
		l = &leaders{client: c, name: name, partitions: map[int32]*standing{}}
		sub, err := c.nc.Subscribe(c.subjects.LeadershipTopic(name), l.hear)
		if err != nil {
			return nil, coded("subscribe to leaderships", err)
		}
		l.sub = sub
		c.topics[name] = l
	}
	l.users++
	return l, nil
}

// release lets go of leaders. The last one ends the subscription.
func (c *Client) release(l *leaders) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l.users--; l.users == 0 && c.topics[l.name] == l {
		delete(c.topics, l.name)
		_ = l.close() // there is nobody left to miss it
	}
}

func (l *leaders) close() error {
	err := l.sub.Unsubscribe()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.partitions {
		s.end(errClientClosed)
	}
	if errors.Is(err, nats.ErrConnectionClosed) || errors.Is(err, nats.ErrBadSubscription) {
		return nil // it ended with the connection
	}
	return err
}

func (l *leaders) hear(m *nats.Msg) {
	var p pb.Leadership
	if proto.Unmarshal(m.Data, &p) == nil && p.GetTopic() == string(l.name) {
		l.learn(&p)
	}
}

// refresh takes a snapshot and returns what the name stands for, nothing if it is free.
func (l *leaders) refresh(ctx context.Context) (topic, error) {
	for range 3 {
		all, seen, err := l.snapshot(ctx)
		if err != nil {
			return topic{}, err
		}
		t, ok := wholeTopic(all)
		if !ok {
			continue // the topic was deleted and made again between two pages
		}
		l.adopt(t, all, seen)
		return t, nil
	}
	return topic{}, messages.Errorf(messages.CodeUnavailable, "the leaderships of %s change faster than they can be read", l.name)
}

// snapshot reads the leadership of every partition, and the position at which reading began.
func (l *leaders) snapshot(ctx context.Context) (all []*pb.Leadership, seen messages.Seen, err error) {
	query := &pb.LeadershipQuery{Topic: string(l.name)}
	for first := true; ; first = false {
		var page pb.LeadershipPage
		if err := l.client.call(ctx, "read the leaderships of "+string(l.name), l.client.subjects.Monitor("leadership"), query, &page); err != nil {
			return nil, seen, err
		}
		if first {
			seen = messages.SeenFromProto(page.GetSeen())
		}
		all = append(all, page.GetPartitions()...)
		if query.Cursor = page.GetNext(); query.Cursor == "" {
			return all, seen, nil
		}
	}
}

// wholeTopic reads what a snapshot is of. It reports false unless that is one topic with all of its partitions, or none.
func wholeTopic(all []*pb.Leadership) (topic, bool) {
	t := topic{partitions: int32(len(all))}
	for i, p := range all {
		id, err := messages.ParseTopicID(p.GetTopicId())
		if err != nil || i > 0 && id != t.id || p.GetPartition() != int32(i) {
			return topic{}, false
		}
		t.id = id
	}
	return t, true
}

// adopt takes over a snapshot. What is older and not in it is gone.
func (l *leaders) adopt(t topic, all []*pb.Leadership, seen messages.Seen) {
	for _, p := range all {
		l.learn(p)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.whole = t
	for i, s := range l.partitions {
		old := s.leadership
		if i < t.partitions || old == nil || old.GetDeleted() || !messages.SeenFromProto(old.GetSeen()).Before(seen) {
			continue
		}
		gone := proto.Clone(old).(*pb.Leadership)
		gone.Leader, gone.Deleted, gone.Seen = "", true, messages.SeenToProto(seen)
		l.set(s, gone)
	}
}

// known returns what the name stood for at the last snapshot, if nothing else has been heard since.
func (l *leaders) known() (topic, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.whole.partitions {
		if current(l.partitions[i].leadership, l.whole.id) != nil {
			return topic{}, false
		}
	}
	return l.whole, l.whole.partitions > 0
}

// learn keeps what is newer: of one topic the higher epochs, of two topics the later word.
func (l *leaders) learn(p *pb.Leadership) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.at(p.GetPartition()); s.leadership == nil || newer(p, s.leadership) {
		l.set(s, p)
	}
}

// set replaces what is known of a partition and wakes whoever waits for that. The caller holds mu.
func (l *leaders) set(s *standing, p *pb.Leadership) {
	old := s.leadership
	s.leadership = p
	if old == nil || !sameTopic(old, p) || p.GetDeleted() || old.GetLeaderEpoch() != p.GetLeaderEpoch() {
		s.end(errMoved)
		s.reign, s.end = context.WithCancelCause(l.client.ctx)
	}
	close(s.news)
	s.news = make(chan struct{})
}

// at returns what is known of a partition. The caller holds mu.
func (l *leaders) at(partition int32) *standing {
	s, ok := l.partitions[partition]
	if !ok {
		s = &standing{news: make(chan struct{})}
		s.reign, s.end = context.WithCancelCause(l.client.ctx)
		l.partitions[partition] = s
	}
	return s
}

// of returns what is known of a partition now.
func (l *leaders) of(partition int32) standing {
	l.mu.Lock()
	defer l.mu.Unlock()
	return *l.at(partition)
}

func sameTopic(a, b *pb.Leadership) bool { return string(a.GetTopicId()) == string(b.GetTopicId()) }

// newer reports whether p is to take the place of old.
func newer(p, old *pb.Leadership) bool {
	if !sameTopic(p, old) {
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

// stir wakes whoever waits and looks at everything anew: the connection is there again. The caller holds Client.mu.
func (l *leaders) stir() {
	l.mu.Lock()
	for _, s := range l.partitions {
		close(s.news)
		s.news = make(chan struct{})
	}
	l.asked = time.Now()
	l.mu.Unlock()
	l.refreshLater()
}

// refreshPause is how often a snapshot is taken at most, for all who wait for a leader of the topic together.
const refreshPause = 200 * time.Millisecond

// pause waits for a word about a partition, at most for d. When none comes, a snapshot is taken, in case one was lost.
func (l *leaders) pause(ctx context.Context, s standing, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-s.news:
		return
	case <-ctx.Done():
		return
	case <-l.client.ctx.Done():
		return
	case <-timer.C:
	}
	l.mu.Lock()
	due := time.Since(l.asked) >= refreshPause
	if due {
		l.asked = time.Now()
	}
	l.mu.Unlock()
	if due {
		l.client.mu.Lock()
		defer l.client.mu.Unlock()
		l.refreshLater()
	}
}

// refreshLater takes a snapshot in the background. Its failure is no error: leaders go on without a controller, and whoever
// waits asks again. The caller holds Client.mu.
func (l *leaders) refreshLater() {
	if l.client.ctx.Err() != nil {
		return // Close waits for what runs already
	}
	l.client.background.Go(func() {
		ctx, cancel := context.WithTimeout(l.client.ctx, time.Second)
		defer cancel()
		_, _ = l.refresh(ctx)
	})
}
