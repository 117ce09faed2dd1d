package registry

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

var update = flag.Bool("update", false, "write the transcripts anew instead of comparing")

// TestTranscripts plays each file of testdata. A line at the margin is something that happens, the indented lines below it
// are what the registry does about it, and # begins a remark. A line "== name" begins a scenario of its own.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) { playFile(t, file) })
	}
}

func playFile(t *testing.T, file string) {
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for i, scenario := range strings.Split(string(data), "\n== ") {
		if i == 0 {
			out.WriteString(scenario)
			continue
		}
		name, body, _ := strings.Cut(scenario, "\n")
		t.Run(name, func(t *testing.T) {
			played := play(body)
			out.WriteString("\n== " + name + "\n" + played)
			if !*update && played != body {
				t.Errorf("the transcript says\n%s\nbut it went\n%s", body, played)
			}
		})
	}
	if *update {
		if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// play carries out the lines at the margin and writes what comes of each below it.
func play(body string) string {
	s := &script{w: newWorld(messages.DefaultSettings()), names: map[messages.TopicID]string{},
		ids: map[string][]messages.TopicID{}}
	s.w.observe = s.show
	s.w.step(actors.Activated{})
	s.out.Reset()
	for line := range strings.Lines(body) {
		switch {
		case strings.HasPrefix(line, " "):
			continue
		case strings.TrimSpace(line) != "" && !strings.HasPrefix(line, "#"):
			s.out.WriteString(line)
			s.run(strings.Fields(line))
		default:
			s.out.WriteString(line)
		}
	}
	return s.out.String()
}

// script is one scenario being played.
type script struct {
	w     *world
	out   strings.Builder
	names map[messages.TopicID]string   // what a topic is called
	ids   map[string][]messages.TopicID // the topics that a name was given to
	last  time.Duration                 // when the last line came
}

func (s *script) run(words []string) {
	verb, args := words[0], words[1:]
	s.last = s.w.now
	switch verb {
	case "register", "heartbeat", "removed", "create", "delete":
		s.request(verb, args)
	case "ready":
		s.ready(args)
	case "activate":
		s.w.load()
		s.w.step(actors.Activated{Restarted: has(args, "restarted")})
	case "disconnect":
		s.w.step(actors.Disconnected{Connection: connectionArg(args[0]), Abrupt: has(args, "abrupt"), Reason: option(args,
			"reason", "")})
	case "placed":
		s.placed(args)
	case "wait":
		s.w.wait(duration(args[0]))
	case "stall":
		s.w.stall(duration(args[0]))
	case "journal":
		n, _ := strconv.Atoi(args[0])
		s.w.applied = messages.Sequence(n)
	case "claim": // of a controller with the next epoch
		s.w.applied++
		s.w.controller, s.w.claimed = s.w.controller+1, s.w.applied
	case "partition", "drain", "forget":
		s.elsewhere(verb, args)
	default:
		fmt.Fprintf(&s.out, "  ?? unknown verb %s\n", verb)
	}
}

// ready registers and unfences brokers without a word about it: b1 with incarnation i1 and storage s1.
func (s *script) ready(brokers []string) {
	s.w.observe = nil
	for _, b := range brokers {
		s.w.ask(b, registration(b, "i"+b[1:], "s"+b[1:]))
	}
	for _, b := range brokers {
		s.w.ask(b, s.w.beat(messages.BrokerID(b)))
	}
	s.w.observe = s.show
}

func (s *script) request(verb string, args []string) {
	id := messages.BrokerID(args[0])
	known := s.w.cluster.brokers[id]
	if known == nil {
		known = &messages.Broker{}
	}
	epoch := number(args, "epoch", uint64(known.Epoch))
	principal := option(args, "as", args[0])
	var body proto.Message
	switch verb {
	case "register":
		r := registration(args[0], option(args, "incarnation", string(known.Incarnation)), option(args, "storage",
			string(known.Storage)))
		r.ClusterId, r.Rack, r.CleanEpoch = option(args, "cluster", ""), option(args, "rack", ""), number(args, "clean", 0)
		r.Fsyncs = option(args, "fsyncs", "yes") == "yes"
		r.Weight = uint32(number(args, "weight", 0))
		r.Connection, r.Seen = connectionArg(option(args, "over", "")), seenArg(args)
		if versions := option(args, "protocol", ""); versions != "" {
			fmt.Sscanf(versions, "%d-%d", &r.MinProtocol, &r.MaxProtocol)
		}
		body = r
	case "heartbeat":
		body = &pb.HeartbeatRequest{
			Broker: args[0], Incarnation: option(args, "incarnation", string(known.Incarnation)), BrokerEpoch: epoch,
			Ready: has(args, "ready"), WantsStop: has(args, "wants-stop"), StorageFailed: has(args, "storage-failed"),
			Connection: connectionArg(option(args, "over", "")), Seen: seenArg(args),
		}
	case "removed":
		r := &pb.RemovedRequest{Broker: args[0], BrokerEpoch: epoch}
		for _, name := range strings.Split(option(args, "topics", ""), ",") {
			r.TopicIds = append(r.TopicIds, s.topicID(name).Bytes())
		}
		body = r
	case "create":
		body = createArg(args)
	case "delete":
		r := &pb.DeleteTopicRequest{Name: args[0], DryRun: has(args, "dry-run")}
		if name := option(args, "id", ""); name != "" {
			r.TopicId = s.topicID(name).Bytes()
		}
		body = r
	}
	s.w.ask(principal, body)
}

func createArg(args []string) *pb.CreateTopicRequest {
	r := &pb.CreateTopicRequest{
		Name: strings.Trim(args[0], `"`), Partitions: uint32(number(args, "partitions", 0)), DryRun: has(args, "dry-run"),
		ReplicationFactor: uint32(number(args, "factor", 0)), MinIsr: uint32(number(args, "min-isr", 0)),
	}
	if hand := option(args, "on", ""); hand != "" {
		for _, list := range strings.Split(hand, "|") {
			r.Assignment = append(r.Assignment, &pb.ReplicaList{Brokers: messages.BrokerStrings(brokersArg(list))})
		}
	}
	return r
}

func (s *script) placed(args []string) {
	ticket, _ := strconv.ParseUint(args[0], 10, 64)
	p := actors.Placement{Ticket: ticket, Explanation: []string{"because"}}
	if code := option(args, "error", ""); code != "" {
		p.Err = messages.Errorf(messages.Code(code), "the placer says no")
	} else {
		for _, list := range strings.Split(args[1], "|") {
			p.Replicas = append(p.Replicas, brokersArg(list))
		}
	}
	s.w.step(p)
}

// elsewhere is a change of the committed state that another actor makes.
func (s *script) elsewhere(verb string, args []string) {
	s.w.applied++
	id := messages.BrokerID(args[0])
	switch verb {
	case "drain":
		b := *s.w.cluster.brokers[id]
		b.Draining = true
		s.w.cluster.apply(&b)
	case "forget":
		s.w.cluster.apply(&messages.BrokerForgotten{ID: id})
	case "partition":
		name, index, _ := strings.Cut(args[0], "/")
		i, _ := strconv.Atoi(index)
		old := s.w.cluster.partitions[messages.PartitionID{Topic: s.topicID(name), Index: int32(i)}]
		p := *old
		p.Epoch++
		p.LeaderEpoch++
		p.Leader = messages.BrokerID(option(args, "leader", ""))
		p.ISR, p.Eligible = brokersArg(option(args, "isr", "")), brokersArg(option(args, "eligible", ""))
		s.w.cluster.apply(&p)
	}
}

// topicID returns the id that a name had last; "t#1" is the first topic that was called t.
func (s *script) topicID(name string) messages.TopicID {
	name, nth, _ := strings.Cut(name, "#")
	ids := s.ids[name]
	n, err := strconv.Atoi(nth)
	if err != nil {
		n = len(ids)
	}
	if n < 1 || n > len(ids) {
		return messages.TopicID{0xff}
	}
	return ids[n-1]
}

func has(args []string, word string) bool {
	for _, a := range args {
		if a == word {
			return true
		}
	}
	return false
}

func option(args []string, name, without string) string {
	for _, a := range args {
		if v, ok := strings.CutPrefix(a, name+"="); ok {
			return v
		}
	}
	return without
}

func number(args []string, name string, without uint64) uint64 {
	n, err := strconv.ParseUint(option(args, name, ""), 10, 64)
	if err != nil {
		return without
	}
	return n
}

func duration(s string) time.Duration {
	d, err := time.ParseDuration(s)
	if err != nil {
		panic(err)
	}
	return d
}

func connectionArg(s string) *pb.Connection {
	server, client, ok := strings.Cut(s, "/")
	if !ok {
		return nil
	}
	n, _ := strconv.ParseUint(client, 10, 64)
	return &pb.Connection{ServerId: server, ClientId: n}
}

func seenArg(args []string) *pb.Seen {
	epoch, sequence, ok := strings.Cut(option(args, "seen", ""), "/")
	if !ok {
		return nil
	}
	e, _ := strconv.ParseUint(epoch, 10, 64)
	n, _ := strconv.ParseUint(sequence, 10, 64)
	return &pb.Seen{ControllerEpoch: e, Sequence: n}
}

func brokersArg(s string) []messages.BrokerID {
	if s == "" || s == "-" {
		return nil
	}
	return messages.BrokerIDs(strings.Split(s, ","))
}
