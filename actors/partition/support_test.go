package partition

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

var (
	testTopic = &messages.Topic{ID: messages.TopicID{1}, Name: "orders", Partitions: 1, MinISR: 2}
	testID    = messages.PartitionID{Topic: testTopic.ID}
)

// cluster is a committed state with one topic of one partition.
type cluster struct {
	brokers  map[messages.BrokerID]*messages.Broker
	topic    *messages.Topic // nil: deleted
	record   *messages.Partition
	applied  messages.Sequence
	identity *messages.Cluster
	renewing bool // the message at hand asks for a new partition epoch
}

var _ actors.Cluster = (*cluster)(nil)

func newCluster(p *messages.Partition, brokers ...messages.BrokerID) *cluster {
	topic := *testTopic
	c := &cluster{brokers: map[messages.BrokerID]*messages.Broker{}, topic: &topic, record: p, applied: 4,
		identity: &messages.Cluster{Name: "test", Settings: messages.DefaultSettings()}}
	for _, b := range brokers {
		c.brokers[b] = &messages.Broker{ID: b, Epoch: 5}
	}
	return c
}

// set changes one broker in a copy of the snapshot.
func (c *cluster) set(id messages.BrokerID, change func(*messages.Broker)) {
	b := messages.Broker{ID: id}
	if known := c.brokers[id]; known != nil {
		b = *known
	}
	change(&b)
	c.brokers = maps.Clone(c.brokers)
	c.brokers[id] = &b
	c.applied++
}

// register gives a broker a new epoch, fenced, as the registry does; suspect if its storage is not to be trusted.
func (c *cluster) register(id messages.BrokerID, suspect bool) messages.BrokerEpoch {
	epoch := messages.BrokerEpoch(c.applied + 2)
	c.set(id, func(b *messages.Broker) {
		*b = messages.Broker{ID: id, Epoch: epoch, Fenced: true, FencedReason: "starting", Suspect: suspect}
	})
	c.applied++
	return epoch
}

func (c *cluster) forget(id messages.BrokerID) {
	c.brokers = maps.Clone(c.brokers)
	delete(c.brokers, id)
}

// apply commits what a step wrote.
func (c *cluster) apply(records []messages.Record) {
	for _, r := range records {
		c.record = r.(*messages.Partition)
		c.applied++
	}
}

func (c *cluster) env(now time.Duration) actors.Env {
	return actors.Env{Now: now, Applied: c.applied, Controller: 1, Cluster: c}
}

// Identity, Brokers and the rest are the committed state as a machine reads it.
func (c *cluster) Identity() *messages.Cluster                     { return c.identity }
func (c *cluster) Brokers() map[messages.BrokerID]*messages.Broker { return c.brokers }
func (c *cluster) Load(messages.BrokerID) (replicas, leaders int)  { return 0, 0 }
func (c *cluster) Deletions(func(*messages.TopicDeletion) bool)    {}
func (c *cluster) TopicByName(messages.TopicName) (*messages.Topic, bool) {
	return c.topic, c.topic != nil
}

func (c *cluster) PartitionsOf(messages.BrokerID, func(*messages.Partition) bool) {}

func (c *cluster) Deletion(messages.TopicID) (*messages.TopicDeletion, bool) { return nil, false }

func (c *cluster) Topic(id messages.TopicID) (*messages.Topic, bool) {
	return c.topic, c.topic != nil && id == c.topic.ID
}

func (c *cluster) Partition(id messages.PartitionID) (*messages.Partition, bool) {
	return c.record, c.record != nil && id == c.record.ID
}

// members returns ISR members with the epochs under which they are registered.
func (c *cluster) members(ids ...messages.BrokerID) []*pb.IsrMember {
	var out []*pb.IsrMember
	for _, b := range ids {
		m := &pb.IsrMember{Broker: string(b)}
		if known := c.brokers[b]; known != nil {
			m.BrokerEpoch = uint64(known.Epoch)
		}
		out = append(out, m)
	}
	return out
}

