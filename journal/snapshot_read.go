package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// Snapshot is one that has been read whole, with every digest as it should be.
type Snapshot struct {
	Info SnapshotInfo

	records  []messages.Record
	nameless []messages.TopicID
	damage   []Damage
	damaged  int
}

// BadSnapshot says what is wrong with a snapshot. Nothing of it may be used.
type BadSnapshot struct{ Detail string }

// Error returns the detail.
func (b *BadSnapshot) Error() string { return "snapshot: " + b.Detail }

// Unwrap returns INVALID_REQUEST, the error for the wire.
func (b *BadSnapshot) Unwrap() error {
	return messages.Errorf(messages.CodeInvalidRequest, "%s", b.Error())
}

func bad(format string, args ...any) error {
	return &BadSnapshot{Detail: messages.Errorf("", format, args...).Message}
}

// ReadSnapshot reads a snapshot up to its end and checks everything. *BadSnapshot for one that is torn or changed, *TooNew for
// one that needs a later version; other errors are the reader's.
func ReadSnapshot(r io.Reader) (*Snapshot, error) { return readSnapshot(r, messages.Known().Max) }

func readSnapshot(r io.Reader, reads messages.Version) (*Snapshot, error) {
	d := newDecoder(r)
	d.reads = reads
	for !d.ended {
		if err := d.next(); err != nil {
			return nil, err
		}
	}
	return d.out, d.finish()
}

// CheckSnapshot reads a snapshot up to its end and checks it like ReadSnapshot, without keeping the records.
func CheckSnapshot(r io.Reader) (SnapshotInfo, error) {
	d := newDecoder(r)
	d.drop = true
	for !d.ended {
		if err := d.next(); err != nil {
			return SnapshotInfo{}, err
		}
	}
	return d.out.Info, d.finish()
}

// decoder reads a snapshot piece by piece.
type decoder struct {
	from   io.Reader
	out    *Snapshot
	topics map[messages.TopicID]bool
	names  names
	reads  messages.Version
	drop   bool // check only
	ended  bool
}

func newDecoder(r io.Reader) *decoder {
	return &decoder{from: r, out: &Snapshot{}, topics: map[messages.TopicID]bool{}, names: names{}, reads: messages.Known().Max}
}

// next reads one piece.
func (d *decoder) next() error {
	body, err := d.piece()
	if err != nil {
		return err
	}
	number, kind, tag := protowire.ConsumeTag(body)
	if number == fieldChunk && kind == protowire.BytesType {
		raw, n := protowire.ConsumeBytes(body[tag:])
		if n < 0 || tag+n != len(body) || d.out.Info.Pieces == 1 {
			return bad("chunk %d cannot be read, or has no head before it", d.out.Info.Pieces)
		}
		return d.chunk(raw)
	}
	var b pb.SnapshotBody
	if err := proto.Unmarshal(body, &b); err != nil {
		return bad("piece %d cannot be read: %v", d.out.Info.Pieces, err)
	}
	head, end := b.GetHead(), b.GetEnd()
	switch {
	case head != nil && d.out.Info.Pieces == 1:
		return d.head(head)
	case end != nil && d.out.Info.Pieces > 1:
		return d.end(end)
	}
	return bad("piece %d is out of place", d.out.Info.Pieces)
}

// piece reads a frame and checks its digest.
func (d *decoder) piece() ([]byte, error) {
	info := &d.out.Info
	if info.Pieces == 0 {
		magic, err := d.read(len(snapshotMagic))
		if err != nil {
			return nil, err
		}
		if string(magic) != snapshotMagic {
			return nil, bad("it does not begin like one")
		}
	}
	length, err := d.read(4)
	if err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(length)
	if size > pieceMost {
		return nil, bad("piece %d has %d bytes, more than there can be", info.Pieces, size)
	}
	raw, err := d.read(int(size))
	if err != nil {
		return nil, err
	}
	var p pb.SnapshotPiece
	if err := proto.Unmarshal(raw, &p); err != nil {
		return nil, bad("piece %d cannot be read: %v", info.Pieces, err)
	}
	if info.Digest = link(info.Digest, p.GetBody()); string(p.GetDigest()) != string(info.Digest[:]) {
		return nil, bad("piece %d is not as it was written: its digest is another", info.Pieces)
	}
	info.Pieces++
	return p.GetBody(), nil
}

// read reads n bytes. It takes no more memory than there are bytes.
func (d *decoder) read(n int) ([]byte, error) {
	out, err := io.ReadAll(io.LimitReader(d.from, int64(n)))
	d.out.Info.Bytes += int64(len(out))
	if err == nil && len(out) < n {
		err = bad("it ends in piece %d", d.out.Info.Pieces)
	}
	return out, err
}

func (d *decoder) head(h *pb.SnapshotHead) error {
	if h.GetFormat() > SnapshotFormat {
		return &TooNew{At: messages.Sequence(h.GetSequence()), By: h.GetController(), Detail: fmt.Sprintf(
			"the snapshot of %d has format %d, this build reads %d", h.GetSequence(), h.GetFormat(), SnapshotFormat)}
	}
	if h.GetFormat() < SnapshotFormat {
		return bad("it has format %d, which was never written", h.GetFormat())
	}
	if err := d.understands(messages.Version(h.GetMinReader()), h.GetSequence(), h.GetController()); err != nil {
		return err
	}
	if len(h.GetChain()) != len(Position{}.Chain) || h.GetSequence() == 0 {
		return bad("its head names no position")
	}
	i := &d.out.Info
	i.At = Position{Last: messages.Sequence(h.GetSequence()), Chain: [32]byte(h.GetChain())}
	i.Cluster, i.ClusterID = messages.ClusterName(h.GetCluster()), h.GetClusterId()
	i.Controller, i.Epoch, i.WallUnixMs = h.GetController(), messages.ControllerEpoch(h.GetControllerEpoch()), h.GetWallUnixMs()
	return nil
}

