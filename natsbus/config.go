package natsbus

import (
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
)

// Version is the release that the micro service reports, a semantic version. The build sets it.
var Version = "0.1.0-dev"

// Catalog is the committed state as the edge reads it; journal.Catalog is one. What it returns is shared and must not be
// changed, and its callbacks run without a lock held.
type Catalog interface {
	actors.Cluster
	// Applied is the journal position of what the other methods return, or an older one.
	Applied() messages.Sequence
	// Topics, Partitions and PartitionsOfTopic call f in the order of topic names and indexes, until it returns false.
	Topics(f func(*messages.Topic) bool)
	Partitions(f func(*messages.Topic, *messages.Partition) bool)
	PartitionsOfTopic(id messages.TopicID, f func(*messages.Partition) bool)
	// UnknownRecords are those of later versions.
	UnknownRecords() []*messages.UnknownRecord
}

// Tree is where the actors are. Tell never blocks; an error means that the message was not taken.
type Tree interface {
	Tell(to actors.Address, msg actors.Message) error
	// Failed lists the actors that supervision has given up on.
	Failed() []actors.Address
}

// Config is what an Edge needs. The connections belong to the caller and outlive the edge.
type Config struct {
	// Conn carries everything but system events. It should reconnect for ever and buffer nothing over a reconnect.
	Conn *nats.Conn
	// System is a connection of the system account; nil where there is none, then brokers die by their session only.
	System *nats.Conn

	Cluster    messages.ClusterName
	Controller string // the name of this process, for people
	Epoch      messages.ControllerEpoch
	Catalog    Catalog
	Logger     zerolog.Logger

	// Racks takes the racks of all brokers and returns the judge of replica sets: whether one is spread worse than it should
	// be. It is called once for each change of the brokers, its result from many goroutines; nil finds no violations.
	Racks func(brokers map[messages.BrokerID]*messages.Broker) func(replicas []messages.BrokerID) bool
	// Problems are further reasons for not being healthy, of the process itself; nil has none. It must not block. While there
	// is a messages.ProblemStore among them, operators' requests are refused at once.
	Problems func() []messages.HealthReason

	// Standby makes an edge that only answers monitors, from a catalog that follows the journal; nil is the active one's.
	Standby *Standby
	// Controllers lists the controller processes that this one knows of; nil knows itself alone.
	Controllers func() []messages.ControllerView
	// Known are the versions that this process knows; default those of the build.
	Known messages.VersionRange
	// StreamReplicas is how many servers keep the stream of last leadership values if it is made now; default 1. With more
	// than one it is seen to after the edge has been opened, because its leader may have died with the last controller.
	StreamReplicas int

	// MaxOutstanding bounds the work that is admitted and not answered yet, in items of requests; default 20,000.
	MaxOutstanding int
	// MaxSessions bounds register and heartbeat requests that are not answered yet. They have room of their own, so that
	// a flood of other requests fences nobody; default 5,000.
	MaxSessions int
	// MaxRequestBytes bounds the body of a request; default 4 MiB.
	MaxRequestBytes int
	// RequestTimeout is how long the edge waits for an actor's answer before it answers UNAVAILABLE itself; default 30 s.
	RequestTimeout time.Duration
	// RevisionWait is how long a monitor's min_revision may be waited for; default 2 s.
	RevisionWait time.Duration
	// DeletedRetention is how long the last-value stream keeps the word that a topic is gone; default 1 min.
	DeletedRetention time.Duration
}

// Standby is what the answers of a standby say of themselves.
type Standby struct {
	// Epoch is of the last claim in the catalog.
	Epoch func() messages.ControllerEpoch
	// Age is for how long the catalog may have missed something; stale says that this is longer than it should be.
	Age func() (age time.Duration, stale bool)
}

func (c *Config) setDefaults() {
	orInt := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	orDuration := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	orInt(&c.StreamReplicas, 1)
	orInt(&c.MaxOutstanding, 20_000)
	orInt(&c.MaxSessions, 5_000)
	orInt(&c.MaxRequestBytes, 4<<20)
	orDuration(&c.RequestTimeout, 30*time.Second)
	orDuration(&c.RevisionWait, 2*time.Second)
	orDuration(&c.DeletedRetention, time.Minute)
	if c.Racks == nil {
		c.Racks = func(map[messages.BrokerID]*messages.Broker) func([]messages.BrokerID) bool {
			return func([]messages.BrokerID) bool { return false }
		}
	}
	if c.Known == (messages.VersionRange{}) {
		c.Known = messages.Known()
	}
	if c.Controllers == nil {
		c.Controllers = func() []messages.ControllerView {
			return []messages.ControllerView{{Name: c.Controller, Role: "active", ControllerEpoch: c.Epoch, Applied: c.Catalog.Applied(),
				Versions: c.Known, Release: Version}}
		}
	}
	if c.Problems == nil {
		c.Problems = func() []messages.HealthReason { return nil }
	}
}

func (c *Config) validate() error {
	switch {
	case c.Conn == nil:
		return messages.Errorf(messages.CodeInternal, "the edge needs a connection")
	case c.Catalog == nil:
		return messages.Errorf(messages.CodeInternal, "the edge needs a catalog")
	case c.MaxOutstanding < 1 || c.MaxSessions < 1 || c.MaxRequestBytes < 1:
		return messages.Errorf(messages.CodeInvalidRequest, "the limits of the edge must be positive")
	case c.RequestTimeout < 0 || c.RevisionWait < 0 || c.DeletedRetention < 0:
		return messages.Errorf(messages.CodeInvalidRequest, "the times of the edge must be positive")
	}
	return c.Cluster.Validate()
}
