package sim

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// broker is one broker: its disk lasts, all else is of one life.
type broker struct {
	process
	id   messages.BrokerID
	disk *disk
	// number is its place among the brokers; every third is in the same rack.
	number int
	lost   bool // some of what it acknowledged may be gone

	incarnation string
	connection  uint64
	epoch       messages.BrokerEpoch
	registered  bool
	seen        *pb.Seen
	feed        *pb.FeedPosition // nil until the first snapshot
	asking      bool             // a snapshot is under way
	term        leaseTerm        // of the last answer to a heartbeat
	covered     leaseTerm        // for which a snapshot has been applied
	askAgain    bool
	fenced      bool
	controller  uint64 // epoch of the last that answered a heartbeat
	leaseUntil  time.Duration
	stopping    bool
	dropped     map[messages.TopicID]bool // topics that were removed in this life

	replicas map[messages.PartitionID]*hosted
	order    []messages.PartitionID // of replicas
	fetchers map[messages.BrokerID]*fetcher
	parked   []*parkedFetch
	told     map[string]messages.Offset // last mark that a follower was told, by follower and partition
}

// boot starts the process.
func (b *broker) boot() {
	b.begin()
	w := b.w
	b.incarnation = fmt.Sprintf("%s-%d", b.id, b.life)
	w.result.Starts++
	w.count++
	b.connection = w.count
	b.epoch, b.registered, b.seen, b.feed = 0, false, &pb.Seen{}, nil
	b.controller, b.term, b.covered = 0, leaseTerm{}, leaseTerm{}
	b.asking, b.askAgain, b.fenced, b.leaseUntil, b.stopping = false, false, true, 0, false
	b.dropped = map[messages.TopicID]bool{}
	b.replicas, b.order = map[messages.PartitionID]*hosted{}, nil
	b.fetchers, b.parked, b.told = map[messages.BrokerID]*fetcher{}, nil, map[string]messages.Offset{}
	w.say("%s starts, storage %s clean %d", b.incarnation, b.disk.id, b.disk.clean)
	b.register()
	b.tick()
}

// die ends the process at once. The controller's NATS server may notice that the connection is closed.
func (b *broker) die(power bool) {
	if !b.up {
		return
	}
	w := b.w
	w.say("%s dies, power loss %v", b.incarnation, power)
	b.end()
	b.lost = b.lost || !b.disk.fsyncs // nobody but us knows whether anything is missing
	b.disk.stop(w, power)
	if w.chance(0.8) {
		b.disconnected(b.connection, true)
	}
}

func (b *broker) disconnected(connection uint64, abrupt bool) {
	for _, c := range b.w.controllers {
		b.w.after(b.w.between(time.Millisecond, 20*time.Millisecond), "disconnect "+b.name, func() {
			c.enter(c.life, func() {
				if c.term != nil {
					c.term.tell(actors.Registry, actors.Disconnected{Connection: &pb.Connection{ServerId: "s", ClientId: connection}, Abrupt: abrupt, Reason: "eof"})
				}
			})
		})
	}
}

// note takes over the position of an answer; false for an answer of a controller that has been succeeded.
func (b *broker) note(s *pb.Seen) bool {
	if s.GetControllerEpoch() < b.seen.GetControllerEpoch() {
		return false
	}
	if messages.SeenFromProto(b.seen).Before(messages.SeenFromProto(s)) {
		b.seen = s
	}
	return true
}

// tells is what a broker says that it has seen.
func (b *broker) tells() *pb.Seen {
	if b.w.cfg.Faults.ForgetSeen {
		return nil
	}
	return b.seen
}

func (b *broker) register() {
	q := &pb.RegisterRequest{Broker: string(b.id), Incarnation: b.incarnation, Storage: string(b.disk.id), Fsyncs: b.disk.fsyncs || b.disk.lies,
		CleanEpoch: uint64(b.disk.clean), MinProtocol: 1, MaxProtocol: 1, Seen: b.tells(), Version: "sim", Rack: fmt.Sprintf("r%d", b.number%3),
		Connection: &pb.Connection{ServerId: "s", ClientId: b.connection}}
	if b.disk.used {
		q.ClusterId = "sim-1"
	}
	b.w.ask(&b.process, "register", func(t *term, reply func(proto.Message)) {
		t.toRegistry(string(b.id), proto.Clone(q), reply)
	}, func(m proto.Message) {
		res, ok := m.(*pb.RegisterResponse)
		if !ok || res.GetError() != nil || !b.note(res.GetSeen()) {
			b.w.say("%s is not registered: %s", b.incarnation, res.GetError().GetCode())
			b.timer(b.w.between(50*time.Millisecond, 300*time.Millisecond), "register", b.register)
			return
		}
		b.epoch, b.registered = messages.BrokerEpoch(res.GetBrokerEpoch()), true
		b.disk.used, b.disk.clean = true, 0
		b.w.say("%s has epoch %d", b.incarnation, b.epoch)
		b.snapshot()
		b.heartbeat()
	})
}

