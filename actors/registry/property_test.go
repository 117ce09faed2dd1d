package registry

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// observer checks what must hold of every step, whatever is asked.
type observer struct {
	t       *rapid.T
	w       *world
	open    map[actors.RequestID]string // requests without an answer, by the type of the answer
	highest map[messages.BrokerID]messages.BrokerEpoch
	tickets map[uint64]bool // placements that are not settled
	leased  map[messages.BrokerID]time.Duration
}

func newObserver(t *rapid.T, w *world) *observer {
	o := &observer{t: t, w: w, open: map[actors.RequestID]string{},
		highest: map[messages.BrokerID]messages.BrokerEpoch{}, tickets: map[uint64]bool{},
		leased: map[messages.BrokerID]time.Duration{}}
	w.observe = o.step
	return o
}

func (o *observer) step(msg actors.Message, fx actors.Effects) {
	var asker messages.BrokerID
	if r, ok := msg.(actors.Request); ok {
		o.open[r.ID] = answerTo(r.Body)
		asker = messages.BrokerID(r.Principal)
	}
	for _, r := range fx.Replies {
		want, ok := o.open[r.To]
		if !ok {
			o.t.Fatalf("request %d is answered again, or was never asked", r.To)
		}
		if got := fmt.Sprintf("%T", r.Body); got != want {
			o.t.Fatalf("request %d is answered with %s, not %s", r.To, got, want)
		}
		delete(o.open, r.To)
		o.answer(asker, r.Body, fx)
	}
	for _, r := range fx.Records {
		o.record(r)
	}
	for _, m := range fx.Tells {
		switch m := m.Msg.(type) {
		case actors.PlaceTopic:
			o.tickets[m.Ticket] = true
		case actors.PlacementSettled:
			delete(o.tickets, m.Ticket)
		}
	}
}

func answerTo(body proto.Message) string {
	switch body.(type) {
	case *pb.RegisterRequest:
		return "*highwaterpb.RegisterResponse"
	case *pb.HeartbeatRequest:
		return "*highwaterpb.HeartbeatResponse"
	case *pb.RemovedRequest:
		return "*highwaterpb.RemovedResponse"
	case *pb.CreateTopicRequest:
		return "*highwaterpb.CreateTopicResponse"
	}
	return "*highwaterpb.DeleteTopicResponse"
}

func (o *observer) answer(asker messages.BrokerID, body proto.Message, fx actors.Effects) {
	failed := body.(interface{ GetError() *pb.Error }).GetError()
	if failed != nil && failed.GetCode() != string(messages.CodeBusy) && len(fx.Records) > 0 {
		o.t.Fatalf("%v is refused and yet writes %d records", failed, len(fx.Records))
	}
	if failed != nil {
		if _, ok := messages.Code(failed.GetCode()).Info(); !ok || failed.GetMessage() == "" {
			o.t.Fatalf("unknown code or no message: %v", failed)
		}
		return
	}
	if r, ok := body.(*pb.HeartbeatResponse); ok {
		b := o.w.cluster.brokers[asker]
		if b.Fenced != r.GetFenced() || b.Fenced && r.GetLeaseMs() != 0 {
			o.t.Fatalf("broker %+v is told %v", b, r)
		}
		if r.GetLeaseMs() != 0 {
			o.leased[asker] = o.w.now + time.Duration(r.GetLeaseMs())*time.Millisecond
		}
	}
}

func (o *observer) record(r messages.Record) {
	switch r := r.(type) {
	case *messages.Broker:
		if r.Epoch < o.highest[r.ID] {
			o.t.Fatalf("the epoch of %s fell from %d to %d", r.ID, o.highest[r.ID], r.Epoch)
		}
		o.highest[r.ID] = r.Epoch
		if r.Suspect && !r.Fenced {
			o.t.Fatalf("%s is suspect and unfenced", r.ID)
		}
	case *messages.Partition:
		if r.Leader == "" || r.Leader != r.ISR[0] || !o.w.cluster.brokers[r.Leader].CanLead() || r.Epoch != 0 || r.LeaderEpoch != 0 {
			o.t.Fatalf("partition %+v", r)
		}
	}
}

