package partition

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

var (
	someBrokers = []messages.BrokerID{"1", "2", "3", "4"}
	drawBroker  = rapid.SampledFrom(append([]messages.BrokerID{"", "9"}, someBrokers...))
	drawAny     = rapid.SliceOfN(drawBroker, 0, 5) // also what no list of replicas should be
)

// laterFields stands for what a later version has put into the record.
var laterFields = &messages.Unknown{}

// drawRecord draws a stored partition, sound or not.
func drawRecord(t *rapid.T) *messages.Partition {
	p := &messages.Partition{ID: testID, Unknown: laterFields, Replicas: someBrokers[:rapid.IntRange(1, 4).Draw(t, "replicas")],
		LeaderEpoch: messages.LeaderEpoch(rapid.Int64Range(-1, 9).Draw(t, "le")), Epoch: messages.PartitionEpoch(rapid.Int64Range(0, 9).Draw(t, "pe")),
		MinISR: rapid.IntRange(0, 4).Draw(t, "min"), HighWatermark: messages.Offset(rapid.Int64Range(0, 99).Draw(t, "mark")),
		LeaderProven: rapid.Bool().Draw(t, "proven")}
	if rapid.IntRange(0, 3).Draw(t, "unsound") == 0 {
		p.Replicas, p.ISR, p.Eligible = drawAny.Draw(t, "replicas"), drawAny.Draw(t, "isr"), drawAny.Draw(t, "eligible")
		p.Leader = drawBroker.Draw(t, "leader")
		return p
	}
	for _, b := range p.Replicas {
		switch rapid.IntRange(0, 2).Draw(t, "place of "+string(b)) {
		case 0:
			p.ISR = append(p.ISR, b)
		case 1:
			p.Eligible = append(p.Eligible, b)
		}
	}
	if len(p.ISR) > 0 {
		p.Leader = rapid.SampledFrom(p.ISR).Draw(t, "leader")
	}
	return p
}

func drawBrokerState(t *rapid.T, c *cluster, id messages.BrokerID) {
	flag := func(name string) bool { return rapid.IntRange(0, 3).Draw(t, name) == 0 }
	if flag("forgotten") && flag("really") {
		c.forget(id)
		return
	}
	c.set(id, func(b *messages.Broker) {
		b.Fenced, b.Stopping, b.Draining, b.Suspect = flag("fenced"), flag("stopping"), flag("draining"), flag("suspect")
		b.Epoch = messages.BrokerEpoch(rapid.Uint64Range(1, 3).Draw(t, "broker epoch"))
	})
}

// drawMessage draws a message, half of the time one that is right, else near or far from it.
func drawMessage(t *rapid.T, c *cluster, p *messages.Partition) actors.Message {
	from, le, pe, mark := p.Leader, int64(p.LeaderEpoch), int64(p.Epoch), int64(p.HighWatermark)
	near := func(v int64, name string) int64 {
		return v + rapid.SampledFrom([]int64{0, 0, 0, 0, 1, -1, 7}).Draw(t, name)
	}
	if rapid.IntRange(0, 4).Draw(t, "another") == 0 {
		from = drawBroker.Draw(t, "from")
	}
	var be messages.BrokerEpoch
	if b := c.brokers[from]; b != nil {
		be = messages.BrokerEpoch(near(int64(b.Epoch), "be"))
	}
	request := actors.RequestID(rapid.Uint64Range(0, 2).Draw(t, "request"))
	switch rapid.IntRange(0, 9).Draw(t, "message") {
	case 0:
		return actors.Activated{Restarted: true}
	case 1:
		return actors.BrokerRestarted{Broker: drawBroker.Draw(t, "restarted"), Epoch: be}
	case 2, 3:
		members := c.members(drawAny.Draw(t, "members")...)
		if rapid.Bool().Draw(t, "sensible") {
			members = c.members(inOrder(p.Replicas, append([]messages.BrokerID{from}, drawAny.Draw(t, "members")...))...)
		}
		return actors.ISRProposal{Request: request, Broker: from, BrokerEpoch: be, Proposal: &pb.IsrProposal{
			LeaderEpoch: near(le, "le"), PartitionEpoch: near(pe, "pe"), Isr: members, HighWatermark: near(mark, "mark")}}
	case 4, 5:
		return actors.LeaderReport{Request: request, Broker: from, BrokerEpoch: be, Report: &pb.LeaderReport{
			LeaderEpoch: near(le, "le"), LogEnd: near(mark, "end"), HighWatermark: near(mark, "mark"),
			Declined: rapid.IntRange(0, 3).Draw(t, "declined") == 0, Resigned: rapid.IntRange(0, 3).Draw(t, "resigned") == 0}}
	case 6:
		return actors.OffsetReport{Broker: from, BrokerEpoch: be, Report: &pb.OffsetReport{
			LeaderEpoch: near(le, "le"), LogEnd: near(mark+5, "end"), HighWatermark: near(mark, "mark")}}
	case 7:
		return actors.PreferLeader{To: drawBroker.Draw(t, "to")}
	case 8:
		if rapid.Bool().Draw(t, "handover") {
			return actors.HandoverDeadline{Epoch: messages.LeaderEpoch(near(le, "le"))}
		}
		return actors.LeaderDeadline{Epoch: messages.LeaderEpoch(near(le, "le"))}
	}
	id := drawBroker.Draw(t, "changed")
	if id != "" {
		drawBrokerState(t, c, id)
	}
	return actors.BrokerChanged{Broker: id}
}

