package registry

import (
	"slices"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// placed goes on with a creation when the placer has answered. Brokers may have changed meanwhile, so nothing but the lists
// is taken from the answer. One for an unknown ticket comes too late, and is given back.
func (t *step) placed(p actors.Placement) {
	c := t.state.creations[p.Ticket]
	if c == nil {
		t.tell(actors.Placer, actors.PlacementSettled{Ticket: p.Ticket})
		return
	}
	out, err := t.conclude(c.spec, &p)
	if err != nil {
		out = &pb.CreateTopicResponse{Error: err.Proto()}
	}
	t.settle(c, out)
}

// settle ends a creation with its answer.
func (t *step) settle(c *creation, out *pb.CreateTopicResponse) {
	delete(t.state.creations, c.ticket)
	if !c.spec.dryRun {
		delete(t.state.names, c.spec.name)
	}
	t.reply(c.request, out)
	t.tell(actors.Placer, actors.PlacementSettled{Ticket: c.ticket})
}

func (t *step) conclude(spec *topicSpec, p *actors.Placement) (*pb.CreateTopicResponse, *messages.Error) {
	if p.Err != nil {
		return nil, p.Err
	}
	if len(p.Replicas) != spec.partitions {
		return nil, messages.Errorf(messages.CodeInternal, "%d partitions were placed instead of %d",
			len(p.Replicas), spec.partitions)
	}
	for i, list := range p.Replicas {
		if len(list) != spec.replicationFactor {
			return nil, messages.Errorf(messages.CodeInternal, "partition %d was placed on %d brokers instead of %d",
				i, len(list), spec.replicationFactor)
		}
		for j, b := range list {
			if slices.Contains(list[:j], b) {
				return nil, messages.Errorf(messages.CodeInternal, "partition %d was placed on broker %q twice", i, b)
			}
			if t.brokers[b] == nil {
				return nil, busy("partition %d was placed on broker %q, which is not registered any more", i, b)
			}
		}
	}
	return t.make(spec, p)
}

// expireCreations gives up creations that the placer has not answered in time.
func (t *step) expireCreations() {
	for _, ticket := range sortedKeys(t.state.creations) {
		if c := t.state.creations[ticket]; t.env.Now >= c.deadline {
			err := messages.Errorf(messages.CodeUnavailable, "the placement of topic %s was not answered within %v",
				c.spec.name, placementTimeout)
			t.settle(c, &pb.CreateTopicResponse{Error: err.Proto()})
		}
	}
}
