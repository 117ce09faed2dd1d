package outbox

import (
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// flush sends what has gathered, in as few batches as the limits allow.
func (s *State) flush(env actors.Env, fx *actors.Effects) {
	s.dropDeleted(env)
	began := s.gathered
	for range maxBatches {
		batch := s.batch()
		if len(batch.Assignments) == 0 && len(batch.Removals) == 0 {
			break
		}
		s.position++
		batch.Position = s.position
		fx.Publish = append(fx.Publish, batch)
	}
	s.forget(began[:len(began)-len(s.gathered)])
	if len(s.gathered) > 0 || len(s.removals) > 0 {
		s.flushing, s.flushDue = true, env.Now+again
		fx.Wakes = append(fx.Wakes, actors.Wake{After: again, Msg: actors.Flush{}})
	}
	if len(fx.Publish) > 0 {
		s.lastSent, s.quiet = env.Now, 0
		s.watch(env, fx)
	}
}

// dropDeleted takes out the assignments of topics that do not exist any more. A partition's last change may be told after the
// order to remove its topic was sent; the broker would make the replica again.
func (s *State) dropDeleted(env actors.Env) {
	exists := map[messages.TopicID]bool{}
	var last messages.TopicID // most are of one topic
	drop := false
	for i := range s.gathered {
		g := &s.gathered[i]
		if g.id.Topic != last || i == 0 {
			there, looked := exists[g.id.Topic]
			if !looked {
				_, there = env.Cluster.Topic(g.id.Topic)
				exists[g.id.Topic] = there
			}
			_, gone := s.removing[g.id.Topic]
			last, drop = g.id.Topic, gone || !there
		}
		if drop {
			g.assignment = nil
		}
	}
}

// batch takes the next batch out of what has gathered: removals first, so that a topic that was made again finds room.
func (s *State) batch() actors.PublishAssignments {
	b := actors.PublishAssignments{Broker: s.broker, Feed: s.feed}
	size := 0
	fits := func(n int) bool {
		if size > 0 && size+n > maxBytes {
			return false
		}
		size += n
		return true
	}
	for len(s.removals) > 0 && len(b.Removals) < maxRemovals && fits(proto.Size(s.removals[0].order)+4) {
		b.Removals = append(b.Removals, s.removals[0].order)
		delete(s.removing, s.removals[0].topic)
		s.removals = s.removals[1:]
	}
	for len(s.gathered) > 0 && len(b.Assignments) < maxAssignments {
		if g := &s.gathered[0]; g.assignment != nil {
			if !fits(g.room) {
				break
			}
			if b.Assignments == nil {
				b.Assignments = make([]*pb.Assignment, 0, min(len(s.gathered), maxAssignments))
			}
			b.Assignments = append(b.Assignments, g.assignment)
		}
		s.gathered = s.gathered[1:]
	}
	return b
}

// forget takes note that the first of what had gathered is sent.
func (s *State) forget(sent []gathered) {
	if len(s.gathered) > 0 {
		for i := range sent {
			delete(s.places, sent[i].id)
		}
		s.sent += len(sent)
		return
	}
	s.gathered, s.sent = nil, 0
	if len(s.places) > keepPlaces {
		s.places = map[messages.PartitionID]int{} // its room is given back after a burst
	} else {
		clear(s.places)
	}
}

// roomOf bounds the bytes of an assignment in a batch from above, without walking it by reflection as proto.Size does.
func roomOf(a *pb.Assignment) int {
	n := fixedRoom + len(a.GetTopicId()) + len(a.GetTopic()) + len(a.GetLeader())
	for _, list := range [2][]string{a.GetReplicas(), a.GetIsr()} {
		for _, b := range list {
			n += len(b) + lengthRoom
		}
	}
	return n
}

// lengthRoom bounds tag and length of a text, fixedRoom everything in an assignment but its texts: at most eight numbers
// of up to ten bytes, and a tag and a length for each text and for the whole.
const (
	lengthRoom = 6
	fixedRoom  = 8*11 + 4*lengthRoom
)

// lookAtQuiet sends a batch without content if nothing was sent for long enough, and repeats it later.
func (s *State) lookAtQuiet(env actors.Env, fx *actors.Effects) {
	if s.quiet < len(quietPauses) && env.Now-s.lastSent >= quietPauses[s.quiet] {
		if s.quiet == 0 {
			s.position++
		}
		s.quiet++
		s.announce(fx)
	}
	s.watch(env, fx)
}

// announce sends the position without content.
func (s *State) announce(fx *actors.Effects) {
	fx.Publish = append(fx.Publish, actors.PublishAssignments{Broker: s.broker, Feed: s.feed, Position: s.position})
}

// watch sets the next look at the quiet for when the position must be announced again, if that is before the one that is on
// its way.
func (s *State) watch(env actors.Env, fx *actors.Effects) {
	if s.quiet >= len(quietPauses) {
		return
	}
	due := s.lastSent + quietPauses[s.quiet]
	if s.watching && s.lookDue <= due {
		return
	}
	s.watching, s.lookDue = true, due
	s.look++
	fx.Wakes = append(fx.Wakes, actors.Wake{After: max(due-env.Now, again), Msg: lookAtQuiet{number: s.look}})
}
