package outbox

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

var update = flag.Bool("update", false, "write the transcripts anew instead of comparing")

// TestTranscripts plays each file of testdata. A line at the margin is something that happens, the indented lines below it
// are what the outbox of b1 does about it, and # begins a remark. A line "== name" begins a scenario of its own.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
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
}

func play(body string) string {
	var out strings.Builder
	w := newWorld()
	feed := w.state.feed
	last := w.now
	w.observe = func(fx actors.Effects) {
		var lines []string
		for _, e := range fx.Events {
			lines = append(lines, "event "+e.EventName())
		}
		for _, r := range fx.Replies {
			at := r.Body.(*pb.FeedPosition)
			lines = append(lines, fmt.Sprintf("reply position %d of this feed: %v",
				at.GetPosition(), messages.Sequence(at.GetFeed()) == w.state.feed))
		}
		for _, p := range fx.Publish {
			lines = append(lines, publication(p.(actors.PublishAssignments), feed))
		}
		if len(lines) > 0 && w.now != last {
			fmt.Fprintf(&out, "  after %v:\n", w.now-last)
		}
		for _, l := range lines {
			out.WriteString("  " + l + "\n")
		}
	}
	for line := range strings.Lines(body) {
		if strings.HasPrefix(line, " ") {
			continue
		}
		out.WriteString(line)
		if words := strings.Fields(line); len(words) > 0 && words[0] != "#" {
			last = w.now
			if !w.run(words) {
				fmt.Fprintf(&out, "  ?? unknown verb %s\n", words[0])
			}
			if words[0] == "restart" {
				feed = w.state.feed
			}
		}
	}
	return out.String()
}

func (w *world) run(words []string) bool {
	switch words[0] {
	case "assign": // assign t/0 epoch 3 floor 10
		topic, index, _ := strings.Cut(words[1], "/")
		i, _ := strconv.Atoi(index)
		a := assignment(topic, int32(i), number(words, "epoch"))
		a.Floor = number(words, "floor")
		w.step(actors.Assign{Assignment: a})
	case "remove":
		w.step(actors.Remove{Removal: removalFor(words[1])})
	case "topic": // topic t is created, or deleted
		if id := topicID(words[1]); words[2] == "created" {
			w.topics[id] = &messages.Topic{ID: id, Name: messages.TopicName(words[1])}
		} else {
			delete(w.topics, id)
		}
	case "fenced", "unfenced":
		w.brokers = map[messages.BrokerID]*messages.Broker{"b1": {ID: "b1", Fenced: words[0] == "fenced"}}
	case "snapshot":
		w.step(actors.FeedStart{Request: 1})
	case "flush":
		w.step(actors.Flush{})
	case "restart":
		w.load()
		w.step(actors.Activated{Restarted: true})
	case "wait":
		d, err := time.ParseDuration(words[1])
		if err != nil {
			panic(err)
		}
		w.wait(d)
	default:
		return false
	}
	return true
}

func number(words []string, name string) int64 {
	if i := slices.Index(words, name); i >= 0 {
		n, _ := strconv.ParseInt(words[i+1], 10, 64)
		return n
	}
	return 0
}

func publication(p actors.PublishAssignments, feed messages.Sequence) string {
	out := fmt.Sprintf("publish to %s position %d:", p.Broker, p.Position)
	if p.Feed != feed {
		out = fmt.Sprintf("publish to %s of a new feed, position %d:", p.Broker, p.Position)
	}
	for _, r := range p.Removals {
		out += " remove " + r.GetTopic()
	}
	for _, a := range p.Assignments {
		out += fmt.Sprintf(" %s/%d@%d", a.GetTopic(), a.GetPartition(), a.GetPartitionEpoch())
		if a.GetFloor() > 0 {
			out += fmt.Sprintf(" floor %d", a.GetFloor())
		}
	}
	if len(p.Removals)+len(p.Assignments) == 0 {
		out += " nothing"
	}
	return out
}

// world hosts one outbox.
type world struct {
	fakeCluster
	state   *State
	now     time.Duration
	applied messages.Sequence
	steps   uint64
	wakes   []wake
	observe func(actors.Effects)
}

type wake struct {
	at  time.Duration
	seq uint64
	msg actors.Message
}

// fakeCluster knows topics and brokers.
type fakeCluster struct {
	actors.Cluster
	topics  map[messages.TopicID]*messages.Topic
	brokers map[messages.BrokerID]*messages.Broker
}

func (c fakeCluster) Brokers() map[messages.BrokerID]*messages.Broker { return c.brokers }

func (c fakeCluster) Topic(id messages.TopicID) (*messages.Topic, bool) {
	t, ok := c.topics[id]
	return t, ok
}

// newWorld has the topics t, u and v.
func newWorld() *world {
	w := &world{fakeCluster: fakeCluster{topics: map[messages.TopicID]*messages.Topic{}}, applied: 7}
	for _, name := range []string{"t", "u", "v"} {
		w.topics[topicID(name)] = &messages.Topic{ID: topicID(name), Name: messages.TopicName(name)}
	}
	w.load()
	w.step(actors.Activated{})
	return w
}

func (w *world) env() actors.Env {
	w.steps++
	return actors.Env{Now: w.now, Random: [2]uint64{w.steps << 40, w.steps}, Applied: w.applied, Cluster: w.fakeCluster}
}

func (w *world) load() {
	s, err := Machine{}.Load(w.env(), actors.Outbox("b1"))
	if err != nil {
		panic(err)
	}
	w.state, w.wakes = s, nil
}

func (w *world) step(msg actors.Message) actors.Effects {
	var fx actors.Effects
	w.state, fx = Machine{}.Step(w.env(), w.state, msg)
	for _, k := range fx.Wakes {
		w.wakes = append(w.wakes, wake{at: w.now + k.After, seq: w.steps, msg: k.Msg})
	}
	if w.observe != nil {
		w.observe(fx)
	}
	return fx
}

func (w *world) wait(d time.Duration) {
	end := w.now + d
	for len(w.wakes) > 0 {
		slices.SortStableFunc(w.wakes, func(a, b wake) int { return cmp.Compare(a.at, b.at) })
		k := w.wakes[0]
		if k.at > end {
			break
		}
		w.wakes = w.wakes[1:]
		w.now = k.at
		w.step(k.msg)
	}
	w.now = end
}

func topicID(name string) messages.TopicID {
	id := messages.TopicID{1}
	copy(id[1:], name)
	return id
}

func assignment(topic string, index int32, epoch int64) *pb.Assignment {
	return &pb.Assignment{TopicId: topicID(topic).Bytes(), Topic: topic, Partition: index, PartitionEpoch: epoch}
}

func removalFor(topic string) *pb.Removal {
	return &pb.Removal{TopicId: topicID(topic).Bytes(), Topic: topic, PartitionEpochs: []int64{1}}
}
