package pebblelog

import (
	"encoding/binary"
	"errors"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/broker"
	"github.com/highwater-io/highwater/broker/replica"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// Truncate removes every batch that reaches above the offset, durably.
func (l *Log) Truncate(p messages.PartitionID, to messages.Offset) (replica.LogState, error) {
	l.mu.RLock()
	old, ok := l.replicas[p]
	failed := l.failed
	l.mu.RUnlock()
	if !ok {
		return replica.LogState{}, broker.ErrNoReplica
	}
	if failed != nil || to >= old.end {
		return old.state(), failed
	}
	h := *old
	h.epochs = slices.Clip(old.epochs)
	batch := l.db.NewBatch()
	if err := l.stageTruncate(batch, p, &h, max(to, h.start)); err != nil {
		return replica.LogState{}, errors.Join(err, batch.Close())
	}
	if err := batch.Commit(pebble.Sync); err != nil {
		return replica.LogState{}, l.fail(err)
	}
	l.mu.Lock()
	l.replicas[p] = &h
	l.mu.Unlock()
	return h.state(), batch.Close()
}

func (l *Log) stageTruncate(batch *pebble.Batch, p messages.PartitionID, h *held, to messages.Offset) error {
	spanning, err := l.Read(p, to, 1)
	if err != nil {
		return err
	}
	if len(spanning) > 0 {
		to = min(to, messages.Offset(spanning[0].BaseOffset))
	}
	if err := batch.DeleteRange(numberedKey(kindData, p, uint64(to)), afterPartition(kindData, p), nil); err != nil {
		return err
	}
	h.end = to
	for n := len(h.epochs); n > 0 && h.epochs[n-1].Start >= to; n-- {
		if err := batch.Delete(numberedKey(kindEpoch, p, uint64(h.epochs[n-1].Epoch)), nil); err != nil {
			return err
		}
		h.epochs = h.epochs[:n-1]
	}
	if h.mark > to {
		h.mark = to
		if err := batch.Set(partitionKey(kindMark, p), binary.BigEndian.AppendUint64(nil, uint64(to)), nil); err != nil {
			return err
		}
	}
	return l.forgetProducers(batch, p, h)
}

// forgetProducers takes the batches that are gone out of the memory of producers. A producer of which nothing remembered
// is left is looked up in what remains of the log, so that its retries are still recognised.
func (l *Log) forgetProducers(batch *pebble.Batch, p messages.PartitionID, h *held) error {
	producers := make(map[uint64][]replica.ProducerBatch, len(h.producers))
	lost := map[uint64]bool{}
	for id, batches := range h.producers {
		kept := slices.DeleteFunc(slices.Clone(batches), func(b replica.ProducerBatch) bool { return b.BaseOffset >= h.end })
		switch {
		case len(kept) == len(batches):
			producers[id] = batches
			continue
		case len(kept) > 0:
			producers[id] = kept
		default:
			lost[id] = true
		}
	}
	if len(lost) > 0 {
		err := l.scan(partitionKey(kindData, p), numberedKey(kindData, p, uint64(h.end)), func(_, value []byte) error {
			var b pb.StoredBatch
			if err := proto.Unmarshal(value, &b); err != nil || !lost[b.ProducerId] {
				return err
			}
			known := append(producers[b.ProducerId], producerBatch(&b))
			producers[b.ProducerId] = known[max(0, len(known)-replica.ProducerBatches):]
			return nil
		})
		if err != nil {
			return err
		}
	}
	for id, before := range h.producers {
		after := producers[id]
		if slices.Equal(before, after) {
			continue
		}
		key := numberedKey(kindProducer, p, id)
		if len(after) == 0 {
			if err := batch.Delete(key, nil); err != nil {
				return err
			}
			continue
		}
		if err := batch.Set(key, encodeProducer(after), nil); err != nil {
			return err
		}
	}
	h.producers = producers
	return nil
}

// Remove deletes a replica, durably.
func (l *Log) Remove(p messages.PartitionID) error {
	batch := l.db.NewBatch()
	err := errors.Join(
		batch.Delete(partitionKey(kindReplica, p), nil),
		batch.Delete(partitionKey(kindMark, p), nil),
		batch.DeleteRange(partitionKey(kindEpoch, p), afterPartition(kindEpoch, p), nil),
		batch.DeleteRange(partitionKey(kindProducer, p), afterPartition(kindProducer, p), nil),
		batch.DeleteRange(partitionKey(kindData, p), afterPartition(kindData, p), nil),
	)
	if err != nil {
		return errors.Join(err, batch.Close())
	}
	if err := batch.Commit(pebble.Sync); err != nil {
		return l.fail(err)
	}
	l.mu.Lock()
	delete(l.replicas, p)
	l.mu.Unlock()
	return batch.Close()
}
