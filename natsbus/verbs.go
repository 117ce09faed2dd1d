package natsbus

import (
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// verbs is the table of every request that the controller takes.
func verbs(s messages.Subjects) []*verb {
	return []*verb{
		{subject: s.BrokerWildcard(messages.VerbRegister), principal: ofBroker, session: true, serve: (*Edge).toRegistry,
			request: func() proto.Message { return new(pb.RegisterRequest) },
			failure: func(e *pb.Error) proto.Message { return &pb.RegisterResponse{Error: e} }},
		{subject: s.BrokerWildcard(messages.VerbHeartbeat), principal: ofBroker, session: true, serve: (*Edge).heartbeat,
			request: func() proto.Message { return new(pb.HeartbeatRequest) },
			failure: func(e *pb.Error) proto.Message { return &pb.HeartbeatResponse{Error: e} }},
		{subject: s.BrokerWildcard(messages.VerbISR), principal: ofBroker, serve: (*Edge).isr,
			cost: func(m proto.Message) (int, error) {
				return items(len(m.(*pb.IsrRequest).GetProposals()), messages.MaxBatchItems)
			},
			request: func() proto.Message { return new(pb.IsrRequest) },
			failure: func(e *pb.Error) proto.Message { return &pb.IsrResponse{Error: e} }},
		{subject: s.BrokerWildcard(messages.VerbReady), principal: ofBroker, serve: (*Edge).ready,
			cost: func(m proto.Message) (int, error) {
				return items(len(m.(*pb.ReadyRequest).GetReports()), messages.MaxBatchItems)
			},
			request: func() proto.Message { return new(pb.ReadyRequest) },
			failure: func(e *pb.Error) proto.Message { return &pb.ReadyResponse{Error: e} }},
		{subject: s.BrokerWildcard(messages.VerbOffsets), principal: ofBroker, serve: (*Edge).offsets,
			cost: func(m proto.Message) (int, error) {
				return items(len(m.(*pb.OffsetsRequest).GetReports()), messages.MaxBatchItems)
			},
			request: func() proto.Message { return new(pb.OffsetsRequest) },
			failure: func(e *pb.Error) proto.Message { return &pb.OffsetsResponse{Error: e} }},
		{subject: s.BrokerWildcard(messages.VerbSnapshot), principal: ofBroker, serve: (*Edge).snapshot, cost: snapshotCost,
			request: func() proto.Message { return new(pb.SnapshotRequest) },
			failure: func(e *pb.Error) proto.Message { return &pb.SnapshotResponse{Error: e} }},
		{subject: s.BrokerWildcard(messages.VerbRemoved), principal: ofBroker, serve: (*Edge).toRegistry, cost: removedCost,
			request: func() proto.Message { return new(pb.RemovedRequest) },
			failure: func(e *pb.Error) proto.Message { return &pb.RemovedResponse{Error: e} }},
		{subject: s.ControlWildcard("topic", "create"), principal: ofOperator, textual: true, serve: (*Edge).toRegistry,
			request: func() proto.Message { return new(pb.CreateTopicRequest) },
			failure: func(e *pb.Error) proto.Message { return &pb.CreateTopicResponse{Error: e} }},
		{subject: s.ControlWildcard("topic", "delete"), principal: ofOperator, textual: true, serve: (*Edge).toRegistry,
			request: func() proto.Message { return new(pb.DeleteTopicRequest) },
			failure: func(e *pb.Error) proto.Message { return &pb.DeleteTopicResponse{Error: e} }},
		{subject: s.ControlWildcard("broker", "forget"), principal: ofOperator, textual: true, serve: (*Edge).toRegistry,
			request: func() proto.Message { return new(pb.ForgetBrokerRequest) },
			failure: func(e *pb.Error) proto.Message { return &pb.ForgetBrokerResponse{Error: e} }},
		{subject: s.ControlWildcard("upgrade", "finalize"), principal: ofOperator, textual: true, serve: (*Edge).finalizeUpgrade,
			request: func() proto.Message { return new(pb.FinalizeUpgradeRequest) },
			failure: func(e *pb.Error) proto.Message { return &pb.FinalizeUpgradeResponse{Error: e} }},
	}
}

func ofBroker(s messages.Subjects, subject string) (string, bool) {
	principal, _, ok := s.ParseBroker(subject)
	return principal, ok
}

func ofOperator(s messages.Subjects, subject string) (string, bool) {
	principal, _, _, ok := s.ParseControl(subject)
	return principal, ok
}

func items(n, limit int) (int, error) {
	if n > limit {
		return 0, messages.Errorf(messages.CodeTooLarge, "the request has %d items, the limit is %d", n, limit)
	}
	return n, nil
}

func removedCost(m proto.Message) (int, error) {
	_, err := items(len(m.(*pb.RemovedRequest).GetTopicIds()), messages.MaxRemovedTopics)
	return 1, err
}

func snapshotCost(m proto.Message) (int, error) {
	_, err := items(len(m.(*pb.SnapshotRequest).GetHeld()), messages.MaxHeldTopics)
	return 1, err
}

// abridged returns an answer without the parts that only inform, nil if it has none; for one that NATS would not take.
func abridged(body proto.Message) proto.Message {
	if r, ok := body.(*pb.CreateTopicResponse); ok {
		return &pb.CreateTopicResponse{Error: r.GetError(), TopicId: r.GetTopicId(), Name: r.GetName(), Revision: r.GetRevision(),
			Warnings: []string{"the answer was too large to name every partition; see `highwater topic describe`"}}
	}
	return nil
}

// tell gives a message to an actor. A message that is not taken is an answer too.
func (e *Edge) tell(to actors.Address, msg actors.Message, id actors.RequestID) {
	if err := e.tree.Tell(to, msg); err != nil {
		coded := messages.AsError(err)
		if coded.Code == messages.CodeBusy && coded.RetryAfterMs == 0 {
			coded = busy("%s", coded.Message)
		}
		e.Fail(id, coded)
	}
}

// toRegistry passes a request on as it is.
func (e *Edge) toRegistry(x *exchange, body proto.Message) {
	id := e.waiting.ask(time.Now(), x.settle)
	e.tell(actors.Registry, actors.Request{ID: id, Principal: x.principal, Body: body}, id)
}

func (e *Edge) heartbeat(x *exchange, body proto.Message) {
	q := body.(*pb.HeartbeatRequest)
	if b := e.cfg.Catalog.Brokers()[messages.BrokerID(q.GetBroker())]; b != nil { // strangers take no memory
		now := time.Now()
		e.heard.from(b.ID, now)
		if uint64(b.Epoch) == q.GetBrokerEpoch() {
			e.responses.beat(b, q.GetFeed(), now)
		}
	}
	e.toRegistry(x, body)
}

// item is one part of a batched request, for the partition whose business it is.
type item interface {
	GetTopicId() []byte
	GetPartition() int32
}

func (e *Edge) isr(x *exchange, body proto.Message) {
	q := body.(*pb.IsrRequest)
	all := make([]item, len(q.GetProposals()))
	for i, p := range q.GetProposals() {
		all[i] = p
	}
	e.split(x, all,
		func(r []*pb.IsrResult) proto.Message { return &pb.IsrResponse{Results: r} },
		func(i int, id actors.RequestID) actors.Message {
			return actors.ISRProposal{Request: id, Broker: messages.BrokerID(q.GetBroker()),
				BrokerEpoch: messages.BrokerEpoch(q.GetBrokerEpoch()), Proposal: q.GetProposals()[i]}
		})
}

func (e *Edge) ready(x *exchange, body proto.Message) {
	q := body.(*pb.ReadyRequest)
	all := make([]item, len(q.GetReports()))
	for i, r := range q.GetReports() {
		all[i] = r
	}
	e.split(x, all,
		func(r []*pb.IsrResult) proto.Message { return &pb.ReadyResponse{Results: r} },
		func(i int, id actors.RequestID) actors.Message {
			return actors.LeaderReport{Request: id, Broker: messages.BrokerID(q.GetBroker()),
				BrokerEpoch: messages.BrokerEpoch(q.GetBrokerEpoch()), Report: q.GetReports()[i]}
		})
}

// split tells each item of a batched request to its partition and gathers the answers into one, in the order of the items.
// An item for a partition that is not there is answered in its place.
func (e *Edge) split(x *exchange, all []item, answer func([]*pb.IsrResult) proto.Message,
	message func(i int, id actors.RequestID) actors.Message) {
	if len(all) == 0 {
		x.answer(answer(nil))
		return
	}
	g := newGather(x, len(all), answer)
	now := time.Now()
	for i, it := range all {
		to, err := e.partitionOf(it)
		if err != nil {
			g.put(i, failedItem(it, messages.AsError(err)))
			continue
		}
		id := e.waiting.ask(now, func(body proto.Message, failed *messages.Error) {
			result, ok := body.(*pb.IsrResult)
			if failed == nil && !ok {
				failed = messages.Errorf(messages.CodeInternal, "the partition answered with %T", body)
			}
			if failed != nil {
				result = failedItem(it, failed)
			}
			g.put(i, result)
		})
		e.tell(to, message(i, id), id)
	}
}

func failedItem(it item, err *messages.Error) *pb.IsrResult {
	return &pb.IsrResult{TopicId: it.GetTopicId(), Partition: it.GetPartition(), Error: err.Proto()}
}

// partitionOf returns the actor of an item.
func (e *Edge) partitionOf(it item) (actors.Address, error) {
	topic, err := messages.ParseTopicID(it.GetTopicId())
	if err != nil {
		return actors.Address{}, err
	}
	id := messages.PartitionID{Topic: topic, Index: it.GetPartition()}
	if _, ok := e.cfg.Catalog.Partition(id); ok {
		return actors.Partition(id), nil
	}
	if _, ok := e.cfg.Catalog.Topic(topic); ok {
		return actors.Address{}, messages.Errorf(messages.CodeUnknownPartition, "topic %s has no partition %d", topic, id.Index)
	}
	return actors.Address{}, messages.Errorf(messages.CodeUnknownTopicID, "no topic has the id %s", topic)
}

// offsets passes every mark on to its partition. Marks are reports of which the latest counts: one that finds its partition
// gone or busy is left out, the next one comes at the next checkpoint.
func (e *Edge) offsets(x *exchange, body proto.Message) {
	q := body.(*pb.OffsetsRequest)
	for _, r := range q.GetReports() {
		to, err := e.partitionOf(r)
		if err == nil {
			err = e.tree.Tell(to, actors.OffsetReport{Broker: messages.BrokerID(q.GetBroker()),
				BrokerEpoch: messages.BrokerEpoch(q.GetBrokerEpoch()), Report: r})
		}
		if err != nil {
			e.refused.Add(1)
		}
	}
	x.answer(&pb.OffsetsResponse{})
}
