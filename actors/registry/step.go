package registry

import (
	"cmp"
	"maps"
	"math/rand/v2"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// step is one decision in the making: what is known, and the effects so far.
type step struct {
	env      actors.Env
	state    *State
	cluster  *messages.Cluster
	settings messages.Settings
	brokers  map[messages.BrokerID]*messages.Broker
	fx       actors.Effects
	known    messages.VersionRange
}

// Step decides on one message.
func (m Machine) Step(env actors.Env, s *State, msg actors.Message) (*State, actors.Effects) {
	t := &step{env: env, state: s, cluster: env.Cluster.Identity(), brokers: env.Cluster.Brokers(), known: m.known()}
	if t.cluster == nil {
		panic(messages.Errorf(messages.CodeInternal, "the cluster has lost its identity"))
	}
	t.settings = t.cluster.Settings
	t.noticeStall()
	switch msg := msg.(type) {
	case actors.Activated:
		t.state.deaf = m.AwaitOpen && !msg.Restarted // who is started again after a fault is not told a second time
		t.activate(msg.Restarted, m.GrantValidity)
	case actors.Opened:
		t.state.deaf = false
		t.spare()
	case actors.Tick:
		t.tick()
	case actors.Request:
		t.request(msg)
	case actors.Disconnected:
		t.disconnected(msg)
	case actors.GraceEnded:
		t.graceEnded(msg)
	case actors.FinalizeUpgrade:
		t.reply(msg.Request, t.finalize(msg))
	case actors.Placement:
		t.placed(msg)
	default:
		t.event(MessageIgnored{Kind: kindOf(msg)})
	}
	return s, t.fx
}

// request decides on a message from outside.
func (t *step) request(r actors.Request) {
	switch body := r.Body.(type) {
	case *pb.HeartbeatRequest:
		out, err := t.heartbeat(r.Principal, body)
		if err != nil {
			out = &pb.HeartbeatResponse{Error: err.Proto(), Seen: t.seen()}
		}
		t.reply(r.ID, out)
	case *pb.RegisterRequest:
		out, err := t.register(r.Principal, body)
		if err != nil {
			out = &pb.RegisterResponse{Error: err.Proto(), Seen: t.seen()}
		}
		t.reply(r.ID, out)
	case *pb.RemovedRequest:
		err := t.removed(r.Principal, body)
		t.reply(r.ID, &pb.RemovedResponse{Error: err.Proto()})
	case *pb.CreateTopicRequest:
		if out, err := t.createTopic(r.ID, body); err != nil {
			t.reply(r.ID, &pb.CreateTopicResponse{Error: err.Proto()})
		} else if out != nil {
			t.reply(r.ID, out)
		}
	case *pb.ForgetBrokerRequest:
		out, err := t.forget(body)
		if err != nil {
			out = &pb.ForgetBrokerResponse{Error: err.Proto()}
		}
		t.reply(r.ID, out)
	case *pb.DeleteTopicRequest:
		out, err := t.deleteTopic(body)
		if err != nil {
			out = &pb.DeleteTopicResponse{Error: err.Proto()}
		}
		t.reply(r.ID, out)
	default:
		t.event(MessageIgnored{Kind: kindOf(r.Body)})
	}
}

func (t *step) record(r messages.Record) { t.fx.Records = append(t.fx.Records, r) }
func (t *step) event(e actors.Event)     { t.fx.Events = append(t.fx.Events, e) }

func (t *step) reply(to actors.RequestID, body proto.Message) {
	if to != 0 {
		t.fx.Replies = append(t.fx.Replies, actors.Reply{To: to, Body: body})
	}
}

func (t *step) tell(to actors.Address, msg actors.Message) {
	t.fx.Tells = append(t.fx.Tells, actors.Tell{To: to, Msg: msg})
}

func (t *step) broadcast(b messages.BrokerID, msg actors.Message) {
	t.fx.Broadcast = append(t.fx.Broadcast, actors.Broadcast{Broker: b, Msg: msg})
}

// seen is the position of everything that this step was decided from.
func (t *step) seen() *pb.Seen {
	return &pb.Seen{ControllerEpoch: uint64(t.env.Controller), Sequence: uint64(t.env.Applied)}
}

// random returns the random source of this step.
func (t *step) random() *rand.Rand { return rand.New(rand.NewPCG(t.env.Random[0], t.env.Random[1])) }

// sortedKeys returns the keys of a map in order, so that a step has the same effects whenever it is run.
func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