// understands refuses what needs a later version.
func (d *decoder) understands(needs messages.Version, at uint64, by string) error {
	if needs <= d.reads {
		return nil
	}
	return tooNew(messages.Sequence(at), fmt.Sprintf("the snapshot of %d", at), by, needs, d.reads)
}

func (d *decoder) chunk(raw []byte) error {
	for len(raw) > 0 {
		number, kind, tag := protowire.ConsumeTag(raw)
		if tag < 0 || number != fieldRecords || kind != protowire.BytesType {
			return bad("chunk %d holds something else than records", d.out.Info.Pieces-1)
		}
		one, n := protowire.ConsumeBytes(raw[tag:])
		if n < 0 {
			return bad("chunk %d ends within a record", d.out.Info.Pieces-1)
		}
		raw = raw[tag+n:]
		r, needs, err := decodeRecord(one)
		if newer := d.understands(needs, uint64(d.out.Info.At.Last), d.out.Info.Controller); newer != nil {
			return newer
		}
		if err == nil {
			err = d.record(r)
		}
		if err != nil {
			return bad("record %d: %v", d.out.Info.Records, err)
		}
		d.out.Info.Records++
	}
	return nil
}

// record takes in one record, if it is of a kind that a catalog holds.
func (d *decoder) record(r messages.Record) error {
	switch r := r.(type) {
	case *messages.Cluster, *messages.Broker, *messages.TopicDeletion:
	case *messages.UnknownRecord:
		if r.Ended {
			return invalid("a snapshot holds the end of a record")
		}
	case *messages.Topic:
		d.topics[r.ID] = true
	case *messages.Partition:
		if !d.topics[r.ID.Topic] || r.ID.Index >= maxPartitions {
			return invalid("partition %v has no topic", r.ID)
		}
		d.names.intern(r)
	default:
		return invalid("a snapshot holds no %T", r)
	}
	if !d.drop {
		d.out.records = append(d.out.records, r)
	}
	return nil
}

func (d *decoder) end(e *pb.SnapshotEnd) error {
	i := &d.out.Info
	if e.GetPieces() != uint64(i.Pieces-1) || e.GetRecords() != uint64(i.Records) {
		return bad("it has %d pieces and %d records, but ends after %d and %d", i.Pieces-1, i.Records, e.GetPieces(), e.GetRecords())
	}
	if e.GetDamaged() > math.MaxInt32 || uint64(len(e.GetDamage())) > min(e.GetDamaged(), maxDamageKept) {
		return bad("it names %d damaged records of %d", len(e.GetDamage()), e.GetDamaged())
	}
	d.out.damaged = int(e.GetDamaged())
	for _, x := range e.GetDamage() {
		d.out.damage = append(d.out.damage, Damage{Sequence: messages.Sequence(x.GetSequence()), Index: int(x.GetIndex()), Err: errors.New(x.GetReason())})
	}
	for _, raw := range e.GetNamelessTopics() {
		id, err := messages.ParseTopicID(raw)
		if err != nil {
			return bad("a topic id: %v", err)
		}
		d.out.nameless = append(d.out.nameless, id)
	}
	d.ended = true
	return nil
}

// finish makes sure that nothing follows the end.
func (d *decoder) finish() error {
	var one [1]byte
	switch n, err := io.ReadFull(d.from, one[:]); {
	case n > 0:
		return bad("something follows its end")
	case err != nil && !errors.Is(err, io.EOF):
		return err
	}
	return nil
}

// load makes an empty catalog what a snapshot says. A catalog that is not empty is a broken invariant.
func (c *Catalog) load(s *Snapshot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Applied() > 0 || len(c.topics) > 0 {
		panic(messages.Errorf(messages.CodeInternal, "a snapshot is loaded into a catalog that is at %d", c.Applied()))
	}
	brokers := maps.Clone(c.Brokers())
	for _, r := range s.records {
		switch r := r.(type) {
		case *messages.Cluster:
			c.cluster.Store(r)
		case *messages.Broker:
			brokers[r.ID] = r
		case *messages.TopicDeletion:
			c.deletions[r.ID] = r
		case *messages.UnknownRecord:
			c.unknown.put(r)
		case *messages.Topic:
			c.putTopic(r)
		case *messages.Partition:
			if topic := c.topics[r.ID.Topic]; topic != nil {
				c.place(topic, r) // also one that is outside of its topic by now: it was not when it was written
			}
		}
	}
	for _, id := range s.nameless {
		if t := c.topics[id]; t != nil && c.names[t.topic.Name] == t {
			delete(c.names, t.topic.Name)
		}
	}
	c.brokers.Store(&brokers)
	c.claimed = messages.ControllerClaimed{Controller: s.Info.Controller, Epoch: s.Info.Epoch}
	c.damage, c.damaged = s.damage, s.damaged
	c.chain = s.Info.At.Chain
	c.applied.Store(uint64(s.Info.At.Last))
}

// Partitions returns how many partitions the snapshot holds.
func (s *Snapshot) Partitions() int {
	n := 0
	for _, r := range s.records {
		if _, ok := r.(*messages.Partition); ok {
			n++
		}
	}
	return n
}
