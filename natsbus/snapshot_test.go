package natsbus

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// pages takes a whole snapshot and checks the size of every page.
func (r *rig) pages(b messages.BrokerID, epoch uint64, held ...*pb.HeldTopic) []*pb.SnapshotResponse {
	r.t.Helper()
	var out []*pb.SnapshotResponse
	q := &pb.SnapshotRequest{Broker: string(b), BrokerEpoch: epoch, Held: held}
	for {
		answer := &pb.SnapshotResponse{}
		r.ask(r.subjects.Broker(string(b), messages.VerbSnapshot), q, answer)
		if answer.Error != nil {
			r.t.Fatalf("page %d: %v", len(out), answer.Error)
		}
		if n := proto.Size(answer); n > messages.SnapshotPageBytes {
			r.t.Errorf("page %d has %d bytes", len(out), n)
		}
		if out = append(out, answer); answer.Next == "" {
			return out
		}
		if len(out) > 1000 {
			r.t.Fatal("the pages do not end")
		}
		q = &pb.SnapshotRequest{Broker: string(b), BrokerEpoch: epoch, Cursor: answer.Next}
	}
}

func TestASnapshotHasEveryPartitionOfTheBrokerOnceInBoundedPages(t *testing.T) {
	r := newRig(t, nil)
	r.catalog.Apply(1, []messages.Record{broker("b1", 3), broker("b2", 4)})
	r.topic(2, 1, "wide", 9000, "b1", "b2")
	r.topic(3, 2, "elsewhere", 5, "b2")
	r.topic(4, 3, "small", 2, "b2", "b1")
	pages := r.pages("b1", 3)
	if len(pages) < 2 {
		t.Fatalf("%d page: the case is too small to show paging", len(pages))
	}
	seen := map[string]int{}
	for i, p := range pages {
		if (p.Feed != nil) != (i == 0) {
			t.Errorf("page %d: feed %v", i, p.Feed)
		}
		for _, a := range p.Assignments {
			seen[string(a.TopicId)+string(rune(a.Partition))]++
		}
		if got := messages.SeenFromProto(p.Seen); got != (messages.Seen{Controller: 4, Sequence: 4}) {
			t.Errorf("page %d: seen %v", i, got)
		}
	}
	if pages[0].Feed.GetFeed() != 7 || pages[0].Feed.GetPosition() != 3 {
		t.Errorf("the feed position is %v", pages[0].Feed)
	}
	if len(seen) != 9002 {
		t.Errorf("%d partitions, want 9002", len(seen))
	}
	for k, n := range seen {
		if n != 1 {
			t.Fatalf("partition %x came %d times", k, n)
		}
	}
	r.settled()
}

func TestTheFeedPositionIsTakenBeforeTheCatalogIsRead(t *testing.T) {
	r := newRig(t, nil)
	r.catalog.Apply(1, []messages.Record{broker("b1", 3)})
	r.topic(2, 1, "t", 1, "b1")
	r.tree.respond(func(to actors.Address, msg actors.Message) error {
		if to != actors.Outbox("b1") {
			t.Errorf("told to %+v", to)
		}
		p := *partition(1, 0, "b1")
		p.Epoch = 2 // committed after the question for the position, so the page must have it
		r.catalog.Apply(3, []messages.Record{&p})
		return r.tree.agree(to, msg)
	})
	pages := r.pages("b1", 3)
	if got := pages[0].Assignments[0].PartitionEpoch; got != 2 {
		t.Errorf("the page has epoch %d", got)
	}
}

