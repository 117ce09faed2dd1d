package placer

import (
	"fmt"

	"github.com/highwater-io/highwater/actors"
)

// Step decides on one message.
func (Machine) Step(env actors.Env, s *State, msg actors.Message) (*State, actors.Effects) {
	var fx actors.Effects
	switch msg := msg.(type) {
	case actors.Activated:
		s.reserved = nil
	case actors.PlaceTopic:
		s.lapse(env, &fx)
		s.place(env, msg, &fx)
	case actors.PlacementSettled:
		s.release(msg.Ticket)
	default:
		fx.Events = append(fx.Events, MessageIgnored{Kind: fmt.Sprintf("%T", msg)})
	}
	return s, fx
}
