package journal

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/highwater-io/highwater/messages"
)

// visitBatch is how many partitions are read under the catalog's lock at once.
const visitBatch = 1000

// View is a catalog as it was at one position, whatever is applied meanwhile. Taking one costs a pointer for each topic;
// the partitions are read later, a few at a time. A writer that changes a partition which the view may not have read yet
// keeps the old record for it, so neither ever waits for the other for long. It is for one goroutine and must be closed.
type View struct {
	catalog  *Catalog
	at       Position
	claimed  messages.ControllerClaimed
	cluster  *messages.Cluster
	brokers  map[messages.BrokerID]*messages.Broker
	deleted  []*messages.TopicDeletion
	unknown  []*messages.UnknownRecord
	topics   []pinnedTopic
	damage   []Damage
	damaged  int
	before   map[*partitionState]*messages.Partition // records that have changed since; the catalog's lock is over it
	started  bool
	topic    int // the next one to read
	index    int // the next partition of topics[topic]; -1 = the topic itself
	longest  time.Duration
	nameless []messages.TopicID
}

type pinnedTopic struct {
	state *topicState
	topic *messages.Topic
	named bool // it is found by its name
}

// Pin returns a view of the catalog as it is now. INTERNAL where the hash chain is not known.
func (c *Catalog) Pin() (*View, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	began := time.Now()
	if c.chain == [32]byte{} {
		return nil, messages.Errorf(messages.CodeInternal, "the catalog does not know the hash chain at %d", c.Applied())
	}
	v := &View{catalog: c, at: Position{Last: c.Applied(), Chain: c.chain}, claimed: c.claimed, cluster: c.Identity(), brokers: c.Brokers(),
		deleted: slices.Collect(maps.Values(c.deletions)), unknown: c.unknown.sorted(), topics: make([]pinnedTopic, 0, len(c.topics)),
		damage: slices.Clone(c.damage), damaged: c.damaged, before: map[*partitionState]*messages.Partition{}, index: -1}
	for _, s := range c.topics {
		v.topics = append(v.topics, pinnedTopic{s, s.topic, c.names[s.topic.Name] == s})
	}
	c.views = append(c.views, v)
	v.longest = time.Since(began)
	return v, nil
}

// keep remembers a partition's record for the views that may still want it, before it changes.
func (c *Catalog) keep(s *partitionState) {
	for _, v := range c.views {
		if _, known := v.before[s]; !known {
			v.before[s] = s.record
		}
	}
}

// Close lets go of what the view keeps. It may be called more than once.
func (v *View) Close() {
	c := v.catalog
	c.mu.Lock()
	defer c.mu.Unlock()
	c.views = slices.DeleteFunc(c.views, func(other *View) bool { return other == v })
	v.before = nil
}

// Position returns the position that the view is of.
func (v *View) Position() Position { return v.at }

// LockHeld returns the longest time for which the view has kept writers from the catalog.
func (v *View) LockHeld() time.Duration { return v.longest }

// next returns the next records, up to about visitBatch of them; none at the end. A topic comes before its partitions.
func (v *View) next() []messages.Record {
	if !v.started {
		v.started = true
		if first := v.first(); len(first) > 0 {
			return first
		}
	}
	out := make([]messages.Record, 0, visitBatch+1) // not under the lock
	for len(out) < visitBatch && v.topic < len(v.topics) {
		t := v.topics[v.topic]
		if v.index < 0 {
			out = append(out, t.topic)
			v.index = 0
		}
		var done bool
		if out, done = v.visit(out, t.state, visitBatch-len(out)); done {
			v.topic++
			v.index = -1
		}
	}
	return out
}

// first returns everything but topics and partitions, and puts the topics into an order that depends on nothing but them.
func (v *View) first() []messages.Record {
	var out []messages.Record
	if v.cluster != nil {
		out = append(out, v.cluster)
	}
	for _, id := range slices.Sorted(maps.Keys(v.brokers)) {
		out = append(out, v.brokers[id])
	}
	slices.SortFunc(v.deleted, func(a, b *messages.TopicDeletion) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	for _, d := range v.deleted {
		out = append(out, d)
	}
	for _, r := range v.unknown {
		out = append(out, r)
	}
	// Topics without a name of their own come first, so that those that have it now are put behind them.
	slices.SortFunc(v.topics, func(a, b pinnedTopic) int {
		if a.named != b.named {
			return map[bool]int{false: -1, true: 1}[a.named]
		}
		return cmp.Or(strings.Compare(string(a.topic.Name), string(b.topic.Name)), bytes.Compare(a.topic.ID[:], b.topic.ID[:]))
	})
	for _, t := range v.topics {
		if !t.named {
			v.nameless = append(v.nameless, t.topic.ID)
		}
	}
	return out
}

// visit reads up to n partitions of a topic as they were, and reports whether it has come to the topic's end.
func (v *View) visit(out []messages.Record, s *topicState, n int) ([]messages.Record, bool) {
	c := v.catalog
	c.mu.RLock()
	defer c.mu.RUnlock()
	began := time.Now()
	end := min(v.index+n, len(s.partitions))
	for _, p := range s.partitions[v.index:end] {
		if p == nil {
			continue
		}
		record, changed := v.before[p]
		if !changed {
			record = p.record
		}
		if record != nil {
			out = append(out, record)
		}
	}
	v.index = end
	v.longest = max(v.longest, time.Since(began))
	return out, end == len(s.partitions)
}