// checkStep returns what a step broke, given the record before it. A record that was not sound to begin with is excused
// only from what no step has touched yet.
func checkStep(c *cluster, before *messages.Partition, s *State, fx actors.Effects) error {
	after := s.Partition()
	if len(fx.Records) > 1 {
		return fmt.Errorf("%d records in one step", len(fx.Records))
	}
	if len(fx.Records) == 0 {
		if after != before {
			return fmt.Errorf("the state changed without a record")
		}
		return nil
	}
	if fx.Records[0] != messages.Record(after) {
		return fmt.Errorf("the record is not the state")
	}
	if err := checkRecord(after); err != nil {
		return err
	}
	return checkTransition(c, before, after)
}

func checkRecord(p *messages.Partition) error {
	has := func(list []messages.BrokerID, b messages.BrokerID) bool { return slices.Contains(list, b) }
	if p.Leader != "" && !has(p.ISR, p.Leader) {
		return fmt.Errorf("leader %s is not in ISR %v", p.Leader, p.ISR)
	}
	if p.Leader == "" && len(p.ISR) > 0 {
		return fmt.Errorf("nobody leads, although %v are in sync", p.ISR)
	}
	for _, set := range [][]messages.BrokerID{p.Replicas, p.ISR, p.Eligible} {
		for i, b := range set {
			if !has(p.Replicas, b) || has(set[:i], b) {
				return fmt.Errorf("%v is not a distinct subset of the replicas %v", set, p.Replicas)
			}
		}
	}
	for _, b := range p.Eligible {
		if has(p.ISR, b) {
			return fmt.Errorf("%s is in ISR and eligible", b)
		}
	}
	if len(p.Eligible) > 0 && len(p.ISR) >= messages.EffectiveMinISR(p.MinISR, len(p.Replicas)) {
		return fmt.Errorf("eligible %v beside the ISR %v, which is enough", p.Eligible, p.ISR)
	}
	return nil
}

func checkTransition(c *cluster, before, after *messages.Partition) error {
	shape := func(p *messages.Partition) string {
		return fmt.Sprintf("%q %d %q %q %q %d", p.Leader, p.LeaderEpoch, p.Replicas, p.ISR, p.Eligible, p.MinISR)
	}
	same := shape(before) == shape(after)
	switch {
	case after.LeaderEpoch < before.LeaderEpoch || after.LeaderEpoch > before.LeaderEpoch+1:
		return fmt.Errorf("leader epoch from %d to %d", before.LeaderEpoch, after.LeaderEpoch)
	case after.Leader != before.Leader && after.LeaderEpoch == before.LeaderEpoch:
		return fmt.Errorf("another leader in leader epoch %d", after.LeaderEpoch)
	case after.Epoch != before.Epoch+1 && !same:
		return fmt.Errorf("partition epoch from %d to %d with a change", before.Epoch, after.Epoch)
	case after.Epoch != before.Epoch && same && !c.renewing:
		return fmt.Errorf("partition epoch from %d to %d without a change", before.Epoch, after.Epoch)
	case after.HighWatermark < before.HighWatermark:
		return fmt.Errorf("mark from %d to %d", before.HighWatermark, after.HighWatermark)
	case same && !c.renewing && after.HighWatermark == before.HighWatermark && after.LeaderProven == before.LeaderProven:
		return fmt.Errorf("a record in which nothing has changed")
	}
	if after.LeaderEpoch != before.LeaderEpoch && after.Leader != "" {
		if b := c.brokers[after.Leader]; !b.CanLead() || b.Suspect {
			return fmt.Errorf("%s was elected and may not lead", after.Leader)
		}
		if after.LeaderProven {
			return fmt.Errorf("%s counts as proven before it has said anything", after.Leader)
		}
		if !slices.Contains(before.ISR, after.Leader) && !slices.Contains(before.Eligible, after.Leader) {
			return fmt.Errorf("%s was elected from outside ISR %v and eligible %v", after.Leader, before.ISR, before.Eligible)
		}
	}
	return nil
}
