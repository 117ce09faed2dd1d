package brokertest

import (
	"slices"
	"strconv"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// handler answers one verb; body is what arrived. The caller holds mu.
type handler struct {
	body   func() proto.Message
	answer func(from messages.BrokerID, body proto.Message) proto.Message
}

func (c *Controller) verbs() map[messages.BrokerVerb]handler {
	return map[messages.BrokerVerb]handler{
		messages.VerbRegister: {func() proto.Message { return &pb.RegisterRequest{} },
			func(_ messages.BrokerID, b proto.Message) proto.Message { return c.register(b.(*pb.RegisterRequest)) }},
		messages.VerbHeartbeat: {func() proto.Message { return &pb.HeartbeatRequest{} },
			func(_ messages.BrokerID, b proto.Message) proto.Message { return c.heartbeat(b.(*pb.HeartbeatRequest)) }},
		messages.VerbSnapshot: {func() proto.Message { return &pb.SnapshotRequest{} },
			func(_ messages.BrokerID, b proto.Message) proto.Message { return c.snapshot(b.(*pb.SnapshotRequest)) }},
		messages.VerbISR:     {func() proto.Message { return &pb.IsrRequest{} }, c.isr},
		messages.VerbReady:   {func() proto.Message { return &pb.ReadyRequest{} }, c.readyReports},
		messages.VerbOffsets: {func() proto.Message { return &pb.OffsetsRequest{} }, c.offsets},
		messages.VerbRemoved: {func() proto.Message { return &pb.RemovedRequest{} }, c.removed},
	}
}

func (c *Controller) serve(verb messages.BrokerVerb, h handler, m *nats.Msg) {
	body := h.body()
	principal, _, ok := c.subjects.ParseBroker(m.Subject)
	if err := proto.Unmarshal(m.Data, body); err != nil || !ok {
		return
	}
	c.mu.Lock()
	r := Request{Verb: verb, Broker: messages.BrokerID(principal), Body: body}
	outcome := Deliver
	if c.fault != nil {
		outcome = c.fault(r)
	}
	if outcome == DropRequest {
		c.mu.Unlock()
		return
	}
	c.requests = append(c.requests, r)
	answer := h.answer(r.Broker, body)
	c.mu.Unlock()
	if data, err := proto.Marshal(answer); err == nil && outcome == Deliver {
		_ = m.Respond(data)
	}
}

// stale returns the error for a request that is not made under the current registration.
func (c *Controller) stale(b string, epoch uint64) (*member, *pb.Error) {
	m := c.brokers[messages.BrokerID(b)]
	if m == nil || m.gone || uint64(m.Epoch) != epoch {
		return nil, messages.Errorf(messages.CodeStaleBrokerEpoch, "broker %s is not registered under epoch %d", b, epoch).Proto()
	}
	return m, nil
}

func (c *Controller) register(r *pb.RegisterRequest) proto.Message {
	id := messages.BrokerID(r.GetBroker())
	if r.GetClusterId() != "" && r.GetClusterId() != c.clusterID {
		return &pb.RegisterResponse{Error: messages.Errorf(messages.CodeClusterMismatch, "this is cluster %s", c.clusterID).Proto()}
	}
	old := c.brokers[id]
	switch {
	case old != nil && !old.gone && string(old.Incarnation) == r.GetIncarnation():
		return c.registered(old)
	case old != nil && !old.Fenced && c.now-old.heard < c.settings.Session:
		return &pb.RegisterResponse{Error: messages.Errorf(messages.CodeBrokerIDInUse, "incarnation %s holds %s", old.Incarnation, id).Proto()}
	}
	c.seen.Sequence++
	if old != nil {
		c.leave(id)
		if string(old.Storage) != r.GetStorage() || !r.GetFsyncs() && uint64(old.Epoch) != r.GetCleanEpoch() {
			for pid, p := range c.parts {
				if slices.Contains(p.Eligible, id) {
					c.change(pid, func(p *messages.Partition) {
						p.Eligible = slices.DeleteFunc(slices.Clone(p.Eligible), func(b messages.BrokerID) bool { return b == id })
					})
				}
			}
		}
	}
	c.seen.Sequence++
	m := &member{heard: c.now}
	m.Broker = messages.Broker{ID: id, Incarnation: messages.IncarnationID(r.GetIncarnation()), Storage: messages.StorageID(r.GetStorage()),
		Epoch: messages.BrokerEpoch(c.seen.Sequence), Rack: messages.RackPath(r.GetRack()), Fsyncs: r.GetFsyncs(), Fenced: true}
	c.newFeed(m)
	c.brokers[id] = m
	return c.registered(m)
}

func (c *Controller) registered(m *member) proto.Message {
	return &pb.RegisterResponse{ClusterId: c.clusterID, BrokerEpoch: uint64(m.Epoch), Settings: messages.SettingsToProto(c.settings),
		Seen: messages.SeenToProto(c.seen), Protocol: 1}
}

func (c *Controller) heartbeat(r *pb.HeartbeatRequest) proto.Message {
	m, err := c.stale(r.GetBroker(), r.GetBrokerEpoch())
	if err != nil {
		return &pb.HeartbeatResponse{Error: err, Seen: messages.SeenToProto(c.seen)}
	}
	m.heard, m.applied = c.now, r.GetFeed()
	switch {
	case r.GetStorageFailed() && !m.storageGo:
		m.storageGo = true
		c.fence(m.ID)
	case r.GetWantsStop() && !m.Stopping:
		m.Stopping = true
		c.leave(m.ID)
	case m.Fenced && r.GetReady() && !m.storageGo && r.GetFeed().GetFeed() == m.feed.GetFeed():
		c.unfence(m)
	}
	out := &pb.HeartbeatResponse{Fenced: m.Fenced, Seen: messages.SeenToProto(c.seen)}
	if !m.Fenced {
		out.LeaseMs = uint32(c.settings.Lease().Milliseconds())
	}
	out.MayStop = m.Stopping
	for _, p := range c.parts {
		out.MayStop = out.MayStop && p.Leader != m.ID && !slices.Contains(p.ISR, m.ID)
	}
	return out
}

// snapshotPage is how many assignments one page of a snapshot has: few, so that tests have pages.
const snapshotPage = 7

func (c *Controller) snapshot(r *pb.SnapshotRequest) proto.Message {
	m, err := c.stale(r.GetBroker(), r.GetBrokerEpoch())
	if err != nil {
		return &pb.SnapshotResponse{Error: err, Seen: messages.SeenToProto(c.seen)}
	}
	out := &pb.SnapshotResponse{Seen: messages.SeenToProto(c.seen)}
	skip, _ := strconv.Atoi(r.GetCursor())
	if skip == 0 {
		out.Feed = proto.CloneOf(&m.feed)
		c.snapshotTopics(m, r, out)
	}
	ids := make([]messages.PartitionID, 0, len(c.parts))
	for id, p := range c.parts {
		if slices.Contains(p.Replicas, m.ID) {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b messages.PartitionID) int {
		if d := slices.Compare(a.Topic[:], b.Topic[:]); d != 0 {
			return d
		}
		return int(a.Index - b.Index)
	})
	for n, id := range ids[min(skip, len(ids)):] {
		if n == snapshotPage {
			out.Next = strconv.Itoa(skip + n)
			break
		}
		out.Assignments = append(out.Assignments, messages.AssignmentOf(c.names[id.Topic], c.parts[id]))
	}
	return out
}

// snapshotTopics adds what is said of whole topics.
func (c *Controller) snapshotTopics(m *member, r *pb.SnapshotRequest, out *pb.SnapshotResponse) {
	for _, d := range c.deletions {
		if slices.Contains(d.Pending, m.ID) {
			out.Removals = append(out.Removals, removalOf(d))
		}
	}
	for _, h := range r.GetHeld() {
		if id, err := messages.ParseTopicID(h.GetTopicId()); err == nil && c.names[id] == "" {
			out.Unknown = append(out.Unknown, h.GetTopicId())
		}
	}
}

func (c *Controller) isr(from messages.BrokerID, body proto.Message) proto.Message {
	r := body.(*pb.IsrRequest)
	if _, err := c.stale(r.GetBroker(), r.GetBrokerEpoch()); err != nil {
		return &pb.IsrResponse{Error: err}
	}
	out := &pb.IsrResponse{}
	for _, p := range r.GetProposals() {
		out.Results = append(out.Results, c.propose(from, p))
	}
	return out
}

func (c *Controller) readyReports(from messages.BrokerID, body proto.Message) proto.Message {
	r := body.(*pb.ReadyRequest)
	if _, err := c.stale(r.GetBroker(), r.GetBrokerEpoch()); err != nil {
		return &pb.ReadyResponse{Error: err}
	}
	out := &pb.ReadyResponse{}
	for _, p := range r.GetReports() {
		out.Results = append(out.Results, c.report(from, p))
	}
	return out
}

func (c *Controller) offsets(from messages.BrokerID, body proto.Message) proto.Message {
	r := body.(*pb.OffsetsRequest)
	if _, err := c.stale(r.GetBroker(), r.GetBrokerEpoch()); err != nil {
		return &pb.OffsetsResponse{Error: err}
	}
	for _, o := range r.GetReports() {
		topic, _ := messages.ParseTopicID(o.GetTopicId())
		id := messages.PartitionID{Topic: topic, Index: o.GetPartition()}
		if p := c.parts[id]; p != nil && p.Leader == from && p.LeaderEpoch == messages.LeaderEpoch(o.GetLeaderEpoch()) {
			next := *p
			next.HighWatermark = max(p.HighWatermark, messages.Offset(o.GetHighWatermark()))
			c.parts[id] = &next
			c.marks[id] = next.HighWatermark
		}
	}
	return &pb.OffsetsResponse{}
}

func (c *Controller) removed(from messages.BrokerID, body proto.Message) proto.Message {
	r := body.(*pb.RemovedRequest)
	if _, err := c.stale(r.GetBroker(), r.GetBrokerEpoch()); err != nil {
		return &pb.RemovedResponse{Error: err}
	}
	for _, raw := range r.GetTopicIds() {
		id, _ := messages.ParseTopicID(raw)
		if d := c.deletions[id]; d != nil {
			d.Pending = slices.DeleteFunc(d.Pending, func(b messages.BrokerID) bool { return b == from })
			if len(d.Pending) == 0 {
				delete(c.deletions, id)
			}
		}
	}
	return &pb.RemovedResponse{}
}