// TestInvariantsHoldUnderAnyMessages: checkStep after each of a long run of messages, and what has to come with a record.
func TestInvariantsHoldUnderAnyMessages(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCluster(drawRecord(t), someBrokers...)
		c.topic.MinISR = rapid.IntRange(0, 4).Draw(t, "topic min")
		for _, b := range someBrokers {
			drawBrokerState(t, c, b)
		}
		now := time.Duration(0)
		s, err := Machine{}.Load(c.env(now), actors.Partition(testID))
		if err != nil {
			t.Fatal(err)
		}
		var msg actors.Message = actors.Activated{}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			before := s.Partition()
			frozen := proto.Clone(messages.RecordToProto(before))
			var fx actors.Effects
			led := s.leaderBroker
			s, fx = Machine{}.Step(c.env(now), s, msg)
			if err := checkStep(c, before, s, fx); err != nil {
				t.Fatalf("%T %+v: %v", msg, msg, err)
			}
			if err := checkLease(c, msg, led, before, s.Partition()); err != "" {
				t.Fatalf("%T %+v: %s: %+v after %+v", msg, msg, err, s.Partition(), before)
			}
			if !proto.Equal(frozen, messages.RecordToProto(before)) {
				t.Fatalf("%T changed a committed record", msg)
			}
			if err := checkEffects(c, msg, before, s.Partition(), fx); err != "" {
				t.Fatalf("%T %+v: %s", msg, msg, err)
			}
			for _, r := range fx.Records {
				if r.(*messages.Partition).Unknown != laterFields {
					t.Fatalf("B124: %T has dropped what a later version had written", msg)
				}
			}
			c.apply(fx.Records)
			now += time.Duration(rapid.IntRange(0, 30).Draw(t, "seconds")) * time.Second
			msg = drawMessage(t, c, s.Partition())
		}
	})
}

// checkEffects checks that replicas and everyone else hear of a change exactly when there is one, that each request
// has its reply, and that a new leader is waited for.
func checkEffects(c *cluster, msg actors.Message, before, after *messages.Partition, fx actors.Effects) string {
	changed := after.Epoch != before.Epoch
	if _, first := msg.(actors.Activated); !first && changed != (len(fx.Publish) == 1) {
		return "published without a change, or not published with one"
	}
	for _, b := range after.Replicas {
		told := slices.ContainsFunc(fx.Tells, func(t actors.Tell) bool { return t.To == actors.Outbox(b) })
		if changed && c.brokers[b] != nil && !told {
			return "replica " + string(b) + " is not told"
		}
	}
	var to actors.RequestID
	switch m := msg.(type) {
	case actors.ISRProposal:
		to = m.Request
	case actors.LeaderReport:
		to = m.Request
	}
	if (to != 0) != (len(fx.Replies) == 1) || to != 0 && fx.Replies[0].To != to {
		return "a request without its reply, or a reply without a request"
	}
	if after.LeaderEpoch != before.LeaderEpoch && after.Leader != "" && len(fx.Wakes) != 1 {
		return "nobody waits for the new leader"
	}
	return ""
}

