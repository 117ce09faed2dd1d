package pebblelog

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/broker"
	"github.com/highwater-io/highwater/broker/replica"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// Sync says when a Write is durable.
type Sync int

const (
	// Always fsyncs before a Write returns.
	Always Sync = iota
	// Interval fsyncs at Options.Interval.
	Interval
)

// ParseSync reads "always" or "interval".
func ParseSync(s string) (Sync, error) {
	switch s {
	case "always":
		return Always, nil
	case "interval":
		return Interval, nil
	}
	return 0, messages.Errorf(messages.CodeInvalidRequest, "fsync is %q; it must be always or interval", s)
}

// Options of Open.
type Options struct {
	Sync     Sync
	Interval time.Duration // between two fsyncs with Interval; default 1 s
	FS       vfs.FS        // for tests; default the real one
}

// Log is a broker.Storage on Pebble.
type Log struct {
	db      *pebble.DB
	sync    Sync
	writeOp *pebble.WriteOptions

	mu       sync.RWMutex
	identity broker.Identity
	replicas map[messages.PartitionID]*held
	failed   error

	stop    chan struct{}
	stopped sync.WaitGroup
}

// held is what is kept in memory of one replica. Its fields are guarded by Log.mu.
type held struct {
	topic     messages.TopicName
	start     messages.Offset
	end       messages.Offset
	mark      messages.Offset
	epochs    []replica.EpochStart
	producers map[uint64][]replica.ProducerBatch
}

type identityRecord struct {
	Storage    messages.StorageID
	ClusterID  string
	Broker     messages.BrokerID
	CleanEpoch messages.BrokerEpoch
}

type replicaRecord struct {
	Topic messages.TopicName
	Start messages.Offset
}

// Open opens or makes the database in a folder. A folder that another process holds is an error that says so.
func Open(dir string, o Options) (*Log, error) {
	if o.Interval <= 0 {
		o.Interval = time.Second
	}
	po := &pebble.Options{
		FS:                 o.FS,
		Logger:             quiet{},
		MemTableSize:       32 << 20,
		FormatMajorVersion: pebble.FormatNewest,
	}
	db, err := pebble.Open(dir, po)
	if err != nil {
		return nil, fmt.Errorf("open the broker's log in %s (is another broker running on it?): %w", dir, err)
	}
	l := &Log{db: db, sync: o.Sync, writeOp: pebble.Sync, replicas: map[messages.PartitionID]*held{}, stop: make(chan struct{})}
	if o.Sync == Interval {
		l.writeOp = pebble.NoSync
	}
	if err := errors.Join(l.loadIdentity(), l.loadSeen(), l.loadReplicas()); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	if o.Sync == Interval {
		l.stopped.Add(1)
		go l.syncLoop(o.Interval)
	}
	return l, nil
}

func (l *Log) syncLoop(every time.Duration) {
	defer l.stopped.Done()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-l.stop:
			return
		case <-tick.C:
			if err := l.db.LogData(nil, pebble.Sync); err != nil {
				l.fail(err)
				return
			}
		}
	}
}

// Close syncs and releases the database.
func (l *Log) Close() error {
	close(l.stop)
	l.stopped.Wait()
	return errors.Join(l.db.LogData(nil, pebble.Sync), l.db.Close())
}

func (l *Log) loadIdentity() error {
	raw, closer, err := l.db.Get([]byte{kindIdentity})
	if errors.Is(err, pebble.ErrNotFound) {
		var id [16]byte
		if _, err := rand.Read(id[:]); err != nil {
			return err
		}
		l.identity = broker.Identity{Storage: messages.StorageID(hex.EncodeToString(id[:])), Fsyncs: l.sync == Always}
		return l.saveIdentity(l.identity)
	}
	if err != nil {
		return err
	}
	defer closer.Close()
	var r identityRecord
	if err := json.Unmarshal(raw, &r); err != nil {
		return fmt.Errorf("the identity of the broker's log cannot be read: %w", err)
	}
	l.identity = broker.Identity{Storage: r.Storage, ClusterID: r.ClusterID, Broker: r.Broker, CleanEpoch: r.CleanEpoch, Fsyncs: l.sync == Always}
	return nil
}

func (l *Log) saveIdentity(i broker.Identity) error {
	raw, err := json.Marshal(identityRecord{Storage: i.Storage, ClusterID: i.ClusterID, Broker: i.Broker, CleanEpoch: i.CleanEpoch})
	if err != nil {
		return err
	}
	return l.db.Set([]byte{kindIdentity}, raw, pebble.Sync)
}

