package brokertest

import (
	"crypto/rand"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// CreateTopic makes a topic; each list of replicas is one partition, whose first live replica leads. It returns the id.
func (c *Controller) CreateTopic(name messages.TopicName, minISR int, replicas ...[]messages.BrokerID) messages.TopicID {
	c.mu.Lock()
	defer c.mu.Unlock()
	var id messages.TopicID
	_, _ = rand.Read(id[:])
	c.names[id] = name
	c.seen.Sequence++
	for i, list := range replicas {
		p := &messages.Partition{ID: messages.PartitionID{Topic: id, Index: int32(i)}, Replicas: list, LeaderEpoch: 0, MinISR: minISR,
			LeaderProven: true}
		for _, b := range list {
			if c.canLead(b) {
				p.ISR = append(p.ISR, b)
			}
		}
		if len(p.ISR) > 0 {
			p.Leader = p.ISR[0]
		}
		c.parts[p.ID] = p
		c.announce(p)
	}
	return id
}

func (c *Controller) canLead(b messages.BrokerID) bool {
	m := c.brokers[b]
	return m != nil && m.CanLead()
}

// change commits a new state of a partition and tells its replicas.
func (c *Controller) change(id messages.PartitionID, f func(p *messages.Partition)) {
	p := *c.parts[id]
	was := p
	f(&p)
	if p.Leader != was.Leader || p.LeaderEpoch != was.LeaderEpoch {
		p.LeaderEpoch = was.LeaderEpoch + 1
		p.LeaderProven = false
	}
	p.Epoch++
	c.seen.Sequence++
	c.parts[id] = &p
	c.announce(&p)
}

// Elect makes a broker the leader of a partition in a new leader epoch, though it may lead already. One outside of the ISR
// joins it, as in a forced election.
func (c *Controller) Elect(id messages.PartitionID, b messages.BrokerID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.change(id, func(p *messages.Partition) {
		p.Leader, p.LeaderEpoch = b, p.LeaderEpoch+1
		if !slices.Contains(p.ISR, b) {
			p.ISR = append(slices.Clone(p.ISR), b)
		}
	})
}

// fence takes a broker out of everything.
func (c *Controller) fence(id messages.BrokerID) {
	b := c.brokers[id]
	if b == nil {
		return
	}
	b.Fenced = true
	c.leave(id)
}

// leave takes a broker out of every ISR and moves its leaderships.
func (c *Controller) leave(id messages.BrokerID) {
	for pid, p := range c.parts {
		if p.Leader == id || slices.Contains(p.ISR, id) {
			c.change(pid, func(p *messages.Partition) { c.without(p, id) })
		}
	}
}

// without takes a replica out of the ISR. Below min ISR it stays eligible: the mark is frozen, so it holds what counts.
func (c *Controller) without(p *messages.Partition, id messages.BrokerID) {
	isr := slices.DeleteFunc(slices.Clone(p.ISR), func(b messages.BrokerID) bool { return b == id })
	if len(isr) < messages.EffectiveMinISR(p.MinISR, len(p.Replicas)) && slices.Contains(p.ISR, id) {
		p.Eligible = append(slices.Clone(p.Eligible), id)
	}
	p.ISR = isr
	if p.Leader == id || p.Leader == "" {
		c.elect(p)
	}
}

// elect chooses a leader from the ISR, else from the eligible.
func (c *Controller) elect(p *messages.Partition) {
	p.LastLeader, p.Leader = p.Leader, ""
	for _, b := range p.Replicas {
		if c.canLead(b) && slices.Contains(p.ISR, b) {
			p.Leader = b
			return
		}
	}
	for _, b := range p.Replicas {
		if c.canLead(b) && slices.Contains(p.Eligible, b) {
			p.Leader, p.ISR, p.Eligible = b, []messages.BrokerID{b}, nil
			return
		}
	}
}

// unfence lets a broker in and gives it what nobody can lead.
func (c *Controller) unfence(b *member) {
	b.Fenced = false
	for id, p := range c.parts {
		if p.Leader == "" && slices.Contains(p.Replicas, b.ID) {
			probe := *p
			if c.elect(&probe); probe.Leader != "" {
				c.change(id, func(p *messages.Partition) { c.elect(p) })
			}
		}
	}
}

// announce sends a partition's state to its replicas' feeds.
func (c *Controller) announce(p *messages.Partition) {
	for _, b := range p.Replicas {
		c.send(b, []*pb.Assignment{messages.AssignmentOf(c.names[p.ID.Topic], p)}, nil)
	}
}

func (c *Controller) send(id messages.BrokerID, assignments []*pb.Assignment, removals []*pb.Removal) {
	b := c.brokers[id]
	if b == nil {
		return
	}
	b.feed.Position++
	batch := &pb.AssignmentBatch{Seen: messages.SeenToProto(c.seen), Broker: string(id), BrokerEpoch: uint64(b.Epoch),
		Feed: proto.CloneOf(&b.feed), Assignments: assignments, Removals: removals}
	if !c.deaf[id] {
		_ = c.Publish(id, batch)
	}
}

// DeleteTopic deletes a topic and orders the brokers that have replicas of it to remove them.
func (c *Controller) DeleteTopic(id messages.TopicID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := &messages.TopicDeletion{ID: id, Name: c.names[id]}
	for i := int32(0); ; i++ {
		p := c.parts[messages.PartitionID{Topic: id, Index: i}]
		if p == nil {
			break
		}
		d.Epochs = append(d.Epochs, p.Epoch)
		for _, b := range p.Replicas {
			if !slices.Contains(d.Pending, b) {
				d.Pending = append(d.Pending, b)
			}
		}
		delete(c.parts, p.ID)
	}
	c.seen.Sequence++
	c.deletions[id] = d
	for _, b := range d.Pending {
		c.send(b, nil, []*pb.Removal{removalOf(d)})
	}
}

func removalOf(d *messages.TopicDeletion) *pb.Removal {
	r := &pb.Removal{TopicId: d.ID.Bytes(), Topic: string(d.Name)}
	for _, e := range d.Epochs {
		r.PartitionEpochs = append(r.PartitionEpochs, int64(e))
	}
	return r
}

// propose decides on an ISR proposal by the controller's rules.
func (c *Controller) propose(from messages.BrokerID, q *pb.IsrProposal) *pb.IsrResult {
	out := &pb.IsrResult{TopicId: q.GetTopicId(), Partition: q.GetPartition()}
	topic, _ := messages.ParseTopicID(q.GetTopicId())
	id := messages.PartitionID{Topic: topic, Index: q.GetPartition()}
	p := c.parts[id]
	if p == nil {
		out.Error = messages.Errorf(messages.CodeUnknownTopicID, "no such partition").Proto()
		return out
	}
	if err := c.checkProposal(from, p, q); err != nil {
		out.Error, out.Current = err.Proto(), messages.AssignmentOf(c.names[topic], p)
		return out
	}
	isr := make([]messages.BrokerID, 0, len(q.GetIsr()))
	for _, m := range q.GetIsr() {
		isr = append(isr, messages.BrokerID(m.GetBroker()))
	}
	c.change(id, func(p *messages.Partition) {
		if p.ISR = isr; len(isr) >= messages.EffectiveMinISR(p.MinISR, len(p.Replicas)) {
			p.Eligible = nil
		}
		p.HighWatermark = max(p.HighWatermark, messages.Offset(q.GetHighWatermark()))
	})
	out.Current = messages.AssignmentOf(c.names[topic], c.parts[id])
	return out
}

func (c *Controller) checkProposal(from messages.BrokerID, p *messages.Partition, q *pb.IsrProposal) *messages.Error {
	le, pe := messages.LeaderEpoch(q.GetLeaderEpoch()), messages.PartitionEpoch(q.GetPartitionEpoch())
	switch {
	case le > p.LeaderEpoch || pe > p.Epoch:
		return messages.Errorf(messages.CodeNotActiveController, "the proposal is ahead")
	case le < p.LeaderEpoch:
		return messages.Errorf(messages.CodeFencedLeaderEpoch, "the leader epoch is %d", p.LeaderEpoch)
	case from != p.Leader:
		return messages.Errorf(messages.CodeNotLeader, "the leader is %s", p.Leader)
	case pe < p.Epoch:
		return messages.Errorf(messages.CodeStalePartitionEpoch, "the partition epoch is %d", p.Epoch)
	}
	for _, m := range q.GetIsr() {
		id := messages.BrokerID(m.GetBroker())
		if !slices.Contains(p.Replicas, id) {
			return messages.Errorf(messages.CodeInvalidRequest, "%s is no replica", id)
		}
		if !c.canLead(id) || uint64(c.brokers[id].Epoch) != m.GetBrokerEpoch() {
			return messages.Errorf(messages.CodeIneligibleReplica, "%s may not join", id)
		}
	}
	return nil
}

// report takes a leader's word that it is ready or declines.
func (c *Controller) report(from messages.BrokerID, r *pb.LeaderReport) *pb.IsrResult {
	c.reports = append(c.reports, r)
	out := &pb.IsrResult{TopicId: r.GetTopicId(), Partition: r.GetPartition()}
	topic, _ := messages.ParseTopicID(r.GetTopicId())
	id := messages.PartitionID{Topic: topic, Index: r.GetPartition()}
	p := c.parts[id]
	switch {
	case p == nil:
		out.Error = messages.Errorf(messages.CodeUnknownTopicID, "no such partition").Proto()
	case messages.LeaderEpoch(r.GetLeaderEpoch()) != p.LeaderEpoch || p.Leader != from:
		out.Error = messages.Errorf(messages.CodeFencedLeaderEpoch, "the leader epoch is %d", p.LeaderEpoch).Proto()
	case r.GetDeclined():
		c.change(id, func(p *messages.Partition) {
			c.without(p, from)
			p.Eligible = slices.DeleteFunc(slices.Clone(p.Eligible), func(b messages.BrokerID) bool { return b == from })
		})
	default:
		next := *p
		next.LeaderProven = true
		next.HighWatermark = max(next.HighWatermark, messages.Offset(r.GetHighWatermark()))
		c.parts[id] = &next
		out.Current = messages.AssignmentOf(c.names[id.Topic], &next)
	}
	return out
}