// FuzzStep feeds arbitrary stored states and bodies: nothing panics, and the invariants hold from the first step on.
func FuzzStep(f *testing.F) {
	sound, _ := proto.Marshal(messages.RecordToProto(&messages.Partition{ID: testID, Replicas: someBrokers[:3], ISR: someBrokers[:3],
		Leader: "1", LeaderEpoch: 4, Epoch: 9, MinISR: 2, HighWatermark: 7, LeaderProven: true}).GetPartition())
	proposal, _ := proto.Marshal(&pb.IsrProposal{LeaderEpoch: 4, PartitionEpoch: 9, HighWatermark: 8, Isr: []*pb.IsrMember{{Broker: "1", BrokerEpoch: 5}}})
	report, _ := proto.Marshal(&pb.LeaderReport{LeaderEpoch: 4, LogEnd: 6, HighWatermark: 5, Reason: "why"})
	for kind := range uint8(9) {
		f.Add(sound, proposal, kind, "1", uint64(5), uint8(0))
		f.Add(sound, report, kind, "2", uint64(5), uint8(0x21))
		f.Add([]byte{}, []byte{}, kind, "", uint64(0), uint8(0xff))
	}
	f.Fuzz(func(t *testing.T, record, body []byte, kind uint8, broker string, epoch uint64, states uint8) {
		stored := &pb.PartitionRecord{}
		if proto.Unmarshal(record, stored) != nil {
			stored = &pb.PartitionRecord{}
		}
		stored.TopicId, stored.Partition = testID.Topic.Bytes(), 0
		r, err := messages.RecordFromProto(&pb.Record{Kind: &pb.Record_Partition{Partition: stored}})
		if err != nil || stored.LeaderEpoch > 1<<60 || stored.PartitionEpoch > 1<<60 {
			return
		}
		c := newCluster(r.(*messages.Partition), someBrokers...)
		for i, b := range someBrokers {
			c.set(b, func(b *messages.Broker) { b.Fenced, b.Stopping = states>>i&1 == 1, states>>(i+4)&1 == 1 })
		}
		s, err := Machine{}.Load(c.env(0), actors.Partition(testID))
		if err != nil {
			t.Fatal(err)
		}
		for i, msg := range []actors.Message{actors.Activated{}, arbitrary(kind, body, messages.BrokerID(broker), messages.BrokerEpoch(epoch)),
			actors.BrokerChanged{}} {
			before := s.Partition()
			var fx actors.Effects
			s, fx = Machine{}.Step(c.env(time.Duration(i)*time.Minute), s, msg)
			if err := checkStep(c, before, s, fx); err != nil {
				t.Fatalf("%T %+v: %v", msg, msg, err)
			}
			c.apply(fx.Records)
		}
	})
}

func arbitrary(kind uint8, body []byte, b messages.BrokerID, epoch messages.BrokerEpoch) actors.Message {
	read := func(m proto.Message) bool { return proto.Unmarshal(body, m) == nil }
	switch kind % 9 {
	case 0:
		p := &pb.IsrProposal{}
		if !read(p) {
			p = nil
		}
		return actors.ISRProposal{Request: 1, Broker: b, BrokerEpoch: epoch, Proposal: p}
	case 1:
		r := &pb.LeaderReport{}
		if !read(r) {
			r = nil
		}
		return actors.LeaderReport{Request: 1, Broker: b, BrokerEpoch: epoch, Report: r}
	case 2:
		r := &pb.OffsetReport{}
		if !read(r) {
			r = nil
		}
		return actors.OffsetReport{Broker: b, BrokerEpoch: epoch, Report: r}
	case 3:
		return actors.BrokerRestarted{Broker: b, Epoch: epoch}
	case 4:
		return actors.PreferLeader{To: b, Reason: string(body)}
	case 5:
		return actors.LeaderDeadline{Epoch: messages.LeaderEpoch(epoch)}
	case 6:
		return actors.Request{ID: 1, Principal: string(b)}
	case 7:
		return nil
	}
	return actors.TopicDeleted{}
}

// TestActivationPassesOverOnlyWhatIsInLine: what unchanged lets pass is what the whole decision would leave as it is.
func TestActivationPassesOverOnlyWhatIsInLine(t *testing.T) {
	passed := 0
	rapid.Check(t, func(t *rapid.T) {
		c := newCluster(drawRecord(t), someBrokers...)
		c.topic.MinISR = rapid.IntRange(0, 4).Draw(t, "topic min")
		if rapid.Bool().Draw(t, "troubles") {
			drawBrokerState(t, c, drawBroker.Draw(t, "broker"))
		}
		s, err := Machine{}.Load(c.env(0), actors.Partition(testID))
		if err != nil {
			t.Fatal(err)
		}
		w := &turn{State: s, env: c.env(0), brokers: c.Brokers()}
		if !w.unchanged() {
			return
		}
		passed++
		if faults := w.faults(); len(faults) > 0 {
			t.Fatalf("%+v passes with %q", s.Partition(), faults)
		}
		if before := s.Partition(); w.decide(change{}) || len(w.fx.Records)+len(w.fx.Events)+len(w.fx.Publish) > 0 {
			t.Fatalf("%+v passes, and is decided to become %+v", before, s.Partition())
		}
	})
	if passed == 0 {
		t.Error("nothing ever passes")
	}
}
