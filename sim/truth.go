package sim

import (
	"context"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// truth is what the journal says, read by the checkers with nothing but the decoder of entries.
type truth struct {
	last       messages.Sequence
	brokers    map[messages.BrokerID]*messages.Broker
	partitions map[messages.PartitionID]*messages.Partition
	deletions  map[messages.TopicID]bool
	topics     map[messages.TopicID]bool
	// states has every state of a partition by its epoch.
	states map[stateKey]*messages.Partition
	at     journal.Position
	forked bool
	// history has every entry up to last, also those that were cut off behind a snapshot.
	history [][]byte
	// registered has which incarnation got a broker epoch.
	registered map[messages.BrokerEpoch]messages.IncarnationID
	claim      messages.ControllerClaimed
	rereads    messages.Sequence // up to here the journal is read a second time
	// reread has the brokers of which the last record is one of before the journal went back.
	reread map[messages.BrokerID]bool
	// writers has who claimed which controller epoch.
	writers map[messages.ControllerEpoch]string
}

type stateKey struct {
	id    messages.PartitionID
	epoch messages.PartitionEpoch
}

func newTruth() truth {
	return truth{brokers: map[messages.BrokerID]*messages.Broker{}, partitions: map[messages.PartitionID]*messages.Partition{},
		deletions: map[messages.TopicID]bool{}, topics: map[messages.TopicID]bool{}, states: map[stateKey]*messages.Partition{},
		writers: map[messages.ControllerEpoch]string{}, reread: map[messages.BrokerID]bool{},
		registered: map[messages.BrokerEpoch]messages.IncarnationID{}}
}

// follow reads what the journal has got since the last call.
func (c *checker) follow() {
	_ = c.w.store.log.Replay(context.Background(), c.truth.last+1, func(seq messages.Sequence, payload []byte) error {
		c.w.result.Entries++
		c.take(seq, payload)
		return nil
	})
}

// take reads the next entry.
func (c *checker) take(seq messages.Sequence, payload []byte) {
	t := &c.truth
	t.last, t.history = seq, append(t.history, payload)
	e, err := journal.DecodeEntry(seq, payload)
	if err != nil {
		c.w.violated("entry %d of the journal: %v", seq, err)
		return
	}
	if c.w.store.back != 0 {
		c.again(seq, e)
	} else {
		c.entry(seq, e)
	}
	if t.forked {
		return
	}
	for _, r := range e.Records {
		c.record(seq, r)
	}
}

// again takes note of an entry of a journal that has lost something. A process that has read what was lost may write behind
// it, where another one has written meanwhile. From then on the journal is two histories, and everybody who reads it refuses
// it; what its records say of each other means nothing any more.
func (c *checker) again(seq messages.Sequence, e *journal.Entry) {
	t := &c.truth
	if e.Follows(t.at) != nil && !t.forked {
		t.forked = true
		c.w.result.Forks++
		c.w.say("@%d the journal has two histories", seq)
	}
	t.at = journal.Position{Last: seq, Chain: e.Chain}
	for _, r := range e.Records {
		if claim, ok := r.(*messages.ControllerClaimed); ok {
			c.w.say("@%d %s claims epoch %d, released %v", seq, claim.Controller, claim.Epoch, claim.Released)
			t.claim, t.writers[claim.Epoch] = *claim, claim.Controller
		}
	}
}

// entry checks invariants 2 and 5 on an entry: it continues the one before, and is of the active controller or its claim.
func (c *checker) entry(seq messages.Sequence, e *journal.Entry) {
	t := &c.truth
	if err := e.Follows(t.at); err != nil || seq != t.at.Last+1 {
		c.w.violated("entry %d of the journal, by %s with epoch %d, does not continue entry %d: %v", seq, e.Controller, e.Epoch, t.at.Last, err)
	}
	t.at = journal.Position{Last: seq, Chain: e.Chain}
	for _, r := range e.Records {
		claim, ok := r.(*messages.ControllerClaimed)
		if !ok {
			continue
		}
		c.w.say("@%d %s claims epoch %d, released %v", seq, claim.Controller, claim.Epoch, claim.Released)
		if !claim.Released {
			if by, twice := t.writers[claim.Epoch]; twice || claim.Epoch <= t.claim.Epoch {
				c.w.violated("entry %d: %s claims controller epoch %d, which was issued before to %q; the last was %d", seq, claim.Controller, claim.Epoch, by, t.claim.Epoch)
			}
			t.writers[claim.Epoch] = claim.Controller
			t.claim = *claim
		} else if t.claim.Released {
			c.w.violated("entry %d: epoch %d is released twice", seq, claim.Epoch)
		}
	}
	if e.Epoch != t.claim.Epoch || e.Controller != t.claim.Controller || t.claim.Released {
		c.w.violated("entry %d was written by %s with controller epoch %d after %s had claimed epoch %d (released %v)", seq, e.Controller, e.Epoch,
			t.claim.Controller, t.claim.Epoch, t.claim.Released)
	}
	for _, r := range e.Records {
		if claim, ok := r.(*messages.ControllerClaimed); ok {
			t.claim = *claim
		}
	}
}

// wentBack has the checker follow a journal that has lost everything behind a position.
func (c *checker) wentBack(to messages.Sequence) {
	t := &c.truth
	old := *t
	*t = newTruth()
	t.states, t.topics, t.deletions, t.registered = old.states, old.topics, old.deletions, old.registered
	t.rereads = to
	for i, payload := range old.history[:to] {
		c.take(messages.Sequence(i+1), payload)
	}
	t.rereads = 0
}

// activated checks that the catalog of a controller that has claimed is what the journal says.
func (c *checker) activated(ctl *controller) {
	if ctl.catalog.Applied() != c.truth.last || c.w.store.back != 0 {
		return // somebody has claimed behind it already; or the journal has lost entries, which some may have read
	}
	n := 0
	ctl.catalog.Partitions(func(_ *messages.Topic, p *messages.Partition) bool {
		n++
		if want := c.truth.partitions[p.ID]; want == nil || !sameState(want, p) || want.HighWatermark != p.HighWatermark || want.LeaderProven != p.LeaderProven {
			c.w.violated("the catalog of %s has another state of %s than the journal", ctl.name, short(p.ID))
		}
		return true
	})
	if n != len(c.truth.partitions) || len(ctl.catalog.Brokers()) != len(c.truth.brokers) {
		c.w.violated("the catalog of %s has %d partitions and %d brokers, the journal %d and %d", ctl.name, n, len(ctl.catalog.Brokers()),
			len(c.truth.partitions), len(c.truth.brokers))
	}
}

func (c *checker) record(seq messages.Sequence, r messages.Record) {
	t := &c.truth
	switch r := r.(type) {
	case *messages.Broker:
		old := t.brokers[r.ID]
		if as, there := t.registered[r.Epoch]; there && as != r.Incarnation {
			c.w.violated("broker epoch %d was given to %s before and is now of %s", r.Epoch, as, r.Incarnation)
		}
		t.registered[r.Epoch] = r.Incarnation
		if old != nil && r.Epoch < old.Epoch {
			c.w.violated("broker %s went from epoch %d to %d", r.ID, old.Epoch, r.Epoch)
		}
		if old == nil || old.Fenced != r.Fenced || old.Stopping != r.Stopping || old.Epoch != r.Epoch {
			c.w.say("@%d broker %s epoch %d fenced %v (%s) stopping %v suspect %v", seq, r.ID, r.Epoch, r.Fenced, r.FencedReason, r.Stopping, r.Suspect)
		}
		if t.reread[r.ID] = seq <= t.rereads; !t.reread[r.ID] {
			c.fenced(old, r)
		}
		t.brokers[r.ID] = r
	case *messages.Topic:
		t.topics[r.ID] = true
	case *messages.TopicDeletion:
		t.deletions[r.ID] = true
		for id := range t.partitions {
			if id.Topic == r.ID {
				delete(t.partitions, id)
			}
		}
	case *messages.Partition:
		if before := t.states[stateKey{r.ID, r.Epoch}]; before != nil && !sameState(before, r) {
			c.w.violated("partition %s at %d: another state with partition epoch %d was stored before", short(r.ID), seq, r.Epoch)
		}
		if !t.deletions[r.ID.Topic] {
			c.partition(seq, r)
		}
		t.states[stateKey{r.ID, r.Epoch}] = r
	}
}

// partition checks invariants 1, 2 and 4 on a partition's record.
func (c *checker) partition(seq messages.Sequence, p *messages.Partition) {
	old := c.truth.partitions[p.ID]
	bad := func(format string, args ...any) {
		c.w.violated("partition %s at %d: "+format, append([]any{short(p.ID), seq}, args...)...)
	}
	if !subset(p.ISR, p.Replicas) || !subset(p.Eligible, p.Replicas) {
		bad("ISR %v, eligible %v, replicas %v", p.ISR, p.Eligible, p.Replicas)
	}
	if p.Leader != "" && !slices.Contains(p.ISR, p.Leader) {
		bad("leader %s is not in the ISR %v", p.Leader, p.ISR)
	}
	if old != nil {
		c.change(old, p, bad)
	}
	if old == nil || old.Epoch != p.Epoch {
		c.w.say("@%d %s leader %s epoch %d/%d isr %v eligible %v mark %d: %s", seq, short(p.ID), p.Leader, p.LeaderEpoch, p.Epoch, p.ISR, p.Eligible, p.HighWatermark, p.Reason)
	}
	c.truth.partitions[p.ID] = p
}

func (c *checker) change(old, p *messages.Partition, bad func(string, ...any)) {
	if p.Epoch < old.Epoch || p.LeaderEpoch < old.LeaderEpoch {
		bad("epochs fell from %d/%d to %d/%d", old.LeaderEpoch, old.Epoch, p.LeaderEpoch, p.Epoch)
	}
	if p.Epoch == old.Epoch && !sameState(old, p) {
		bad("two states with partition epoch %d", p.Epoch)
	}
	if p.Leader != old.Leader && p.LeaderEpoch == old.LeaderEpoch {
		bad("leader %s and then %s in leader epoch %d", old.Leader, p.Leader, p.LeaderEpoch)
	}
	if p.HighWatermark < old.HighWatermark {
		bad("the known mark fell from %d to %d", old.HighWatermark, p.HighWatermark)
	}
	if p.LeaderEpoch > old.LeaderEpoch && p.Leader != "" {
		c.w.result.Elections++
		c.floors[epochKey{p.ID, p.LeaderEpoch}] = p.HighWatermark
		if !slices.Contains(old.ISR, p.Leader) && !slices.Contains(old.Eligible, p.Leader) {
			bad("leader %s was elected from neither the ISR %v nor the eligible replicas %v", p.Leader, old.ISR, old.Eligible)
		}
	}
}

func subset(a, of []messages.BrokerID) bool {
	for i, b := range a {
		if slices.Contains(a[:i], b) || !slices.Contains(of, b) {
			return false
		}
	}
	return true
}

func sameState(a, b *messages.Partition) bool {
	return a.Leader == b.Leader && a.LeaderEpoch == b.LeaderEpoch && slices.Equal(a.ISR, b.ISR) && slices.Equal(a.Eligible, b.Eligible) &&
		slices.Equal(a.Replicas, b.Replicas) && a.MinISR == b.MinISR
}

// published checks invariant 5 on a leadership: what is told is committed.
func (c *checker) published(p actors.PublishLeadership) {
	if p.Deleted {
		if !c.truth.deletions[p.Partition.ID.Topic] {
			c.w.violated("the end of %s is published and its deletion is not stored", short(p.Partition.ID))
		}
		return
	}
	if known := c.truth.states[stateKey{p.Partition.ID, p.Partition.Epoch}]; known == nil || !sameState(known, p.Partition) {
		c.w.violated("leadership of %s at partition epoch %d is published and not stored", short(p.Partition.ID), p.Partition.Epoch)
	}
}

// assigned checks invariant 5 on an assignment.
func (c *checker) assigned(a *pb.Assignment) {
	id := partitionOf(a.GetTopicId(), a.GetPartition())
	known := c.truth.states[stateKey{id, messages.PartitionEpoch(a.GetPartitionEpoch())}]
	if known == nil || string(known.Leader) != a.GetLeader() || int64(known.LeaderEpoch) != a.GetLeaderEpoch() ||
		!slices.Equal(messages.BrokerStrings(known.ISR), a.GetIsr()) {
		c.w.violated("assignment of %s at partition epoch %d is given out and not stored", short(id), a.GetPartitionEpoch())
		return
	}
	if p := c.truth.partitions[id]; p != nil && a.GetFloor() > int64(p.HighWatermark) && c.w.store.back == 0 {
		c.w.violated("assignment of %s has the floor %d, stored is the mark %d", short(id), a.GetFloor(), p.HighWatermark)
	}
}

// replied checks invariant 5 on an answer.
func (c *checker) replied(m proto.Message) {
	switch m := m.(type) {
	case *pb.IsrResult:
		if m.GetCurrent() != nil && !c.truth.deletions[partitionOf(m.GetCurrent().GetTopicId(), 0).Topic] {
			c.assigned(m.GetCurrent())
		}
	case *pb.CreateTopicResponse:
		if id, err := messages.ParseTopicID(m.GetTopicId()); err == nil && !c.truth.topics[id] {
			c.w.violated("topic %s is answered to be created and not stored", m.GetName())
		}
	case *pb.RegisterResponse:
		c.registered(messages.BrokerEpoch(m.GetBrokerEpoch()))
	}
}

func (c *checker) registered(e messages.BrokerEpoch) {
	if e == 0 {
		return
	}
	for _, b := range c.truth.brokers {
		if b.Epoch == e {
			return
		}
	}
	c.w.violated("broker epoch %d is given out and not stored", e)
}
