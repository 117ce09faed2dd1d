package natsbus

import (
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// last returns the last value of a leadership subject, nil if the stream has none.
func (r *rig) last(topic messages.TopicName, index int32) *pb.Leadership {
	r.t.Helper()
	s, err := r.edge.js.Stream(r.t.Context(), messages.LeadershipStream("dev"))
	if err != nil {
		r.t.Fatal(err)
	}
	m, err := s.GetLastMsgForSubject(r.t.Context(), r.subjects.Leadership(topic, index))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil
	}
	if err != nil {
		r.t.Fatal(err)
	}
	l := &pb.Leadership{}
	if err := proto.Unmarshal(m.Data, l); err != nil {
		r.t.Fatal(err)
	}
	return l
}

func (r *rig) waitLast(topic messages.TopicName, index int32, what string, is func(*pb.Leadership) bool) {
	r.t.Helper()
	eventually(r.t, what, func() bool {
		l := r.last(topic, index)
		return l != nil && is(l)
	})
}

func lead(p *messages.Partition, topic messages.TopicName) []actors.Publication {
	return []actors.Publication{actors.PublishLeadership{Topic: topic, Partition: p}}
}

func TestLeadershipGoesToItsSubjectAndTheStreamKeepsTheLast(t *testing.T) {
	r := newRig(t, nil)
	sub, err := r.client.SubscribeSync(r.subjects.LeadershipAll())
	if err != nil {
		t.Fatal(err)
	}
	if err := r.client.Flush(); err != nil {
		t.Fatal(err)
	}
	r.topic(1, 1, "a.b", 1, "b1", "b2")
	for epoch := messages.LeaderEpoch(1); epoch <= 20; epoch++ {
		p := *partition(1, 0, "b1", "b2")
		p.LeaderEpoch, p.Epoch = epoch, messages.PartitionEpoch(epoch)
		r.catalog.Apply(messages.Sequence(1+epoch), []messages.Record{&p})
		r.edge.Publish(lead(&p, "a.b"), messages.Seen{Controller: 4, Sequence: messages.Sequence(1 + epoch)})
	}
	for last := int64(0); last < 20; {
		m, err := sub.NextMsg(10 * time.Second)
		if err != nil {
			t.Fatalf("after epoch %d: %v", last, err)
		}
		l := &pb.Leadership{}
		if err := proto.Unmarshal(m.Data, l); err != nil {
			t.Fatal(err)
		}
		if l.LeaderEpoch <= last || m.Subject != "hw.dev.lead.v1.a=2Eb.0" || l.Seen.Sequence != uint64(1+l.LeaderEpoch) {
			t.Fatalf("on %s after epoch %d: %v", m.Subject, last, l)
		}
		last = l.LeaderEpoch
	}
	r.waitLast("a.b", 0, "the last value in the stream", func(l *pb.Leadership) bool { return l.LeaderEpoch == 20 })
}

func TestADeletedTopicIsAnnouncedAndThenLeavesTheStream(t *testing.T) {
	r := newRig(t, func(c *Config) { c.DeletedRetention = 20 * time.Millisecond })
	sub, err := r.client.SubscribeSync(r.subjects.Leadership("t", 0))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.client.Flush(); err != nil {
		t.Fatal(err)
	}
	r.topic(1, 1, "t", 1, "b1")
	r.topic(1, 2, "stays", 1, "b1")
	p := partition(1, 0, "b1")
	r.edge.Publish(append(lead(p, "t"), lead(partition(2, 0, "b1"), "stays")...), messages.Seen{})
	r.waitLast("t", 0, "the leadership", func(l *pb.Leadership) bool { return l.Leader == "b1" })
	r.catalog.Apply(2, []messages.Record{deletion(1, "t", 1, "b1")})
	r.edge.Publish([]actors.Publication{actors.PublishLeadership{Topic: "t", Partition: p, Deleted: true}}, messages.Seen{})
	for {
		m, err := sub.NextMsg(10 * time.Second)
		if err != nil {
			t.Fatal(err)
		}
		l := &pb.Leadership{}
		if err := proto.Unmarshal(m.Data, l); err != nil {
			t.Fatal(err)
		}
		if l.Deleted {
			if l.Leader != "" {
				t.Errorf("a deleted partition is led by %q", l.Leader)
			}
			break
		}
	}
	eventually(t, "the deleted topic to leave the stream", func() bool { return r.last("t", 0) == nil })
	if r.last("stays", 0) == nil {
		t.Error("another topic left the stream with it")
	}
}

