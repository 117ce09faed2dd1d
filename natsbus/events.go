package natsbus

import (
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/highwater-io/highwater/actors"
)

// eventLog writes the events of the actors into the log, beside their work. Each event of a kind has a line of its own
// until there are too many of that kind in one interval, as after the death of a broker that led thousands of partitions:
// from then on they are counted, and the interval ends with one line that says how many there were. At the debug level
// every event has its line.
type eventLog struct {
	mu      sync.Mutex
	pending []observed
	dropped int
	ready   chan struct{} // told when pending stops being empty
}

// observed are the events of one step of one actor.
type observed struct {
	from   actors.Address
	events []actors.Event
}

// eventQueue is how many steps with events may wait to be logged; eventLines is how many events of a kind have their own
// lines in one interval.
const (
	eventQueue    = 65_536
	eventLines    = 20
	eventInterval = 250 * time.Millisecond
)

func newEventLog() *eventLog { return &eventLog{ready: make(chan struct{}, 1)} }

// Observe takes the events of an actor for the log, and notes which brokers answer. It never waits.
func (e *Edge) Observe(from actors.Address, events []actors.Event) {
	e.noteResponses(events)
	if e.cfg.Logger.GetLevel() <= zerolog.InfoLevel {
		e.events.add(observed{from, events})
	}
}

func (l *eventLog) add(o observed) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.pending) >= eventQueue {
		l.dropped += len(o.events)
		return
	}
	l.pending = append(l.pending, o)
	if len(l.pending) == 1 {
		select {
		case l.ready <- struct{}{}:
		default:
		}
	}
}

// take returns what waits, and how many events have been left out since the last call.
func (l *eventLog) take() (pending []observed, dropped int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	pending, dropped = l.pending, l.dropped
	l.pending, l.dropped = nil, 0
	return pending, dropped
}

// run writes events until life ends; what is there by then is still written.
func (l *eventLog) run(life <-chan struct{}, log *zerolog.Logger) {
	end := time.NewTicker(eventInterval)
	defer end.Stop()
	counts := map[string]int{}
	for {
		over := false
		select {
		case <-l.ready:
		case <-end.C:
			summarise(log, counts)
		case <-life:
			over = true
		}
		pending, dropped := l.take()
		for _, o := range pending {
			for _, ev := range o.events {
				writeEvent(log, counts, o.from, ev)
			}
		}
		if dropped > 0 {
			log.Warn().Int("events", dropped).Msg("events not logged: there were too many at once")
		}
		if over {
			summarise(log, counts)
			return
		}
	}
}

// writeEvent writes one event, and counts it.
func writeEvent(log *zerolog.Logger, counts map[string]int, from actors.Address, ev actors.Event) {
	name := ev.EventName()
	level := zerolog.InfoLevel
	if counts[name]++; counts[name] > eventLines {
		level = zerolog.DebugLevel
	}
	log.WithLevel(level).Str("event", name).Stringer("actor", address(from)).Interface("detail", ev).Msg("event")
}

// summarise ends an interval: it says of which events there were more than there are lines.
func summarise(log *zerolog.Logger, counts map[string]int) {
	for name, n := range counts {
		if n > eventLines && log.GetLevel() > zerolog.DebugLevel {
			log.Info().Str("event", name).Int("count", n).Int("with_lines", eventLines).Msg("many events")
		}
	}
	clear(counts)
}
