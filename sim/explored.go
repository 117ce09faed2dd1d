package sim

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/broker/replica"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

var ctxNone = context.Background()

// proposalPause is longer than any pause between two proposals.
const proposalPause = 9 * time.Second

// explored is a broker of an exploration, with one replica.
type explored struct {
	w           *model
	id          messages.BrokerID
	up          bool
	life        int
	epoch       messages.BrokerEpoch // 0 while it is not registered
	registering bool
	seen        messages.ControllerEpoch
	now         time.Duration
	disk        *diskLog
	r           *replica.Replica // nil until the first assignment
	fetching    bool
	proposed    uint64 // the proposal that waits for an answer, 0 for none
	tickets     replica.Ticket
	parked      []*parkedFetch
	told        map[messages.BrokerID]messages.Offset
}

func (b *explored) incarnation() string { return fmt.Sprintf("%s-%d", b.id, b.life) }
func (b *explored) leads() bool         { return b.r != nil && b.r.Role() == replica.RoleLeader }

func (b *explored) crash() {
	b.up, b.r, b.epoch, b.registering, b.fetching, b.proposed, b.parked = false, nil, 0, false, false, 0, nil
	b.seen = 0
	b.w.drop(string(b.id))
	for _, o := range b.w.brokers {
		if o.r != nil && o.r.Leader() == b.id {
			o.fetching = false
		}
	}
}

func (b *explored) start() {
	b.life++
	b.up, b.told = true, map[messages.BrokerID]messages.Offset{}
	for _, o := range b.w.brokers {
		if o.r != nil && o.r.Leader() == b.id {
			o.fetching = false
		}
	}
}

func (b *explored) register(c *contender) {
	b.registering = true
	life := b.life
	q := &pb.RegisterRequest{Broker: string(b.id), Incarnation: b.incarnation(), Storage: "disk-" + string(b.id), Fsyncs: true,
		MinProtocol: 1, MaxProtocol: 1, Seen: &pb.Seen{}, Version: "sim", ClusterId: "sim-1"}
	c.request(actors.Registry, func(id actors.RequestID) actors.Message {
		return actors.Request{ID: id, Principal: string(b.id), Body: q}
	}, func(m proto.Message) {
		b.w.send(wired{label: fmt.Sprintf("%s answers the registration of %s", c.name, b.id), to: string(b.id), life: life, body: m, arrive: func() {
			b.registering = false
			if res, ok := m.(*pb.RegisterResponse); ok && res.GetError() == nil && b.note(messages.ControllerEpoch(res.GetSeen().GetControllerEpoch())) {
				b.epoch = messages.BrokerEpoch(res.GetBrokerEpoch())
				c.snapshot(b)
			}
		}})
	})
}

// note follows the latest controller.
func (b *explored) note(e messages.ControllerEpoch) bool {
	if e < b.seen {
		return false
	}
	b.seen = e
	return true
}

// assigned takes an assignment.
func (b *explored) assigned(from messages.ControllerEpoch, a *pb.Assignment) {
	if b.epoch == 0 || !b.note(from) {
		return
	}
	if b.r == nil {
		b.open(true)
	}
	b.run(b.r.Assign(b.now, a, b.epoch))
	b.wake()
}

func (b *explored) open(first bool) {
	b.r = replica.New(replica.Config{Self: b.id, Partition: thePartition, Log: b.disk.state(), ReplicaLag: settings.ReplicaLag,
		Checkpoint: time.Hour, FirstSnapshot: first})
}

// run carries out actions; the disk is as fast as memory and loses nothing.
func (b *explored) run(actions []replica.Action) {
	for _, a := range slices.Clone(actions) {
		switch a := a.(type) {
		case replica.Write:
			b.write(a)
			b.run(b.r.Written(b.now, b.disk.end(), nil))
		case replica.Truncate:
			truncateLog(b.disk, a.To)
			b.run(b.r.Truncated(b.now, b.disk.state(), nil))
		case replica.Ack:
			b.acknowledged(a)
		case replica.Propose:
			b.propose(a)
		case replica.Report:
			b.report(a.Report)
		case replica.RequestSnapshot:
			for _, c := range b.w.controllers {
				b.ask(c, "a snapshot", nil, func() {
					if c.active {
						c.snapshot(b)
					}
				})
			}
		case replica.Faulted:
			b.w.bad("%s has stopped: %v", b.id, a.Err)
		}
	}
	b.look()
	b.wake()
}