// TestRequestsAreAnsweredOnceWhateverHappens plays registrations, heartbeats, disconnects, creations, placements, deletions
// and confirmations in any order, with a registry that is loaded again now and then and a clock that stands still.
func TestRequestsAreAnsweredOnceWhateverHappens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(messages.DefaultSettings())
		o := newObserver(t, w)
		w.step(actors.Activated{})
		t.Repeat(map[string]func(*rapid.T){
			"register":  func(t *rapid.T) { anyRegister(t, w) },
			"heartbeat": func(t *rapid.T) { anyHeartbeat(t, w) },
			"disconnect": func(t *rapid.T) {
				w.step(actors.Disconnected{Connection: anyConnection(t), Abrupt: rapid.Bool().Draw(t, "abrupt")})
			},
			"create": func(t *rapid.T) { w.ask("alice", anyCreate(t)) },
			"placed": func(t *rapid.T) { w.step(anyPlacement(t, o)) },
			"delete": func(t *rapid.T) {
				w.ask("alice", &pb.DeleteTopicRequest{Name: anyTopic(t), DryRun: rapid.Bool().Draw(t, "dry")})
			},
			"removed":   func(t *rapid.T) { anyRemoved(t, w) },
			"partition": func(t *rapid.T) { anyElection(t, w) },
			"wait": func(t *rapid.T) {
				w.wait(time.Duration(rapid.IntRange(0, 4000).Draw(t,
					"ms")) * time.Millisecond)
			},
			"stall": func(t *rapid.T) {
				w.stall(time.Duration(rapid.IntRange(0, 10_000).Draw(t,
					"ms")) * time.Millisecond)
			},
			"reload": func(t *rapid.T) {
				w.load()
				clear(o.open) // the host answers for a registry that is gone
				clear(o.tickets)
				w.step(actors.Activated{Restarted: rapid.Bool().Draw(t, "restarted")})
			},
			"": func(t *rapid.T) { o.check(t) },
		})
		for range 5 { // beyond the time that the placer has
			w.wait(2500 * time.Millisecond)
		}
		w.wait(time.Second)
		if len(o.open) != 0 || len(o.tickets) != 0 || len(w.state.creations) != 0 || len(w.state.names) != 0 {
			t.Fatalf("requests %v without an answer, placements %v not settled, %d creations, %d names", o.open, o.tickets,
				len(w.state.creations), len(w.state.names))
		}
		for _, b := range w.cluster.brokers {
			if !b.Fenced {
				t.Fatalf("%s was silent for 13 s and is not fenced", b.ID)
			}
		}
	})
}

// check is what holds between any two steps.
func (o *observer) check(t *rapid.T) {
	for id := range o.open {
		if !slices.ContainsFunc(sortedKeys(o.w.state.creations),
			func(k uint64) bool { return o.w.state.creations[k].request == id }) {
			t.Fatalf("request %d has no answer and nothing waits for it", id)
		}
	}
	storages := map[messages.StorageID]messages.BrokerID{}
	for id, b := range o.w.cluster.brokers {
		if other, twice := storages[b.Storage]; twice {
			t.Fatalf("%s and %s have the storage %s", id, other, b.Storage)
		}
		storages[b.Storage] = id
	}
	pending := 0
	o.w.cluster.Deletions(func(*messages.TopicDeletion) bool { pending++; return true })
	if pending != o.w.state.unfinished {
		t.Fatalf("%d deletions are unfinished, the registry counts %d", pending, o.w.state.unfinished)
	}
}

func anyBroker(t *rapid.T) string {
	return rapid.SampledFrom([]string{"b1", "b2", "b3"}).Draw(t, "broker")
}
func anyTopic(t *rapid.T) string { return rapid.SampledFrom([]string{"t", "u", "v"}).Draw(t, "topic") }

func anyConnection(t *rapid.T) *pb.Connection {
	return &pb.Connection{ServerId: "S", ClientId: uint64(rapid.IntRange(0, 6).Draw(t, "client"))}
}