func TestASnapshotSaysWhatToRemoveAndWhatNobodyKnows(t *testing.T) {
	r := newRig(t, nil)
	r.catalog.Apply(1, []messages.Record{broker("b1", 3)})
	r.topic(2, 1, "kept", 1, "b1")
	r.topic(3, 2, "gone", 3, "b1")
	r.topic(4, 3, "gone too", 1, "b2")
	r.catalog.Apply(5, []messages.Record{deletion(2, "gone", 3, "b1"), deletion(3, "gone too", 1, "b2"), deletion(4, "other", 1, "b2")})
	pages := r.pages("b1", 3, &pb.HeldTopic{TopicId: topicID(1).Bytes()}, &pb.HeldTopic{TopicId: topicID(2).Bytes()},
		&pb.HeldTopic{TopicId: topicID(3).Bytes()}, &pb.HeldTopic{TopicId: topicID(77).Bytes()}, &pb.HeldTopic{TopicId: topicID(77).Bytes()})
	p := pages[0]
	if len(pages) != 1 || len(p.Assignments) != 1 {
		t.Fatalf("%d pages, %d assignments", len(pages), len(p.Assignments))
	}
	if len(p.Unknown) != 1 || string(p.Unknown[0]) != string(topicID(77).Bytes()) {
		t.Errorf("unknown: %x", p.Unknown)
	}
	if len(p.Removals) != 2 || p.Removals[0].Topic != "gone" || len(p.Removals[0].PartitionEpochs) != 3 || p.Removals[1].Topic != "gone too" {
		t.Errorf("removals: %v", p.Removals)
	}
}

func TestManyRemovalsArePagedToo(t *testing.T) {
	r := newRig(t, nil)
	r.catalog.Apply(1, []messages.Record{broker("b1", 3)})
	var records []messages.Record
	for n := range 40 {
		d := deletion(byte(n), "gone", 9000, "b1")
		for i := range d.Epochs {
			d.Epochs[i] = 1 << 20 // three bytes each
		}
		records = append(records, d)
	}
	r.catalog.Apply(2, records)
	r.topic(3, 200, "kept", 3, "b1")
	seen := map[string]bool{}
	assignments := 0
	for _, p := range r.pages("b1", 3) {
		for _, removal := range p.Removals {
			if seen[string(removal.TopicId)] {
				t.Errorf("the removal of %x came twice", removal.TopicId)
			}
			seen[string(removal.TopicId)] = true
		}
		assignments += len(p.Assignments)
	}
	if len(seen) != 40 || assignments != 3 {
		t.Errorf("%d removals and %d assignments", len(seen), assignments)
	}
}

func TestASnapshotIsForTheCurrentRegistrationOnly(t *testing.T) {
	r := newRig(t, nil)
	r.catalog.Apply(1, []messages.Record{broker("b1", 3)})
	for name, c := range map[string]struct {
		q    *pb.SnapshotRequest
		want messages.Code
	}{
		"not registered": {&pb.SnapshotRequest{Broker: "b9", BrokerEpoch: 1}, messages.CodeUnknownBroker},
		"older epoch":    {&pb.SnapshotRequest{Broker: "b1", BrokerEpoch: 2}, messages.CodeStaleBrokerEpoch},
		"newer epoch":    {&pb.SnapshotRequest{Broker: "b1", BrokerEpoch: 4}, messages.CodeStaleBrokerEpoch},
		"strange cursor": {&pb.SnapshotRequest{Broker: "b1", BrokerEpoch: 3, Cursor: "a:zz:1"}, messages.CodeInvalidRequest},
		"cursor of nothing": {&pb.SnapshotRequest{Broker: "b1", BrokerEpoch: 3, Cursor: "r:"},
			messages.CodeInvalidRequest},
		"unreadable id": {&pb.SnapshotRequest{Broker: "b1", BrokerEpoch: 3, Held: []*pb.HeldTopic{{TopicId: []byte("x")}}},
			messages.CodeInvalidRequest},
		"too many held": {&pb.SnapshotRequest{Broker: "b1", BrokerEpoch: 3, Held: make([]*pb.HeldTopic, messages.MaxHeldTopics+1)},
			messages.CodeTooLarge},
	} {
		answer := &pb.SnapshotResponse{}
		r.ask(r.subjects.Broker(c.q.Broker, messages.VerbSnapshot), c.q, answer)
		if code(answer.Error) != c.want {
			t.Errorf("%s: %v, want %s", name, answer.Error, c.want)
		}
	}
	r.settled()
}

func TestAnyCursorThatIsGivenCanBeRead(t *testing.T) {
	for _, c := range []cursor{{after: messages.PartitionID{Topic: topicID(3)}}, {assignments: true, start: true},
		{assignments: true, after: messages.PartitionID{Topic: topicID(250), Index: 31}}} {
		got, err := parseCursor(c.String())
		if err != nil || got != c {
			t.Errorf("%v came back as %v, %v", c, got, err)
		}
	}
}
