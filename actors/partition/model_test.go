package partition

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// The model: one partition with the machine under test, a registry reduced to its rules, and brokers reduced to their
// logs. A log is a list of record numbers, each of them written once. A leader counts a record as committed when every
// member of its maximal ISR has it, and not while the ISR it knows is below the min ISR it knows. Orders, answers and
// requests are late or lost, brokers die with or without their logs, the controller dies with what it had in its mailbox.
type model struct {
	*testing.T
	random    *rand.Rand
	trace     []string
	c         *cluster
	s         *State
	now       time.Duration
	wakes     []actors.Wake
	mailbox   []actors.Message
	brokers   map[messages.BrokerID]*modelBroker
	records   int
	committed []int
	elections int
}

// modelBroker is one broker process and its disk.
type modelBroker struct {
	id    messages.BrokerID
	log   []int
	lossy bool // the disk has lost something that this registration does not tell yet

	up     bool
	active bool // unfenced in this registration, as far as it knows; before that it acts on no assignment
	epoch  messages.BrokerEpoch
	inbox  []*pb.Assignment
	view   *pb.Assignment
	leads  *modelLeader
}

// modelLeader is what a leader keeps for one leader epoch.
type modelLeader struct {
	mark     int
	start    int
	progress map[messages.BrokerID]modelProgress
	pending  []messages.BrokerID
	adopted  messages.PartitionEpoch // of the view when pending was proposed
}

type modelProgress struct {
	end   int
	epoch messages.BrokerEpoch
}

// upTo draws 0 to n-1.
func (m *model) upTo(n int) int { return m.random.IntN(n) }

func newModel(t *testing.T, seed uint64) *model {
	m := &model{T: t, random: rand.New(rand.NewPCG(seed, 0)), brokers: map[messages.BrokerID]*modelBroker{}}
	n := 1 + m.upTo(4)
	ids := someBrokers[:n]
	p := &messages.Partition{ID: testID, Replicas: ids, ISR: ids, Leader: ids[0], MinISR: 1 + m.upTo(3)}
	m.c = newCluster(p, ids...)
	m.c.topic.MinISR = p.MinISR
	for _, id := range ids {
		m.brokers[id] = &modelBroker{id: id, up: true, active: true, epoch: 5}
	}
	m.activate()
	return m
}

func (m *model) activate() {
	s, err := Machine{}.Load(m.c.env(m.now), actors.Partition(testID))
	if err != nil {
		m.fail("%v", err)
	}
	m.s, m.wakes = s, nil
	m.step(actors.Activated{})
}

// step lets the machine decide. What it commits is checked, what it sends goes on its way.
func (m *model) step(msg actors.Message) {
	before := m.s.Partition()
	var fx actors.Effects
	m.s, fx = Machine{}.Step(m.c.env(m.now), m.s, msg)
	if err := checkStep(m.c, before, m.s, fx); err != nil {
		m.fail("%T %+v: %v", msg, msg, err)
	}
	m.c.apply(fx.Records)
	after := m.s.Partition()
	m.trace = append(m.trace, fmt.Sprintf("%T %+v: %s", msg, msg, printPartition(after)))
	if b := m.brokers[after.Leader]; b != nil && after.LeaderEpoch != before.LeaderEpoch {
		m.elections++
		if !b.lossy {
			m.holdsCommitted(b, "was elected")
		}
	}
	for _, tell := range fx.Tells {
		if b := m.brokers[tell.To.Broker]; b.up {
			b.inbox = append(b.inbox, tell.Msg.(actors.Assign).Assignment)
		}
	}
	m.wakes = append(m.wakes, fx.Wakes...)
	for _, r := range fx.Replies {
		if leader := m.brokers[proposer(msg)]; leader != nil && m.upTo(2) == 0 {
			m.answered(leader, r.Body.(*pb.IsrResult))
		}
	}
}

func proposer(msg actors.Message) messages.BrokerID {
	if p, ok := msg.(actors.ISRProposal); ok {
		return p.Broker
	}
	return ""
}

// holdsCommitted is the point of it all.
func (m *model) holdsCommitted(b *modelBroker, what string) {
	if len(b.log) < len(m.committed) || !slices.Equal(b.log[:len(m.committed)], m.committed) {
		m.fail("broker %s %s with the log %v, committed is %v", b.id, what, b.log, m.committed)
	}
}

