package natsbus

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// streamTimeout bounds one request about the stream of last values; streamCheck is the pause between two looks at it.
const (
	streamTimeout = 5 * time.Second
	streamCheck   = 30 * time.Second
)

// ensureLeadershipStream makes the stream that keeps the last value of every leadership subject. It is in memory: what it
// holds is published anew at every activation. A stream that is there and does that is left as its operator wants it.
func (e *Edge) ensureLeadershipStream(ctx context.Context) error {
	name := messages.LeadershipStream(e.cfg.Cluster)
	subjects := []string{e.subjects.LeadershipAll()}
	s, err := e.js.Stream(ctx, name)
	if err == nil {
		c := s.CachedInfo().Config
		if slices.Equal(c.Subjects, subjects) && c.MaxMsgsPerSubject == 1 {
			return nil
		}
		c.Subjects, c.MaxMsgsPerSubject = subjects, 1
		_, err = e.js.UpdateStream(ctx, c)
	} else if errors.Is(err, jetstream.ErrStreamNotFound) {
		_, err = e.js.CreateStream(ctx, jetstream.StreamConfig{
			Name: name, Description: "last leadership of every partition of cluster " + string(e.cfg.Cluster),
			Subjects: subjects, Storage: jetstream.MemoryStorage, MaxMsgsPerSubject: 1, Discard: jetstream.DiscardOld,
			Replicas: e.cfg.StreamReplicas, AllowDirect: true, Duplicates: time.Second,
		})
	}
	if err != nil {
		return messages.Errorf(messages.CodeUnavailable, "the stream %s of last leadership values: %v", name, err)
	}
	return nil
}

// Publish says what has been committed. It never waits.
func (e *Edge) Publish(all []actors.Publication, seen messages.Seen) {
	for _, p := range all {
		switch p := p.(type) {
		case actors.PublishLeadership:
			e.publishLeadership(p, seen)
		case actors.PublishAssignments:
			e.publishAssignments(p, seen)
		default:
			e.cfg.Logger.Error().Type("publication", p).Msg("publication of no known kind")
		}
	}
}

// publishLeadership announces one partition. A late word of a topic that has been deleted meanwhile must not take the place
// of what its successor under the same name has said: so the word of a topic counts only while the catalog has it, and the
// word of its end only until the name is used again. Both is looked at when the word is queued and when it is written.
func (e *Edge) publishLeadership(p actors.PublishLeadership, seen messages.Seen) {
	if p.Partition == nil {
		return
	}
	id := p.Partition.ID
	of := lastValue{p.Topic, id.Index}
	if p.Deleted {
		e.announceEnd(of, func() *pb.Leadership { return messages.LeadershipOf(p.Topic, p.Partition, seen) })
		return
	}
	valid := func() bool {
		_, ok := e.cfg.Catalog.Topic(id.Topic)
		return ok
	}
	e.out.putLatest(of, valid, func() *nats.Msg {
		if !valid() {
			return nil
		}
		return e.leadershipMsg(messages.LeadershipOf(p.Topic, p.Partition, seen))
	})
}

// announceEnd says that a partition is gone, unless there is one under its name again.
func (e *Edge) announceEnd(of lastValue, last func() *pb.Leadership) {
	valid := func() bool {
		next, ok := e.cfg.Catalog.TopicByName(of.topic)
		return !ok || int(of.index) >= next.Partitions
	}
	e.out.putLatest(of, valid, func() *nats.Msg {
		if !valid() {
			return nil
		}
		l := last()
		l.Leader, l.Deleted = "", true
		e.retired.add(of.topic, of.index, time.Now())
		return e.leadershipMsg(l)
	})
}

func (e *Edge) leadershipMsg(l *pb.Leadership) *nats.Msg {
	data, err := proto.Marshal(l)
	if err != nil {
		e.cfg.Logger.Error().Err(err).Str("topic", l.GetTopic()).Msg("leadership cannot be written")
		return nil
	}
	return &nats.Msg{Subject: e.subjects.Leadership(messages.TopicName(l.GetTopic()), l.GetPartition()), Data: data}
}

// publishAllLeadership announces what the catalog holds: at activation, because the words after the predecessor's last
// commits may never have been said, and after a reconnect.
func (e *Edge) publishAllLeadership() {
	n := 0
	e.cfg.Catalog.Partitions(func(t *messages.Topic, p *messages.Partition) bool {
		n++
		valid := func() bool {
			_, ok := e.cfg.Catalog.Partition(p.ID)
			return ok
		}
		e.out.putLatest(lastValue{t.Name, p.ID.Index}, valid, func() *nats.Msg {
			seen := e.seen() // before the catalog is read, so that what it says is not older
			now, ok := e.cfg.Catalog.Partition(p.ID)
			if !ok {
				return nil
			}
			return e.leadershipMsg(messages.LeadershipOf(t.Name, now, seen))
		})
		return true
	})
	e.cfg.Logger.Debug().Int("partitions", n).Msg("leadership published from the catalog")
}

// publishAssignments sends a batch to one broker. A batch that cannot be sent leaves a gap in the feed; the broker sees it
// and takes a snapshot.
func (e *Edge) publishAssignments(p actors.PublishAssignments, seen messages.Seen) {
	batch := &pb.AssignmentBatch{
		Seen: messages.SeenToProto(seen), Broker: string(p.Broker),
		Feed:        &pb.FeedPosition{Feed: uint64(p.Feed), Position: p.Position},
		Assignments: p.Assignments, Removals: p.Removals,
	}
	if b := e.cfg.Catalog.Brokers()[p.Broker]; b != nil {
		batch.BrokerEpoch = uint64(b.Epoch)
		e.responses.sent(b, feedAt{p.Feed, p.Position}, time.Now())
	}
	data, err := proto.Marshal(batch)
	if limit := e.cfg.Conn.MaxPayload(); err == nil && limit > 0 && int64(len(data)) > limit {
		err = messages.Errorf(messages.CodeTooLarge, "the batch has %d bytes, NATS takes %d", len(data), limit)
	}
	if err != nil {
		e.cfg.Logger.Error().Err(err).Str("broker", string(p.Broker)).Msg("assignments not sent")
		return
	}
	e.out.putAssignments(&nats.Msg{Subject: e.subjects.Assignments(p.Broker), Data: data})
}

