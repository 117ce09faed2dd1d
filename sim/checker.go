package sim

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/broker/replica"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// checker watches the run from outside of the code under test. Its invariants:
//
//  1. ISR ⊆ replicas, the leader is in the ISR or there is none, and is elected from the ISR or the eligible replicas
//  2. epochs never fall, and one process leads in one leader epoch
//  3. what is acknowledged is at its offset, with its bytes, whenever it is read and at the end; and two leaders never hold
//     a valid lease after the earlier one's broker was fenced
//  4. marks never fall, a leader that serves holds what was known to be committed when it was elected, what was read is never refused or answered otherwise, and nothing at or above the mark is read
//  5. nothing is told that is not stored, and only the active controller stores
//  6. no replica is deleted without a stored order
type checker struct {
	w     *world
	truth truth
	// records has the value at each offset that was acknowledged or read, and by which of the two it came to be known.
	records map[messages.PartitionID]map[messages.Offset]known
	leaders map[epochKey]string // the process that leads
	floors  map[epochKey]messages.Offset
	marks   map[*hosted]messages.Offset
}

type known struct {
	value string
	acked bool
}

type epochKey struct {
	id    messages.PartitionID
	epoch messages.LeaderEpoch
}

func newChecker(w *world) *checker {
	return &checker{w: w, truth: newTruth(), records: map[messages.PartitionID]map[messages.Offset]known{},
		leaders: map[epochKey]string{}, floors: map[epochKey]messages.Offset{}, marks: map[*hosted]messages.Offset{}}
}

func (c *checker) know(p messages.PartitionID, at messages.Offset, value string, acked bool) {
	m := c.records[p]
	if m == nil {
		m = map[messages.Offset]known{}
		c.records[p] = m
	}
	old, there := m[at]
	if there && old.value != value {
		how := map[bool]string{true: "acknowledged", false: "read"}
		c.w.violated("record %d of %s was %s as %q and is now %s as %q", at, short(p), how[old.acked], old.value, how[acked], value)
	}
	m[at] = known{value, acked || old.acked}
}

// acknowledged takes note of an answer to acks=all.
func (c *checker) acknowledged(p messages.PartitionID, base messages.Offset, b *pb.RecordBatch) {
	c.w.result.Acknowledged += len(b.GetRecords())
	for i, r := range b.GetRecords() {
		c.know(p, base+messages.Offset(i), string(r.GetValue()), true)
	}
}

// committed checks that what is about to be acknowledged is on the disk of every member of the stored ISR, whoever leads it.
func (c *checker) committed(b *broker, h *hosted, base messages.Offset, batch *pb.StoredBatch) {
	p := c.truth.partitions[h.id]
	if p == nil {
		return
	}
	for _, id := range p.ISR {
		m := c.w.broker(id)
		l := m.disk.current[h.id]
		if m.lost || l == nil {
			continue // its disk has lost something, and the controller is about to hear of it
		}
		found := l.read(base, l.end(), 1)
		if len(found) != 1 || messages.Offset(found[0].GetBaseOffset()) != base || found[0].GetCrc() != batch.GetCrc() {
			c.w.violated("%s acknowledges [%d, +%d) of %s, which is not on ISR member %s, whose log ends at %d", b.incarnation, base,
				batch.GetCount(), short(h.id), id, l.end())
		}
	}
}

// read takes note of a batch that a reader got.
func (c *checker) read(p messages.PartitionID, b *pb.StoredBatch) {
	for i, v := range valuesOf(c.w, b) {
		c.w.result.Read++
		c.know(p, messages.Offset(b.GetBaseOffset())+messages.Offset(i), v, false)
	}
}

func valuesOf(w *world, b *pb.StoredBatch) []string {
	var body pb.RecordBatch
	if err := proto.Unmarshal(b.GetBody(), &body); err != nil || replica.Verify(b) != nil {
		w.violated("a batch at %d cannot be read: %v", b.GetBaseOffset(), err)
		return nil
	}
	out := make([]string, len(body.GetRecords()))
	for i, r := range body.GetRecords() {
		out[i] = string(r.GetValue())
	}
	return out
}

// served checks that nothing at or above the leader's mark goes out.
func (c *checker) served(b *broker, h *hosted, res *pb.FetchResponse) {
	for _, x := range res.GetBatches() {
		if batchEnd(x) > h.r.HighWatermark() {
			c.w.violated("%s serves %s up to %d, its mark is %d", b.incarnation, short(h.id), batchEnd(x), h.r.HighWatermark())
		}
	}
}

// replica looks at a replica whenever something happens to it.
func (c *checker) replica(b *broker, h *hosted) {
	mark := h.r.HighWatermark()
	if mark < c.marks[h] {
		c.w.violated("%s: the mark of %s fell from %d to %d", b.incarnation, short(h.id), c.marks[h], mark)
	}
	c.marks[h] = mark
	if h.r.Role() != replica.RoleLeader {
		return
	}
	k := epochKey{h.id, h.r.LeaderEpoch()}
	switch was, there := c.leaders[k]; {
	case !there:
		c.leaders[k] = b.incarnation
		if end := h.r.Status().LogEnd; end < c.floors[k] {
			c.w.violated("%s leads %s in leader epoch %d with its log ending at %d, the known mark is %d", b.incarnation, short(h.id),
				k.epoch, end, c.floors[k])
		}
	case was != b.incarnation:
		c.w.violated("%s and %s lead %s in leader epoch %d", was, b.incarnation, short(h.id), k.epoch)
		c.leaders[k] = b.incarnation
	}
}