// adopt is a broker taking in a newer state of the partition. A new leader checks the floor and reports.
func (m *model) adopt(b *modelBroker, a *pb.Assignment) {
	if a == nil || b.view != nil && (a.LeaderEpoch < b.view.LeaderEpoch || a.PartitionEpoch <= b.view.PartitionEpoch) {
		return
	}
	stint := b.view == nil || a.LeaderEpoch > b.view.LeaderEpoch
	b.view = a
	if l := b.leads; l != nil && !stint && messages.PartitionEpoch(a.PartitionEpoch) > l.adopted {
		l.pending = nil
	}
	if !stint {
		return
	}
	b.leads = nil
	if messages.BrokerID(a.Leader) != b.id {
		return
	}
	end := len(b.log)
	report := &pb.LeaderReport{LeaderEpoch: a.LeaderEpoch, LogEnd: int64(end), HighWatermark: min(a.Floor, int64(end)), Declined: int64(end) < a.Floor}
	if !report.Declined {
		if messages.LeaderEpoch(a.LeaderEpoch) == m.c.record.LeaderEpoch {
			m.holdsCommitted(b, "serves") // one of the past finds no followers, and commits nothing
		}
		b.leads = &modelLeader{mark: int(a.Floor), start: end, progress: map[messages.BrokerID]modelProgress{}}
	}
	m.mailbox = append(m.mailbox, actors.LeaderReport{Broker: b.id, BrokerEpoch: b.epoch, Report: report})
}

// answered is a leader hearing of its proposal. A refusal ends what was pending; a success takes effect.
func (m *model) answered(b *modelBroker, r *pb.IsrResult) {
	if b.leads == nil || !b.up {
		return
	}
	if r.Error != nil && r.Error.Code == string(messages.CodeIneligibleReplica) {
		b.leads.pending = nil
	}
	m.adopt(b, r.Current)
}

// fetch is one round of a follower: it cuts its log to what it shares with the leader, says where it stands, and gets
// some of what follows.
func (m *model) fetch(f, l *modelBroker) {
	if !f.active || l.leads == nil || f.view == nil || f.view.LeaderEpoch != l.view.LeaderEpoch || f == l {
		return
	}
	shared := 0
	for shared < len(f.log) && shared < len(l.log) && f.log[shared] == l.log[shared] {
		shared++
	}
	f.log = f.log[:shared]
	l.leads.progress[f.id] = modelProgress{end: shared, epoch: f.epoch}
	take := m.upTo(len(l.log) - shared + 1)
	f.log = append(slices.Clone(f.log), l.log[shared:shared+take]...)
}

// advance moves a leader's mark as far as its maximal ISR reaches.
func (m *model) advance(l *modelBroker) {
	if l.leads == nil || len(l.view.Isr) < int(l.view.MinIsr) {
		return
	}
	mark := len(l.log)
	for _, b := range append(messages.BrokerIDs(l.view.Isr), l.leads.pending...) {
		if b != l.id {
			mark = min(mark, l.leads.progress[b].end)
		}
	}
	l.leads.mark = max(l.leads.mark, mark)
	for i := range mark {
		switch {
		case i == len(m.committed):
			m.committed = append(m.committed, l.log[i])
		case m.committed[i] != l.log[i]:
			m.fail("leader %s of epoch %d commits record %d at offset %d, where %d was committed", l.id, l.view.LeaderEpoch,
				l.log[i], i, m.committed[i])
		}
	}
}

// propose is a leader asking for an ISR of those that it has seen at its mark, or of fewer.
func (m *model) propose(l *modelBroker) {
	if l.leads == nil {
		return
	}
	members := []*pb.IsrMember{{Broker: string(l.id), BrokerEpoch: uint64(l.epoch)}}
	for _, b := range messages.BrokerIDs(l.view.Replicas) {
		at := l.leads.progress[b]
		joins := at.end >= l.leads.mark && at.end >= l.leads.start && at.epoch != 0
		if b != l.id && joins && m.upTo(2) == 0 {
			members = append(members, &pb.IsrMember{Broker: string(b), BrokerEpoch: uint64(at.epoch)})
			l.leads.pending = append(l.leads.pending, b)
		}
	}
	l.leads.adopted = messages.PartitionEpoch(l.view.PartitionEpoch)
	m.mailbox = append(m.mailbox, actors.ISRProposal{Request: 1, Broker: l.id, BrokerEpoch: l.epoch, Proposal: &pb.IsrProposal{
		LeaderEpoch: l.view.LeaderEpoch, PartitionEpoch: l.view.PartitionEpoch, Isr: members, HighWatermark: int64(l.leads.mark)}})
}

// die ends a process, with or without the end of its log.
func (m *model) die(b *modelBroker) {
	b.up, b.active, b.view, b.leads, b.inbox = false, false, nil, nil, nil
	if m.upTo(4) == 0 {
		b.log = b.log[:m.upTo(len(b.log)+1)]
		b.lossy = true
	}
}

// start registers a new process; the registry tells partitions what it thinks of the disk.
func (m *model) start(b *modelBroker) {
	suspect := b.lossy || m.c.brokers[b.id].Suspect
	b.up, b.lossy = true, false
	b.epoch = m.c.register(b.id, suspect)
	m.tellOf(b.id)
}

func (m *model) tellOf(b messages.BrokerID) {
	if known := m.c.brokers[b]; known.Suspect {
		m.mailbox = append(m.mailbox, actors.BrokerRestarted{Broker: b, Epoch: known.Epoch})
	} else {
		m.mailbox = append(m.mailbox, actors.BrokerChanged{Broker: b})
	}
}

