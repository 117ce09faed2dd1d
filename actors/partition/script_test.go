package partition

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// script runs the commands of one transcript case. The commands are listed in testdata/README.md.
type script struct {
	cluster *cluster
	state   *State
	now     time.Duration
	wake    *actors.Wake // the last deadline that was set
	resign  *actors.Wake // the last deadline for a leader to resign
	request actors.RequestID
	last    actors.Effects // of the last step
}

// args are the words of a command: key=value and flags by name, the others in order.
type args struct {
	named map[string]string
	words []string
}

func parseArgs(fields []string) args {
	a := args{named: map[string]string{}}
	for _, f := range fields {
		if k, v, ok := strings.Cut(f, "="); ok {
			a.named[k] = v
		} else {
			a.words = append(a.words, f)
		}
	}
	return a
}

func (a args) text() string { return strings.Join(a.words, " ") }

func (a args) has(word string) bool { return slices.Contains(a.words, word) }

func (a args) int(key string, otherwise int64) int64 {
	v, ok := a.named[key]
	if !ok {
		return otherwise
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil {
		panic(fmt.Sprintf("%s=%s is no number", key, v))
	}
	return n
}

func (a args) ids(key string) []messages.BrokerID {
	if v := a.named[key]; v != "" {
		return messages.BrokerIDs(strings.Split(v, ","))
	}
	return nil
}

// run runs one command and returns the lines that it prints.
func (s *script) run(line string) ([]string, error) {
	fields := strings.Fields(line)
	verb, a := fields[0], parseArgs(fields[1:])
	if s.setUp(verb, a) {
		return nil, nil
	}
	msg, err := s.message(verb, a)
	if err != nil {
		return nil, err
	}
	return s.step(msg)
}

// setUp runs the commands that only make a situation.
func (s *script) setUp(verb string, a args) bool {
	switch verb {
	case "brokers":
		s.cluster = newCluster(nil, messages.BrokerIDs(a.words)...)
	case "broker":
		s.cluster.set(messages.BrokerID(a.words[0]), func(b *messages.Broker) {
			b.Fenced, b.Stopping, b.Draining, b.Suspect = a.has("fenced"), a.has("stopping"), a.has("draining"), a.has("suspect")
			b.Epoch = messages.BrokerEpoch(a.int("epoch", int64(b.Epoch)))
		})
	case "topic":
		s.cluster.topic.MinISR = int(a.int("min", 2))
	case "partition":
		s.store(a)
	case "reload":
		s.load()
	default:
		return false
	}
	return true
}

func (s *script) store(a args) {
	s.cluster.topic.MinISR = int(a.int("min", 2))
	s.cluster.record = &messages.Partition{ID: testID, Replicas: a.ids("replicas"), ISR: a.ids("isr"), Eligible: a.ids("eligible"),
		Leader: messages.BrokerID(a.named["leader"]), LeaderEpoch: messages.LeaderEpoch(a.int("le", 4)),
		Epoch: messages.PartitionEpoch(a.int("pe", 9)), MinISR: int(a.int("min", 2)), LastLeader: messages.BrokerID(a.named["last"]),
		HighWatermark: messages.Offset(a.int("mark", 0)), LeaderProven: !a.has("unproven") && a.named["leader"] != ""}
	s.load()
}

func (s *script) load() {
	state, err := Machine{}.Load(s.cluster.env(s.now), actors.Partition(testID))
	if err != nil {
		panic(err)
	}
	s.state, s.wake = state, nil
}

// message makes the message of a command, after what the registry commits before it.
func (s *script) message(verb string, a args) (actors.Message, error) {
	var id messages.BrokerID
	if len(a.words) > 0 {
		id = messages.BrokerID(a.words[0])
	}
	switch verb {
	case "activate":
		return actors.Activated{}, nil
	case "changed":
		return actors.BrokerChanged{Broker: id}, nil
	case "fence":
		s.cluster.set(id, func(b *messages.Broker) { b.Fenced, b.FencedReason = true, strings.Join(a.words[1:], " ") })
		return actors.BrokerChanged{Broker: id}, nil
	case "unfence":
		s.cluster.set(id, func(b *messages.Broker) { b.Fenced, b.Suspect, b.FencedReason = false, false, "" })
		return actors.BrokerChanged{Broker: id}, nil
	case "stop":
		s.cluster.set(id, func(b *messages.Broker) { b.Stopping = true })
		return actors.BrokerChanged{Broker: id}, nil
	case "forget":
		s.cluster.forget(id)
		return actors.BrokerChanged{Broker: id}, nil
	case "restart": // clean: the registry only says that it has changed
		s.cluster.register(id, false)
		return actors.BrokerChanged{Broker: id}, nil
	case "crash": // unclean: what it holds is not to be trusted
		return actors.BrokerRestarted{Broker: id, Epoch: s.cluster.register(id, true)}, nil
	case "prefer":
		return actors.PreferLeader{To: id, Reason: strings.Join(a.words[1:], " ")}, nil
	case "deadline":
		return s.deadline(a)
	case "handover-deadline":
		if s.resign == nil {
			return nil, fmt.Errorf("nobody was asked to resign")
		}
		s.now += s.resign.After
		return s.resign.Msg, nil
	case "delete":
		s.cluster.topic = nil
		return actors.TopicDeleted{}, nil
	case "alter":
		s.cluster.topic.MinISR = int(a.int("min", 2))
		return actors.Activated{}, nil
	}
	return s.brokerSays(verb, a)
}

func (s *script) deadline(a args) (actors.Message, error) {
	if le, ok := a.named["le"]; ok {
		n, err := strconv.ParseInt(le, 10, 64)
		return actors.LeaderDeadline{Epoch: messages.LeaderEpoch(n)}, err
	}
	if s.wake == nil {
		return nil, fmt.Errorf("no deadline is set")
	}
	if !a.has("early") {
		s.now += s.wake.After
	}
	return s.wake.Msg, nil
}

// brokerSays makes the message of a broker's request. What a command does not name is what the leader would say.
func (s *script) brokerSays(verb string, a args) (actors.Message, error) {
	p := s.state.Partition()
	from := p.Leader
	if v, ok := a.named["from"]; ok {
		from = messages.BrokerID(v)
	}
	var epoch messages.BrokerEpoch
	if b := s.cluster.brokers[from]; b != nil {
		epoch = b.Epoch
	}
	epoch = messages.BrokerEpoch(a.int("be", int64(epoch)))
	le, mark := a.int("le", int64(p.LeaderEpoch)), a.int("mark", int64(p.HighWatermark))
	s.request++
	switch verb {
	case "propose":
		return actors.ISRProposal{Request: s.request, Broker: from, BrokerEpoch: epoch, Proposal: &pb.IsrProposal{
			LeaderEpoch: le, PartitionEpoch: a.int("pe", int64(p.Epoch)), Isr: s.members(a), HighWatermark: mark,
			Renew: a.int("renew", 0) == 1}}, nil
	case "ready", "decline", "resigned":
		return actors.LeaderReport{Request: s.request, Broker: from, BrokerEpoch: epoch, Report: &pb.LeaderReport{
			LeaderEpoch: le, LogEnd: a.int("end", mark), HighWatermark: mark, Declined: verb == "decline", Resigned: verb == "resigned", Reason: a.text()}}, nil
	case "offset":
		return actors.OffsetReport{Broker: from, BrokerEpoch: epoch, Report: &pb.OffsetReport{
			LeaderEpoch: le, HighWatermark: mark, LogEnd: a.int("end", mark)}}, nil
	}
	return nil, fmt.Errorf("unknown command %q", verb)
}

func (s *script) members(a args) []*pb.IsrMember {
	var out []*pb.IsrMember
	for _, word := range a.ids("isr") {
		id, epoch, given := strings.Cut(string(word), "@")
		m := s.cluster.members(messages.BrokerID(id))[0]
		if given {
			n, err := strconv.ParseUint(epoch, 10, 64)
			if err != nil {
				panic(err)
			}
			m.BrokerEpoch = n
		}
		out = append(out, m)
	}
	return out
}

// step lets the machine decide, commits, and prints the effects.
func (s *script) step(msg actors.Message) ([]string, error) {
	before := s.state.Partition()
	state, fx := Machine{}.Step(s.cluster.env(s.now), s.state, msg)
	p, _ := msg.(actors.ISRProposal)
	s.cluster.renewing = p.Proposal.GetRenew()
	if err := checkStep(s.cluster, before, state, fx); err != nil {
		return nil, err
	}
	s.state, s.last = state, fx
	s.cluster.apply(fx.Records)
	for _, w := range fx.Wakes {
		if _, is := w.Msg.(actors.HandoverDeadline); is {
			s.resign = &w
		} else {
			s.wake = &w
		}
	}
	return printEffects(fx), nil
}

func printEffects(fx actors.Effects) []string {
	var out []string
	add := func(format string, a ...any) { out = append(out, fmt.Sprintf(format, a...)) }
	for _, r := range fx.Records {
		add("record %s", printPartition(r.(*messages.Partition)))
	}
	for _, r := range fx.Replies {
		add("answer %s", printResult(r.Body.(*pb.IsrResult)))
	}
	var to []string
	for _, t := range fx.Tells {
		to = append(to, string(t.To.Broker))
	}
	if len(to) > 0 {
		ask := ""
		if fx.Tells[0].Msg.(actors.Assign).Assignment.GetResign() {
			ask = ", resign"
		}
		add("assign to %s%s", strings.Join(to, " "), ask)
	}
	for _, p := range fx.Publish {
		l := p.(actors.PublishLeadership)
		add("publish leader %s, le %d%s", orNone(l.Partition.Leader), l.Partition.LeaderEpoch, map[bool]string{true: ", deleted"}[l.Deleted])
	}
	for _, w := range fx.Wakes {
		if h, is := w.Msg.(actors.HandoverDeadline); is {
			add("wake in %v for the resignation in le %d", w.After, h.Epoch)
			continue
		}
		add("wake in %v for le %d", w.After, w.Msg.(actors.LeaderDeadline).Epoch)
	}
	for _, e := range fx.Events {
		add("%s", printEvent(e))
	}
	if fx.Stop {
		add("stop")
	}
	if len(out) == 0 {
		add("nothing")
	}
	return out
}

func printPartition(p *messages.Partition) string {
	proof := "unproven"
	if p.LeaderProven {
		proof = "proven"
	}
	if p.Leader == "" {
		proof = "last leader " + orNone(p.LastLeader)
	}
	return fmt.Sprintf("leader %s, le %d, pe %d, isr %v, eligible %v, min %d, mark %d, %s", orNone(p.Leader), p.LeaderEpoch, p.Epoch, p.ISR,
		p.Eligible, p.MinISR, p.HighWatermark, proof)
}

func printResult(r *pb.IsrResult) string {
	text := "ok"
	if r.Error != nil {
		text = fmt.Sprintf("%s (%s)", r.Error.Code, r.Error.Message)
	}
	if c := r.Current; c != nil {
		text += fmt.Sprintf(", current: leader %s, le %d, pe %d, isr %v", orNone(messages.BrokerID(c.Leader)), c.LeaderEpoch, c.PartitionEpoch, c.Isr)
	}
	return text
}

func printEvent(e actors.Event) string {
	name := strings.TrimPrefix(e.EventName(), "partition.")
	switch e := e.(type) {
	case LeaderChanged:
		return fmt.Sprintf("%s: %s to %s, %s", name, orNone(e.From), orNone(e.To), e.Reason)
	case ISRChanged:
		return strings.TrimSuffix(fmt.Sprintf("%s: %v to %v, eligible %v, %s", name, e.Before, e.After, e.Eligible, e.Reason), ", ")
	case Offline:
		return fmt.Sprintf("%s: last leader %s, eligible %v", name, orNone(e.LastLeader), e.Eligible)
	case Recovered:
		return fmt.Sprintf("%s: %s leads", name, e.Leader)
	case LeaderProven:
		return fmt.Sprintf("%s: %s, mark %d", name, e.Leader, e.HighWatermark)
	case LeaderUnproven:
		return fmt.Sprintf("%s: %s, after %v", name, e.Leader, e.Waited)
	case LeaderResigned:
		return fmt.Sprintf("%s: %s", name, e.Leader)
	case LeaderDeclined:
		return fmt.Sprintf("%s: %s, log end %d, floor %d", name, e.Leader, e.LogEnd, e.Floor)
	case HighWatermarkRegression:
		return fmt.Sprintf("%s: %s told %d, known is %d", name, e.Leader, e.Reported, e.Known)
	case PreferenceRefused:
		return fmt.Sprintf("%s: %s, %s", name, orNone(e.To), e.Reason)
	case RequestRefused:
		return fmt.Sprintf("%s: %s", name, e.Code)
	case StateRepaired:
		return fmt.Sprintf("%s: %s", name, strings.Join(e.Faults, "; "))
	}
	return name
}

func orNone(b messages.BrokerID) string {
	if b == "" {
		return "none"
	}
	return string(b)
}
