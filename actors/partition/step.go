package partition

import (
	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// Step decides on one message. It is total: a message that makes no sense here is refused or becomes an event.
func (Machine) Step(env actors.Env, s *State, msg actors.Message) (*State, actors.Effects) {
	t := &turn{State: s, env: env, brokers: env.Cluster.Brokers()}
	if _, exists := env.Cluster.Topic(s.id.Topic); !exists {
		t.afterDeletion(msg)
		return s, t.fx
	}
	switch m := msg.(type) {
	case actors.Activated:
		t.activate(m.Takeover)
	case actors.BrokerChanged:
		t.reconcile(change{})
	case actors.BrokerRestarted:
		t.reconcile(change{distrust: m.Broker})
	case actors.ISRProposal:
		t.proposeISR(m)
	case actors.LeaderReport:
		t.report(m)
	case actors.OffsetReport:
		t.offset(m)
	case actors.PreferLeader:
		t.prefer(m)
	case actors.LeaderDeadline:
		t.leaderDeadline(m)
	case actors.HandoverDeadline:
		t.handoverDeadline(m)
	case actors.TopicDeleted:
		t.end()
	default:
		t.unknown(msg)
	}
	t.watchLeader()
	return s, t.fx
}

// turn is one step on its way: the state, what is known besides, and the effects so far.
type turn struct {
	*State
	env     actors.Env
	brokers map[messages.BrokerID]*messages.Broker
	fx      actors.Effects
}

// event adds a typed fact.
func (t *turn) event(e actors.Event) { t.fx.Events = append(t.fx.Events, e) }

// answer replies to a request, if anybody waits, with the partition as it is after this step.
func (t *turn) answer(to actors.RequestID) {
	t.reply(to, &pb.IsrResult{Current: messages.AssignmentOf(t.topic, t.record)})
}

// refuse replies with an error. What the sender needs to correct itself comes with it, unless the sender is not a live
// registration or knows newer state than this controller.
func (t *turn) refuse(to actors.RequestID, broker messages.BrokerID, err *messages.Error) {
	t.event(RequestRefused{Broker: broker, Code: err.Code, Message: err.Message})
	result := &pb.IsrResult{Error: err.Proto()}
	if err.Code != messages.CodeNotActiveController && err.Code != messages.CodeStaleBrokerEpoch {
		result.Current = messages.AssignmentOf(t.topic, t.record)
	}
	t.reply(to, result)
}

func (t *turn) reply(to actors.RequestID, result *pb.IsrResult) {
	if to == 0 {
		return
	}
	result.TopicId, result.Partition = t.id.Topic.Bytes(), t.id.Index
	t.fx.Replies = append(t.fx.Replies, actors.Reply{To: to, Body: result})
}

// end stops the actor: the topic's deletion is committed. What is published last has higher epochs than anything
// before it, so that whoever keeps the highest keeps the end.
func (t *turn) end() {
	last := clone(t.record)
	last.Leader, last.ISR, last.Eligible, last.LeaderProven = "", nil, nil, false
	last.LeaderEpoch++
	last.Epoch++
	t.fx.Publish = append(t.fx.Publish, actors.PublishLeadership{Topic: t.topic, Partition: last, Deleted: true})
	t.event(Ended{})
	t.fx.Stop = true
}

// afterDeletion handles what was still in the mailbox when the catalog lost the topic. A record would be ignored by the
// catalog, so nothing is decided any more.
func (t *turn) afterDeletion(msg actors.Message) {
	gone := messages.Errorf(messages.CodeUnknownTopicID, "topic %s with the id %s is deleted", t.topic, t.id.Topic)
	switch m := msg.(type) {
	case actors.TopicDeleted:
		t.end()
	case actors.ISRProposal:
		t.reply(m.Request, &pb.IsrResult{Error: gone.Proto()})
	case actors.LeaderReport:
		t.reply(m.Request, &pb.IsrResult{Error: gone.Proto()})
	case actors.Request:
		t.reply(m.ID, &pb.IsrResult{Error: gone.Proto()})
	}
}

// unknown answers a message that no partition understands.
func (t *turn) unknown(msg actors.Message) {
	err := messages.Errorf(messages.CodeInvalidRequest, "a partition does not understand a %T", msg)
	var to actors.RequestID
	if m, ok := msg.(actors.Request); ok {
		to = m.ID
	}
	t.refuse(to, "", err)
}
