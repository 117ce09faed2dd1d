package outbox

import (
	"fmt"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// MessageIgnored says that a message came that the outbox cannot use.
type MessageIgnored struct{ Kind string }

// EventName returns "message.ignored".
func (MessageIgnored) EventName() string { return "message.ignored" }

// Step decides on one message.
func (Machine) Step(env actors.Env, s *State, msg actors.Message) (*State, actors.Effects) {
	var fx actors.Effects
	switch msg := msg.(type) {
	case actors.Activated:
		s.lastSent = env.Now
		s.announce(&fx)
		s.watch(env, &fx)
	case actors.Assign:
		if !s.assign(msg.Assignment) {
			fx.Events = append(fx.Events, ignored(msg))
		}
		s.flushSoon(env, &fx)
	case actors.Remove:
		if !s.remove(msg.Removal) {
			fx.Events = append(fx.Events, ignored(msg))
		}
		s.flushSoon(env, &fx)
	case actors.Flush:
		s.flushing = false
		s.flush(env, &fx)
	case lookAtQuiet:
		if msg.number == s.look {
			s.watching = false
			s.lookAtQuiet(env, &fx)
		}
	case actors.FeedStart:
		if msg.Request != 0 {
			fx.Replies = append(fx.Replies, actors.Reply{To: msg.Request, Body: &pb.FeedPosition{Feed: uint64(s.feed),
				Position: s.position}})
		}
	default:
		fx.Events = append(fx.Events, ignored(msg))
	}
	return s, fx
}

func ignored(msg actors.Message) actors.Event { return MessageIgnored{Kind: fmt.Sprintf("%T", msg)} }

// assign gathers an assignment, unless one of a later partition epoch is gathered. Of two with the same epoch the one that
// came last knows more: a higher floor, or that the leader is proven. It returns false for one without a topic id.
func (s *State) assign(a *pb.Assignment) bool {
	topic, err := messages.ParseTopicID(a.GetTopicId())
	if err != nil {
		return false
	}
	if _, gone := s.removing[topic]; gone {
		return true
	}
	id := messages.PartitionID{Topic: topic, Index: a.GetPartition()}
	at, known := s.places[id]
	if !known {
		s.places[id] = s.sent + len(s.gathered)
		s.gathered = append(s.gathered, gathered{id: id, assignment: a, room: roomOf(a)})
		return true
	}
	g := &s.gathered[at-s.sent]
	if g.assignment.GetPartitionEpoch() <= a.GetPartitionEpoch() {
		g.assignment, g.room = a, roomOf(a)
	}
	return true
}

// remove gathers the order to delete a topic's data. It returns false for one without a topic id.
func (s *State) remove(r *pb.Removal) bool {
	topic, err := messages.ParseTopicID(r.GetTopicId())
	if err != nil {
		return false
	}
	if _, twice := s.removing[topic]; !twice {
		s.removing[topic] = struct{}{}
		s.removals = append(s.removals, removal{topic: topic, order: r})
	}
	return true
}

// flushSoon sets a Flush if something has gathered and none is on its way that comes early enough. A broker that is fenced
// is in no hurry: it leads nothing and is in no ISR. Most likely it is dead, and then everyone else must be told first.
func (s *State) flushSoon(env actors.Env, fx *actors.Effects) {
	if len(s.gathered) == 0 && len(s.removals) == 0 {
		return
	}
	after := gather
	if b := env.Cluster.Brokers()[s.broker]; b != nil && b.Fenced {
		after = gatherFenced
	}
	if due := env.Now + after; !s.flushing || due < s.flushDue {
		s.flushing, s.flushDue = true, due
		fx.Wakes = append(fx.Wakes, actors.Wake{After: after, Msg: actors.Flush{}})
	}
}
