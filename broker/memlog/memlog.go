// Package memlog is a storage in memory for tests. A Disk outlives the processes that open it: Crash loses what was not
// durable and leaves the disk to be opened again, as the power going out would.
package memlog

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/highwater-io/highwater/broker"
	"github.com/highwater-io/highwater/broker/replica"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// Disk is what remains when a process is gone.
type Disk struct {
	mu      sync.Mutex
	id      broker.Identity
	logs    map[messages.PartitionID]*log
	durable map[messages.PartitionID]*log // as of the last Sync; only without fsync
	current *Log
	delay   time.Duration
	broken  error
}

// log is one replica's log. It is copied before it is changed where a durable copy is kept.
type log struct {
	topic   messages.TopicName
	batches []*pb.StoredBatch
	start   messages.Offset
	mark    messages.Offset
	epochs  replica.Epochs
}

// NewDisk returns an empty disk. Without fsyncs, a crash loses what was written since the last Sync.
func NewDisk(fsyncs bool) *Disk {
	var raw [8]byte
	_, _ = rand.Read(raw[:])
	d := &Disk{logs: map[messages.PartitionID]*log{}, id: broker.Identity{Storage: messages.StorageID(hex.EncodeToString(raw[:])), Fsyncs: fsyncs}}
	d.durable = d.copies()
	return d
}

// Delay makes each Write take that long, as an fsync would.
func (d *Disk) Delay(t time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.delay = t
}

// Fail makes every write from now on fail with an error, until it is called with nil.
func (d *Disk) Fail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.broken = err
}

// Open opens the disk as a process would; a storage that was opened before is useless from then on.
func (d *Disk) Open() *Log {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.current = &Log{d: d}
	return d.current
}

// Crash ends the process that has the disk open: its storage refuses work, and what was not durable is lost.
func (d *Disk) Crash() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.current = nil
	if !d.id.Fsyncs {
		d.logs = d.durable
		d.durable = d.copies()
	}
}

// Sync makes everything durable that has been written without fsync.
func (d *Disk) Sync() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.durable = d.copies()
}

func (d *Disk) copies() map[messages.PartitionID]*log {
	out := make(map[messages.PartitionID]*log, len(d.logs))
	for id, l := range d.logs {
		out[id] = l.clone()
	}
	return out
}

func (l *log) clone() *log {
	c := *l
	c.batches, c.epochs = slices.Clone(l.batches), slices.Clone(l.epochs)
	return &c
}

func (l *log) end() messages.Offset {
	if n := len(l.batches); n > 0 {
		return endOf(l.batches[n-1])
	}
	return l.start
}

func endOf(b *pb.StoredBatch) messages.Offset {
	return messages.Offset(b.GetBaseOffset()) + messages.Offset(b.GetCount())
}

// Identity returns what the disk knows of itself, whether it is open or not.
func (d *Disk) Identity() broker.Identity {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.id
}

// Log is an open disk; it implements broker.Storage.
type Log struct{ d *Disk }

var _ broker.Storage = (*Log)(nil)

var errClosed = errors.New("the storage is closed")

// with runs f while the storage is open.
func (s *Log) with(f func(d *Disk) error) error {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	if s.d.current != s {
		return errClosed
	}
	return f(s.d)
}

// change is with for what writes.
func (s *Log) change(f func(d *Disk) error) error {
	return s.with(func(d *Disk) error {
		if d.broken != nil {
			return d.broken
		}
		return f(d)
	})
}

// Identity returns what the storage knows of itself.
func (s *Log) Identity() broker.Identity {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	return s.d.id
}

// Bind ties the storage to a cluster and broker.
func (s *Log) Bind(clusterID string, b messages.BrokerID) error {
	return s.change(func(d *Disk) error {
		if d.id.Broker != "" && (d.id.Broker != b || d.id.ClusterID != clusterID) {
			return messages.Errorf(messages.CodeClusterMismatch, "the storage belongs to broker %s of cluster %s", d.id.Broker, d.id.ClusterID)
		}
		d.id.Broker, d.id.ClusterID = b, clusterID
		return nil
	})
}

// MarkRunning makes the next open an unclean one.
func (s *Log) MarkRunning() error {
	return s.change(func(d *Disk) error { d.id.CleanEpoch = 0; return nil })
}

// MarkClean records an orderly stop, which includes that everything is durable.
func (s *Log) MarkClean(epoch messages.BrokerEpoch) error {
	return s.change(func(d *Disk) error {
		d.id.CleanEpoch, d.durable = epoch, d.copies()
		return nil
	})
}

// SaveSeen keeps a position of the journal.
func (s *Log) SaveSeen(seen messages.Seen) error {
	return s.change(func(d *Disk) error { d.id.Seen = seen; return nil })
}

