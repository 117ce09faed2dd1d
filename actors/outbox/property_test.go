package outbox

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// follower is a broker as the outbox must suppose it: it goes on with the next position, and takes a snapshot of the
// committed state after a gap or for another feed.
type follower struct {
	w         *world
	committed map[string]int64 // partition epochs, what the catalog would say
	held      map[string]int64
	feed      uint64
	position  uint64
	snapshots int
}

func (f *follower) receive(t *rapid.T, p actors.PublishAssignments) {
	switch {
	case uint64(p.Feed) == f.feed && p.Position <= f.position:
	case uint64(p.Feed) == f.feed && p.Position == f.position+1:
		f.position = p.Position
		for _, r := range p.Removals {
			maps.DeleteFunc(f.held, func(name string, _ int64) bool { return name[:len(name)-2] == r.GetTopic() })
		}
		for _, a := range p.Assignments {
			name := fmt.Sprintf("%s/%d", a.GetTopic(), a.GetPartition())
			if old, ok := f.held[name]; ok && old > a.GetPartitionEpoch() {
				t.Fatalf("%s goes back from epoch %d to %d", name, old, a.GetPartitionEpoch())
			}
			f.held[name] = a.GetPartitionEpoch()
		}
	default:
		f.snapshots++
		at := f.w.step(actors.FeedStart{Request: 1}).Replies[0].Body.(*pb.FeedPosition)
		f.feed, f.position, f.held = at.GetFeed(), at.GetPosition(), maps.Clone(f.committed)
	}
}

// TestABrokerThatLosesBatchesAgreesInTheEnd changes partitions, deletes topics, loads the outbox anew,
// and loses batches on the way to the broker. After the last loss and a second of quiet the broker holds what is committed.
func TestABrokerThatLosesBatchesAgreesInTheEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld()
		f := &follower{w: w, committed: map[string]int64{}, held: map[string]int64{}}
		losing := true
		w.observe = func(fx actors.Effects) {
			for _, p := range fx.Publish {
				p := p.(actors.PublishAssignments)
				checkBatch(t, p)
				if losing && rapid.IntRange(0, 3).Draw(t, "lost") == 0 {
					continue
				}
				f.receive(t, p)
			}
		}
		assign := func(t *rapid.T) {
			topic := rapid.SampledFrom([]string{"t", "u", "v"}).Draw(t, "topic")
			name := fmt.Sprintf("%s/%d", topic, rapid.IntRange(0, 3).Draw(t, "partition"))
			if _, there := w.topics[topicID(topic)]; !there {
				w.step(actors.Assign{Assignment: assignment(topic, int32(name[2]-'0'),
					99)}) // the last word of a partition that is gone
				return
			}
			f.committed[name]++
			w.step(actors.Assign{Assignment: assignment(topic, int32(name[2]-'0'), f.committed[name])})
		}
		t.Repeat(map[string]func(*rapid.T){
			"assign":  assign,
			"assign2": assign,
			"delete": func(t *rapid.T) {
				topic := rapid.SampledFrom([]string{"u", "v"}).Draw(t, "topic")
				if _, there := w.topics[topicID(topic)]; !there {
					return
				}
				delete(w.topics, topicID(topic))
				maps.DeleteFunc(f.committed, func(name string, _ int64) bool { return name[:1] == topic })
				w.step(actors.Remove{Removal: removalFor(topic)})
			},
			"restart": func(t *rapid.T) {
				w.load()
				w.step(actors.Activated{Restarted: true})
			},
			"wait": func(t *rapid.T) { w.wait(time.Duration(rapid.IntRange(0, 3000).Draw(t, "ms")) * time.Millisecond) },
		})
		f.committed["t/0"]++
		w.step(actors.Assign{Assignment: assignment("t", 0, f.committed["t/0"])})
		w.wait(10 * time.Millisecond) // sent, and perhaps lost
		losing = false
		before := f.snapshots
		w.wait(2 * time.Second)
		if !maps.Equal(f.held, f.committed) {
			t.Fatalf("the broker holds %v, committed is %v", f.held, f.committed)
		}
		if f.snapshots > before+1 {
			t.Fatalf("%d snapshots after the last loss", f.snapshots-before)
		}
		w.wait(time.Minute)
		if len(w.wakes) != 0 {
			t.Fatalf("a quiet outbox still wakes up: %v", w.wakes)
		}
	})
}

