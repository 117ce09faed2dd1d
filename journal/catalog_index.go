package journal

import (
	"slices"

	"github.com/highwater-io/highwater/messages"
)

// partitionState is a partition's record and where it stands in the lists of its replicas' brokers, so that it can be
// taken out of them at once: places[i] is its place in the list of record.Replicas[i].
type partitionState struct {
	record *messages.Partition
	places []int32
}

// brokerState is what the partitions' records say about one broker. The order of the list follows from what was applied to
// this catalog, and is another where a snapshot was loaded.
type brokerState struct {
	partitions []*partitionState
	leaders    int
	inSync     int
}

// Load is what one broker has to carry.
type Load struct {
	Replicas int // partitions with a replica on it
	Leaders  int // partitions that it leads
	InSync   int // partitions with it in their ISR
}

// reindex exchanges the record of a partition and keeps lists and counters right.
func (c *Catalog) reindex(s *partitionState, p *messages.Partition) {
	c.keep(s)
	if s.record != nil && slices.Equal(s.record.Replicas, p.Replicas) {
		c.count(s.record, -1)
		s.record = p
		c.count(p, 1)
		return
	}
	if s.record != nil {
		c.unindex(s)
	}
	s.record = p
	s.places = make([]int32, len(p.Replicas))
	for i, b := range p.Replicas {
		list := c.broker(b)
		s.places[i] = int32(len(list.partitions))
		list.partitions = append(list.partitions, s)
	}
	c.count(p, 1)
}

// unindex takes a partition out of every list and counter.
func (c *Catalog) unindex(s *partitionState) {
	c.keep(s)
	c.count(s.record, -1)
	for i, b := range s.record.Replicas {
		list := c.index[b]
		last := list.partitions[len(list.partitions)-1]
		list.partitions[s.places[i]] = last
		last.places[slices.Index(last.record.Replicas, b)] = s.places[i]
		list.partitions[len(list.partitions)-1] = nil
		list.partitions = list.partitions[:len(list.partitions)-1]
		if len(list.partitions) == 0 {
			delete(c.index, b)
		}
	}
	s.record, s.places = nil, nil
}

func (c *Catalog) broker(b messages.BrokerID) *brokerState {
	s := c.index[b]
	if s == nil {
		s = &brokerState{}
		c.index[b] = s
	}
	return s
}

func (c *Catalog) count(p *messages.Partition, n int) {
	addCount(&c.counts, p, n)
	for _, b := range p.ISR {
		c.broker(b).inSync += n
	}
	if p.Leader != "" {
		c.broker(p.Leader).leaders += n
	}
}

// CountPartition adds one partition to counts. RackViolation is not counted: it is a matter of the brokers' racks.
func CountPartition(counts *messages.PartitionCount, p *messages.Partition) { addCount(counts, p, 1) }

func addCount(counts *messages.PartitionCount, p *messages.Partition, n int) {
	add := func(to *int, when bool) {
		if when {
			*to += n
		}
	}
	least := messages.EffectiveMinISR(p.MinISR, len(p.Replicas))
	led := p.Leader != ""
	counts.Total += n
	add(&counts.Offline, !led)
	add(&counts.UnderMinISR, len(p.ISR) < least)
	add(&counts.AtMinISR, len(p.ISR) == least)
	add(&counts.UnderReplicated, len(p.ISR) < len(p.Replicas))
	add(&counts.NonPreferred, led && p.Leader != p.Replicas[0])
	add(&counts.Unproven, led && !p.LeaderProven)
}

// Counts returns the counts over all partitions, without RackViolation. They are kept up to date with every record, so
// the call costs nothing.
func (c *Catalog) Counts() messages.PartitionCount {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.counts
}

// Load returns how many replicas a broker has, and how many of the partitions it leads.
func (c *Catalog) Load(b messages.BrokerID) (replicas, leaders int) {
	l := c.LoadOf(b)
	return l.Replicas, l.Leaders
}

// LoadOf returns what a broker has to carry; zeros for one that no partition names.
func (c *Catalog) LoadOf(b messages.BrokerID) Load {
	c.mu.RLock()
	defer c.mu.RUnlock()
	s := c.index[b]
	if s == nil {
		return Load{}
	}
	return Load{Replicas: len(s.partitions), Leaders: s.leaders, InSync: s.inSync}
}

// PartitionsOf calls f for each partition with a replica on b, until f returns false. The order means nothing; it is the
// same for the same catalog and the same calls.
func (c *Catalog) PartitionsOf(b messages.BrokerID, f func(*messages.Partition) bool) {
	c.mu.RLock()
	var all []*messages.Partition
	if s := c.index[b]; s != nil {
		all = make([]*messages.Partition, len(s.partitions))
		for i, p := range s.partitions {
			all[i] = p.record
		}
	}
	c.mu.RUnlock()
	each(all, f)
}
