package broker

import (
	"errors"

	"github.com/highwater-io/highwater/broker/replica"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// openConcurrency is how many replicas are opened at once: creating one costs an fsync, which the storage may share.
const openConcurrency = 8

// registered begins a registration: the storage is bound to the cluster before anything is written.
func (s *Server) registered(r registration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.bound {
		if err := s.storage.Bind(r.clusterID, s.id); err != nil {
			return withSentinel(messages.AsError(err))
		}
		if err := s.storage.MarkRunning(); err != nil {
			return err
		}
		s.bound = true
	}
	s.settings = r.settings
	s.epoch.Store(uint64(r.epoch))
	s.active.Store(true)
	return nil
}

// ended stops everything that this broker does for others.
func (s *Server) ended(error) {
	s.active.Store(false)
	for _, p := range s.all() {
		p.suspend(false)
	}
	s.s.readies.clear()
	s.s.proposals.clear()
}

func (s *Server) assigned(a Assignment) {
	id := a.Partition.ID
	s.mu.Lock()
	p := s.parts[id]
	if p == nil {
		p = &partition{srv: s, id: id, topic: a.Partition.Topic, tickets: map[replica.Ticket]produceWait{},
			followedEpoch: messages.NoLeaderEpoch - 1, tail: tail{total: &s.tailBytes}, first: s.first}
		s.parts[id] = p
	}
	for _, r := range a.Replicas {
		s.peers[r] = true
	}
	s.mu.Unlock()
	p.assign(a.wire)
}

func (s *Server) snapshotApplied(unknown []messages.TopicID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.first, s.missing = false, unknown
}

// ready: everything that the snapshot named is open.
func (s *Server) ready() bool         { return s.opens.Load() == 0 }
func (s *Server) storageFailed() bool { return s.broken.Load() }

// storageBroke is called by whoever sees the storage refuse work. The controller takes the leaderships away.
func (s *Server) storageBroke(err error) {
	if !s.broken.Swap(true) {
		s.log.Error().Err(err).Msg("the storage refuses work")
		s.s.kick()
	}
}

// open queues a partition to be opened. The caller holds its lock.
func (s *Server) open(p *partition) {
	s.opens.Add(1)
	select {
	case s.openers <- p:
	default:
		s.goDo(func() {
			select {
			case s.openers <- p:
			case <-s.ctx.Done():
			}
		})
	}
}

func (s *Server) openLoop() {
	for {
		select {
		case <-s.ctx.Done():
			return
		case p := <-s.openers:
			m, err := s.openReplica(p)
			p.opened(m, messages.AsError(err))
			if s.opens.Add(-1) == 0 {
				s.s.kick()
			}
		}
	}
}

// openReplica creates the replica if it is not there and makes its machine of what the storage holds.
func (s *Server) openReplica(p *partition) (*replica.Replica, error) {
	s.mu.RLock()
	cfg := replica.Config{Self: s.id, Partition: p.id, ReplicaLag: s.settings.ReplicaLag, Checkpoint: s.settings.Checkpoint,
		FirstSnapshot: p.first, SendUnstored: true}
	s.mu.RUnlock()
	l, err := s.storage.Log(p.id)
	if errors.Is(err, ErrNoReplica) {
		if err = s.storage.Create(p.id, p.topic); err == nil {
			l, err = s.storage.Log(p.id)
		}
	}
	if err != nil {
		var coded *messages.Error
		if !errors.As(err, &coded) {
			s.storageBroke(err)
		}
		return nil, err
	}
	s.mu.Lock()
	s.onDisk[p.id] = p.topic
	s.mu.Unlock()
	cfg.Log = l
	return replica.New(cfg), nil
}

func (s *Server) retired(id messages.PartitionID) {
	if p := s.partition(id); p != nil {
		s.log.Warn().Stringer("partition", id).Msg("replica is not assigned to this broker any more; its data stays")
		p.suspend(true)
	}
}

// removed carries out the order to delete a topic's replicas, those too that are on the disk but were not assigned in
// this life of the broker.
func (s *Server) removed(order removal) {
	s.mu.Lock()
	s.removals[order.topic] = true
	var list []*partition
	for id, name := range s.onDisk {
		if id.Topic != order.topic || !order.covers(id.Index, -1) {
			continue
		}
		if s.parts[id] == nil {
			s.parts[id] = &partition{srv: s, id: id, topic: name, tickets: map[replica.Ticket]produceWait{}, tail: tail{total: &s.tailBytes}}
		}
	}
	for id, p := range s.parts {
		if id.Topic == order.topic {
			list = append(list, p)
		}
	}
	s.mu.Unlock()
	for _, p := range list {
		if order.covers(p.id.Index, p.newestEpoch()) {
			p.remove()
		}
	}
	s.confirm(order.topic)
}

func (p *partition) newestEpoch() messages.PartitionEpoch {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.want == nil {
		return 0
	}
	return messages.PartitionEpoch(p.want.GetPartitionEpoch())
}

// forget ends a partition that is gone from the storage.
func (s *Server) forget(p *partition) {
	s.mu.Lock()
	delete(s.parts, p.id)
	delete(s.onDisk, p.id)
	s.mu.Unlock()
	s.log.Info().Stringer("partition", p.id).Msg("replica is removed: its topic was deleted")
	s.confirm(p.id.Topic)
}

// confirm tells the controller when nothing of a removed topic is left.
func (s *Server) confirm(t messages.TopicID) {
	s.mu.Lock()
	left := !s.removals[t]
	for id := range s.onDisk {
		left = left || id.Topic == t
	}
	for id := range s.parts {
		left = left || id.Topic == t
	}
	if !left {
		delete(s.removals, t)
	}
	s.mu.Unlock()
	if !left {
		s.s.confirmRemoved(t)
	}
}

func (s *Server) held() []*pb.HeldTopic {
	s.mu.RLock()
	defer s.mu.RUnlock()
	list := make([]Partition, 0, len(s.onDisk))
	for id, name := range s.onDisk {
		list = append(list, Partition{ID: id, Topic: name})
	}
	return heldTopics(list)
}
