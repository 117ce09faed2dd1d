package sim

import (
	"fmt"
	"time"

	"github.com/highwater-io/highwater/broker/replica"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// disk is a broker's storage. Operations are applied in order, a group at a time. With fsync a group is on the disk when it
// is answered; without, it is in memory and reaches the disk from time to time. When the power goes, the group under way
// is on the disk or not, by chance, and whatever was only in memory is gone.
type disk struct {
	id      messages.StorageID
	fsyncs  bool
	lies    bool // says that it fsyncs
	clean   messages.BrokerEpoch
	used    bool // was ever registered
	current map[messages.PartitionID]*diskLog
	flushed map[messages.PartitionID]*diskLog

	queue  []operation
	active []operation
	slow   time.Duration // until then every operation takes long
}

// diskLog is one replica's log. Batches are never changed in place.
type diskLog struct {
	batches []*pb.StoredBatch
	epochs  replica.Epochs
	mark    messages.Offset
}

// operation is one thing to do with one log, and what to do then.
type operation struct {
	partition messages.PartitionID
	action    replica.Action
	done      func()
}

func newDisk(id string, fsyncs bool) *disk {
	return &disk{id: messages.StorageID(id), fsyncs: fsyncs, current: map[messages.PartitionID]*diskLog{},
		flushed: map[messages.PartitionID]*diskLog{}}
}

func (l *diskLog) clone() *diskLog {
	c := *l
	c.batches = l.batches[:len(l.batches):len(l.batches)]
	return &c
}

func (l *diskLog) end() messages.Offset {
	if len(l.batches) == 0 {
		return 0
	}
	return batchEnd(l.batches[len(l.batches)-1])
}

func batchEnd(b *pb.StoredBatch) messages.Offset {
	return messages.Offset(b.BaseOffset) + messages.Offset(b.Count)
}

// state is what the storage contract says of a log.
func (l *diskLog) state() replica.LogState {
	p := replica.NewProducers(nil)
	for _, b := range l.batches {
		p.Add(b)
	}
	return replica.LogState{End: l.end(), HighWatermark: l.mark, Epochs: l.epochs, Producers: p.States()}
}

// read returns whole batches of [from, limit).
func (l *diskLog) read(from, limit messages.Offset, atMost int) []*pb.StoredBatch {
	i := len(l.batches)
	for i > 0 && batchEnd(l.batches[i-1]) > from {
		i--
	}
	var out []*pb.StoredBatch
	for ; i < len(l.batches) && len(out) < atMost && batchEnd(l.batches[i]) <= limit; i++ {
		out = append(out, l.batches[i])
	}
	return out
}

func (d *disk) create(p messages.PartitionID) {
	if d.current[p] == nil {
		d.current[p] = &diskLog{}
		d.flush()
	}
}

func (d *disk) remove(p messages.PartitionID) {
	delete(d.current, p)
	d.flush()
}

func (d *disk) apply(op operation) {
	l := d.current[op.partition]
	if l == nil {
		return // removed meanwhile
	}
	switch a := op.action.(type) {
	case replica.Write:
		writeLog(l, a)
	case replica.Truncate:
		truncateLog(l, a.To)
	}
}

func writeLog(l *diskLog, a replica.Write) {
	if a.Epoch != nil {
		l.epochs = l.epochs.With(replica.EpochStart{Epoch: a.Epoch.Epoch, Start: l.end()})
	}
	for _, b := range a.Batches {
		if messages.Offset(b.BaseOffset) != l.end() {
			panic(fmt.Sprintf("a batch at %d was given to a log that ends at %d", b.BaseOffset, l.end()))
		}
		l.epochs = l.epochs.With(replica.EpochStart{Epoch: messages.LeaderEpoch(b.LeaderEpoch), Start: l.end()})
		l.batches = append(l.batches, b)
	}
	l.mark = max(l.mark, a.HighWatermark)
}

func truncateLog(l *diskLog, to messages.Offset) {
	n := len(l.batches)
	for n > 0 && batchEnd(l.batches[n-1]) > to {
		n--
	}
	l.batches = l.batches[:n:n]
	l.epochs = l.epochs.Truncated(l.end())
	l.mark = min(l.mark, l.end())
}

// flush puts everything on the disk.
func (d *disk) flush() {
	d.flushed = make(map[messages.PartitionID]*diskLog, len(d.current))
	for p, l := range d.current {
		d.flushed[p] = l.clone()
	}
}

// do queues operations of a process.
func (d *disk) do(p *process, ops ...operation) {
	d.queue = append(d.queue, ops...)
	d.next(p)
}

func (d *disk) next(p *process) {
	if len(d.active) > 0 || len(d.queue) == 0 {
		return
	}
	d.active, d.queue = d.queue, nil
	took := p.w.between(50*time.Microsecond, time.Millisecond)
	if d.fsyncs {
		took = p.w.between(500*time.Microsecond, 8*time.Millisecond)
	}
	if d.slow > p.w.now {
		took += p.w.between(100*time.Millisecond, time.Second)
	}
	p.timer(took, "disk", func() {
		group := d.active
		for _, op := range group {
			d.apply(op)
		}
		if d.fsyncs {
			d.flush()
		}
		d.active = nil
		for _, op := range group {
			op.done()
		}
		d.next(p)
	})
}

// stop is the end of the process. With the power gone, what was not flushed is lost; else the system keeps it.
func (d *disk) stop(w *world, power bool) {
	if len(d.active) > 0 && w.chance(0.5) {
		for _, op := range d.active {
			d.apply(op)
		}
		if d.fsyncs || !power {
			d.flush()
		}
	}
	d.queue, d.active = nil, nil
	if power && !d.fsyncs {
		d.current = make(map[messages.PartitionID]*diskLog, len(d.flushed))
		for p, l := range d.flushed {
			d.current[p] = l.clone()
		}
		return
	}
	d.flush()
}
