package placer

import "github.com/highwater-io/highwater/messages"

// Facts about placements.
type (
	// PlacementProposed says that a topic was placed. Warnings tell what could not be met.
	PlacementProposed struct {
		Ticket            uint64
		Topic             messages.TopicName
		Partitions        int
		ReplicationFactor int
		Warnings          []string
	}

	// PlacementRefused says that a topic could not be placed, and why.
	PlacementRefused struct {
		Ticket uint64
		Topic  messages.TopicName
		Err    *messages.Error
	}

	// ReservationLapsed says that nobody has settled a placement in time.
	ReservationLapsed struct {
		Ticket uint64
		Topic  messages.TopicName
	}

	// MessageIgnored says that a message came that the placer cannot use.
	MessageIgnored struct{ Kind string }
)

// EventName returns "placement.proposed".
func (PlacementProposed) EventName() string { return "placement.proposed" }

// EventName returns "placement.refused".
func (PlacementRefused) EventName() string { return "placement.refused" }

// EventName returns "reservation.lapsed".
func (ReservationLapsed) EventName() string { return "reservation.lapsed" }

// EventName returns "message.ignored".
func (MessageIgnored) EventName() string { return "message.ignored" }
