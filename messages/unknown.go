package messages

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// Unknown is what a record carries that this version does not know: fields that a later one has put there. Whoever changes a
// record copies it and keeps the pointer, so that they are still there when the later version reads it again. It is
// immutable, and nil where there is nothing. (Fields within map entries, as endpoints and labels have them, are not kept.)
type Unknown struct {
	body      []byte // of the record's own message
	beside    []byte // beside the kind
	settings  []byte // of ClusterSettings
	minReader Version
}

// UnknownRecord is a record of a kind that this version does not know, or the tombstone of one (Ended). The catalog keeps the
// last one of each kind and key, and snapshots carry them on.
type UnknownRecord struct {
	Kind  uint32 // the number of its field, 7 to 99
	Key   string
	Ended bool
	// Fields are the protobuf fields of the record that are not known, the kind's among them, as they came.
	Fields    []byte
	MinReader Version
}

func (*UnknownRecord) record() {}

// The kinds of records, by the number of their field, and the bounds of what can be one.
const (
	kindBroker        = 3
	kindTopicDeletion = 6
	lastKnownKind     = 7 // 7 was used by no release
	lastKind          = 99
	// MaxRecordKey bounds the key of a record, in bytes.
	MaxRecordKey = 1024
)

func fieldsOf(m proto.Message) []byte { return m.ProtoReflect().GetUnknown() }

// unknownOf gathers what is not known of a record and its body, nil for nothing.
func unknownOf(p *pb.Record, body proto.Message) *Unknown {
	u := Unknown{body: fieldsOf(body), beside: fieldsOf(p), minReader: Version(p.GetMinReader())}
	if c := p.GetCluster(); c != nil {
		u.minReader = 0 // it follows from the cluster's version
		if s := c.GetSettings(); s != nil {
			u.settings = fieldsOf(s)
		}
	}
	if len(u.body) == 0 && len(u.beside) == 0 && len(u.settings) == 0 && u.minReader == 0 {
		return nil
	}
	return &u
}

// restore puts what is not known back into a wire message.
func (u *Unknown) restore(p *pb.Record, body proto.Message) *pb.Record {
	if u == nil {
		return p
	}
	body.ProtoReflect().SetUnknown(u.body)
	p.ProtoReflect().SetUnknown(u.beside)
	p.MinReader = max(p.MinReader, uint32(u.minReader))
	if c := p.GetCluster(); c != nil && len(u.settings) > 0 {
		c.Settings.ProtoReflect().SetUnknown(u.settings)
	}
	return p
}

// unknownRecord reads a record of none of the known kinds. The kind is the one field of those that are not known whose number
// is a kind's.
func unknownRecord(p *pb.Record) (Record, error) {
	r := &UnknownRecord{Key: string(p.GetKey()), Fields: fieldsOf(p), MinReader: Version(p.GetMinReader())}
	for rest := r.Fields; len(rest) > 0; {
		number, _, n := protowire.ConsumeField(rest)
		if n < 0 {
			return nil, Errorf(CodeInvalidRequest, "a journal record cannot be read: %v", protowire.ParseError(n))
		}
		if number <= lastKind {
			if r.Kind != 0 && r.Kind != uint32(number) {
				return nil, Errorf(CodeInvalidRequest, "a journal record has the kinds %d and %d", r.Kind, number)
			}
			r.Kind = uint32(number)
		}
		rest = rest[n:]
	}
	if r.Kind == 0 {
		return nil, Errorf(CodeInvalidRequest, "a journal record has no kind")
	}
	return r, nil
}

// tombstone reads a record that ends another.
func tombstone(p *pb.Record) (Record, error) {
	switch kind := p.GetEnds(); {
	case p.GetKind() != nil:
		return nil, Errorf(CodeInvalidRequest, "a journal record has a kind and ends another")
	case kind == kindBroker:
		return &BrokerForgotten{ID: BrokerID(p.GetKey())}, nil
	case kind == kindTopicDeletion:
		id, err := ParseTopicID(p.GetKey())
		return &TopicDeletionDone{ID: id}, err
	case kind < lastKnownKind || kind > lastKind:
		return nil, Errorf(CodeInvalidRequest, "a journal record ends the kind %d, which nothing ends", kind)
	default:
		return &UnknownRecord{Kind: kind, Key: string(p.GetKey()), Ended: true, Fields: fieldsOf(p), MinReader: Version(p.GetMinReader())}, nil
	}
}

func (r *UnknownRecord) toProto() *pb.Record {
	p := &pb.Record{Key: []byte(r.Key), MinReader: uint32(r.MinReader)}
	if r.Ended {
		p.Ends = r.Kind
	}
	p.ProtoReflect().SetUnknown(r.Fields)
	return p
}

// Validate returns INVALID_REQUEST for one that cannot be kept.
func (r *UnknownRecord) Validate() error {
	if r.Kind < lastKnownKind || r.Kind > lastKind || len(r.Key) > MaxRecordKey {
		return Errorf(CodeInvalidRequest, "a record of kind %d has a key of %d bytes; kinds are %d to %d, keys have up to %d bytes",
			r.Kind, len(r.Key), lastKnownKind, lastKind, MaxRecordKey)
	}
	return nil
}

// Needs returns the least version that may apply a record in its wire form.
func Needs(p *pb.Record) Version {
	return max(Version(p.GetMinReader()), Version(p.GetCluster().GetVersion()), FirstVersion)
}