func TestALateWordOfADeletedTopicDoesNotHideItsSuccessor(t *testing.T) {
	r := newRig(t, func(c *Config) { c.DeletedRetention = 20 * time.Millisecond })
	r.topic(1, 1, "t", 3, "b1")
	old := partition(1, 0, "b1")
	r.catalog.Apply(2, []messages.Record{deletion(1, "t", 3, "b1")})
	r.topic(3, 2, "t", 2, "b2")
	r.edge.Publish(lead(partition(2, 0, "b2"), "t"), messages.Seen{})
	r.edge.Publish(lead(old, "t"), messages.Seen{}) // a commit that was on its way when the topic was deleted
	for i := range int32(3) {
		r.edge.Publish([]actors.Publication{actors.PublishLeadership{Topic: "t", Partition: partition(1, i, "b1"), Deleted: true}}, messages.Seen{})
	}
	r.edge.out.settled()
	r.waitLast("t", 0, "the successor", func(l *pb.Leadership) bool { return l.Leader == "b2" && !l.Deleted })
	eventually(t, "the partition that the successor has not to leave the stream", func() bool { return r.last("t", 2) == nil })
	r.waitLast("t", 0, "the successor to stay", func(l *pb.Leadership) bool { return l.Leader == "b2" && !l.Deleted })
}

func TestActivationAnnouncesWhatThePredecessorDidNotSay(t *testing.T) {
	s := startServer(t, 8<<20)
	first := newRigOn(t, s, newCatalog(), nil)
	first.topic(1, 1, "gone", 2, "b1")
	first.topic(2, 2, "kept", 1, "b1")
	for i := range int32(2) {
		first.edge.Publish(lead(partition(1, i, "b1"), "gone"), messages.Seen{Controller: 4, Sequence: 2})
	}
	first.waitLast("gone", 1, "the predecessor's word", func(l *pb.Leadership) bool { return l.Leader == "b1" })
	if err := first.edge.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	next := journal.NewCatalog() // the deletion was committed, and never said
	applyTopic(next, 3, 2, "kept", 1, "b2")
	second := newRigOn(t, s, next, func(c *Config) { c.Epoch = 5 })
	second.waitLast("gone", 1, "the end of the topic", func(l *pb.Leadership) bool { return l.Deleted && l.Leader == "" })
	second.waitLast("kept", 0, "the committed leadership", func(l *pb.Leadership) bool {
		return l.Leader == "b2" && l.Seen.ControllerEpoch == 5
	})
}

func TestLeadershipIsPublishedAnewAfterAReconnect(t *testing.T) {
	r := newRig(t, nil)
	r.topic(1, 1, "t", 1, "b1")
	r.edge.Publish(lead(partition(1, 0, "b1"), "t"), messages.Seen{})
	r.waitLast("t", 0, "the leadership", func(l *pb.Leadership) bool { return l.Leader == "b1" })
	p := *partition(1, 0, "b1", "b2")
	p.Leader, p.LeaderEpoch, p.Epoch = "b2", 1, 2
	r.catalog.Apply(2, []messages.Record{&p}) // committed while its publication is lost
	before := r.edge.cfg.Conn.Stats().Reconnects
	cid, err := r.edge.cfg.Conn.GetClientID()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.server.DisconnectClientByID(cid); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the reconnect", func() bool { return r.edge.cfg.Conn.Stats().Reconnects > before })
	r.waitLast("t", 0, "the new leadership", func(l *pb.Leadership) bool { return l.Leader == "b2" })
}

func TestAStreamThatLostItsMemoryIsFilledAgain(t *testing.T) {
	r := newRig(t, nil)
	r.topic(1, 1, "t", 2, "b1")
	if err := r.edge.js.DeleteStream(t.Context(), messages.LeadershipStream("dev")); err != nil {
		t.Fatal(err)
	}
	r.edge.refill()
	r.waitLast("t", 1, "the leadership", func(l *pb.Leadership) bool { return l.Leader == "b1" })
}