// retired are topics whose end has been announced. Their last values leave the stream after a while.
type retired struct {
	mu     sync.Mutex
	topics map[messages.TopicName]retirement
}

type retirement struct {
	since      time.Time
	partitions int32 // as many as were announced as gone, from 0 on
}

func newRetired() *retired { return &retired{topics: map[messages.TopicName]retirement{}} }

func (r *retired) add(t messages.TopicName, partition int32, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.topics[t] = retirement{since: now, partitions: max(r.topics[t].partitions, partition+1)}
}

// due takes out what was announced before a time.
func (r *retired) due(before time.Time) map[messages.TopicName]retirement {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[messages.TopicName]retirement{}
	for t, at := range r.topics {
		if at.since.Before(before) {
			out[t] = at
			delete(r.topics, t)
		}
	}
	return out
}

// keepLeadership looks after the stream of last values: it says the end of topics that were deleted while nobody could say
// it, lets deleted topics go, and fills the stream again should it have lost its memory.
func (e *Edge) keepLeadership() {
	e.out.settled()
	announced := e.announceVanished()
	pause := max(10*time.Millisecond, min(time.Second, e.cfg.DeletedRetention/4))
	t := time.NewTicker(pause)
	defer t.Stop()
	checked := time.Now()
	for {
		select {
		case <-e.life.Done():
			return
		case now := <-t.C:
			for topic, r := range e.retired.due(now.Add(-e.cfg.DeletedRetention)) {
				if err := e.purge(topic, r); err != nil {
					e.cfg.Logger.Debug().Err(err).Str("topic", string(topic)).Msg("leadership of a deleted topic not purged")
				}
			}
			if now.Sub(checked) >= streamCheck {
				checked = now
				announced = announced || e.announceVanished()
				e.refill()
			}
		}
	}
}

// purge takes a deleted topic out of the stream. The last sequence is read before the catalog is asked whether the name is
// used again: what a successor says is stored behind it and stays.
func (e *Edge) purge(topic messages.TopicName, r retirement) error {
	ctx, cancel := context.WithTimeout(e.life, streamTimeout)
	defer cancel()
	s, err := e.js.Stream(ctx, messages.LeadershipStream(e.cfg.Cluster))
	if err != nil {
		return err
	}
	upTo := jetstream.WithPurgeSequence(s.CachedInfo().State.LastSeq + 1)
	next, used := e.cfg.Catalog.TopicByName(topic)
	if !used {
		return s.Purge(ctx, jetstream.WithPurgeSubject(e.subjects.LeadershipTopic(topic)), upTo)
	}
	for i := int32(next.Partitions); i < r.partitions; i++ {
		if err := s.Purge(ctx, jetstream.WithPurgeSubject(e.subjects.Leadership(topic, i)), upTo); err != nil {
			return err
		}
	}
	return nil
}

// announceVanished says of every leadership in the stream that the catalog has not, that it is gone: its controller stopped
// between the commit of the deletion and the word of it. It reports whether the stream could be read.
func (e *Edge) announceVanished() bool {
	ctx, cancel := context.WithTimeout(e.life, streamTimeout)
	defer cancel()
	s, err := e.js.Stream(ctx, messages.LeadershipStream(e.cfg.Cluster))
	if err != nil {
		e.cfg.Logger.Warn().Err(err).Msg("leadership stream not read")
		return false
	}
	info, err := s.Info(ctx, jetstream.WithSubjectFilter(e.subjects.LeadershipAll()))
	if err != nil {
		e.cfg.Logger.Warn().Err(err).Msg("leadership stream not read")
		return false
	}
	for subject := range info.State.Subjects {
		name, index, ok := e.subjects.ParseLeadership(subject)
		if !ok {
			continue
		}
		if t, exists := e.cfg.Catalog.TopicByName(name); exists && int(index) < t.Partitions {
			continue
		}
		l := &pb.Leadership{}
		m, err := s.GetLastMsgForSubject(ctx, subject)
		if err != nil || proto.Unmarshal(m.Data, l) != nil {
			l = &pb.Leadership{}
		}
		l.Topic, l.Partition = string(name), index
		e.announceEnd(lastValue{name, index}, func() *pb.Leadership { return l })
	}
	return true
}

// refill publishes everything again when the stream holds fewer last values than there are partitions.
func (e *Edge) refill() {
	ctx, cancel := context.WithTimeout(e.life, streamTimeout)
	defer cancel()
	partitions := uint64(0)
	e.cfg.Catalog.Topics(func(t *messages.Topic) bool {
		partitions += uint64(t.Partitions)
		return true
	})
	s, err := e.js.Stream(ctx, messages.LeadershipStream(e.cfg.Cluster))
	if err == nil && s.CachedInfo().State.NumSubjects >= partitions {
		return
	}
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		err = e.ensureLeadershipStream(ctx)
	}
	if err != nil {
		e.cfg.Logger.Warn().Err(err).Msg("leadership stream not checked")
		return
	}
	e.publishAllLeadership()
}
