package journal

import (
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// Format is the version of the entry layout that is written, and the highest that can be read.
const Format = 1

// fieldRecords is the number of EntryBody.records.
const fieldRecords protowire.Number = 6

// EntryID is 16 random bytes by which a writer recognises its own entry.
type EntryID [16]byte

// Position is the end of what is committed: the last sequence and the hash chain up to it. The zero value is the
// position before the first entry.
type Position struct {
	Last  messages.Sequence
	Chain [32]byte
}

// Stamp is what an entry needs and a pure machine cannot make: a random id, and the time for people.
type Stamp struct {
	ID         EntryID
	WallUnixMs int64
}

// NewStamp returns a stamp with a new random id and the time of now.
func NewStamp() Stamp {
	s := Stamp{WallUnixMs: time.Now().UnixMilli()}
	rand.Read(s.ID[:]) // never fails: the runtime ends the process instead
	return s
}

// Entry is one commit as it is read back.
type Entry struct {
	Controller string
	Epoch      messages.ControllerEpoch
	ID         EntryID
	WallUnixMs int64
	Records    []messages.Record
	Chain      [32]byte
	// Needs is the least version that may apply the entry: what it says itself, and what its records say.
	Needs messages.Version
	// Damaged are the records that could not be read; they are not in Records. Their Sequence is not set.
	Damaged []Damage

	body []byte
}

// Writer names who writes entries.
type Writer struct {
	Controller string
	Epoch      messages.ControllerEpoch
}

// EncodeEntry returns the payload of an entry that follows a position, and the hash chain up to it.
func EncodeEntry(after Position, w Writer, s Stamp, records []messages.Record) ([]byte, [32]byte, error) {
	encoded, err := encodeRecords(records)
	if err != nil {
		return nil, [32]byte{}, err
	}
	payload, chain := assemble(after, w, s, [][]byte{encoded})
	return payload, chain, nil
}

// encodeRecords returns records as they stand in an EntryBody, with their field tags, so that the records of several
// proposals make one body by being put behind each other.
func encodeRecords(records []messages.Record) ([]byte, error) {
	if len(records) == 0 {
		return nil, nil
	}
	out := make([]byte, 0, usualRecord*len(records))
	for i, r := range records {
		if err := check(r); err != nil {
			return nil, messages.Errorf(messages.CodeInternal, "record %d (%T) breaks an invariant: %v", i, r, err)
		}
		if p, is := r.(*messages.Partition); is {
			if longer, ok := appendPartition(out, p); ok {
				out = longer
				continue
			}
		}
		m := messages.RecordToProto(r)
		out = protowire.AppendTag(out, fieldRecords, protowire.BytesType)
		out = protowire.AppendVarint(out, uint64(proto.Size(m)))
		var err error
		if out, err = (proto.MarshalOptions{UseCachedSize: true}).MarshalAppend(out, m); err != nil {
			return nil, messages.Errorf(messages.CodeInternal, "record %d (%T) cannot be written: %v", i, r, err)
		}
	}
	return out, nil
}

// usualRecord is about the size of a partition's record, in bytes: a first guess that saves most growing.
const usualRecord = 160

// assemble puts encoded records behind the head of a body and the chain behind that.
func assemble(after Position, w Writer, s Stamp, encoded [][]byte) ([]byte, [32]byte) {
	head := &pb.EntryBody{Format: Format, Controller: w.Controller, ControllerEpoch: uint64(w.Epoch), EntryId: s.ID[:],
		WallUnixMs: s.WallUnixMs}
	size := proto.Size(head)
	for _, e := range encoded {
		size += len(e)
	}
	out := make([]byte, 0, size+2*binaryOverhead)
	out = protowire.AppendTag(out, 1, protowire.BytesType)
	out = protowire.AppendVarint(out, uint64(size))
	start := len(out)
	out, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(out, head)
	if err != nil {
		panic(messages.Errorf(messages.CodeInternal, "the head of a journal entry cannot be written: %v", err))
	}
	for _, e := range encoded {
		out = append(out, e...)
	}
	chain := link(after.Chain, out[start:])
	out = protowire.AppendTag(out, 2, protowire.BytesType)
	return protowire.AppendBytes(out, chain[:]), chain
}

// binaryOverhead bounds what the two fields of an Entry add to body and chain, each.
const binaryOverhead = 24

// link continues the hash chain by a body.
func link(previous [32]byte, body []byte) [32]byte {
	h := sha256.New()
	h.Write(previous[:])
	h.Write(body)
	return [32]byte(h.Sum(nil))
}

// DecodeEntry reads the payload at a sequence. It does not look at the chain; Entry.Follows does. Errors are *Broken, and
// *TooNew for a format of a later version, with which comes an entry that has nothing but its chain. What Entry.Needs says is
// the caller's to compare. Single records that cannot be read are in Entry.Damaged instead.
func DecodeEntry(at messages.Sequence, payload []byte) (*Entry, error) {
	var outer pb.Entry
	if err := proto.Unmarshal(payload, &outer); err != nil {
		return nil, broken(at, DefectEntry, "it cannot be read: %v", err)
	}
	if len(outer.GetChain()) != sha256.Size {
		return nil, broken(at, DefectEntry, "its hash chain has %d bytes, not %d", len(outer.GetChain()), sha256.Size)
	}
	head, records, err := splitBody(outer.GetBody())
	if err != nil {
		return nil, broken(at, DefectEntry, "its body cannot be read: %v", err)
	}
	if head.GetFormat() > Format {
		unread := &Entry{Chain: [32]byte(outer.GetChain()), body: outer.GetBody()}
		return unread, &TooNew{At: at, By: head.GetController(), Detail: fmt.Sprintf("entry %d of the journal has format %d, this build reads %d",
			at, head.GetFormat(), Format)}
	}
	if head.GetFormat() < Format {
		return nil, broken(at, DefectEntry, "it has format %d, which was never written", head.GetFormat())
	}
	if len(head.GetEntryId()) != len(EntryID{}) {
		return nil, broken(at, DefectEntry, "its id has %d bytes, not %d", len(head.GetEntryId()), len(EntryID{}))
	}
	e := &Entry{Controller: head.GetController(), Epoch: messages.ControllerEpoch(head.GetControllerEpoch()),
		ID: EntryID(head.GetEntryId()), WallUnixMs: head.GetWallUnixMs(), Chain: [32]byte(outer.GetChain()),
		Needs:   max(messages.Version(head.GetMinReader()), messages.FirstVersion),
		Records: make([]messages.Record, 0, len(records)), body: outer.GetBody()}
	for i, raw := range records {
		r, needs, err := decodeRecord(raw)
		e.Needs = max(e.Needs, needs)
		if err != nil {
			e.Damaged = append(e.Damaged, Damage{Index: i, Err: err})
			continue
		}
		e.Records = append(e.Records, r)
	}
	return e, nil
}

// splitBody reads the head of a body and leaves each record as bytes, so that one that is malformed spoils no other.
func splitBody(body []byte) (*pb.EntryBody, [][]byte, error) {
	var head []byte
	var records [][]byte
	for rest := body; len(rest) > 0; {
		number, _, n := protowire.ConsumeField(rest)
		if n < 0 {
			return nil, nil, protowire.ParseError(n)
		}
		if number != fieldRecords {
			head = append(head, rest[:n]...)
			rest = rest[n:]
			continue
		}
		_, kind, tag := protowire.ConsumeTag(rest) // cannot fail: ConsumeField has read it
		raw, m := protowire.ConsumeBytes(rest[tag:n])
		if kind != protowire.BytesType || m < 0 {
			return nil, nil, messages.Errorf(messages.CodeInvalidRequest, "the records have a wrong wire type")
		}
		records = append(records, raw)
		rest = rest[n:]
	}
	var m pb.EntryBody
	if err := proto.Unmarshal(head, &m); err != nil {
		return nil, nil, err
	}
	return &m, records, nil
}

// decodeRecord reads one record, and which version it needs, also where it cannot be used.
func decodeRecord(raw []byte) (messages.Record, messages.Version, error) {
	var m pb.Record
	if err := proto.Unmarshal(raw, &m); err != nil {
		return nil, messages.FirstVersion, messages.Errorf(messages.CodeInvalidRequest, "it cannot be read: %v", err)
	}
	needs := messages.Needs(&m)
	r, err := messages.RecordFromProto(&m)
	if err != nil {
		return nil, needs, err
	}
	return r, needs, check(r)
}

// Follows checks that the entry continues the hash chain of a position. The error is a *Broken.
func (e *Entry) Follows(p Position) error {
	if want := link(p.Chain, e.body); want != e.Chain {
		return broken(p.Last+1, DefectChain, "its hash chain does not continue entry %d", p.Last)
	}
	return nil
}
