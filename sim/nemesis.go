package sim

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// nemesis makes things go wrong, one after the other and often several at a time, until the end of the chaos.
func (w *world) nemesis(until time.Duration) {
	if w.now >= until {
		return
	}
	w.misfortune()
	w.after(w.between(200*time.Millisecond, 4*time.Second), "nemesis", func() { w.nemesis(until) })
}

func (w *world) misfortune() {
	b := w.brokers[w.rng.IntN(len(w.brokers))]
	switch w.rng.IntN(20) {
	case 0, 1, 2:
		w.killAndRestart(b, w.chance(0.5))
	case 3:
		if w.chance(0.4) {
			w.wipe(b)
		}
	case 4:
		if b.up && !b.paused {
			w.say("%s is to stop in order", b.incarnation)
			b.stopping, b.leaseUntil = true, 0 // leaderships move while it is still heard
		}
	case 5:
		w.pause(&b.process, w.between(100*time.Millisecond, 5*time.Second))
	case 6:
		w.cutFor(b.name, w.someController().name, w.between(200*time.Millisecond, 6*time.Second))
	case 7, 8:
		w.cutFor(b.name, w.brokers[w.rng.IntN(len(w.brokers))].name, w.between(200*time.Millisecond, 8*time.Second))
	case 9:
		w.isolate(b, w.between(200*time.Millisecond, 6*time.Second))
	case 10, 11, 12, 13:
		w.troubleController(w.someController())
	case 14:
		w.store.stall = w.now + w.between(100*time.Millisecond, 3*time.Second)
		w.say("the store stalls until %v", w.store.stall)
	case 15:
		w.store.spoil()
	case 16:
		b.disk.slow = w.now + w.between(100*time.Millisecond, 4*time.Second)
		w.say("the disk of %s is slow until %v", b.name, b.disk.slow)
	case 17:
		w.operate()
	case 18, 19:
		w.split(w.between(500*time.Millisecond, 9*time.Second))
	}
}

func (w *world) killAndRestart(b *broker, power bool) {
	if !b.up {
		return
	}
	b.die(power)
	w.after(w.between(20*time.Millisecond, 6*time.Second), "restart "+b.name, b.bootUnlessUp)
}

// wipe replaces a broker's disk.
func (w *world) wipe(b *broker) {
	if b.up {
		b.die(true)
	}
	w.disks++
	b.lost = true
	b.disk = newDisk(fmt.Sprintf("disk-%d", w.disks), b.disk.fsyncs)
	w.say("%s gets a new disk", b.name)
	w.after(w.between(100*time.Millisecond, 6*time.Second), "restart "+b.name, b.bootUnlessUp)
}

func (w *world) pause(p *process, d time.Duration) {
	if !p.up || p.paused {
		return
	}
	w.say("%s pauses for %v", p.name, d)
	p.paused = true
	life := p.life
	w.after(d, "resume "+p.name, func() {
		if p.life == life {
			p.resume()
		}
	})
}

func (w *world) cutFor(a, b string, d time.Duration) {
	both := w.chance(0.7)
	w.say("%s is cut from %s for %v, both ways %v", a, b, d, both)
	change := func(by int) {
		w.net.block(a, b, by)
		if both {
			w.net.block(b, a, by)
		}
	}
	change(1)
	w.after(d, "mend", func() { change(-1) })
}

func (w *world) isolate(b *broker, d time.Duration) {
	for _, x := range w.brokers {
		if x != b {
			w.cutFor(b.name, x.name, d)
		}
	}
	for _, c := range w.controllers {
		w.cutFor(b.name, c.name, d)
	}
}

// operate does what operators and the placer do.
func (w *world) operate() {
	switch w.rng.IntN(3) {
	case 0:
		w.createTopic()
	case 1:
		if len(w.topics) > 1 {
			name := w.topics[0]
			w.topics = w.topics[1:]
			w.say("topic %s is to be deleted", name)
			w.ask(&w.operator, "delete", func(t *term, reply func(proto.Message)) {
				t.toRegistry("op", &pb.DeleteTopicRequest{Name: name}, reply)
			}, func(proto.Message) {})
		}
	default:
		w.preferSomebody()
	}
}

func (w *world) preferSomebody() {
	c := w.active()
	if c == nil || c.paused {
		return
	}
	var all []*messages.Partition
	c.catalog.Partitions(func(_ *messages.Topic, p *messages.Partition) bool {
		all = append(all, p)
		return true
	})
	if len(all) > 0 {
		p := all[w.rng.IntN(len(all))]
		c.term.tell(actors.Partition(p.ID), actors.PreferLeader{To: p.Replicas[w.rng.IntN(len(p.Replicas))], Reason: "sim"})
	}
}

// createTopic makes a topic of a few partitions with clients that use it.
func (w *world) createTopic() {
	if w.made >= maxTopics {
		return
	}
	w.made++
	name := fmt.Sprintf("t%d", w.made)
	q := &pb.CreateTopicRequest{Name: name, MinIsr: uint32(1 + w.rng.IntN(2))}
	n := 1 + w.rng.IntN(3)
	if w.chance(0.5) {
		q.Partitions, q.ReplicationFactor = uint32(n), 3
		n = 0
	}
	for range n { // by hand
		var list pb.ReplicaList
		for _, i := range w.rng.Perm(len(w.brokers))[:3] {
			list.Brokers = append(list.Brokers, string(w.brokers[i].id))
		}
		q.Assignment = append(q.Assignment, &list)
	}
	w.requestTopic(q, 0)
}

func (w *world) requestTopic(q *pb.CreateTopicRequest, tries int) {
	w.ask(&w.operator, "create", func(t *term, reply func(proto.Message)) {
		t.toRegistry("op", proto.Clone(q), reply)
	}, func(m proto.Message) {
		res, ok := m.(*pb.CreateTopicResponse)
		if !ok || res.GetError() != nil {
			w.say("topic %s: %s", q.Name, res.GetError().GetCode())
			if code := messages.Code(res.GetError().GetCode()); tries < 20 && code != messages.CodeTopicExists {
				w.operator.timer(300*time.Millisecond, "create again", func() { w.requestTopic(q, tries+1) })
			}
			return
		}
		w.topics = append(w.topics, q.Name)
		w.say("topic %s is %x", q.Name, res.GetTopicId()[:2])
		for i := range res.GetPartitions() {
			w.use(partitionOf(res.GetTopicId(), int32(i)))
		}
	})
}

const maxTopics = 6

// use starts clients of a partition.
func (w *world) use(p messages.PartitionID) {
	for i := range 2 {
		c := &client{process: process{w: w, name: fmt.Sprintf("c%d", len(w.clients)+1)}, partition: p, acks: pb.Acks_ACKS_ALL, window: 1 + w.rng.IntN(4)}
		if i == 1 && w.chance(0.4) {
			c.acks = pb.Acks_ACKS_LEADER
		}
		w.clients = append(w.clients, c)
		c.start()
	}
}

// mend ends everything that is wrong.
func (w *world) mend() {
	w.say("everything is mended")
	w.net.cut = map[[2]string]int{}
	w.net.loss, w.net.dup, w.net.slow = 0, 0, 0
	w.store.stall, w.store.lossy = 0, 0
	for _, c := range w.controllers {
		c.resume()
		c.bootUnlessUp()
	}
	for _, b := range w.brokers {
		b.resume()
		b.disk.slow = 0
		b.bootUnlessUp()
	}
	for _, c := range w.clients {
		c.idle = true
	}
}
