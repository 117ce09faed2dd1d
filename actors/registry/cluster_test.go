package registry

import (
	"bytes"
	"maps"
	"slices"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
)

// fakeCluster is the committed state of a test.
type fakeCluster struct {
	identity   *messages.Cluster
	brokers    map[messages.BrokerID]*messages.Broker
	topics     map[messages.TopicID]*messages.Topic
	partitions map[messages.PartitionID]*messages.Partition
	deletions  map[messages.TopicID]*messages.TopicDeletion
}

var _ actors.Cluster = (*fakeCluster)(nil)

func newFakeCluster(s messages.Settings) *fakeCluster {
	return &fakeCluster{
		identity:   &messages.Cluster{Name: "test", ID: "c0ffee", Settings: s},
		brokers:    map[messages.BrokerID]*messages.Broker{},
		topics:     map[messages.TopicID]*messages.Topic{},
		partitions: map[messages.PartitionID]*messages.Partition{},
		deletions:  map[messages.TopicID]*messages.TopicDeletion{},
	}
}

func (c *fakeCluster) apply(records ...messages.Record) {
	for _, r := range records {
		switch r := r.(type) {
		case *messages.Cluster:
			c.identity = r
		case *messages.Broker:
			c.brokers = maps.Clone(c.brokers)
			c.brokers[r.ID] = r
		case *messages.BrokerForgotten:
			c.brokers = maps.Clone(c.brokers)
			delete(c.brokers, r.ID)
		case *messages.Topic:
			c.topics[r.ID] = r
		case *messages.Partition:
			if c.topics[r.ID.Topic] != nil {
				c.partitions[r.ID] = r
			}
		case *messages.TopicDeletion:
			delete(c.topics, r.ID)
			maps.DeleteFunc(c.partitions, func(id messages.PartitionID,
				_ *messages.Partition) bool {
				return id.Topic == r.ID
			})
			c.deletions[r.ID] = r
		case *messages.TopicDeletionDone:
			delete(c.deletions, r.ID)
		}
	}
}

func (c *fakeCluster) Identity() *messages.Cluster                     { return c.identity }
func (c *fakeCluster) Brokers() map[messages.BrokerID]*messages.Broker { return c.brokers }

func (c *fakeCluster) Topic(id messages.TopicID) (*messages.Topic, bool) {
	t, ok := c.topics[id]
	return t, ok
}

func (c *fakeCluster) TopicByName(name messages.TopicName) (*messages.Topic, bool) {
	for _, t := range c.topics {
		if t.Name == name {
			return t, true
		}
	}
	return nil, false
}

func (c *fakeCluster) Partition(id messages.PartitionID) (*messages.Partition, bool) {
	p, ok := c.partitions[id]
	return p, ok
}

func (c *fakeCluster) Load(b messages.BrokerID) (replicas, leaders int) {
	c.PartitionsOf(b, func(p *messages.Partition) bool {
		replicas++
		if p.Leader == b {
			leaders++
		}
		return true
	})
	return replicas, leaders
}

func (c *fakeCluster) PartitionsOf(b messages.BrokerID, f func(*messages.Partition) bool) {
	all := slices.SortedFunc(maps.Values(c.partitions), func(x, y *messages.Partition) int {
		if n := bytes.Compare(x.ID.Topic[:], y.ID.Topic[:]); n != 0 {
			return n
		}
		return int(x.ID.Index - y.ID.Index)
	})
	for _, p := range all {
		if slices.Contains(p.Replicas, b) && !f(p) {
			return
		}
	}
}

func (c *fakeCluster) Deletion(id messages.TopicID) (*messages.TopicDeletion, bool) {
	d, ok := c.deletions[id]
	return d, ok
}

func (c *fakeCluster) Deletions(f func(*messages.TopicDeletion) bool) {
	all := slices.SortedFunc(maps.Values(c.deletions), func(x,
		y *messages.TopicDeletion) int {
		return bytes.Compare(x.ID[:], y.ID[:])
	})
	for _, d := range all {
		if !f(d) {
			return
		}
	}
}