func (l *Log) loadSeen() error {
	raw, closer, err := l.db.Get([]byte{kindSeen})
	if errors.Is(err, pebble.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	defer closer.Close()
	if err := json.Unmarshal(raw, &l.identity.Seen); err != nil {
		return fmt.Errorf("what the broker has seen of the journal cannot be read: %w", err)
	}
	return nil
}

func (l *Log) loadReplicas() error {
	err := l.scan([]byte{kindReplica}, []byte{kindReplica + 1}, func(key, value []byte) error {
		var r replicaRecord
		if err := json.Unmarshal(value, &r); err != nil {
			return fmt.Errorf("a replica of the broker's log cannot be read: %w", err)
		}
		l.replicas[partitionOf(key)] = &held{topic: r.Topic, start: r.Start, end: r.Start, producers: map[uint64][]replica.ProducerBatch{}}
		return nil
	})
	if err != nil {
		return err
	}
	for p, h := range l.replicas {
		if err := l.loadReplica(p, h); err != nil {
			return fmt.Errorf("replica %s: %w", p, err)
		}
	}
	return nil
}

func (l *Log) loadReplica(p messages.PartitionID, h *held) error {
	raw, closer, err := l.db.Get(partitionKey(kindMark, p))
	switch {
	case err == nil:
		h.mark = messages.Offset(binary.BigEndian.Uint64(raw))
		if err := closer.Close(); err != nil {
			return err
		}
	case !errors.Is(err, pebble.ErrNotFound):
		return err
	}
	if h.end, err = l.lastOffset(p, h.start); err != nil {
		return err
	}
	err = l.scan(partitionKey(kindEpoch, p), afterPartition(kindEpoch, p), func(key, value []byte) error {
		h.epochs = append(h.epochs, replica.EpochStart{
			Epoch: messages.LeaderEpoch(numberOf(key)), Start: messages.Offset(binary.BigEndian.Uint64(value))})
		return nil
	})
	if err != nil {
		return err
	}
	return l.scan(partitionKey(kindProducer, p), afterPartition(kindProducer, p), func(key, value []byte) error {
		h.producers[numberOf(key)] = decodeProducer(value)
		return nil
	})
}

// lastOffset returns the end of the log by its last batch.
func (l *Log) lastOffset(p messages.PartitionID, start messages.Offset) (messages.Offset, error) {
	it, err := l.db.NewIter(&pebble.IterOptions{LowerBound: partitionKey(kindData, p), UpperBound: afterPartition(kindData, p)})
	if err != nil {
		return 0, err
	}
	end := start
	if it.Last() {
		var b pb.StoredBatch
		if err := proto.Unmarshal(it.Value(), &b); err != nil {
			return 0, errors.Join(fmt.Errorf("the last batch cannot be read: %w", err), it.Close())
		}
		end = messages.Offset(b.BaseOffset) + messages.Offset(b.Count)
	}
	return end, errors.Join(it.Error(), it.Close())
}

func (l *Log) scan(from, to []byte, f func(key, value []byte) error) error {
	it, err := l.db.NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: to})
	if err != nil {
		return err
	}
	for ok := it.First(); ok; ok = it.Next() {
		if err := f(it.Key(), it.Value()); err != nil {
			return errors.Join(err, it.Close())
		}
	}
	return errors.Join(it.Error(), it.Close())
}

func encodeProducer(batches []replica.ProducerBatch) []byte {
	b := make([]byte, 0, len(batches)*20)
	for _, x := range batches {
		b = binary.BigEndian.AppendUint64(b, uint64(x.BaseSequence))
		b = binary.BigEndian.AppendUint32(b, x.Count)
		b = binary.BigEndian.AppendUint64(b, uint64(x.BaseOffset))
	}
	return b
}

func decodeProducer(raw []byte) []replica.ProducerBatch {
	var out []replica.ProducerBatch
	for ; len(raw) >= 20; raw = raw[20:] {
		out = append(out, replica.ProducerBatch{
			BaseSequence: int64(binary.BigEndian.Uint64(raw)), Count: binary.BigEndian.Uint32(raw[8:]),
			BaseOffset: messages.Offset(binary.BigEndian.Uint64(raw[12:])),
		})
	}
	return out
}

// quiet drops Pebble's own log lines; what fails comes back as an error.
type quiet struct{}

func (quiet) Infof(string, ...any)  {}
func (quiet) Errorf(string, ...any) {}

// Fatalf is called by Pebble when it cannot go on, for example when the write-ahead log cannot be synced. The process must not
// acknowledge anything after that.
func (quiet) Fatalf(format string, args ...any) { panic(fmt.Sprintf("pebble: "+format, args...)) }
