package journal

import (
	"encoding/binary"
	"io"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// SnapshotFormat is the version of the snapshot layout that is written, and the highest that can be read.
const SnapshotFormat = 1

// snapshotMagic begins every snapshot, in a file or an object.
const snapshotMagic = "HWSNAP1\n"

// The sizes of a snapshot's pieces, in bytes.
const (
	pieceSize = 256 << 10 // a chunk is closed with the record that reaches it
	pieceMost = 16 << 20  // what a reader takes: more than the largest record can be
)

// Numbers of SnapshotBody's and SnapshotPiece's fields.
const (
	fieldChunk  protowire.Number = 2
	fieldBody   protowire.Number = 1
	fieldDigest protowire.Number = 2
)

// SnapshotInfo says what a snapshot is of, and how large it is.
type SnapshotInfo struct {
	At         Position
	Cluster    messages.ClusterName
	ClusterID  string
	Controller string // of the last claim
	Epoch      messages.ControllerEpoch
	WallUnixMs int64 // when it was taken, for people
	Pieces     int
	Records    int
	Bytes      int64
	Digest     [32]byte // over everything
}

// Encoder writes a view as a snapshot, piece by piece: by Next, or as one stream of bytes by Read. It is for one goroutine.
type Encoder struct {
	view  *View
	info  SnapshotInfo
	ready [][]byte // encoded records that wait to become a chunk
	size  int      // of ready
	phase snapshotPhase
	rest  []byte // for Read
}

// snapshotPhase says which piece comes next.
type snapshotPhase uint8

const (
	phaseHead snapshotPhase = iota
	phaseChunks
	phaseEnd
	phaseOver
)

// NewEncoder returns an encoder of a view, which must stay open meanwhile. The time is for people.
func NewEncoder(v *View, wallUnixMs int64) *Encoder {
	e := &Encoder{view: v, info: SnapshotInfo{At: v.at, Controller: v.claimed.Controller, Epoch: v.claimed.Epoch, WallUnixMs: wallUnixMs}}
	if v.cluster != nil {
		e.info.Cluster, e.info.ClusterID = v.cluster.Name, v.cluster.ID
	}
	return e
}

// Info returns what is known of the snapshot: everything once Next or Read has returned io.EOF.
func (e *Encoder) Info() SnapshotInfo { return e.info }

// Over reports whether the last piece has been returned.
func (e *Encoder) Over() bool { return e.phase == phaseOver }

// Next returns the next piece with its frame, io.EOF behind the last.
func (e *Encoder) Next() ([]byte, error) {
	switch e.phase {
	case phaseHead:
		e.phase = phaseChunks
		return e.piece(&pb.SnapshotBody{Of: &pb.SnapshotBody_Head{Head: &pb.SnapshotHead{Format: SnapshotFormat,
			Cluster: string(e.info.Cluster), ClusterId: e.info.ClusterID, Sequence: uint64(e.info.At.Last), Chain: e.info.At.Chain[:],
			Controller: e.info.Controller, ControllerEpoch: uint64(e.info.Epoch), WallUnixMs: e.info.WallUnixMs,
			MinReader: uint32(e.view.cluster.FinalizedVersion())}}})
	case phaseChunks:
		for e.size < pieceSize {
			records := e.view.next()
			if len(records) == 0 {
				e.phase = phaseEnd
				break
			}
			if err := e.add(records); err != nil {
				return nil, err
			}
		}
		if e.size == 0 {
			return e.Next()
		}
		return e.frame(e.chunk()), nil
	case phaseEnd:
		if e.size > 0 {
			return e.frame(e.chunk()), nil
		}
		e.phase = phaseOver
		return e.piece(e.end())
	}
	return nil, io.EOF
}

// add encodes records one by one, so that a chunk can end behind any of them.
func (e *Encoder) add(records []messages.Record) error {
	for i := range records {
		encoded, err := encodeRecords(records[i : i+1])
		if err != nil {
			return err
		}
		e.ready = append(e.ready, encoded)
		e.size += len(encoded)
	}
	e.info.Records += len(records)
	return nil
}

// chunk returns the body of a chunk with what is ready, up to its size.
func (e *Encoder) chunk() []byte {
	n, size := 0, 0
	for ; n < len(e.ready) && size < pieceSize; n++ {
		size += len(e.ready[n])
	}
	body := make([]byte, 0, size+binaryOverhead)
	body = protowire.AppendTag(body, fieldChunk, protowire.BytesType)
	body = protowire.AppendVarint(body, uint64(size))
	for _, r := range e.ready[:n] {
		body = append(body, r...)
	}
	e.ready, e.size = e.ready[n:], e.size-size
	return body
}

func (e *Encoder) end() *pb.SnapshotBody {
	end := &pb.SnapshotEnd{Pieces: uint64(e.info.Pieces), Records: uint64(e.info.Records), Damaged: uint64(e.view.damaged)}
	for _, d := range e.view.damage {
		end.Damage = append(end.Damage, &pb.SnapshotDamage{Sequence: uint64(d.Sequence), Index: uint32(d.Index), Reason: d.Err.Error()})
	}
	for _, id := range e.view.nameless {
		end.NamelessTopics = append(end.NamelessTopics, id.Bytes())
	}
	return &pb.SnapshotBody{Of: &pb.SnapshotBody_End{End: end}}
}

func (e *Encoder) piece(b *pb.SnapshotBody) ([]byte, error) {
	body, err := proto.Marshal(b)
	if err != nil {
		return nil, messages.Errorf(messages.CodeInternal, "a piece of a snapshot cannot be written: %v", err)
	}
	return e.frame(body), nil
}

// frame puts a body with its digest behind its length; the first one behind the magic.
func (e *Encoder) frame(body []byte) []byte {
	e.info.Digest = link(e.info.Digest, body)
	out := make([]byte, 0, len(snapshotMagic)+4+len(body)+len(e.info.Digest)+2*binaryOverhead)
	if e.info.Pieces == 0 {
		out = append(out, snapshotMagic...)
	}
	start := len(out)
	out = append(out, 0, 0, 0, 0)
	out = protowire.AppendBytes(protowire.AppendTag(out, fieldBody, protowire.BytesType), body)
	out = protowire.AppendBytes(protowire.AppendTag(out, fieldDigest, protowire.BytesType), e.info.Digest[:])
	binary.BigEndian.PutUint32(out[start:], uint32(len(out)-start-4))
	e.info.Pieces++
	e.info.Bytes += int64(len(out))
	return out
}

// Read gives the pieces as one stream.
func (e *Encoder) Read(p []byte) (int, error) {
	if len(e.rest) == 0 {
		var err error
		if e.rest, err = e.Next(); err != nil {
			return 0, err
		}
	}
	n := copy(p, e.rest)
	e.rest = e.rest[n:]
	return n, nil
}