// look checks what a leader holds when it begins to lead.
func (b *explored) look() {
	if !b.leads() {
		return
	}
	epoch := b.r.LeaderEpoch()
	who := b.incarnation()
	if was, there := b.w.ledBy[epoch]; there {
		if was != who {
			b.w.bad("%s and %s lead in leader epoch %d", was, who, epoch)
		}
		return
	}
	b.w.ledBy[epoch] = who
	for at, v := range b.w.acked {
		if got := b.valueAt(at); got != v {
			b.w.bad("%s leads in epoch %d, and record %d, which was acknowledged as %q, is %q there", who, epoch, at, v, got)
		}
	}
}

func (b *explored) valueAt(at messages.Offset) string {
	for _, x := range b.disk.read(at, b.disk.end(), 1) {
		var body pb.RecordBatch
		if proto.Unmarshal(x.GetBody(), &body) == nil && messages.Offset(x.GetBaseOffset()) == at {
			return string(body.GetRecords()[0].GetValue())
		}
	}
	return ""
}

func (b *explored) write(a replica.Write) { writeLog(b.disk, a) }

// produce appends one record that wants to be acknowledged by the whole ISR.
func (b *explored) produce() {
	n := b.w.used.Produced
	batch, err := replica.Seal(&pb.RecordBatch{ProducerId: uint64(n), Records: []*pb.LogRecord{{Value: fmt.Appendf(nil, "p%d", n)}}})
	if err != nil {
		b.w.bad("%v", err)
		return
	}
	b.tickets++
	b.run(b.r.Produce(b.now, replica.Append{Batch: batch, Acks: pb.Acks_ACKS_ALL, Ticket: b.tickets}))
}

// acknowledged checks that every member of the stored ISR has the record.
func (b *explored) acknowledged(a replica.Ack) {
	v := b.valueAt(a.BaseOffset)
	b.w.check.follow()
	p := b.w.check.truth.partitions[thePartition]
	for _, id := range p.ISR {
		if m := b.w.broker(id); m.valueAt(a.BaseOffset) != v {
			b.w.bad("%s acknowledges record %d, which ISR member %s does not have", b.incarnation(), a.BaseOffset, id)
		}
	}
	if was, there := b.w.acked[a.BaseOffset]; there && was != v {
		b.w.bad("record %d was acknowledged as %q and now as %q", a.BaseOffset, was, v)
	}
	b.w.acked[a.BaseOffset] = v
}

func (w *model) broker(id messages.BrokerID) *explored {
	for _, b := range w.brokers {
		if b.id == id {
			return b
		}
	}
	return nil
}

// ask puts a request on its way to a controller.
func (b *explored) ask(c *contender, what string, body any, arrive func()) {
	b.w.send(wired{label: fmt.Sprintf("%s asks %s for %s", b.id, c.name, what), to: c.name, life: -1, body: []any{b.life, body}, arrive: arrive})
}

func (b *explored) propose(a replica.Propose) {
	b.proposed = a.ID
	life, epoch := b.life, b.epoch
	for _, c := range b.w.controllers {
		b.ask(c, "an ISR", []any{a.ID, epoch, a.Proposal}, func() {
			c.request(actors.Partition(thePartition), func(id actors.RequestID) actors.Message {
				return actors.ISRProposal{Request: id, Broker: b.id, BrokerEpoch: epoch, Proposal: a.Proposal}
			}, func(m proto.Message) {
				b.w.send(wired{label: fmt.Sprintf("%s answers the proposal of %s", c.name, b.id), to: string(b.id), life: life, body: []any{a.ID, m},
					arrive: func() { b.answered(a.ID, m.(*pb.IsrResult)) }})
			})
		})
	}
}

// answered takes the first answer to a proposal.
func (b *explored) answered(id uint64, m *pb.IsrResult) {
	if b.r == nil || b.proposed != id {
		return
	}
	b.proposed = 0
	if f := b.w.e.Faults; f.TrustRefusals && messages.Code(m.GetError().GetCode()) == messages.CodeIneligibleReplica {
		b.forget(id)
		return
	}
	b.run(b.r.ProposalAnswer(b.now, id, m))
}

