package journal

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
	"pgregory.net/rapid"

	"github.com/highwater-io/highwater/messages"
)

// fingerprint returns everything that a catalog says, in an order that depends on nothing but the state.
func fingerprint(c *Catalog) string {
	var lines []string
	add := func(r messages.Record) {
		text := prototext.MarshalOptions{EmitUnknown: true}.Format(messages.RecordToProto(r))
		lines = append(lines, strings.Join(strings.Fields(text), " ")) // the printer varies its blanks on purpose
	}
	if id := c.Identity(); id != nil {
		add(id)
	}
	brokers := map[messages.BrokerID]bool{}
	for id, b := range c.Brokers() {
		brokers[id] = true
		add(b)
	}
	c.Topics(func(t *messages.Topic) bool {
		byName, ok := c.TopicByName(t.Name)
		lines = append(lines, fmt.Sprint("found by name ", t.ID, ok && byName == t))
		add(t)
		return true
	})
	c.Partitions(func(_ *messages.Topic, p *messages.Partition) bool {
		for _, b := range p.Replicas {
			brokers[b] = true
		}
		add(p)
		return true
	})
	c.Deletions(func(d *messages.TopicDeletion) bool {
		add(d)
		return true
	})
	for _, r := range c.UnknownRecords() {
		add(r)
	}
	for b := range brokers {
		lines = append(lines, fmt.Sprint("load ", b, c.LoadOf(b)))
		var of []string
		c.PartitionsOf(b, func(p *messages.Partition) bool {
			of = append(of, p.ID.String())
			return true
		})
		slices.Sort(of)
		lines = append(lines, fmt.Sprint("partitions ", b, of))
	}
	slices.Sort(lines)
	return fmt.Sprintln(c.Applied(), c.Claimed(), c.Counts()) + strings.Join(lines, "\n")
}

// checkIndex compares what the catalog keeps up to date with what the records add up to.
func checkIndex(t rapid.TB, c *Catalog) {
	t.Helper()
	var counts messages.PartitionCount
	loads := map[messages.BrokerID]Load{}
	of := map[messages.BrokerID][]string{}
	c.Partitions(func(topic *messages.Topic, p *messages.Partition) bool {
		if got, ok := c.Partition(p.ID); !ok || got != p || p.ID.Topic != topic.ID {
			t.Fatalf("partition %v is not found by its id", p.ID)
		}
		CountPartition(&counts, p)
		for _, b := range p.Replicas {
			l := loads[b]
			l.Replicas++
			if p.Leader == b {
				l.Leaders++
			}
			if slices.Contains(p.ISR, b) {
				l.InSync++
			}
			loads[b] = l
			of[b] = append(of[b], p.ID.String())
		}
		return true
	})
	for n, s := range c.names {
		if s.topic.Name != n || c.topics[s.topic.ID] != s {
			t.Fatalf("the name %q leads to topic %v, which is called %q", n, s.topic.ID, s.topic.Name)
		}
	}
	c.Deletions(func(d *messages.TopicDeletion) bool {
		if _, ok := c.Topic(d.ID); ok {
			t.Fatalf("topic %v exists while it is being deleted", d.ID)
		}
		return true
	})
	if counts != c.Counts() {
		t.Fatalf("counts are %+v, the records add up to %+v", c.Counts(), counts)
	}
	if len(loads) != len(c.index) {
		t.Fatalf("%d brokers are indexed, %d have partitions", len(c.index), len(loads))
	}
	for b, want := range loads {
		var got []string
		c.PartitionsOf(b, func(p *messages.Partition) bool {
			got = append(got, p.ID.String())
			return true
		})
		slices.Sort(got)
		slices.Sort(of[b])
		if !slices.Equal(got, of[b]) || c.LoadOf(b) != want {
			t.Fatalf("broker %s has %v %+v, the records say %v %+v", b, got, c.LoadOf(b), of[b], want)
		}
	}
}

// genRecord draws a record about few brokers and topics, so that records meet.
// genRecord draws a record as this version or a later one may write it.
func genRecord(t *rapid.T) messages.Record {
	r := genKnownRecord(t)
	switch rapid.IntRange(0, 7).Draw(t, "later") {
	case 0:
		return &messages.UnknownRecord{Kind: rapid.Uint32Range(50, 51).Draw(t, "kind"), Key: string(genBroker(t)), Ended: true}
	case 1:
		kind := rapid.Uint32Range(50, 51).Draw(t, "kind")
		return &messages.UnknownRecord{Kind: kind, Key: string(genBroker(t)), Fields: later(protowire.Number(kind), rapid.Byte().Draw(t, "value"))}
	case 2:
		return withLater(t, r, rapid.Byte().Draw(t, "value"))
	}
	return r
}

// later is a field that this version does not know.
func later(number protowire.Number, value byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), []byte{value})
}

