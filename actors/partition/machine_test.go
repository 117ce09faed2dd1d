package partition

import (
	"strings"
	"testing"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

func soundPartition() *messages.Partition {
	ids := someBrokers[:3]
	return &messages.Partition{ID: testID, Replicas: ids, ISR: ids, Leader: "1", LeaderEpoch: 4, Epoch: 9, MinISR: 2, LeaderProven: true}
}

func load(t *testing.T, c *cluster) *State {
	t.Helper()
	s, err := Machine{}.Load(c.env(0), actors.Partition(testID))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestOnlyCommittedPartitionsAreLoaded(t *testing.T) {
	c := newCluster(soundPartition(), someBrokers...)
	cases := map[string]struct {
		address actors.Address
		code    messages.Code
	}{
		"another kind":      {actors.Registry, messages.CodeInvalidRequest},
		"another topic":     {actors.Partition(messages.PartitionID{Topic: messages.TopicID{2}}), messages.CodeUnknownTopicID},
		"another partition": {actors.Partition(messages.PartitionID{Topic: testID.Topic, Index: 1}), messages.CodeUnknownPartition},
		"this one":          {actors.Partition(testID), ""},
	}
	for name, k := range cases {
		if _, err := (Machine{}).Load(c.env(0), k.address); messages.CodeOf(err) != k.code {
			t.Errorf("%s: %v, want %q", name, err, k.code)
		}
	}
}

func TestEveryRequestIsAnsweredWhateverIsInIt(t *testing.T) {
	requests := map[string]actors.Message{
		"empty proposal":   actors.ISRProposal{Request: 7, Broker: "1", BrokerEpoch: 5},
		"empty report":     actors.LeaderReport{Request: 7, Broker: "1", BrokerEpoch: 5},
		"of another actor": actors.Request{ID: 7, Body: &pb.HeartbeatRequest{}},
	}
	for name, msg := range requests {
		c := newCluster(soundPartition(), someBrokers...)
		_, fx := Machine{}.Step(c.env(0), load(t, c), msg)
		if len(fx.Replies) != 1 || fx.Replies[0].To != 7 || len(fx.Records) != 0 {
			t.Fatalf("%s: %+v", name, fx)
		}
		result := fx.Replies[0].Body.(*pb.IsrResult)
		if result.GetError().GetCode() != string(messages.CodeInvalidRequest) || result.GetPartition() != 0 || len(result.GetTopicId()) != 16 {
			t.Errorf("%s: %v", name, result)
		}
	}
}

func TestAMessageOfAnotherActorIsOnlyAnEvent(t *testing.T) {
	c := newCluster(soundPartition(), someBrokers...)
	_, fx := Machine{}.Step(c.env(0), load(t, c), actors.Flush{})
	if len(fx.Events) != 1 || len(fx.Records)+len(fx.Replies)+len(fx.Tells)+len(fx.Publish)+len(fx.Wakes) != 0 {
		t.Errorf("%+v", fx)
	}
}

func TestAssignmentsCarryTheFloorAndTheEpochs(t *testing.T) {
	p := soundPartition()
	p.HighWatermark = 40
	c := newCluster(p, someBrokers...)
	s := load(t, c)
	c.set("1", func(b *messages.Broker) { b.Fenced = true })
	_, fx := Machine{}.Step(c.env(0), s, actors.BrokerChanged{Broker: "1"})
	if len(fx.Tells) != 3 {
		t.Fatalf("%d tells", len(fx.Tells))
	}
	a := fx.Tells[0].Msg.(actors.Assign).Assignment
	if a.GetTopic() != "orders" || a.GetLeader() != "2" || a.GetLeaderEpoch() != 5 || a.GetPartitionEpoch() != 10 || a.GetFloor() != 40 ||
		a.GetLeaderProven() || a.GetMinIsr() != 2 {
		t.Errorf("%v", a)
	}
}

func TestAReasonIsBoundedAndReadable(t *testing.T) {
	if got := clip(strings.Repeat("é", 150)); got != strings.Repeat("é", 100) {
		t.Errorf("%d bytes: %q", len(got), got)
	}
	if got := clip("bad\xff bytes"); got != "bad bytes" {
		t.Errorf("%q", got)
	}
}

func TestTheDefaultsHoldWhereTheClusterHasNoSettings(t *testing.T) {
	for _, identity := range []*messages.Cluster{nil, {Name: "test"}} {
		p := soundPartition()
		p.LeaderProven = false
		c := newCluster(p, someBrokers...)
		c.identity = identity
		_, fx := Machine{}.Step(c.env(0), load(t, c), actors.Activated{})
		if len(fx.Wakes) != 1 || fx.Wakes[0].After != messages.DefaultSettings().LeaderReady {
			t.Errorf("%+v", fx.Wakes)
		}
	}
}

// A new partition is announced by its actor, unless the whole controller begins: then every leadership is published and every
// broker takes a snapshot, and a word for each of a hundred thousand partitions would only be in the way.
func TestANewPartitionIsNotAnnouncedInATakeover(t *testing.T) {
	for _, c := range []struct {
		msg  actors.Activated
		want int
	}{{actors.Activated{}, 3}, {actors.Activated{Restarted: true}, 3}, {actors.Activated{Takeover: true}, 0}} {
		p := soundPartition()
		p.Epoch = 0
		cl := newCluster(p, someBrokers...)
		_, fx := Machine{}.Step(cl.env(0), load(t, cl), c.msg)
		if len(fx.Tells) != c.want || len(fx.Records) > 0 || (len(fx.Publish) == 1) != (c.want > 0) {
			t.Errorf("%+v: %d assignments, %d leaderships, %d records", c.msg, len(fx.Tells), len(fx.Publish), len(fx.Records))
		}
	}
}

func TestEventsHaveNamesOfTheirOwn(t *testing.T) {
	seen := map[string]bool{}
	for _, e := range []actors.Event{LeaderChanged{}, ISRChanged{}, Offline{}, Recovered{}, LeaderProven{}, LeaderUnproven{}, LeaderDeclined{}, LeaderResigned{},
		HighWatermarkRegression{}, PreferenceRefused{}, RequestRefused{}, StateRepaired{}, Ended{}} {
		name := e.EventName()
		if seen[name] || !strings.HasPrefix(name, "partition.") {
			t.Errorf("%T has the name %s", e, name)
		}
		seen[name] = true
	}
}
