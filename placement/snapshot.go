package placement

import (
	"cmp"
	"slices"

	"github.com/highwater-io/highwater/messages"
)

// DefaultWeight is the capacity of a broker that states none.
const DefaultWeight = 100

// Broker is one registered broker as placement sees it.
type Broker struct {
	ID   messages.BrokerID
	Rack messages.RackPath
	// Weight is the relative capacity, 1 to 1000; anything below 1 counts as DefaultWeight.
	Weight   int
	Fenced   bool
	Stopping bool
	Draining bool
	// Gone: it has been away for longer than the replacement delay, so its replicas are to be rebuilt on others. A replica
	// on a broker that is not in the snapshot is gone too.
	Gone bool
	// Unsettled: it came back a short while ago, so no balancing gives it leaders yet.
	Unsettled bool
	// Replicas and Leaders are what the broker has already: committed and promised.
	Replicas int
	Leaders  int
	// Bytes is what its replicas hold, 0 where nobody knows.
	Bytes int64
}

// Snapshot is the cluster at one moment: every registered broker, usable or not, each id once. Order means nothing.
type Snapshot struct {
	Brokers []Broker
}

// BrokerOf returns a registered broker with what it has already.
func BrokerOf(b *messages.Broker, replicas, leaders int) Broker {
	return Broker{
		ID: b.ID, Rack: b.Rack, Weight: b.Weight, Fenced: b.Fenced, Stopping: b.Stopping, Draining: b.Draining,
		Replicas: replicas, Leaders: leaders,
	}
}

// Refusal says why the broker takes no new replicas; it is empty for a usable broker.
func (b *Broker) Refusal() string {
	switch {
	case b.Gone:
		return "gone"
	case b.Fenced:
		return "fenced"
	case b.Stopping:
		return "stopping"
	case b.Draining:
		return "draining"
	}
	return ""
}

// rack returns the label for people.
func (b *Broker) rack() string { return rackName(string(b.Rack)) }

func rackName(path string) string {
	if path == "" {
		return "unlabelled"
	}
	return path
}

// divided returns the usable brokers and the refused ones, each in the order of their ids, with weights filled in.
func (s Snapshot) divided() (usable, refused []Broker) {
	for _, b := range s.Brokers {
		if b.Weight < 1 {
			b.Weight = DefaultWeight
		}
		if b.Refusal() == "" {
			usable = append(usable, b)
		} else {
			refused = append(refused, b)
		}
	}
	byID := func(a, b Broker) int { return cmp.Compare(a.ID, b.ID) }
	slices.SortFunc(usable, byID)
	slices.SortFunc(refused, byID)
	return usable, refused
}
