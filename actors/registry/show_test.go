package registry

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// show writes the effects of a step, in the order in which the host carries them out.
func (s *script) show(msg actors.Message, fx actors.Effects) {
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	for _, e := range fx.Events {
		switch e := e.(type) {
		case TopicCreated:
			s.names[e.Topic] = string(e.Name)
			s.ids[string(e.Name)] = append(s.ids[string(e.Name)], e.Topic)
		case ControllerStalled:
			add("event %s, late by %v", e.EventName(), e.Late)
		case UnfencingHeld:
			add("event %s by %d partitions, first %s", e.EventName(), e.Partitions, s.partition(e.First))
		case PositionAhead, ClaimEnded, MessageIgnored, SessionEnded:
			add("event %s", e.EventName())
		}
	}
	for _, r := range fx.Records {
		add("record %s", s.record(r))
	}
	for _, r := range fx.Replies {
		for _, line := range s.body(r.Body) {
			add("%s", line)
		}
	}
	for _, m := range fx.Tells {
		add("tell %s %s", s.address(m.To), s.message(m.Msg))
	}
	for _, b := range fx.Broadcast {
		add("to partitions of %s: %s", b.Broker, s.message(b.Msg))
	}
	for _, k := range fx.Wakes {
		if _, tick := k.Msg.(actors.Tick); !tick {
			add("in %v: %T", k.After, k.Msg)
		}
	}
	if len(lines) > 0 && s.w.now != s.last {
		fmt.Fprintf(&s.out, "  after %v:\n", (s.w.now - s.last).Round(time.Millisecond))
	}
	for _, l := range lines {
		s.out.WriteString("  " + strings.ReplaceAll(l, "actors.", "") + "\n")
	}
}

func (s *script) record(r messages.Record) string {
	switch r := r.(type) {
	case *messages.Broker:
		out := fmt.Sprintf("broker %s epoch %d incarnation %s storage %s", r.ID, r.Epoch, r.Incarnation, r.Storage)
		if r.Rack != "" {
			out += " rack " + string(r.Rack)
		}
		for _, flag := range []struct {
			on   bool
			name string
		}{{!r.Fsyncs, "without fsync"}, {r.Stopping, "stopping"}, {r.Draining, "draining"}, {r.Suspect,
			"suspect"}, {r.Fenced, "fenced: " + r.FencedReason}} {
			if flag.on {
				out += ", " + flag.name
			}
		}
		return out
	case *messages.Topic:
		return fmt.Sprintf("topic %s partitions %d factor %d min ISR %d",
			r.Name, r.Partitions, r.ReplicationFactor, r.MinISR)
	case *messages.Partition:
		return fmt.Sprintf("partition %s replicas %v ISR %v leader %s epochs %d/%d proven %v",
			s.partition(r.ID), r.Replicas, r.ISR, r.Leader,
			r.LeaderEpoch, r.Epoch, r.LeaderProven)
	case *messages.TopicDeletion:
		return fmt.Sprintf("deletion of %s, pending %v", r.Name, r.Pending)
	case *messages.TopicDeletionDone:
		return fmt.Sprintf("deletion of %s done", s.names[r.ID])
	}
	return fmt.Sprintf("%T", r)
}

func (s *script) body(m proto.Message) []string {
	type failing interface{ GetError() *pb.Error }
	if e := m.(failing).GetError(); e != nil {
		return []string{fmt.Sprintf("refuse %s: %s", e.GetCode(), e.GetMessage())}
	}
	switch m := m.(type) {
	case *pb.RegisterResponse:
		return []string{fmt.Sprintf("reply epoch %d", m.GetBrokerEpoch())}
	case *pb.HeartbeatResponse:
		out := fmt.Sprintf("reply lease %v", time.Duration(m.GetLeaseMs())*time.Millisecond)
		if m.GetFenced() {
			out += ", fenced"
		}
		if m.GetMayStop() {
			out += ", may stop"
		}
		return []string{out}
	case *pb.CreateTopicResponse:
		out := []string{fmt.Sprintf("reply topic %s at revision %d, id %v",
			m.GetName(), m.GetRevision(), len(m.GetTopicId()) > 0)}
		for _, p := range m.GetPartitions() {
			out = append(out, fmt.Sprintf("reply partition %d leader %s ISR %v",
				p.GetPartition(), p.GetLeader(), p.GetIsr()))
		}
		for _, w := range m.GetWarnings() {
			out = append(out, "reply warning "+w)
		}
		return out
	case *pb.DeleteTopicResponse:
		return []string{fmt.Sprintf("reply deleted at revision %d", m.GetRevision())}
	}
	return []string{"reply ok"}
}

func (s *script) message(m actors.Message) string {
	switch m := m.(type) {
	case actors.EnsureTopic:
		return "EnsureTopic " + s.names[m.Topic]
	case actors.DropTopic:
		return "DropTopic " + s.names[m.Topic]
	case actors.Remove:
		return "Remove " + m.Removal.GetTopic()
	case actors.BrokerRestarted:
		return fmt.Sprintf("BrokerRestarted epoch %d empty %v", m.Epoch, m.Empty)
	case actors.BrokerChanged:
		return "BrokerChanged"
	}
	return fmt.Sprintf("%T%+v", m, m)
}

func (s *script) address(a actors.Address) string {
	switch a.Kind {
	case actors.KindPlacer:
		return "placer"
	case actors.KindTopics:
		return "topics"
	case actors.KindOutbox:
		return "outbox of " + string(a.Broker)
	case actors.KindPartition:
		return "partition " + s.partition(a.Partition)
	}
	return fmt.Sprintf("%+v", a)
}

func (s *script) partition(id messages.PartitionID) string {
	name := s.names[id.Topic]
	if id.Topic.IsZero() {
		name = "(dry run)"
	}
	return fmt.Sprintf("%s/%d", name, id.Index)
}
