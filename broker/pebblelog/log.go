package pebblelog

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/broker"
	"github.com/highwater-io/highwater/broker/replica"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var _ broker.Storage = (*Log)(nil)

// Identity returns what the storage knows of itself.
func (l *Log) Identity() broker.Identity {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.identity
}

// Bind ties an empty storage to a cluster and broker. CLUSTER_MISMATCH if it is tied to others.
func (l *Log) Bind(clusterID string, b messages.BrokerID) error {
	return l.changeIdentity(func(i *broker.Identity) error {
		if i.ClusterID != "" && (i.ClusterID != clusterID || i.Broker != b) {
			return messages.Errorf(messages.CodeClusterMismatch,
				"this data folder belongs to broker %s of cluster %s, not to broker %s of cluster %s", i.Broker, i.ClusterID, b, clusterID)
		}
		i.ClusterID, i.Broker = clusterID, b
		return nil
	})
}

// MarkRunning makes the next open an unclean one until MarkClean.
func (l *Log) MarkRunning() error {
	return l.changeIdentity(func(i *broker.Identity) error { i.CleanEpoch = 0; return nil })
}

// MarkClean records an orderly stop.
func (l *Log) MarkClean(epoch messages.BrokerEpoch) error {
	if err := l.db.LogData(nil, pebble.Sync); err != nil {
		return l.fail(err)
	}
	return l.changeIdentity(func(i *broker.Identity) error { i.CleanEpoch = epoch; return nil })
}

// SaveSeen keeps a position of the journal: one small, synced write, beside those of the replicas.
func (l *Log) SaveSeen(s messages.Seen) error {
	raw, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := l.db.Set([]byte{kindSeen}, raw, pebble.Sync); err != nil {
		return l.fail(err)
	}
	return nil
}

func (l *Log) changeIdentity(change func(*broker.Identity) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	next := l.identity
	if err := change(&next); err != nil {
		return err
	}
	if next == l.identity {
		return nil
	}
	if err := l.saveIdentity(next); err != nil {
		return err
	}
	l.identity = next
	return nil
}

// Replicas lists what the storage holds.
func (l *Log) Replicas() ([]broker.HeldReplica, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	out := make([]broker.HeldReplica, 0, len(l.replicas))
	for p, h := range l.replicas {
		out = append(out, broker.HeldReplica{Partition: p, Topic: h.topic})
	}
	return out, l.failed
}

// Create makes an empty replica.
func (l *Log) Create(p messages.PartitionID, topic messages.TopicName) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed != nil {
		return l.failed
	}
	if _, ok := l.replicas[p]; ok {
		return nil
	}
	raw, err := json.Marshal(replicaRecord{Topic: topic})
	if err != nil {
		return err
	}
	if err := l.db.Set(partitionKey(kindReplica, p), raw, l.writeOp); err != nil {
		return err
	}
	l.replicas[p] = &held{topic: topic, producers: map[uint64][]replica.ProducerBatch{}}
	return nil
}

// Log returns the state of one replica's log.
func (l *Log) Log(p messages.PartitionID) (replica.LogState, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	h, ok := l.replicas[p]
	if !ok {
		return replica.LogState{}, broker.ErrNoReplica
	}
	return h.state(), l.failed
}

func (h *held) state() replica.LogState {
	s := replica.LogState{Start: h.start, End: h.end, HighWatermark: h.mark, Epochs: slices.Clone(h.epochs)}
	for id, b := range h.producers {
		s.Producers = append(s.Producers, replica.ProducerState{Producer: id, Batches: slices.Clone(b)})
	}
	slices.SortFunc(s.Producers, func(a, b replica.ProducerState) int {
		if a.Producer < b.Producer {
			return -1
		}
		return 1
	})
	return s
}

// Write applies writes of any number of partitions, all or nothing.
func (l *Log) Write(writes []broker.Write) error {
	batch := l.db.NewBatch()
	staged, err := l.stage(batch, writes)
	if err != nil {
		return errors.Join(err, batch.Close())
	}
	if err := batch.Commit(l.writeOp); err != nil {
		return l.fail(err)
	}
	l.mu.Lock()
	for p, s := range staged {
		if h, ok := l.replicas[p]; ok {
			h.end, h.mark, h.epochs = s.end, s.mark, s.epochs
			for id, b := range s.producers {
				h.producers[id] = b
			}
		}
	}
	l.mu.Unlock()
	return batch.Close()
}

// stage puts the writes into a batch and returns the states that they lead to, of which producers has only what changes.
// Calls for one partition are serialized by the caller, so what is read here is still true when the batch is committed.
func (l *Log) stage(batch *pebble.Batch, writes []broker.Write) (map[messages.PartitionID]*staged, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.failed != nil {
		return nil, l.failed
	}
	next := make(map[messages.PartitionID]*staged, len(writes))
	for _, w := range writes {
		s := next[w.Partition]
		if s == nil {
			h, ok := l.replicas[w.Partition]
			if !ok {
				return nil, broker.ErrNoReplica
			}
			s = &staged{id: w.Partition, batch: batch, known: h.producers, end: h.end, mark: h.mark,
				epochs: slices.Clip(h.epochs), producers: map[uint64][]replica.ProducerBatch{}}
			next[w.Partition] = s
		}
		if err := s.write(w); err != nil {
			return nil, err
		}
	}
	return next, nil
}

