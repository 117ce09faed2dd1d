package placer

import (
	"time"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
	"github.com/highwater-io/highwater/placement"
)

const (
	// maxReservations bounds what is reserved at the same time; beyond it the oldest lapses. The registry has at most a
	// quarter of that many creations pending.
	maxReservations = 1024
	// reservedFor bounds how long a reservation waits to be settled. The registry gives up much earlier.
	reservedFor = time.Minute
)

// Machine places topics. The zero value is ready.
type Machine struct{}

var _ actors.Machine[*State] = Machine{}

// State is what the placer has answered and nobody has settled.
type State struct {
	reserved []reservation // the oldest first
}

// reservation is the load that an answered topic will be.
type reservation struct {
	ticket uint64
	topic  messages.TopicName
	since  time.Duration
	shares []placement.Share // of brokers that get something
}

// Load begins without reservations. It fails for an address that is not the placer's.
func (Machine) Load(_ actors.Env, self actors.Address) (*State, error) {
	if self != actors.Placer {
		return nil, messages.Errorf(messages.CodeInternal, "%+v is not the address of the placer", self)
	}
	return &State{}, nil
}