// heartbeat is sent at its interval, whatever became of the one before.
func (b *broker) heartbeat() {
	sent := b.local()
	q := &pb.HeartbeatRequest{Broker: string(b.id), Incarnation: b.incarnation, BrokerEpoch: uint64(b.epoch), Feed: b.feed,
		Ready: b.feed != nil, WantsStop: b.stopping, Connection: &pb.Connection{ServerId: "s", ClientId: b.connection}, Seen: b.tells()}
	again := true
	b.w.ask(&b.process, "heartbeat", func(t *term, reply func(proto.Message)) {
		t.toRegistry(string(b.id), proto.Clone(q), reply)
	}, func(m proto.Message) {
		res, ok := m.(*pb.HeartbeatResponse)
		if !ok || !b.note(res.GetSeen()) {
			return
		}
		if res.GetError() != nil {
			if messages.Code(res.GetError().GetCode()) == messages.CodeStaleBrokerEpoch {
				b.w.say("%s is told that its epoch is stale and ends", b.incarnation)
				again = false
				b.die(false)
				b.w.after(200*time.Millisecond, "restart "+b.name, b.bootUnlessUp)
			}
			return
		}
		b.beat(sent, res)
	})
	b.timer(settings.Heartbeat, "heartbeat", func() {
		if again {
			b.heartbeat()
		}
	})
}

func (b *broker) bootUnlessUp() {
	if !b.up {
		b.boot()
	}
}

// leaseTerm names the stretch in which no leadership moves away from a broker without its knowing.
type leaseTerm struct{ controller, unfenced uint64 }

func (b *broker) beat(sent time.Duration, res *pb.HeartbeatResponse) {
	b.term = leaseTerm{res.GetSeen().GetControllerEpoch(), res.GetUnfenced()}
	if res.GetFenced() && !b.fenced || !res.GetFenced() && b.term != b.covered || res.GetSeen().GetControllerEpoch() > b.controller && b.feed != nil {
		b.snapshot() // what happened meanwhile may have been told in vain
	}
	b.fenced = res.GetFenced()
	b.controller = res.GetSeen().GetControllerEpoch()
	lease := time.Duration(res.GetLeaseMs()) * time.Millisecond
	if b.w.cfg.Faults.EndlessLease {
		lease *= 10
	}
	if (res.GetFenced() || b.stopping) && !b.w.cfg.Faults.EndlessLease {
		b.leaseUntil = 0
	} else if lease > 0 && (b.term == b.covered || b.w.cfg.Faults.EndlessLease || b.w.cfg.Faults.LeaseAtOnce) {
		b.leaseUntil = max(b.leaseUntil, sent+lease)
	}
	b.w.check.leases()
	if b.stopping && res.GetMayStop() {
		b.w.say("%s stops in order", b.incarnation)
		b.disk.clean = b.epoch
		b.disk.flush()
		b.end()
		b.disk.stop(b.w, false)
		b.disconnected(b.connection, false)
		b.w.after(b.w.between(100*time.Millisecond, 3*time.Second), "restart "+b.name, b.bootUnlessUp)
	}
}

// snapshot asks for all assignments; one request at a time.
func (b *broker) snapshot() {
	if b.asking || !b.registered {
		b.askAgain = b.registered
		return
	}
	b.asking, b.askAgain = true, false
	during := b.term
	q := &pb.SnapshotRequest{Broker: string(b.id), BrokerEpoch: uint64(b.epoch)}
	for _, p := range b.held() {
		if n := len(q.Held); n == 0 || string(q.Held[n-1].TopicId) != string(p.Topic.Bytes()) {
			q.Held = append(q.Held, &pb.HeldTopic{TopicId: p.Topic.Bytes()})
		}
		q.Held[len(q.Held)-1].Partitions = append(q.Held[len(q.Held)-1].Partitions, p.Index)
	}
	b.w.ask(&b.process, "snapshot", func(t *term, reply func(proto.Message)) { t.snapshot(q, reply) }, func(m proto.Message) {
		b.asking = false
		res, ok := m.(*pb.SnapshotResponse)
		if !ok || res.GetError() != nil || !b.note(res.GetSeen()) {
			b.timer(100*time.Millisecond, "snapshot again", b.snapshot)
			return
		}
		b.takeSnapshot(res)
		b.covered = during
		if b.askAgain {
			b.snapshot()
		}
	})
}

