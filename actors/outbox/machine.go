package outbox

import (
	"time"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// Limits of a batch and of a step, and the pauses.
const (
	maxAssignments = 2000      // in one batch
	maxRemovals    = 200       // in one batch
	maxBytes       = 512 << 10 // of one batch, but for a single item that is larger
	maxBatches     = 8         // in one step; the next one follows at once
	gather         = 2 * time.Millisecond
	gatherFenced   = 20 * time.Millisecond
	keepPlaces     = 1000             // for how many partitions an empty outbox keeps room
	again          = time.Millisecond // pause before the next step when one was not enough
)

// quietPauses are the times after the last batch with content at which an empty one follows, and is repeated.
var quietPauses = [...]time.Duration{time.Second, 5 * time.Second}

// Machine gathers for one broker, the one of its address. The zero value is ready.
type Machine struct{}

var _ actors.Machine[*State] = Machine{}

// State is one life of an outbox.
type State struct {
	broker   messages.BrokerID
	feed     messages.Sequence
	position uint64

	// gathered has the newest assignment of each partition that is not sent yet, in the order in which they came first. places
	// says where a partition stands in it, counted from the first that was sent since all was sent: sent of them are gone.
	gathered []gathered
	places   map[messages.PartitionID]int
	sent     int
	removals []removal
	removing map[messages.TopicID]struct{}
	flushing bool          // a Flush is on its way
	flushDue time.Duration // when the earliest of them comes

	// lastSent is when the last batch with content was sent, quiet how many empty ones followed. While watching, the look
	// at the quiet with number look comes at lookDue; others are ignored.
	lastSent time.Duration
	quiet    int
	watching bool
	look     uint64
	lookDue  time.Duration
}

// gathered is an assignment that waits, nil if its topic is deleted. Room bounds its bytes.
type gathered struct {
	id         messages.PartitionID
	assignment *pb.Assignment
	room       int
}

type removal struct {
	topic messages.TopicID
	order *pb.Removal
}

// lookAtQuiet is the outbox's message to itself: is it time for an empty batch?
type lookAtQuiet struct{ number uint64 }

// Load begins a new life with a new feed id, made of the journal's position and chance, so that neither a later controller nor
// a restart at the same position has it again. It fails for an address that is no outbox.
func (Machine) Load(env actors.Env, self actors.Address) (*State, error) {
	if self.Kind != actors.KindOutbox || self.Broker == "" {
		return nil, messages.Errorf(messages.CodeInternal, "%+v is not the address of an outbox", self)
	}
	chance := uint32(env.Random[0]>>32) ^ uint32(env.Random[1])
	return &State{
		broker:   self.Broker,
		feed:     (env.Applied+1)<<32 | messages.Sequence(chance),
		places:   map[messages.PartitionID]int{},
		removing: map[messages.TopicID]struct{}{},
	}, nil
}