// forget has the leader go on as if it had never proposed, by an answer that says that a renewal was accepted.
func (b *explored) forget(id uint64) {
	s := b.r.Status()
	b.run(b.r.ProposalAnswer(b.now, id, &pb.IsrResult{Current: &pb.Assignment{TopicId: thePartition.Topic.Bytes(), Leader: string(s.Leader),
		LeaderEpoch: int64(s.LeaderEpoch), PartitionEpoch: int64(s.PartitionEpoch) + 1, Isr: messages.BrokerStrings(s.ISR),
		Replicas: messages.BrokerStrings(b.w.check.truth.partitions[thePartition].Replicas), MinIsr: 1, LeaderProven: true}}))
}

func (b *explored) giveUp() {
	id := b.proposed
	b.proposed = 0
	b.run(b.r.ProposalAnswer(b.now, id, nil))
}

func (b *explored) report(r *pb.LeaderReport) {
	life, epoch := b.life, b.epoch
	for _, c := range b.w.controllers {
		b.ask(c, "its leadership", []any{epoch, r}, func() {
			c.request(actors.Partition(thePartition), func(id actors.RequestID) actors.Message {
				return actors.LeaderReport{Request: id, Broker: b.id, BrokerEpoch: epoch, Report: r}
			}, func(m proto.Message) {
				a := m.(*pb.IsrResult).GetCurrent()
				if a != nil {
					from := c.epoch
					b.w.send(wired{label: fmt.Sprintf("%s answers the report of %s", c.name, b.id), to: string(b.id), life: life, body: []any{from, a},
						arrive: func() { b.assigned(from, a) }})
				}
			})
		})
	}
}

// pass lets time pass for this broker alone.
func (b *explored) pass(d time.Duration) {
	b.now += d
	b.run(b.r.Tick(b.now))
}

// fetch asks the leader, unless that is down or asked already. Pauses between two requests take no time.
func (b *explored) fetch() {
	if !b.up || b.r == nil || b.fetching {
		return
	}
	l := b.w.broker(b.r.Leader())
	pos, ok := b.r.Position(b.now + time.Minute)
	if l == nil || !l.up || !ok {
		return
	}
	b.fetching = true
	q := &parkedFetch{follower: b.id, epoch: b.epoch, positions: []*pb.FetchPosition{pos}}
	life := b.life
	q.reply = func(answers []*pb.PartitionFetch) {
		b.w.send(wired{label: fmt.Sprintf("%s answers the fetch of %s", l.id, b.id), to: string(b.id), life: life, body: answers, arrive: func() {
			b.fetching = false
			if b.r != nil {
				b.run(b.r.FetchResult(b.now+time.Minute, pos, answers[0]))
			}
		}})
	}
	b.w.send(wired{label: fmt.Sprintf("%s fetches from %s", b.id, l.id), to: string(l.id), life: l.life, body: []any{q.epoch, pos}, arrive: func() { l.fetched(q) }})
}

// fetched answers a follower, at once if there is something to tell.
func (b *explored) fetched(q *parkedFetch) {
	if !b.answer(q) {
		b.parked = append(b.parked, q)
	}
}

func (b *explored) wake() {
	parked := b.parked
	b.parked = nil
	for _, q := range parked {
		b.fetched(q)
	}
}

func (b *explored) answer(q *parkedFetch) bool {
	a := &pb.PartitionFetch{Error: messages.Errorf(messages.CodeUnknownLeaderEpoch, "no replica here").Proto()}
	if b.r != nil {
		ans, acts := b.r.Fetched(b.now, q.follower, q.epoch, q.positions[0])
		list := slices.Clone(acts)
		a = ans.Partition
		if ans.Limit > ans.From {
			a.Batches = b.disk.read(ans.From, ans.Limit, 100)
		}
		if len(list) > 0 {
			q.done = true
			b.run(list)
		}
	}
	if a.GetError() == nil && !a.GetDiverging() && len(a.GetBatches()) == 0 && messages.Offset(a.GetHighWatermark()) <= b.told[q.follower] {
		return false
	}
	if a.GetError() == nil && !a.GetDiverging() {
		b.told[q.follower] = messages.Offset(a.GetHighWatermark())
	}
	q.reply([]*pb.PartitionFetch{a})
	return true
}