func checkBatch(t interface{ Fatalf(string, ...any) }, p actors.PublishAssignments) {
	size, once := 0, map[messages.PartitionID]bool{}
	for _, a := range p.Assignments {
		size += proto.Size(a)
		id := messages.PartitionID{Topic: messages.TopicID(a.GetTopicId()), Index: a.GetPartition()}
		if once[id] {
			t.Fatalf("%s stands twice in a batch", id)
		}
		once[id] = true
	}
	for _, r := range p.Removals {
		size += proto.Size(r)
	}
	if len(p.Assignments) > maxAssignments || len(p.Removals) > maxRemovals || size > maxBytes && len(p.Assignments)+len(p.Removals) > 1 {
		t.Fatalf("a batch of %d assignments and %d removals, %d bytes", len(p.Assignments), len(p.Removals), size)
	}
}

func TestBatchesAreBounded(t *testing.T) {
	w := newWorld()
	batches, assignments, removals, next := 0, 0, 0, uint64(1)
	w.observe = func(fx actors.Effects) {
		if len(fx.Publish) > maxBatches {
			t.Fatalf("%d batches in one step", len(fx.Publish))
		}
		for _, p := range fx.Publish {
			p := p.(actors.PublishAssignments)
			checkBatch(t, p)
			if len(p.Assignments)+len(p.Removals) == 0 {
				continue
			}
			if p.Position != next {
				t.Fatalf("position %d instead of %d", p.Position, next)
			}
			next++
			batches++
			assignments += len(p.Assignments)
			removals += len(p.Removals)
		}
	}
	const partitions = 2000*maxBatches + 5000
	for i := range partitions {
		w.step(actors.Assign{Assignment: assignment("t", int32(i), 1)})
	}
	for i := range 500 {
		r := removalFor(fmt.Sprint("x", i))
		r.PartitionEpochs = make([]int64, 10_000) // 10 kB
		w.step(actors.Remove{Removal: r})
	}
	w.wait(10 * time.Second)
	if assignments != partitions || removals != 500 || batches < (partitions+500*10_000/1000)/2000 {
		t.Fatalf("%d assignments and %d removals in %d batches", assignments, removals, batches)
	}
}

func TestWhatTheOutboxCannotUseIsIgnored(t *testing.T) {
	w := newWorld()
	for _, msg := range []actors.Message{nil, actors.Tick{}, actors.Assign{},
		actors.Assign{Assignment: &pb.Assignment{TopicId: []byte{1}}},
		actors.Remove{}, actors.Remove{Removal: &pb.Removal{TopicId: make([]byte, 16)}}} {
		if fx := w.step(msg); len(fx.Events) != 1 || len(fx.Publish) != 0 || len(fx.Wakes) != 0 {
			t.Errorf("%T: %+v", msg, fx)
		}
	}
	if fx := w.step(actors.FeedStart{}); len(fx.Replies) != 0 {
		t.Errorf("nobody waits and is answered: %+v", fx)
	}
}

func TestEveryLifeHasAFeedOfItsOwn(t *testing.T) {
	w := newWorld()
	seen := map[messages.Sequence]bool{w.state.feed: true}
	for i := range 100 {
		w.applied += messages.Sequence(i % 2)
		w.load()
		if seen[w.state.feed] || w.state.feed == 0 {
			t.Fatalf("feed %d is used again", w.state.feed)
		}
		seen[w.state.feed] = true
	}
	if _, err := (Machine{}).Load(w.env(), actors.Registry); err == nil {
		t.Fatal("an outbox without a broker is loaded")
	}
}

func TestRoomIsReckonedFromAbove(t *testing.T) {
	names := func(t *rapid.T, what string, n int) []string {
		return rapid.SliceOfN(rapid.StringN(0, 64, 64), 0, n).Draw(t, what)
	}
	rapid.Check(t, func(t *rapid.T) {
		number := rapid.Int64()
		a := &pb.Assignment{TopicId: make([]byte, 16), Topic: rapid.StringN(0, 249, 249).Draw(t, "topic"), Partition: rapid.Int32().Draw(t, "partition"),
			Replicas: names(t, "replicas", 9), Isr: names(t, "isr", 9), Leader: rapid.StringN(0, 64, 64).Draw(t, "leader"),
			LeaderEpoch: number.Draw(t, "leader epoch"), PartitionEpoch: number.Draw(t, "partition epoch"), Floor: number.Draw(t, "floor"),
			MinIsr: rapid.Uint32().Draw(t, "min ISR"), LeaderProven: rapid.Bool().Draw(t, "proven")}
		alone := proto.Size(&pb.AssignmentBatch{Assignments: []*pb.Assignment{a}})
		if room := roomOf(a); room < alone {
			t.Fatalf("%d bytes reckoned, %d needed", room, alone)
		}
	})
}