// withLater is a record as a later version writes it: with fields of its own in the body, beside it, and within the settings.
func withLater(t fataler, r messages.Record, value byte) messages.Record {
	p := messages.RecordToProto(r)
	p.ProtoReflect().SetUnknown(later(200, value))
	p.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if f.Message() != nil {
			v.Message().SetUnknown(later(99, value))
		}
		return true
	})
	if s := p.GetCluster().GetSettings(); s != nil {
		s.ProtoReflect().SetUnknown(later(98, value))
	}
	out, err := messages.RecordFromProto(p)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

type fataler interface{ Fatal(args ...any) }

func genKnownRecord(t *rapid.T) messages.Record {
	id := messages.TopicID{byte(rapid.IntRange(1, 4).Draw(t, "topic"))}
	b := genBroker(t)
	switch rapid.IntRange(0, 11).Draw(t, "kind") {
	case 0:
		return &messages.Cluster{Name: "c", ID: b.String(), Settings: messages.DefaultSettings()}
	case 1, 2:
		return &messages.Broker{ID: messages.BrokerID(b), Epoch: 3, Fenced: rapid.Bool().Draw(t, "fenced"),
			Endpoints: map[string]string{"data": "x"}}
	case 3:
		return &messages.BrokerForgotten{ID: messages.BrokerID(b)}
	case 4, 5:
		return &messages.Topic{ID: id, Name: messages.TopicName(rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "name")),
			Partitions: rapid.IntRange(1, 4).Draw(t, "partitions"), ReplicationFactor: 2, MinISR: 1}
	case 6:
		return &messages.TopicDeletion{ID: id, Name: "x", Partitions: 2, Epochs: []messages.PartitionEpoch{1, 2},
			Pending: []messages.BrokerID{messages.BrokerID(b)}}
	case 7:
		return &messages.TopicDeletionDone{ID: id}
	}
	return genPartition(t, id)
}

type brokerName string

func (b brokerName) String() string { return string(b) }

func genBroker(t *rapid.T) brokerName {
	return brokerName(rapid.SampledFrom([]string{"b1", "b2", "b3", "b4"}).Draw(t, "broker"))
}

func genPartition(t *rapid.T, id messages.TopicID) *messages.Partition {
	p := &messages.Partition{ID: messages.PartitionID{Topic: id, Index: int32(rapid.IntRange(0, 4).Draw(t, "index"))},
		MinISR: rapid.IntRange(0, 3).Draw(t, "min ISR"), LeaderProven: rapid.Bool().Draw(t, "proven")}
	p.Replicas = rapid.Permutation([]messages.BrokerID{"b1", "b2", "b3", "b4"}).Draw(t, "replicas")[:rapid.IntRange(1, 4).Draw(t, "rf")]
	for _, b := range p.Replicas {
		switch rapid.IntRange(0, 2).Draw(t, "place") {
		case 0:
			p.ISR = append(p.ISR, b)
		case 1:
			p.Eligible = append(p.Eligible, b)
		}
	}
	if len(p.ISR) > 0 && rapid.Bool().Draw(t, "led") {
		p.Leader = rapid.SampledFrom(p.ISR).Draw(t, "leader")
	}
	return p
}

func TestReplayOfEveryPrefixEqualsApplyingLive(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		ctx, log, live := t.Context(), NewMemory(), NewCatalog()
		var at Position
		var prints []string
		for range rapid.IntRange(1, 12).Draw(rt, "entries") {
			w := Writer{Controller: "c", Epoch: live.Claimed().Epoch}
			records := rapid.SliceOfN(rapid.Custom(genRecord), 0, 8).Draw(rt, "records")
			if at.Last == 0 || rapid.IntRange(0, 4).Draw(rt, "claim") == 0 {
				w.Epoch++
				w.Controller = fmt.Sprint("c", w.Epoch)
				records = append([]messages.Record{&messages.ControllerClaimed{Controller: w.Controller, Epoch: w.Epoch}}, records...)
			} else {
				w.Controller = live.Claimed().Controller
			}
			payload, chain, err := EncodeEntry(at, w, NewStamp(), records)
			if err != nil {
				rt.Fatal(err)
			}
			seq, err := log.Append(ctx, at.Last, payload)
			if err != nil {
				rt.Fatal(err)
			}
			at = Position{Last: seq, Chain: chain}
			live.Apply(seq, records)
			checkIndex(rt, live)
			prints = append(prints, fingerprint(live))
		}
		tail := NewCatalog()
		var reached Position
		for n := len(prints); n > 0; n-- {
			part := NewMemory()
			part.entries = log.entries[:n]
			c := NewCatalog()
			if _, _, err := Recover(ctx, part, c); err != nil {
				rt.Fatalf("prefix %d: %v", n, err)
			}
			if got := fingerprint(c); got != prints[n-1] {
				rt.Fatalf("prefix %d: replayed\n%s\nlive\n%s", n, got, prints[n-1])
			}
		}
		for n := range prints { // and a standby that follows entry by entry
			part := NewMemory()
			part.entries = log.entries[:n+1]
			var err error
			if reached, _, err = Follow(ctx, part, tail, reached); err != nil || fingerprint(tail) != prints[n] {
				rt.Fatalf("following to %d: %v", n+1, err)
			}
		}
	})
}