func anyRegister(t *rapid.T, w *world) {
	b := anyBroker(t)
	// Mostly its own storage, at times a new one or another's.
	storage := rapid.SampledFrom([]string{"s" + b, "s" + b, "s" + b, "n" + b, "sb1"}).Draw(t, "storage")
	r := registration(b, fmt.Sprintf("i%d", rapid.IntRange(1, 4).Draw(t, "incarnation")), storage)
	r.Connection, r.Fsyncs = anyConnection(t), rapid.Bool().Draw(t, "fsyncs")
	if old := w.cluster.brokers[messages.BrokerID(b)]; old != nil && rapid.Bool().Draw(t, "clean") {
		r.CleanEpoch = uint64(old.Epoch)
	}
	before := w.cluster.brokers[messages.BrokerID(b)]
	alive := false
	if before != nil {
		ses := w.state.sessions[before.ID]
		alive = ses != nil && ses.live && !ses.gone && !ses.mayStop && w.now < ses.contact+3*time.Second
	}
	fx := w.ask(b, r)
	after := w.cluster.brokers[messages.BrokerID(b)]
	closed := before != nil && r.Storage == string(before.Storage) && r.CleanEpoch == uint64(before.Epoch)
	if alive && !closed && after.Incarnation != before.Incarnation {
		t.Fatalf("%s was replaced while its session was valid", before.Incarnation)
	}
	if out := answer[*pb.RegisterResponse](fx); out.GetError() == nil && out.GetBrokerEpoch() != uint64(after.Epoch) {
		t.Fatalf("told epoch %d, stored %d", out.GetBrokerEpoch(), after.Epoch)
	}
}

func anyHeartbeat(t *rapid.T, w *world) {
	b := anyBroker(t)
	r := w.beat(messages.BrokerID(b))
	r.Ready, r.WantsStop = rapid.Bool().Draw(t, "ready"), rapid.IntRange(0, 5).Draw(t, "stop") == 0
	r.StorageFailed, r.Connection = rapid.IntRange(0, 9).Draw(t, "failed") == 0, anyConnection(t)
	if rapid.IntRange(0, 9).Draw(t, "stale") == 0 {
		r.BrokerEpoch--
	}
	w.ask(b, r)
}

func anyCreate(t *rapid.T) *pb.CreateTopicRequest {
	return &pb.CreateTopicRequest{
		Name: anyTopic(t), Partitions: uint32(rapid.IntRange(0, 3).Draw(t, "partitions")), DryRun: rapid.Bool().Draw(t,
			"dry"),
		ReplicationFactor: uint32(rapid.IntRange(0, 3).Draw(t, "factor")), MinIsr: uint32(rapid.IntRange(0, 2).Draw(t,
			"min ISR")),
	}
}

// anyPlacement answers some ticket, rightly or not.
func anyPlacement(t *rapid.T, o *observer) actors.Placement {
	tickets := append(sortedKeys(o.tickets), 7777)
	p := actors.Placement{Ticket: rapid.SampledFrom(tickets).Draw(t, "ticket")}
	if rapid.IntRange(0, 4).Draw(t, "error") == 0 {
		p.Err = messages.Errorf(messages.CodeInvalidReplicationFactor, "no room")
		return p
	}
	all := []messages.BrokerID{"b1", "b2", "b3", "b4"}
	c := o.w.state.creations[p.Ticket]
	if c == nil {
		return p
	}
	for range c.spec.partitions {
		p.Replicas = append(p.Replicas, rapid.Permutation(all[:3]).Draw(t, "replicas")[:c.spec.replicationFactor])
	}
	if rapid.IntRange(0, 4).Draw(t, "nonsense") == 0 {
		p.Replicas[0] = rapid.SliceOfN(rapid.SampledFrom(all), 0, 4).Draw(t, "replicas")
	}
	return p
}

func anyRemoved(t *rapid.T, w *world) {
	b := anyBroker(t)
	r := &pb.RemovedRequest{Broker: b}
	if known := w.cluster.brokers[messages.BrokerID(b)]; known != nil {
		r.BrokerEpoch = uint64(known.Epoch)
	}
	w.cluster.Deletions(func(d *messages.TopicDeletion) bool {
		if rapid.Bool().Draw(t, "confirm") {
			r.TopicIds = append(r.TopicIds, d.ID.Bytes())
		}
		return true
	})
	w.ask(b, r)
}

// anyElection is a partition that has looked at its brokers.
func anyElection(t *rapid.T, w *world) {
	w.cluster.PartitionsOf(messages.BrokerID(anyBroker(t)), func(p *messages.Partition) bool {
		c := *p
		c.Epoch, c.LeaderEpoch, c.Leader, c.ISR = p.Epoch+1, p.LeaderEpoch+1, "", nil
		for _, b := range p.Replicas {
			if w.cluster.brokers[b].CanLead() {
				c.ISR, c.Leader = append(c.ISR, b), b
			}
		}
		w.applied++
		w.cluster.apply(&c)
		return true
	})
}
