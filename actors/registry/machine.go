package registry

import (
	"time"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
)

// Machine decides about brokers and topics. The zero value is ready.
type Machine struct {
	// GrantValidity is for how long after its last append a predecessor that was cut off may have gone on granting leases.
	// The first sessions after an activation are longer by it. 0 where no predecessor can be alive.
	GrantValidity time.Duration
	// AwaitOpen: the host says Opened once brokers can be heard. Until then nobody's silence counts, however long the other
	// actors take to start. Without it, brokers can be heard from the activation on.
	AwaitOpen bool
	// Known are the versions that this controller knows; the zero value stands for those of the build.
	Known messages.VersionRange
}

var _ actors.Machine[*State] = Machine{}

// State is what the registry knows and no journal keeps.
type State struct {
	sessions map[messages.BrokerID]*session
	queue    queue
	// spoken has the brokers that speak through a connection, for the end of one.
	spoken map[connection][]messages.BrokerID
	// ended has the connections of brokers whose end was reported last, at most maxEnded, in the order of endedOrder.
	ended      map[connection]bool
	endedOrder []connection
	// claims are the brokers that have seen more than the journal holds.
	claims map[messages.BrokerID]claim
	// deaf: nobody can be heard yet.
	deaf bool
	// tickDue is when the pending Tick should come, 0 if none is pending.
	tickDue time.Duration

	// creations wait for the placer, by ticket; names are theirs, without the dry runs.
	creations map[uint64]*creation
	names     map[messages.TopicName]struct{}
	ticket    uint64

	// unfinished counts the deletions that some broker has not confirmed yet.
	unfinished int
}

// Load returns a state in which nobody has been heard yet. It fails while the cluster has no identity.
func (Machine) Load(env actors.Env, _ actors.Address) (*State, error) {
	if env.Cluster.Identity() == nil {
		return nil, messages.Errorf(messages.CodeInternal, "the journal holds no cluster record yet")
	}
	return &State{
		sessions:  map[messages.BrokerID]*session{},
		spoken:    map[connection][]messages.BrokerID{},
		ended:     map[connection]bool{},
		claims:    map[messages.BrokerID]claim{},
		creations: map[uint64]*creation{},
		names:     map[messages.TopicName]struct{}{},
		// A placer that outlives this registry may still answer tickets of the one before: they must not be taken for new ones.
		ticket: env.Random[0] >> 1,
	}, nil
}