// Replicas lists what the storage holds.
func (s *Log) Replicas() ([]broker.HeldReplica, error) {
	var out []broker.HeldReplica
	err := s.with(func(d *Disk) error {
		for id, l := range d.logs {
			out = append(out, broker.HeldReplica{Partition: id, Topic: l.topic})
		}
		return nil
	})
	return out, err
}

// Create makes an empty replica.
func (s *Log) Create(p messages.PartitionID, topic messages.TopicName) error {
	return s.change(func(d *Disk) error {
		if d.logs[p] == nil {
			d.logs[p] = &log{topic: topic}
			d.durable[p] = d.logs[p].clone()
		}
		return nil
	})
}

// Log returns the state of one replica's log.
func (s *Log) Log(p messages.PartitionID) (replica.LogState, error) {
	var out replica.LogState
	err := s.with(func(d *Disk) error {
		l := d.logs[p]
		if l == nil {
			return broker.ErrNoReplica
		}
		out = l.state()
		return nil
	})
	return out, err
}

func (l *log) state() replica.LogState {
	st := replica.LogState{Start: l.start, End: l.end(), HighWatermark: l.mark, Epochs: slices.Clone(l.epochs)}
	memory := replica.NewProducers(nil)
	for _, b := range l.batches {
		memory.Add(b)
	}
	if states := memory.States(); len(states) > 0 {
		st.Producers = states
	}
	return st
}

// Write applies all writes or none.
func (s *Log) Write(writes []broker.Write) error {
	s.d.mu.Lock()
	delay := s.d.delay
	s.d.mu.Unlock()
	if delay > 0 {
		time.Sleep(delay) // the disk is slow; other calls go on
	}
	return s.change(func(d *Disk) error {
		changed := make(map[messages.PartitionID]*log, len(writes))
		for _, w := range writes {
			l := changed[w.Partition]
			if l == nil {
				if d.logs[w.Partition] == nil {
					return broker.ErrNoReplica
				}
				c := *d.logs[w.Partition]
				l = &c
			}
			if err := l.write(w); err != nil {
				return err
			}
			changed[w.Partition] = l
		}
		for id, l := range changed {
			d.logs[id] = l
		}
		return nil
	})
}

func (l *log) write(w broker.Write) error {
	if w.Epoch != nil {
		l.startEpoch(w.Epoch.Epoch)
	}
	for _, b := range w.Batches {
		if messages.Offset(b.GetBaseOffset()) != l.end() || b.GetCount() == 0 {
			return messages.Errorf(messages.CodeInternal, "a batch of %d at %d cannot follow %d", b.GetCount(), b.GetBaseOffset(), l.end())
		}
		l.startEpoch(messages.LeaderEpoch(b.GetLeaderEpoch()))
		l.batches = append(l.batches, b)
	}
	l.mark = max(l.mark, w.HighWatermark)
	return nil
}

func (l *log) startEpoch(e messages.LeaderEpoch) {
	l.epochs = l.epochs.With(replica.EpochStart{Epoch: e, Start: l.end()})
}

// Read returns whole batches from the one that holds the offset on.
func (s *Log) Read(p messages.PartitionID, from messages.Offset, maxBytes int) ([]*pb.StoredBatch, error) {
	var out []*pb.StoredBatch
	err := s.with(func(d *Disk) error {
		l := d.logs[p]
		if l == nil {
			return broker.ErrNoReplica
		}
		size := 0
		i, _ := slices.BinarySearchFunc(l.batches, from, func(b *pb.StoredBatch, at messages.Offset) int {
			if endOf(b) <= at {
				return -1
			}
			return 1
		})
		for _, b := range l.batches[i:] {
			if err := replica.Verify(b); err != nil {
				if len(out) == 0 {
					return err
				}
				return nil
			}
			if size += len(b.GetBody()); len(out) > 0 && size > maxBytes {
				return nil
			}
			out = append(out, b)
		}
		return nil
	})
	return out, err
}

// Truncate removes every record at and above the offset.
func (s *Log) Truncate(p messages.PartitionID, to messages.Offset) (replica.LogState, error) {
	var out replica.LogState
	err := s.change(func(d *Disk) error {
		if d.logs[p] == nil {
			return broker.ErrNoReplica
		}
		l := d.logs[p].clone()
		for len(l.batches) > 0 && endOf(l.batches[len(l.batches)-1]) > to {
			l.batches = l.batches[:len(l.batches)-1]
		}
		l.batches = slices.Clip(l.batches)
		l.epochs = l.epochs.Truncated(l.end())
		l.mark = min(l.mark, l.end())
		d.logs[p], d.durable[p] = l, l.clone()
		out = l.state()
		return nil
	})
	return out, err
}

// Remove deletes a replica.
func (s *Log) Remove(p messages.PartitionID) error {
	return s.change(func(d *Disk) error {
		delete(d.logs, p)
		delete(d.durable, p)
		return nil
	})
}

// Close releases the storage.
func (s *Log) Close() error {
	return s.with(func(d *Disk) error { d.current = nil; return nil })
}