func (b *broker) takeSnapshot(res *pb.SnapshotResponse) {
	first := b.feed == nil
	b.feed = res.GetFeed()
	listed := map[messages.PartitionID]bool{}
	for _, a := range res.GetAssignments() {
		listed[partitionOf(a.GetTopicId(), a.GetPartition())] = true
		b.assign(a, first)
	}
	for _, r := range res.GetRemovals() {
		b.removal(r)
	}
	if b.w.cfg.Faults.DeleteUnlisted {
		for _, p := range b.held() {
			if !listed[p] {
				b.deleteReplica(p)
			}
		}
	}
	b.kickAll()
}

// held returns what the disk holds, in order.
func (b *broker) held() []messages.PartitionID {
	out := make([]messages.PartitionID, 0, len(b.disk.current))
	for p := range b.disk.current {
		out = append(out, p)
	}
	slices.SortFunc(out, comparePartitions)
	return out
}

// feedBatch takes a batch of the assignment feed.
func (b *broker) feedBatch(p actors.PublishAssignments, seen *pb.Seen) {
	if !b.registered || !b.note(seen) || b.feed == nil {
		return
	}
	content := len(p.Assignments) > 0 || len(p.Removals) > 0
	next := b.feed.GetPosition()
	if content {
		next++
	}
	switch {
	case uint64(p.Feed) != b.feed.GetFeed() || p.Position > next:
		b.snapshot()
	case p.Position == next:
		b.feed = &pb.FeedPosition{Feed: uint64(p.Feed), Position: p.Position}
	}
	for _, r := range p.Removals {
		b.removal(r)
	}
	for _, a := range p.Assignments {
		b.assign(a, false)
	}
	b.kickAll()
}

// removal carries out the order to delete a topic's data, and confirms it until the controller has heard.
func (b *broker) removal(r *pb.Removal) {
	topic, _ := messages.ParseTopicID(r.GetTopicId())
	b.dropped[topic] = true
	for _, p := range b.held() {
		if p.Topic == topic && int(p.Index) < len(r.GetPartitionEpochs()) {
			b.deleteReplica(p)
		}
	}
	b.confirmRemoval(topic)
}

func (b *broker) confirmRemoval(topic messages.TopicID) {
	q := &pb.RemovedRequest{Broker: string(b.id), BrokerEpoch: uint64(b.epoch), TopicIds: [][]byte{topic.Bytes()}}
	b.w.ask(&b.process, "removed", func(t *term, reply func(proto.Message)) {
		t.toRegistry(string(b.id), proto.Clone(q), reply)
	}, func(m proto.Message) {
		if res, ok := m.(*pb.RemovedResponse); !ok || res.GetError() != nil {
			b.timer(500*time.Millisecond, "removed again", func() { b.confirmRemoval(topic) })
		}
	})
}

func (b *broker) deleteReplica(p messages.PartitionID) {
	b.w.check.deleted(b, p)
	b.w.result.Deletions++
	b.w.say("%s deletes %s", b.incarnation, short(p))
	if h := b.replicas[p]; h != nil {
		b.failWaiting(h)
		delete(b.replicas, p)
		b.order = slices.DeleteFunc(b.order, func(x messages.PartitionID) bool { return x == p })
	}
	b.disk.remove(p)
}

func short(p messages.PartitionID) string { return fmt.Sprintf("%x/%d", p.Topic[:2], p.Index) }

// tick drives the clocks of the replicas.
func (b *broker) tick() {
	for _, p := range slices.Clone(b.order) {
		if h := b.replicas[p]; h != nil {
			b.run(h, h.r.Tick(b.local()))
			b.checkpoint(h)
		}
	}
	b.kickAll()
	if !b.disk.fsyncs && b.w.chance(0.2) {
		b.disk.flush()
	}
	b.timer(100*time.Millisecond, "tick", b.tick)
}

// valid reports whether this broker may do what must not be done by two leaders.
func (b *broker) valid() bool { return b.up && b.leaseUntil > b.local() }

// leased: the controller knows besides that it leads.
func (b *broker) leased(h *hosted) bool { return h.r.Confirmed() && b.valid() }
