package placer

import (
	"slices"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/placement"
)

// reserve counts a proposal as taken until it is settled.
func (s *State) reserve(env actors.Env, ask actors.PlaceTopic, p *placement.Proposal, fx *actors.Effects) {
	if len(s.reserved) >= maxReservations {
		s.drop(1, fx)
	}
	shares := slices.DeleteFunc(p.Shares, func(s placement.Share) bool { return s.Replicas == 0 })
	s.reserved = append(s.reserved, reservation{
		ticket: ask.Ticket, topic: ask.Name, since: env.Now, shares: slices.Clone(shares),
	})
}

// release ends the reservation of a ticket, if there is one.
func (s *State) release(ticket uint64) {
	s.reserved = slices.DeleteFunc(s.reserved, func(r reservation) bool { return r.ticket == ticket })
}

// lapse ends the reservations that have waited too long.
func (s *State) lapse(env actors.Env, fx *actors.Effects) {
	old := 0
	for old < len(s.reserved) && env.Now-s.reserved[old].since >= reservedFor {
		old++
	}
	s.drop(old, fx)
}

// drop ends the n oldest reservations.
func (s *State) drop(n int, fx *actors.Effects) {
	for _, r := range s.reserved[:n] {
		fx.Events = append(fx.Events, ReservationLapsed{Ticket: r.ticket, Topic: r.topic})
	}
	s.reserved = slices.Delete(s.reserved, 0, n)
}