func TestAssignmentsGoToTheirBrokerWithItsEpochAndInOrder(t *testing.T) {
	r := newRig(t, nil)
	r.catalog.Apply(1, []messages.Record{broker("b1", 42)})
	sub, err := r.client.SubscribeSync(r.subjects.Assignments("b1"))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.client.Flush(); err != nil {
		t.Fatal(err)
	}
	for i := range uint64(100) {
		r.edge.Publish([]actors.Publication{actors.PublishAssignments{Broker: "b1", Feed: 8, Position: i + 1,
			Assignments: []*pb.Assignment{{Topic: "t"}}, Removals: []*pb.Removal{{Topic: "u"}}}}, messages.Seen{Controller: 4, Sequence: 9})
	}
	for i := range uint64(100) {
		m, err := sub.NextMsg(10 * time.Second)
		if err != nil {
			t.Fatal(err)
		}
		b := &pb.AssignmentBatch{}
		if err := proto.Unmarshal(m.Data, b); err != nil {
			t.Fatal(err)
		}
		if b.Feed.Position != i+1 || b.Feed.Feed != 8 || b.BrokerEpoch != 42 || b.Seen.Sequence != 9 || len(b.Assignments) != 1 || len(b.Removals) != 1 {
			t.Fatalf("batch %d: %v", i, b)
		}
	}
}

func TestTheQueueKeepsOnlyTheNewestWordAndAnswersGoFirst(t *testing.T) {
	o := newOutgoing()
	say := func(index int32, word string, valid bool) {
		o.putLatest(lastValue{"t", index}, func() bool { return valid }, func() *nats.Msg {
			if word == "" {
				return nil
			}
			return &nats.Msg{Subject: "lead", Data: []byte(word)}
		})
	}
	for _, v := range []string{"1", "2", "3"} {
		say(0, v, true)
	}
	say(0, "overtaken", false)
	say(1, "", true)
	for i := range int32(2 * portion) {
		say(2+i, "more", true)
	}
	done := 0
	o.put(&nats.Msg{Subject: "answer"}, func() { done++ })
	var got []string
	o.write(func(m *nats.Msg) {
		switch got = append(got, m.Subject+string(m.Data)); len(got) {
		case 2:
			o.put(&nats.Msg{Subject: "another"}, func() { done++ })
		case 3 + portion:
			o.close()
			if o.put(&nats.Msg{Subject: "late"}, func() { done++ }) {
				t.Error("a closed queue took a message")
			}
		}
	})
	// The first portion is "3", a word that is not said any more, and 62 more.
	if len(got) != 3+2*portion || got[0] != "answer" || got[1] != "lead3" || got[portion] != "another" || done != 3 || o.takeDropped() != 1 {
		t.Errorf("written: %v, done %d", got, done)
	}
}

func TestManyWordsWaitForTheBrokersToBeTold(t *testing.T) {
	o := newOutgoing()
	got := make(chan string, 2*burst)
	say := func(i int32) {
		o.putLatest(lastValue{"t", i}, func() bool { return true }, func() *nats.Msg { return &nats.Msg{Subject: "lead"} })
	}
	held := func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return o.held
	}
	for i := range int32(burst) {
		say(i)
	}
	if held() {
		t.Error("few words are held")
	}
	say(burst)
	if !held() {
		t.Error("many words are not held")
	}
	o.mu.Lock()
	o.told = time.Now().Add(time.Hour) // however long brokers are told something: not for ever
	o.mu.Unlock()
	go o.write(func(m *nats.Msg) { got <- m.Subject })
	for i := range burst + 1 {
		select {
		case <-got:
		case <-time.After(10 * time.Second):
			t.Fatalf("%d words were written", i)
		}
	}
	o.settled()
	if held() {
		t.Error("nothing is left, and it is held")
	}
	say(0)
	o.putAssignments(&nats.Msg{Subject: "assignments"})
	<-got
	<-got
	o.close()
}

func TestTheQueueIsBounded(t *testing.T) {
	o := newOutgoing()
	data := make([]byte, 8<<20)
	done, taken := 0, 0
	for range 2 * maxQueuedBytes / len(data) {
		if o.put(&nats.Msg{Subject: "answer", Data: data}, func() { done++ }) {
			taken++
		}
	}
	if taken == 0 || taken*len(data) > maxQueuedBytes || done != 2*maxQueuedBytes/len(data)-taken {
		t.Errorf("%d taken, %d told of their loss", taken, done)
	}
}
