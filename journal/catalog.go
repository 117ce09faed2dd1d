package journal

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
)

// maxDamageKept bounds how many damaged records are remembered one by one; the rest are only counted.
const maxDamageKept = 100

// Catalog is the committed state in memory: what the records of the journal add up to. It has one writer, who calls Apply
// in journal order, and any number of readers at any time. What it returns is shared and must not be changed. Functions
// that call back do it on a snapshot and hold no lock meanwhile, so the callback may use the catalog.
type Catalog struct {
	brokers atomic.Pointer[map[messages.BrokerID]*messages.Broker] // copied on each change
	cluster atomic.Pointer[messages.Cluster]
	applied atomic.Uint64
	reads   messages.Version // what needs a higher one is not taken in

	mu        sync.RWMutex // over everything below
	chain     [32]byte     // up to applied; zero = not known
	views     []*View      // pinned, see pin.go
	claimed   messages.ControllerClaimed
	topics    map[messages.TopicID]*topicState
	names     map[messages.TopicName]*topicState
	deletions map[messages.TopicID]*messages.TopicDeletion
	index     map[messages.BrokerID]*brokerState
	counts    messages.PartitionCount
	unknown   unknownRecords // of later versions; nil without any
	damage    []Damage
	damaged   int
}

// errIndex is the damage of a partition whose topic has no such index.
var errIndex error = messages.Errorf(messages.CodeInvalidRequest, "the partition's index is outside of its topic")

var _ actors.Cluster = (*Catalog)(nil)

// topicState is a topic with its partitions by index; a partition whose record has not come yet is nil.
type topicState struct {
	topic      *messages.Topic
	partitions []*partitionState
}

// NewCatalog returns an empty catalog, which takes in what the versions need that this build knows.
func NewCatalog() *Catalog { return NewCatalogReading(messages.Known().Max) }

// NewCatalogReading returns an empty catalog which takes in what needs a version up to one.
func NewCatalogReading(upTo messages.Version) *Catalog {
	c := &Catalog{
		reads:     upTo,
		topics:    map[messages.TopicID]*topicState{},
		names:     map[messages.TopicName]*topicState{},
		deletions: map[messages.TopicID]*messages.TopicDeletion{},
		index:     map[messages.BrokerID]*brokerState{},
	}
	c.brokers.Store(&map[messages.BrokerID]*messages.Broker{})
	return c
}

// Apply takes in records that are committed at a sequence, all at once for every reader. Sequences must not fall; several
// calls may name the same one, and a call without records only moves Applied. Records of partitions whose topic is
// unknown, because it has been deleted meanwhile, are ignored, as is a topic whose deletion is going on. A partition that
// contradicts itself is left out and reported by Damaged. The hash chain is not known afterwards; see ApplyAt.
func (c *Catalog) Apply(seq messages.Sequence, records []messages.Record) {
	c.ApplyAt(Position{Last: seq}, records)
}

// ApplyAt is Apply for a caller who knows the hash chain too, so that a snapshot can be taken.
func (c *Catalog) ApplyAt(at Position, records []messages.Record) {
	seq := at.Last
	c.mu.Lock()
	defer c.mu.Unlock()
	if last := c.Applied(); seq < last {
		panic(messages.Errorf(messages.CodeInternal, "the catalog is at %d and was given the older entry %d", last, seq))
	}
	var brokers map[messages.BrokerID]*messages.Broker // the copy, once one is needed
	change := func() map[messages.BrokerID]*messages.Broker {
		if brokers == nil {
			brokers = maps.Clone(c.Brokers())
		}
		return brokers
	}
	for i, r := range records {
		switch r := r.(type) {
		case *messages.Cluster:
			c.cluster.Store(r)
		case *messages.ControllerClaimed:
			c.claimed = *r
		case *messages.Broker:
			change()[r.ID] = r
		case *messages.BrokerForgotten:
			delete(change(), r.ID)
		case *messages.Topic:
			c.putTopic(r)
		case *messages.Partition:
			c.putPartition(seq, i, r)
		case *messages.TopicDeletion:
			c.dropTopic(r.ID)
			c.deletions[r.ID] = r
		case *messages.TopicDeletionDone:
			delete(c.deletions, r.ID)
		case *messages.UnknownRecord:
			c.unknown.put(r)
		}
	}
	if brokers != nil {
		c.brokers.Store(&brokers)
	}
	c.chain = at.Chain
	c.applied.Store(uint64(seq))
}

func (c *Catalog) putTopic(t *messages.Topic) {
	if _, ending := c.deletions[t.ID]; ending {
		return
	}
	s := c.topics[t.ID]
	if s == nil {
		s = &topicState{}
		c.topics[t.ID] = s
	} else if s.topic.Name != t.Name && c.names[s.topic.Name] == s {
		delete(c.names, s.topic.Name)
	}
	s.topic = t
	c.names[t.Name] = s
}

func (c *Catalog) dropTopic(id messages.TopicID) {
	s := c.topics[id]
	if s == nil {
		return
	}
	for _, p := range s.partitions {
		if p != nil {
			c.unindex(p)
		}
	}
	if c.names[s.topic.Name] == s {
		delete(c.names, s.topic.Name)
	}
	delete(c.topics, id)
}

func (c *Catalog) putPartition(seq messages.Sequence, i int, p *messages.Partition) {
	s := c.topics[p.ID.Topic]
	if s == nil {
		return
	}
	if err := checkPartition(p); err != nil || int(p.ID.Index) >= min(s.topic.Partitions, maxPartitions) {
		c.noteDamage(Damage{Sequence: seq, Index: i, Err: cmp.Or(err, errIndex)})
		return
	}
	c.place(s, p)
}

