package controller

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/rs/zerolog"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/actors/registry"
	"github.com/highwater-io/highwater/messages"
)

// aheadWatch looks at what the registry says of brokers that know more than the journal, for health and for the log.
type aheadWatch struct {
	edge
	log zerolog.Logger

	mu     sync.Mutex
	ahead  map[messages.BrokerID]string // registered brokers: while there are any, nothing is decided
	others map[messages.BrokerID]string // that this journal does not know; the last few
}

// maxStrangers is how many brokers that the journal does not know are remembered for health.
const maxStrangers = 16

// Observe looks at the events and passes them on.
func (w *aheadWatch) Observe(from actors.Address, events []actors.Event) {
	for _, e := range events {
		switch e := e.(type) {
		case registry.PositionAhead:
			w.note(e)
		case registry.ClaimEnded:
			w.ended(e.Broker)
		case registry.BrokerRegistered:
			w.mu.Lock()
			delete(w.others, e.Broker)
			w.mu.Unlock()
		}
	}
	w.edge.Observe(from, events)
}

func (w *aheadWatch) note(e registry.PositionAhead) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ahead == nil {
		w.ahead, w.others = map[messages.BrokerID]string{}, map[messages.BrokerID]string{}
	}
	if !e.Registered {
		if len(w.others) < maxStrangers {
			w.others[e.Broker] = e.Reason
		}
		return
	}
	if len(w.ahead) == 0 {
		w.log.Error().Str("broker", string(e.Broker)).Uint64("seen", uint64(e.Seen.Sequence)).Uint64("seen_epoch", uint64(e.Seen.Controller)).
			Str("reason", e.Reason).Msg("the store went back in time: nothing is decided; see `highwater cluster recover --help`")
	}
	w.ahead[e.Broker] = e.Reason
}

func (w *aheadWatch) ended(b messages.BrokerID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.ahead, b)
	if len(w.ahead) == 0 {
		w.log.Warn().Msg("nobody is heard any more who knows more than the journal: decisions go on")
	}
}

// problem returns how many brokers know more than the journal, and what; 0 for none. Strangers count only beside registered
// ones: alone they stop nothing.
func (w *aheadWatch) problem() (int, string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for _, b := range slices.Sorted(maps.Keys(w.ahead)) {
		out = append(out, fmt.Sprintf("%s: %s", b, w.ahead[b]))
	}
	if len(out) == 0 {
		return 0, ""
	}
	for _, b := range slices.Sorted(maps.Keys(w.others)) {
		out = append(out, fmt.Sprintf("%s, which is not registered: %s", b, w.others[b]))
	}
	return len(w.ahead), strings.Join(out[:min(len(out), 10)], "; ")
}