// staged is a replica as it will be when its batch is committed.
type staged struct {
	id        messages.PartitionID
	batch     *pebble.Batch
	known     map[uint64][]replica.ProducerBatch // as before; only read
	end       messages.Offset
	mark      messages.Offset
	epochs    []replica.EpochStart
	producers map[uint64][]replica.ProducerBatch
}

func (s *staged) write(w broker.Write) error {
	if w.Epoch != nil {
		if err := s.startEpoch(w.Epoch.Epoch); err != nil {
			return err
		}
	}
	for _, b := range w.Batches {
		if err := s.append(b); err != nil {
			return err
		}
	}
	if w.HighWatermark > s.mark {
		s.mark = w.HighWatermark
		return s.batch.Set(partitionKey(kindMark, s.id), binary.BigEndian.AppendUint64(nil, uint64(s.mark)), nil)
	}
	return nil
}

func (s *staged) append(b *pb.StoredBatch) error {
	if messages.Offset(b.BaseOffset) != s.end || b.Count == 0 {
		return messages.Errorf(messages.CodeInternal, "replica %s: a batch of %d records at %d does not follow the log's end %d",
			s.id, b.Count, b.BaseOffset, s.end)
	}
	raw, err := proto.Marshal(b)
	if err != nil {
		return err
	}
	if err := s.startEpoch(messages.LeaderEpoch(b.LeaderEpoch)); err != nil {
		return err
	}
	if err := s.batch.Set(numberedKey(kindData, s.id, uint64(b.BaseOffset)), raw, nil); err != nil {
		return err
	}
	s.end += messages.Offset(b.Count)
	if b.ProducerId == 0 {
		return nil
	}
	return s.remember(b)
}

// startEpoch records that an epoch begins at the log's end, unless it has begun before. Epochs without records that began
// there are forgotten: a stint in which nothing was written must not refuse what another leader has written there before.
func (s *staged) startEpoch(e messages.LeaderEpoch) error {
	n := len(s.epochs)
	for n > 0 && s.epochs[n-1].Start == s.end && s.epochs[n-1].Epoch != e {
		n--
		if err := s.batch.Delete(numberedKey(kindEpoch, s.id, uint64(s.epochs[n].Epoch)), nil); err != nil {
			return err
		}
	}
	s.epochs = s.epochs[:n:n]
	if n > 0 && s.epochs[n-1].Epoch >= e {
		if s.epochs[n-1].Epoch > e {
			return messages.Errorf(messages.CodeInternal, "replica %s: epoch %d follows epoch %d", s.id, e, s.epochs[n-1].Epoch)
		}
		return nil
	}
	s.epochs = append(s.epochs, replica.EpochStart{Epoch: e, Start: s.end})
	return s.batch.Set(numberedKey(kindEpoch, s.id, uint64(e)), binary.BigEndian.AppendUint64(nil, uint64(s.end)), nil)
}

func (s *staged) remember(b *pb.StoredBatch) error {
	known, ok := s.producers[b.ProducerId]
	if !ok {
		known = s.known[b.ProducerId]
	}
	known = known[max(0, len(known)-replica.ProducerBatches+1):]
	known = append(slices.Clip(known), producerBatch(b))
	s.producers[b.ProducerId] = known
	return s.batch.Set(numberedKey(kindProducer, s.id, b.ProducerId), encodeProducer(known), nil)
}

func producerBatch(b *pb.StoredBatch) replica.ProducerBatch {
	return replica.ProducerBatch{BaseSequence: b.BaseSequence, Count: b.Count, BaseOffset: messages.Offset(b.BaseOffset)}
}

// Read returns whole batches from the one that holds the offset on.
func (l *Log) Read(p messages.PartitionID, from messages.Offset, maxBytes int) ([]*pb.StoredBatch, error) {
	l.mu.RLock()
	h, ok := l.replicas[p]
	if !ok {
		l.mu.RUnlock()
		return nil, broker.ErrNoReplica
	}
	end, failed := h.end, l.failed
	l.mu.RUnlock()
	if failed != nil || from >= end || from < 0 {
		return nil, failed
	}
	it, err := l.db.NewIter(&pebble.IterOptions{LowerBound: partitionKey(kindData, p), UpperBound: numberedKey(kindData, p, uint64(end))})
	if err != nil {
		return nil, err
	}
	out, err := readFrom(it, numberedKey(kindData, p, uint64(from)+1), from, maxBytes)
	return out, errors.Join(err, it.Error(), it.Close())
}

// readFrom reads on from the last batch before a key. A damaged batch ends what can be read; it is an error only when
// nothing comes before it.
func readFrom(it *pebble.Iterator, before []byte, from messages.Offset, maxBytes int) ([]*pb.StoredBatch, error) {
	var out []*pb.StoredBatch
	ok := it.SeekLT(before) || it.First()
	for size := 0; ok && (size == 0 || size < maxBytes); ok = it.Next() {
		b := &pb.StoredBatch{}
		err := proto.Unmarshal(it.Value(), b)
		if err != nil || crc32.Checksum(b.Body, castagnoli) != b.Crc {
			if len(out) > 0 {
				return out, nil
			}
			return nil, messages.Errorf(messages.CodeCorruptBatch, "the batch at offset %d fails its checksum", numberOf(it.Key()))
		}
		if messages.Offset(b.BaseOffset)+messages.Offset(b.Count) <= from {
			continue
		}
		out = append(out, b)
		size += len(b.Body)
	}
	return out, nil
}

// fail remembers the first error after which the storage refuses work.
func (l *Log) fail(err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed == nil {
		l.failed = fmt.Errorf("the broker's storage has failed: %w", err)
	}
	return l.failed
}