func (c *Catalog) place(s *topicState, p *messages.Partition) {
	if missing := int(p.ID.Index) + 1 - len(s.partitions); missing > 0 {
		s.partitions = append(s.partitions, make([]*partitionState, missing)...)
	}
	at := &s.partitions[p.ID.Index]
	if *at == nil {
		*at = &partitionState{}
	}
	c.reindex(*at, p)
}

// Applied returns the last sequence that was applied.
func (c *Catalog) Applied() messages.Sequence { return messages.Sequence(c.applied.Load()) }

// Position returns the position of the catalog: Applied with its hash chain, which is zero where it is not known.
func (c *Catalog) Position() Position {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return Position{Last: c.Applied(), Chain: c.chain}
}

// Claimed returns the last claim that was applied: which controller is active, as far as this catalog knows.
func (c *Catalog) Claimed() messages.ControllerClaimed {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.claimed
}

// Seen returns the position of the catalog: the epoch of the active controller, and Applied.
func (c *Catalog) Seen() messages.Seen {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return messages.Seen{Controller: c.claimed.Epoch, Sequence: c.Applied()}
}

// Identity returns the identity and the settings of the cluster, nil before they are committed.
func (c *Catalog) Identity() *messages.Cluster { return c.cluster.Load() }

// Brokers returns all registered brokers: a snapshot that later commits do not change.
func (c *Catalog) Brokers() map[messages.BrokerID]*messages.Broker { return *c.brokers.Load() }

// Topic returns a topic by its id.
func (c *Catalog) Topic(id messages.TopicID) (*messages.Topic, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if s := c.topics[id]; s != nil {
		return s.topic, true
	}
	return nil, false
}

// TopicByName returns the topic that has a name now.
func (c *Catalog) TopicByName(name messages.TopicName) (*messages.Topic, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if s := c.names[name]; s != nil {
		return s.topic, true
	}
	return nil, false
}

// Partition returns a partition.
func (c *Catalog) Partition(id messages.PartitionID) (*messages.Partition, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	s := c.topics[id.Topic]
	if s == nil || id.Index < 0 || int(id.Index) >= len(s.partitions) || s.partitions[id.Index] == nil {
		return nil, false
	}
	return s.partitions[id.Index].record, true
}

// Deletion returns the unfinished deletion of a topic id.
func (c *Catalog) Deletion(id messages.TopicID) (*messages.TopicDeletion, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	d, ok := c.deletions[id]
	return d, ok
}

// Deletions calls f for every unfinished deletion, in the order of the topic ids, until f returns false.
func (c *Catalog) Deletions(f func(*messages.TopicDeletion) bool) {
	c.mu.RLock()
	all := slices.Collect(maps.Values(c.deletions))
	c.mu.RUnlock()
	slices.SortFunc(all, func(a, b *messages.TopicDeletion) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	each(all, f)
}

// TopicCount returns the number of topics.
func (c *Catalog) TopicCount() int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return len(c.topics)
}

// Topics calls f for every topic, in the order of the names, until f returns false.
func (c *Catalog) Topics(f func(*messages.Topic) bool) {
	c.mu.RLock()
	all := make([]*messages.Topic, 0, len(c.topics))
	for _, s := range c.topics {
		all = append(all, s.topic)
	}
	c.mu.RUnlock()
	slices.SortFunc(all, byName)
	each(all, f)
}

func byName(a, b *messages.Topic) int {
	if n := strings.Compare(string(a.Name), string(b.Name)); n != 0 {
		return n
	}
	return bytes.Compare(a.ID[:], b.ID[:])
}

// Partitions calls f for every partition, in the order of topic name and index, until f returns false.
func (c *Catalog) Partitions(f func(*messages.Topic, *messages.Partition) bool) {
	type pair struct {
		topic     *messages.Topic
		partition *messages.Partition
	}
	c.mu.RLock()
	all := make([]pair, 0, c.counts.Total)
	states := slices.SortedFunc(maps.Values(c.topics), func(a, b *topicState) int { return byName(a.topic, b.topic) })
	for _, s := range states {
		for _, p := range s.partitions {
			if p != nil {
				all = append(all, pair{s.topic, p.record})
			}
		}
	}
	c.mu.RUnlock()
	each(all, func(p pair) bool { return f(p.topic, p.partition) })
}

// PartitionsOfTopic calls f for every partition of a topic, in the order of the indexes, until f returns false.
func (c *Catalog) PartitionsOfTopic(id messages.TopicID, f func(*messages.Partition) bool) {
	c.mu.RLock()
	var all []*messages.Partition
	if s := c.topics[id]; s != nil {
		all = make([]*messages.Partition, 0, len(s.partitions))
		for _, p := range s.partitions {
			if p != nil {
				all = append(all, p.record)
			}
		}
	}
	c.mu.RUnlock()
	each(all, f)
}

func each[T any](all []T, f func(T) bool) {
	for _, t := range all {
		if !f(t) {
			return
		}
	}
}

// Damaged returns the records that were left out because they could not be used, the first hundred of them, and how many
// there are in all.
func (c *Catalog) Damaged() ([]Damage, int) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return slices.Clone(c.damage), c.damaged
}

// addDamage remembers records that were left out.
func (c *Catalog) addDamage(at messages.Sequence, damaged []Damage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range damaged {
		d.Sequence = at
		c.noteDamage(d)
	}
}

func (c *Catalog) noteDamage(d Damage) {
	if c.damaged++; len(c.damage) < maxDamageKept {
		c.damage = append(c.damage, d)
	}
}
