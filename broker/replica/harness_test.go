package replica

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// memory is a log as a storage would keep it.
type memory struct {
	batches []*pb.StoredBatch
	epochs  Epochs
	mark    messages.Offset
}

func (m *memory) end() messages.Offset {
	if len(m.batches) == 0 {
		return 0
	}
	return endOfBatch(m.batches[len(m.batches)-1])
}

func (m *memory) write(w Write) {
	if w.Epoch != nil {
		m.epochs = m.epochs.With(*w.Epoch)
	}
	for _, b := range w.Batches {
		if messages.Offset(b.BaseOffset) != m.end() {
			panic(fmt.Sprintf("a batch at %d behind %d", b.BaseOffset, m.end()))
		}
		m.epochs = m.epochs.With(EpochStart{Epoch: messages.LeaderEpoch(b.LeaderEpoch), Start: m.end()})
		m.batches = append(m.batches, b)
	}
	m.mark = max(m.mark, w.HighWatermark)
}

func (m *memory) truncate(to messages.Offset) {
	for len(m.batches) > 0 && m.end() > to {
		m.batches = m.batches[:len(m.batches)-1]
	}
	m.epochs = m.epochs.Truncated(m.end())
}

func (m *memory) state() LogState {
	p := NewProducers(nil)
	for _, b := range m.batches {
		p.Add(b)
	}
	return LogState{End: m.end(), HighWatermark: m.mark, Epochs: slices.Clone(m.epochs), Producers: p.States()}
}

func (m *memory) read(from, limit messages.Offset) (out []*pb.StoredBatch) {
	for _, b := range m.batches {
		if endOfBatch(b) > from && messages.Offset(b.BaseOffset) < limit {
			out = append(out, b)
		}
	}
	return out
}

// member is a replica with its log; actions that a test looks at gather in got.
type member struct {
	*Replica
	t    *testing.T
	log  memory
	now  time.Duration
	got  []Action
	hold bool // writes stay in the queue until release
	wait []Action
}

var testPartition = messages.PartitionID{Topic: messages.TopicID{1}, Index: 3}

func newMember(t *testing.T, id messages.BrokerID) *member {
	m := &member{t: t, now: time.Second}
	m.open(id)
	return m
}

func (m *member) open(id messages.BrokerID) {
	m.Replica = New(Config{Self: id, Partition: testPartition, Log: m.log.state()})
	m.wait = nil
}

// run carries out actions as a host would.
func (m *member) run(actions []Action) []Action {
	list := slices.Clone(actions)
	m.got = append(m.got, list...)
	for _, a := range list {
		switch a.(type) {
		case Write, Truncate:
			m.wait = append(m.wait, a)
		}
	}
	if !m.hold {
		m.release()
	}
	return list
}

func (m *member) release() {
	for len(m.wait) > 0 {
		a := m.wait[0]
		m.wait = m.wait[1:]
		switch a := a.(type) {
		case Write:
			m.log.write(a)
			m.run(m.Written(m.now, m.log.end(), nil))
		case Truncate:
			m.log.truncate(a.To)
			m.run(m.Truncated(m.now, m.log.state(), nil))
		}
	}
}

func (m *member) assign(a *pb.Assignment) { m.run(m.Assign(m.now, a, 10)) }

func (m *member) produce(t Ticket, acks pb.Acks, n int) {
	m.send(t, acks, &pb.RecordBatch{Records: records(n)})
}

func (m *member) send(t Ticket, acks pb.Acks, b *pb.RecordBatch) {
	m.t.Helper()
	sealed, err := Seal(b)
	if err != nil {
		m.t.Fatal(err)
	}
	m.run(m.Produce(m.now, Append{Batch: sealed, Acks: acks, Ticket: t}))
}

func records(n int) []*pb.LogRecord {
	out := make([]*pb.LogRecord, n)
	for i := range out {
		out[i] = &pb.LogRecord{Value: []byte{byte(i)}}
	}
	return out
}

// fetch makes one round of a follower with a leader, and returns the answer; nil if the follower does not fetch now.
func fetch(follower, leader *member) *pb.PartitionFetch {
	pos, ok := follower.Position(follower.now)
	if !ok {
		return nil
	}
	ans, acts := leader.Fetched(leader.now, follower.cfg.Self, follower.brokerEpoch, pos)
	leader.run(acts)
	if ans.Limit > ans.From {
		ans.Partition.Batches = leader.log.read(ans.From, ans.Limit)
	}
	follower.run(follower.FetchResult(follower.now, pos, ans.Partition))
	return ans.Partition
}

// sync fetches until nothing changes any more.
func syncUp(follower, leader *member) {
	for range 50 {
		before := follower.Status()
		fetch(follower, leader)
		if s := follower.Status(); s.LogEnd == before.LogEnd && s.HighWatermark == before.HighWatermark {
			return
		}
	}
	follower.t.Helper()
	follower.t.Fatalf("no end of fetching: %+v", follower.Status())
}

func assignment(leader messages.BrokerID, le, pe int64, isr ...string) *pb.Assignment {
	return &pb.Assignment{TopicId: testPartition.Topic.Bytes(), Partition: 3, Replicas: []string{"a", "b", "c"}, Isr: isr,
		Leader: string(leader), LeaderEpoch: le, PartitionEpoch: pe, MinIsr: 2, LeaderProven: true}
}

func trio(t *testing.T) (a, b, c *member) {
	return newMember(t, "a"), newMember(t, "b"), newMember(t, "c")
}

func assignAll(a *pb.Assignment, members ...*member) {
	for _, m := range members {
		m.assign(a)
	}
}

// take returns the actions of one kind that gathered, and forgets all.
func take[A Action](m *member) (out []A) {
	for _, a := range m.got {
		if x, ok := a.(A); ok {
			out = append(out, x)
		}
	}
	m.got = nil
	return out
}

func (m *member) wantMark(want messages.Offset) {
	m.t.Helper()
	if got := m.HighWatermark(); got != want {
		m.t.Fatalf("%s: the mark is %d, want %d", m.cfg.Self, got, want)
	}
}

func (m *member) wantEnd(want messages.Offset) {
	m.t.Helper()
	if got := m.Status().LogEnd; got != want || m.log.end() != want {
		m.t.Fatalf("%s: the log ends at %d (stored %d), want %d", m.cfg.Self, got, m.log.end(), want)
	}
}

func wantCode(t *testing.T, err *pb.Error, want messages.Code) {
	t.Helper()
	if messages.Code(err.GetCode()) != want {
		t.Fatalf("error %q (%s), want %q", err.GetCode(), err.GetMessage(), want)
	}
}

func members(p Propose) (out []string) {
	for _, m := range p.Proposal.Isr {
		out = append(out, m.Broker)
	}
	slices.Sort(out)
	return out
}
