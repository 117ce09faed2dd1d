package registry

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// creation is a topic that waits for the placer.
type creation struct {
	request  actors.RequestID
	ticket   uint64
	spec     *topicSpec
	deadline time.Duration
}

// createTopic decides on a request at once if the replicas are placed by hand, and otherwise asks the placer: then there is
// no answer yet, and the name is taken until there is one. A dry run takes no name.
func (t *step) createTopic(id actors.RequestID, r *pb.CreateTopicRequest) (*pb.CreateTopicResponse, *messages.Error) {
	spec, err := t.specify(r)
	if err != nil {
		return nil, err
	}
	if spec.manual != nil {
		return t.make(spec, &actors.Placement{Replicas: spec.manual})
	}
	if len(t.state.creations) >= maxCreations {
		return nil, busy("%d topics are being created", len(t.state.creations))
	}
	t.state.ticket++
	c := &creation{request: id, ticket: t.state.ticket, spec: spec, deadline: t.env.Now + placementTimeout}
	t.state.creations[c.ticket] = c
	if !spec.dryRun {
		t.state.names[spec.name] = struct{}{}
	}
	t.tell(actors.Placer, actors.PlaceTopic{
		Ticket: c.ticket, Name: spec.name, Partitions: spec.partitions, ReplicationFactor: spec.replicationFactor,
	})
	return nil, nil
}

// make stores a topic with all of its partitions in one entry, and answers. A dry run answers the same and stores nothing;
// its answer has no topic id, because there is none. The revision is a lower bound of the position of the change (others
// may be committed in between), or what a dry run was decided from.
func (t *step) make(spec *topicSpec, p *actors.Placement) (*pb.CreateTopicResponse, *messages.Error) {
	if err := t.checkFree(spec.name); err != nil {
		return nil, err // what another request has created while a dry run was placed
	}
	if err := t.doubt(); err != nil {
		return nil, err
	}
	topic := &messages.Topic{
		Name: spec.name, Partitions: spec.partitions, ReplicationFactor: spec.replicationFactor, MinISR: spec.minISR,
		Labels: spec.labels, CreatedUnixMs: t.env.WallUnixMs,
	}
	if !spec.dryRun {
		topic.ID = t.newTopicID()
	}
	partitions, err := t.firstPartitions(topic, p.Replicas)
	if err != nil {
		return nil, err
	}
	out := &pb.CreateTopicResponse{
		Name: string(topic.Name), Revision: uint64(t.env.Applied),
		Explanation: slices.Clip(cut(p.Explanation)), Warnings: cut(append(shortOfReplicas(partitions), p.Warnings...)),
	}
	if !spec.dryRun {
		t.record(topic)
		for _, part := range partitions {
			t.record(part)
		}
		t.tell(actors.Topics, actors.EnsureTopic{Topic: topic.ID})
		t.event(TopicCreated{Topic: topic.ID, Name: topic.Name, Partitions: topic.Partitions})
		out.TopicId, out.Revision = topic.ID.Bytes(), uint64(t.env.Applied)+1
	}
	seen := messages.Seen{Controller: t.env.Controller, Sequence: messages.Sequence(out.Revision)}
	size := 0
	for _, part := range partitions {
		l := messages.LeadershipOf(topic.Name, part, seen)
		if size += proto.Size(l); len(out.Partitions) >= maxAnswerPartitions || size > maxAnswerBytes {
			out.Explanation = append(out.Explanation, fmt.Sprintf("the answer has the first %d of %d partitions",
				len(out.Partitions), len(partitions)))
			break
		}
		out.Partitions = append(out.Partitions, l)
	}
	return out, nil
}

// firstPartitions makes the partitions of a new topic by what the brokers are now: in sync is who may lead, and the first of
// them leads. A new partition is empty, so its leader has nothing to prove.
func (t *step) firstPartitions(topic *messages.Topic, replicas [][]messages.BrokerID) (
	[]*messages.Partition, *messages.Error,
) {
	out := make([]*messages.Partition, len(replicas))
	size := 0
	for i, list := range replicas {
		p := &messages.Partition{
			ID: messages.PartitionID{Topic: topic.ID, Index: int32(i)}, Replicas: list, MinISR: topic.MinISR,
			LeaderProven: true, Reason: "topic created",
		}
		for _, b := range list {
			if t.brokers[b].CanLead() {
				p.ISR = append(p.ISR, b)
			}
			size += 2 * (len(b) + 2)
		}
		if len(p.ISR) == 0 {
			return nil, messages.Errorf(messages.CodeInvalidReplicationFactor,
				"partition %d would have no leader: all of %v are fenced or stopping", i, list)
		}
		p.Leader = p.ISR[0]
		size += len(p.Leader) + 64
		out[i] = p
	}
	if size > maxTopicEntry {
		return nil, messages.Errorf(messages.CodeTooLarge, "the topic's records have about %d bytes, the limit is %d",
			size, maxTopicEntry)
	}
	return out, nil
}

// newTopicID draws an id that no topic has and no deletion names.
func (t *step) newTopicID() messages.TopicID {
	random := t.random()
	for {
		var id messages.TopicID
		for i := range id {
			id[i] = byte(random.Uint32())
		}
		_, exists := t.env.Cluster.Topic(id)
		_, ending := t.env.Cluster.Deletion(id)
		if !id.IsZero() && !exists && !ending {
			return id
		}
	}
}

// shortOfReplicas warns of partitions that start with fewer replicas in sync than they have, or than they need.
func shortOfReplicas(partitions []*messages.Partition) []string {
	short, under := 0, 0
	for _, p := range partitions {
		if len(p.ISR) < len(p.Replicas) {
			short++
		}
		if len(p.ISR) < messages.EffectiveMinISR(p.MinISR, len(p.Replicas)) {
			under++
		}
	}
	var out []string
	if short > 0 {
		out = append(out, fmt.Sprintf("under_replicated: %d of %d partitions start with replicas out of sync, "+
			"on brokers that are fenced or stopping", short, len(partitions)))
	}
	if under > 0 {
		out = append(out, fmt.Sprintf("under_min_isr: %d of %d partitions start below min ISR "+
			"and take no writes with acks=all", under, len(partitions)))
	}
	return out
}

func cut(lines []string) []string {
	if len(lines) <= maxAnswerLines {
		return lines
	}
	more := fmt.Sprintf("and %d more", len(lines)-maxAnswerLines+1)
	return append(append([]string(nil), lines[:maxAnswerLines-1]...), more)
}
