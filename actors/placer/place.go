package placer

import (
	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
	"github.com/highwater-io/highwater/placement"
)

// place answers with the replicas of a new topic, and reserves what they will be. A ticket that is asked again is
// answered anew.
func (s *State) place(env actors.Env, ask actors.PlaceTopic, fx *actors.Effects) {
	s.release(ask.Ticket)
	answer := actors.Placement{Ticket: ask.Ticket}
	topic := placement.NewTopic{Partitions: ask.Partitions, ReplicationFactor: ask.ReplicationFactor}
	proposal, err := placement.Place(s.snapshot(env), topic, env.Random)
	if err != nil {
		answer.Err = messages.AsError(err)
		fx.Events = append(fx.Events, PlacementRefused{Ticket: ask.Ticket, Topic: ask.Name, Err: answer.Err})
	} else {
		answer.Replicas, answer.Explanation, answer.Warnings = proposal.Replicas, proposal.Explanation, proposal.Warnings
		s.reserve(env, ask, proposal, fx)
		fx.Events = append(fx.Events, PlacementProposed{
			Ticket: ask.Ticket, Topic: ask.Name, Partitions: ask.Partitions, ReplicationFactor: ask.ReplicationFactor,
			Warnings: proposal.Warnings,
		})
	}
	fx.Tells = append(fx.Tells, actors.Tell{To: actors.Registry, Msg: answer})
}

// snapshot is the committed load of all brokers plus what is reserved.
func (s *State) snapshot(env actors.Env) placement.Snapshot {
	replicas, leaders := map[messages.BrokerID]int{}, map[messages.BrokerID]int{}
	for _, r := range s.reserved {
		if _, committed := env.Cluster.TopicByName(r.topic); committed {
			continue // the committed load has it; its PlacementSettled is on the way
		}
		for _, share := range r.shares {
			replicas[share.Broker] += share.Replicas
			leaders[share.Broker] += share.Leaders
		}
	}
	var out placement.Snapshot
	for id, b := range env.Cluster.Brokers() {
		r, l := env.Cluster.Load(id)
		out.Brokers = append(out.Brokers, placement.BrokerOf(b, r+replicas[id], l+leaders[id]))
	}
	return out
}
