package history

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Tenure is an interval in which a broker held the lease of a partition's leader. Until is exclusive. Times are nanoseconds
// of the machine's monotonic clock.
type Tenure struct {
	Partition   string
	Broker      string
	Epoch       int64
	From, Until int64
}

// EventKind says what a broker says of its leases.
type EventKind uint8

// The kinds of events.
const (
	Leads       EventKind = iota // the leadership of Partition in Epoch has begun
	LeadsNoMore                  // it has ended
	Leased                       // the broker's lease runs until Until
	LeaseEnded                   // the broker has given its lease up
	Died                         // the process has ended
)

// Event is what one broker process says. Events are in the order in which they were said.
type Event struct {
	Kind      EventKind
	At        int64
	Partition string // of Leads and LeadsNoMore
	Epoch     int64  // of Leads and LeadsNoMore
	Until     int64  // of Leased
}

// span is a piece of time.
type span struct{ from, until int64 }

// Tenures returns when one broker process would have answered yes to Leadership.Valid: it leads and its lease runs.
func Tenures(broker string, events []Event) []Tenure {
	var leases []span
	var out []Tenure
	died := int64(math.MaxInt64)
	for _, e := range events {
		last := len(leases) - 1
		switch e.Kind {
		case Leased:
			if last >= 0 && leases[last].until >= e.At {
				leases[last].until = max(leases[last].until, e.Until)
			} else if e.Until > e.At {
				leases = append(leases, span{e.At, e.Until})
			}
		case LeaseEnded:
			if last >= 0 {
				leases[last].until = min(leases[last].until, e.At)
			}
		case Died:
			died = e.At
		}
	}
	for i, e := range events {
		if e.Kind != Leads {
			continue
		}
		led := span{e.At, died}
		for _, later := range events[i+1:] {
			if later.Kind == LeadsNoMore && later.Partition == e.Partition && later.Epoch == e.Epoch {
				led.until = min(died, later.At)
				break
			}
		}
		for _, l := range leases {
			if t := (Tenure{e.Partition, broker, e.Epoch, max(l.from, led.from), min(l.until, led.until)}); t.From < t.Until {
				out = append(out, t)
			}
		}
	}
	return out
}

// Overlaps says which tenures of different brokers, or of different epochs, share a moment, and where a later one has a lower
// epoch.
func Overlaps(all []Tenure) error {
	all = slices.SortedFunc(slices.Values(all), func(a, b Tenure) int {
		return cmp.Or(cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.From, b.From), cmp.Compare(a.Until, b.Until))
	})
	var f faults
	var longest Tenure // of those seen of a partition, the one that ends last
	for i, t := range all {
		if i == 0 || longest.Partition != t.Partition {
			longest = t
			continue
		}
		same := longest.Broker == t.Broker && longest.Epoch == t.Epoch
		switch {
		case !same && t.From < longest.Until:
			f.add("%s: led by %s in epoch %d and by %s in epoch %d at the same time, for %.1f ms", t.Partition, longest.Broker, longest.Epoch,
				t.Broker, t.Epoch, float64(min(longest.Until, t.Until)-t.From)/1e6)
		case t.Epoch < longest.Epoch:
			f.add("%s: %s leads in epoch %d after %s in epoch %d", t.Partition, t.Broker, t.Epoch, longest.Broker, longest.Epoch)
		}
		if t.Until > longest.Until {
			longest = t
		}
	}
	if err := f.err(); err != nil {
		return fmt.Errorf("leaderships overlap: %w", err)
	}
	return nil
}
