package supervisor

import (
	"sync"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
)

const directoryParts = 32

// directory finds the actor of an address. Everybody reads it, at any time; supervisors write to it. An actor is entered
// before it is spawned, so that nothing that is told to it while it starts is lost: its mailbox keeps it.
type directory struct {
	registry, placer *host // set before the tree starts
	parts            [directoryParts]directoryPart
	outboxes         struct {
		sync.RWMutex
		hosts map[messages.BrokerID]*host
	}
}

// directoryPart has the partitions of some topics, by index; nil where none runs.
type directoryPart struct {
	sync.RWMutex
	topics map[messages.TopicID][]*host
}

func newDirectory() *directory {
	d := &directory{}
	for i := range d.parts {
		d.parts[i].topics = map[messages.TopicID][]*host{}
	}
	d.outboxes.hosts = map[messages.BrokerID]*host{}
	return d
}

func (d *directory) part(id messages.TopicID) *directoryPart {
	return &d.parts[(id[0]^id[7]^id[15])%directoryParts]
}

// find returns the actor of an address, nil if there is none.
func (d *directory) find(a actors.Address) *host {
	switch a.Kind {
	case actors.KindPartition:
		return d.partition(a.Partition)
	case actors.KindRegistry:
		return d.registry
	case actors.KindPlacer:
		return d.placer
	case actors.KindOutbox:
		d.outboxes.RLock()
		defer d.outboxes.RUnlock()
		return d.outboxes.hosts[a.Broker]
	}
	return nil
}

func (d *directory) partition(id messages.PartitionID) *host {
	p := d.part(id.Topic)
	p.RLock()
	defer p.RUnlock()
	if hosts := p.topics[id.Topic]; id.Index >= 0 && int(id.Index) < len(hosts) {
		return hosts[id.Index]
	}
	return nil
}

// addPartition enters a partition's actor and reports whether it did: not if there is one already.
func (d *directory) addPartition(h *host) bool {
	id := h.address.Partition
	p := d.part(id.Topic)
	p.Lock()
	defer p.Unlock()
	hosts := p.topics[id.Topic]
	for len(hosts) <= int(id.Index) {
		hosts = append(hosts, nil)
	}
	p.topics[id.Topic] = hosts
	if hosts[id.Index] != nil {
		return false
	}
	hosts[id.Index] = h
	return true
}

// addOutbox enters a broker's outbox, or returns the one that is there.
func (d *directory) addOutbox(b messages.BrokerID, make func() *host) (h *host, added bool) {
	d.outboxes.Lock()
	defer d.outboxes.Unlock()
	if h = d.outboxes.hosts[b]; h == nil {
		h, added = make(), true
		d.outboxes.hosts[b] = h
	}
	return h, added
}

// remove takes an actor out, if it is the one that is entered.
func (d *directory) remove(h *host) {
	switch h.address.Kind {
	case actors.KindPartition:
		id := h.address.Partition
		p := d.part(id.Topic)
		p.Lock()
		defer p.Unlock()
		if hosts := p.topics[id.Topic]; int(id.Index) < len(hosts) && hosts[id.Index] == h {
			hosts[id.Index] = nil
		}
	case actors.KindOutbox:
		d.outboxes.Lock()
		defer d.outboxes.Unlock()
		if d.outboxes.hosts[h.address.Broker] == h {
			delete(d.outboxes.hosts, h.address.Broker)
		}
	}
}

// removeTopic takes out a topic whose actors have all stopped.
func (d *directory) removeTopic(id messages.TopicID) {
	p := d.part(id)
	p.Lock()
	defer p.Unlock()
	delete(p.topics, id)
}