// leases looks for two leaders with valid leases, whatever the reason for which the lead has moved. One that the controller
// has not confirmed yet does not act under its lease.
func (c *checker) leases() {
	type holder struct {
		b     *broker
		epoch messages.LeaderEpoch
	}
	holders := map[messages.PartitionID]holder{}
	for _, b := range c.w.brokers {
		if !b.valid() {
			continue
		}
		for _, p := range b.order {
			r := b.replicas[p].r
			if !r.Confirmed() {
				continue
			}
			x := holder{b, r.LeaderEpoch()}
			y, twice := holders[p]
			if !twice {
				holders[p] = x
				continue
			}
			if y.epoch > x.epoch {
				x, y = y, x
			}
			c.w.violated("%s leads %s in epoch %d and %s in epoch %d, both with valid leases",
				y.b.incarnation, short(p), y.epoch, x.b.incarnation, x.epoch)
			holders[p] = x
		}
	}
}

// fenced checks that no broker is given up while it holds a valid lease, unless it has asked to go.
func (c *checker) fenced(old, rec *messages.Broker) {
	b := c.w.broker(rec.ID)
	if b == nil || old == nil || old.Fenced || !rec.Fenced || rec.Stopping || old.Epoch != rec.Epoch || b.epoch != rec.Epoch || !b.valid() {
		return
	}
	c.w.violated("%s is fenced (%s) and holds a lease for another %v", b.incarnation, rec.FencedReason, b.leaseUntil-b.local())
}

// deleted checks that there is an order to delete a replica.
func (c *checker) deleted(b *broker, p messages.PartitionID) {
	if !c.truth.deletions[p.Topic] {
		c.w.violated("%s deletes %s without a stored order", b.incarnation, short(p))
	}
}

// unwell says what is not as it should be when nothing is wrong any more; "" if all is well.
func (c *checker) unwell() string {
	ids := make([]messages.PartitionID, 0, len(c.truth.partitions))
	for id := range c.truth.partitions {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, comparePartitions)
	for _, id := range ids {
		p := c.truth.partitions[id]
		if p.Leader == "" && c.mayBeLost(p) {
			continue
		}
		if p.Leader == "" || !p.LeaderProven || len(p.ISR) != len(p.Replicas) {
			return fmt.Sprintf("%s has leader %q (proven %v), ISR %v of %v, eligible %v: %s", short(id), p.Leader, p.LeaderProven, p.ISR, p.Replicas, p.Eligible, p.Reason)
		}
		for _, r := range p.Replicas {
			b := c.w.broker(r)
			h := b.replicas[id]
			if h == nil {
				return fmt.Sprintf("%s has no replica of %s", b.incarnation, short(id))
			}
			lead := c.w.broker(p.Leader).replicas[id]
			if s := h.r.Status(); lead == nil || s.LogEnd != lead.r.Status().LogEnd || s.HighWatermark != s.LogEnd || s.LeaderEpoch != p.LeaderEpoch {
				return fmt.Sprintf("%s: %s is %s", b.incarnation, short(id), describe(s))
			}
		}
	}
	if c.w.active() == nil {
		return "no controller is active"
	}
	for _, cl := range c.w.clients {
		if cl.up && len(cl.open) > 0 && c.truth.partitions[cl.partition] != nil && c.truth.partitions[cl.partition].Leader != "" {
			return fmt.Sprintf("%s waits for an answer from %s: sequence %d, %d tries", cl.name, cl.leader, cl.open[0].batch.BaseSequence, cl.open[0].tries)
		}
	}
	return ""
}

// mayBeLost: some replica's storage was lost or not in order, so that nobody may be left who can be trusted.
func (c *checker) mayBeLost(p *messages.Partition) bool {
	for _, r := range p.Replicas {
		if c.w.broker(r).lost {
			return true
		}
	}
	return false
}

// final reads all logs of partitions that have a leader.
func (c *checker) final() {
	for _, b := range c.w.brokers {
		for _, id := range b.order {
			p := c.truth.partitions[id]
			if p == nil || p.Leader != b.id {
				continue
			}
			log := map[messages.Offset]string{}
			for _, x := range b.disk.current[id].batches {
				for i, v := range valuesOf(c.w, x) {
					log[messages.Offset(x.BaseOffset)+messages.Offset(i)] = v
				}
			}
			c.compare(b, id, log)
		}
	}
}

func (c *checker) compare(b *broker, id messages.PartitionID, log map[messages.Offset]string) {
	seen := map[string]messages.Offset{}
	for at := messages.Offset(0); ; at++ {
		v, there := log[at]
		if !there {
			break
		}
		if first, twice := seen[v]; twice {
			c.w.violated("%q is at %d and at %d of %s", v, first, at, short(id))
		}
		seen[v] = at
	}
	missing := 0
	for at := messages.Offset(0); len(c.records[id]) > 0 && at <= c.highest(id); at++ {
		if k, there := c.records[id][at]; there && log[at] != k.value {
			if missing++; missing <= 3 {
				c.w.violated("record %d of %s was %q (acknowledged %v) and is %q on leader %s", at, short(id), k.value, k.acked, log[at], b.incarnation)
			}
		}
	}
}

func (c *checker) highest(id messages.PartitionID) (h messages.Offset) {
	for at := range c.records[id] {
		h = max(h, at)
	}
	return h
}

// settle waits until all is well, and says so if it never is.
func (c *checker) settle(end time.Duration) {
	what := "?"
	for what != "" && c.w.now < end {
		pause := c.w.now + time.Second
		for c.w.step(pause) {
		}
		c.w.now = max(c.w.now, pause)
		what = c.unwell()
	}
	if what != "" {
		c.w.violated("%v after everything was mended: %s", c.w.cfg.Quiet, what)
	}
}
