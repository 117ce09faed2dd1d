package broker

import (
	"bytes"
	"cmp"
	"slices"
	"time"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// The highest position that was heard of is kept at most once in seenPause, and when nothing but the position has changed at
// most once in seenIdlePause: one small, synced write.
const (
	seenPause     = time.Second
	seenIdlePause = 5 * time.Second
)

// ordered notes that the controller has ordered something.
func (s *session) ordered() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.newOrders = true
}

// toKeep returns the highest position and whether there are orders behind the one that was kept.
func (s *session) toKeep() (messages.Seen, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	orders := s.newOrders
	s.newOrders = false
	return s.seen, orders
}

// keepSeen keeps the highest position of the journal that was heard of, so that after a restart of everything, too, it is
// noticed when the journal has gone back.
func (s *Server) keepSeen() {
	t := time.NewTicker(seenPause)
	defer t.Stop()
	kept, last := s.cfg.seen, time.Now()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-t.C:
		}
		s.mu.RLock()
		bound := s.bound
		s.mu.RUnlock()
		seen, orders := s.s.toKeep()
		urgent := orders || seen.Controller != kept.Controller || time.Since(last) >= seenIdlePause
		if !bound || !kept.Before(seen) || !urgent || s.broken.Load() {
			continue
		}
		if err := s.storage.SaveSeen(seen); err != nil {
			s.storageBroke(err)
			return
		}
		kept, last = seen, time.Now()
		s.log.Debug().Uint64("controller_epoch", uint64(seen.Controller)).Uint64("revision", uint64(seen.Sequence)).Msg("position kept")
	}
}

// maxCopies is how many replicas one registration describes; 100 bytes each, and the topic's name.
const maxCopies = 2000

// copies describes the next part of the replicas on the disk, in the order of their ids.
func (s *Server) copies() ([]*pb.HeldReplica, int) {
	s.mu.Lock()
	all := make([]Partition, 0, len(s.onDisk))
	for id, topic := range s.onDisk {
		all = append(all, Partition{ID: id, Topic: topic})
	}
	from := s.described
	if s.described += maxCopies; s.described >= len(all) {
		s.described = 0
	}
	s.mu.Unlock()
	slices.SortFunc(all, func(a, b Partition) int {
		return cmp.Or(bytes.Compare(a.ID.Topic[:], b.ID.Topic[:]), cmp.Compare(a.ID.Index, b.ID.Index))
	})
	var out []*pb.HeldReplica
	for _, p := range all[min(from, len(all)):min(from+maxCopies, len(all))] {
		l, err := s.storage.Log(p.ID)
		if err != nil {
			continue // it is gone, or the storage is: then the rest is not known either, and the total says so
		}
		h := &pb.HeldReplica{TopicId: p.ID.Topic.Bytes(), Topic: string(p.Topic), Partition: p.ID.Index,
			LeaderEpoch: int64(messages.NoLeaderEpoch), LogEnd: int64(l.End), HighWatermark: int64(l.HighWatermark)}
		if n := len(l.Epochs); n > 0 {
			h.LeaderEpoch = int64(l.Epochs[n-1].Epoch)
		}
		if known := s.partition(p.ID); known != nil {
			h.PartitionEpoch = int64(known.newestEpoch())
		}
		out = append(out, h)
	}
	return out, len(all)
}
