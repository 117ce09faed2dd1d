package registry

import (
	"cmp"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// world hosts one registry: it commits what the machine decides, keeps its wake-ups, and moves the clock.
type world struct {
	machine    Machine
	state      *State
	cluster    *fakeCluster
	now        time.Duration
	wall       time.Duration // how far the wall clock has jumped
	applied    messages.Sequence
	controller messages.ControllerEpoch
	claimed    messages.Sequence
	steps      uint64
	requests   actors.RequestID
	wakes      []wake
	// observe, if set, sees every step.
	observe func(actors.Message, actors.Effects)
}

type wake struct {
	at  time.Duration
	seq uint64
	msg actors.Message
}

func newWorld(s messages.Settings) *world {
	w := &world{cluster: newFakeCluster(s), applied: 1, controller: 1}
	w.load()
	return w
}

func (w *world) env() actors.Env {
	w.steps++
	return actors.Env{
		Now: w.now, WallUnixMs: 1_700_000_000_000 + w.wall.Milliseconds(), Random: [2]uint64{0, w.steps}, Applied: w.applied,
		Controller: w.controller, Claimed: w.claimed, Cluster: w.cluster,
	}
}

// load begins a registry without soft state, as after a panic or on another controller.
func (w *world) load() {
	s, err := w.machine.Load(w.env(), actors.Registry)
	if err != nil {
		panic(err)
	}
	w.state, w.wakes = s, nil
}

// step hands over one message, commits, and keeps the wake-ups.
func (w *world) step(msg actors.Message) actors.Effects {
	var fx actors.Effects
	w.state, fx = w.machine.Step(w.env(), w.state, msg)
	if len(fx.Records) > 0 {
		w.applied++
		w.cluster.apply(fx.Records...)
	}
	for _, k := range fx.Wakes {
		w.wakes = append(w.wakes, wake{at: w.now + k.After, seq: w.steps, msg: k.Msg})
	}
	if w.observe != nil {
		w.observe(msg, fx)
	}
	return fx
}

// ask hands over a request and returns the effects.
func (w *world) ask(principal string, body proto.Message) actors.Effects {
	w.requests++
	return w.step(actors.Request{ID: w.requests, Principal: principal, Body: body})
}

// wait moves the clock and delivers the wake-ups that come due, each at its time.
func (w *world) wait(d time.Duration) {
	end := w.now + d
	for {
		i := w.next()
		if i < 0 || w.wakes[i].at > end {
			break
		}
		k := w.wakes[i]
		w.wakes = slices.Delete(w.wakes, i, i+1)
		w.now = max(w.now, k.at)
		w.step(k.msg)
	}
	w.now = end
}

func (w *world) next() int {
	if len(w.wakes) == 0 {
		return -1
	}
	first := slices.MinFunc(w.wakes, func(a, b wake) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.seq, b.seq))
	})
	return slices.IndexFunc(w.wakes, func(k wake) bool { return k.at == first.at && k.seq == first.seq })
}

// stall lets time pass without anything running.
func (w *world) stall(d time.Duration) { w.now += d }

// answer returns the body of the one reply of a step.
func answer[M proto.Message](fx actors.Effects) M {
	return fx.Replies[0].Body.(M)
}

func registration(b, incarnation, storage string) *pb.RegisterRequest {
	return &pb.RegisterRequest{Broker: b, Incarnation: incarnation, Storage: storage, Fsyncs: true, MinProtocol: 1,
		MaxProtocol: 1, Host: "host-" + b, Pid: 7}
}

// beat is a ready heartbeat of a registered broker.
func (w *world) beat(b messages.BrokerID) *pb.HeartbeatRequest {
	r := w.cluster.brokers[b]
	if r == nil {
		return &pb.HeartbeatRequest{Broker: string(b), Ready: true}
	}
	return &pb.HeartbeatRequest{Broker: string(b), Incarnation: string(r.Incarnation), BrokerEpoch: uint64(r.Epoch),
		Ready: true}
}

// join registers a broker and unfences it.
func (w *world) join(b string) {
	w.ask(b, registration(b, "i-"+b, "s-"+b))
	w.ask(b, w.beat(messages.BrokerID(b)))
}