// unfence follows the registry's rule: a suspect broker first leaves every ISR and eligible set, and nobody starts as the
// leader that an earlier process was.
func (m *model) unfence(b *modelBroker) {
	known, p := m.c.brokers[b.id], m.c.record
	if !b.up || !known.Fenced || b.epoch != known.Epoch || p.Leader == b.id ||
		known.Suspect && (slices.Contains(p.ISR, b.id) || slices.Contains(p.Eligible, b.id)) {
		return
	}
	m.c.set(b.id, func(r *messages.Broker) { r.Fenced, r.Stopping, r.Suspect = false, false, false })
	m.tellOf(b.id)
	b.active = true
	m.adopt(b, messages.AssignmentOf(m.c.topic.Name, p))
}

func (m *model) pick() *modelBroker {
	return m.brokers[m.c.record.Replicas[m.upTo(len(m.c.record.Replicas))]]
}

// act does one random thing; the numbers are how often in a hundred.
func (m *model) act() {
	b := m.pick()
	switch n := m.upTo(100); {
	case n < 25:
		if len(m.mailbox) > 0 {
			msg := m.mailbox[0]
			m.mailbox = m.mailbox[1:]
			m.step(msg)
		}
	case n < 40:
		if b.active && len(b.inbox) > 0 {
			a := b.inbox[0]
			b.inbox = b.inbox[1:]
			m.adopt(b, a)
		}
	case n < 50:
		if b.leads != nil {
			m.records++
			b.log = append(slices.Clone(b.log), m.records)
		}
	case n < 75:
		m.fetch(b, m.pick())
	case n < 85:
		m.advance(b)
	case n < 89:
		m.propose(b)
	case n < 91:
		m.checkpoint(b)
	case n < 97:
		m.heal(b)
	case n < 99:
		m.disturb(b)
	default:
		m.disturbController(b)
	}
}

func (m *model) checkpoint(b *modelBroker) {
	if l := b.leads; l != nil {
		m.mailbox = append(m.mailbox, actors.OffsetReport{Broker: b.id, BrokerEpoch: b.epoch, Report: &pb.OffsetReport{
			LeaderEpoch: b.view.LeaderEpoch, HighWatermark: int64(l.mark), LogEnd: int64(len(b.log))}})
	}
}

func (m *model) heal(b *modelBroker) {
	if b.up {
		m.unfence(b)
	} else {
		m.start(b)
	}
}

// disturb fences a broker that may well be alive, begins a controlled stop, or ends a process.
func (m *model) disturb(b *modelBroker) {
	switch m.upTo(4) {
	case 0:
		m.c.set(b.id, func(r *messages.Broker) { r.Fenced = true })
		m.tellOf(b.id)
	case 1:
		m.c.set(b.id, func(r *messages.Broker) { r.Stopping = true })
		m.tellOf(b.id)
	default:
		if b.up {
			m.die(b)
		}
	}
}

func (m *model) disturbController(b *modelBroker) {
	switch m.upTo(4) {
	case 0: // dies with its mailbox; the registry speaks of suspects again, brokers take a snapshot
		m.mailbox = nil
		m.activate()
		for _, id := range m.c.record.Replicas {
			if m.c.brokers[id].Suspect {
				m.tellOf(id)
			}
			if other := m.brokers[id]; other.active {
				other.inbox = append(other.inbox, messages.AssignmentOf(m.c.topic.Name, m.c.record))
			}
		}
	case 1:
		if len(m.wakes) > 0 {
			m.now += m.wakes[0].After
			m.mailbox = append(m.mailbox, m.wakes[0].Msg)
			m.wakes = m.wakes[1:]
		}
	case 2:
		m.mailbox = append(m.mailbox, actors.PreferLeader{To: b.id})
	case 3:
		topic := *m.c.topic
		topic.MinISR = 1 + m.upTo(3)
		m.c.topic = &topic
	}
}

// fail ends the test with what the machine was told and decided last.
func (m *model) fail(format string, args ...any) {
	m.Helper()
	for _, line := range m.trace[max(0, len(m.trace)-20):] {
		m.Log(line)
	}
	m.Fatalf(format, args...)
}

var seeds = flag.Uint64("seeds", 1000, "how many random histories the model runs")

// TestWhoeverIsElectedHoldsEverythingCommitted is the promise of the design, in a model of logs.
func TestWhoeverIsElectedHoldsEverythingCommitted(t *testing.T) {
	var elections, committed int
	for seed := range *seeds {
		m := newModel(t, seed)
		m.trace = append(m.trace, fmt.Sprintf("seed %d", seed))
		for range 600 {
			m.act()
		}
		elections += m.elections
		committed += len(m.committed)
	}
	t.Logf("%d elections, %d records committed", elections, committed)
	if elections < int(*seeds) || committed < int(*seeds) {
		t.Fatal("the model shows too little")
	}
}
