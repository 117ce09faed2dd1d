package placer

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
)

type load struct{ replicas, leaders int }

// fakeCluster is the committed state of a test.
type fakeCluster struct {
	actors.Cluster // what the placer must not ask panics
	brokers        map[messages.BrokerID]*messages.Broker
	loads          map[messages.BrokerID]load
	topics         map[messages.TopicName]bool
}

func (c *fakeCluster) Brokers() map[messages.BrokerID]*messages.Broker { return c.brokers }

func (c *fakeCluster) Load(b messages.BrokerID) (replicas, leaders int) {
	return c.loads[b].replicas, c.loads[b].leaders
}

func (c *fakeCluster) TopicByName(name messages.TopicName) (*messages.Topic, bool) {
	return nil, c.topics[name]
}

func (c *fakeCluster) commit(topic messages.TopicName, replicas [][]messages.BrokerID) {
	c.topics[topic] = true
	for _, list := range replicas {
		for i, b := range list {
			l := c.loads[b]
			l.replicas++
			if i == 0 {
				l.leaders++
			}
			c.loads[b] = l
		}
	}
}

// world is a placer with a committed state and a clock.
type world struct {
	t       *testing.T
	cluster *fakeCluster
	now     time.Duration
	steps   uint64
	state   *State
	answers map[uint64]actors.Placement
	names   map[uint64]messages.TopicName
}

func newWorld(t *testing.T) *world {
	w := &world{
		t: t, answers: map[uint64]actors.Placement{}, names: map[uint64]messages.TopicName{},
		cluster: &fakeCluster{
			brokers: map[messages.BrokerID]*messages.Broker{}, loads: map[messages.BrokerID]load{},
			topics: map[messages.TopicName]bool{},
		},
	}
	state, err := Machine{}.Load(w.env(), actors.Placer)
	if err != nil {
		t.Fatal(err)
	}
	w.state = state
	w.step(actors.Activated{})
	return w
}

func (w *world) env() actors.Env {
	return actors.Env{Now: w.now, Random: [2]uint64{w.steps, 1}, Cluster: w.cluster}
}

// step gives the placer a message and returns what it did.
func (w *world) step(msg actors.Message) []string {
	w.steps++
	var fx actors.Effects
	w.state, fx = Machine{}.Step(w.env(), w.state, msg)
	if len(fx.Records) > 0 || len(fx.Replies) > 0 || len(fx.Broadcast) > 0 || len(fx.Publish) > 0 || fx.Stop {
		w.t.Errorf("%+v: the placer only tells: %+v", msg, fx)
	}
	var out []string
	for _, tell := range fx.Tells {
		out = append(out, w.answer(tell)...)
	}
	for _, e := range fx.Events {
		out = append(out, "event "+e.EventName()+detail(e))
	}
	return out
}

func (w *world) answer(tell actors.Tell) []string {
	p, ok := tell.Msg.(actors.Placement)
	if !ok || tell.To != actors.Registry {
		w.t.Errorf("the placer tells %+v", tell)
	}
	if p.Err != nil {
		return []string{fmt.Sprintf("answer %d: %v", p.Ticket, p.Err)}
	}
	w.answers[p.Ticket] = p
	lists := make([]string, len(p.Replicas))
	for i, list := range p.Replicas {
		lists[i] = fmt.Sprint(list)
	}
	out := []string{fmt.Sprintf("answer %d: %s", p.Ticket, strings.Join(lists, " "))}
	for _, warning := range p.Warnings {
		out = append(out, "warning "+warning)
	}
	return out
}

func detail(e actors.Event) string {
	switch e := e.(type) {
	case PlacementProposed:
		return fmt.Sprintf(" %d %s %d×%d, %d warnings", e.Ticket, e.Topic, e.Partitions, e.ReplicationFactor, len(e.Warnings))
	case PlacementRefused:
		return fmt.Sprintf(" %d %s %s", e.Ticket, e.Topic, e.Err.Code)
	case ReservationLapsed:
		return fmt.Sprintf(" %d %s", e.Ticket, e.Topic)
	case MessageIgnored:
		return " " + e.Kind
	}
	return ""
}

// do plays one line of a transcript.
func (w *world) do(words []string) []string {
	switch words[0] {
	case "brokers":
		for _, word := range words[1:] {
			w.broker(word)
		}
		return nil
	case "place": // place TICKET TOPIC PARTITIONSxFACTOR
		return w.place(w.number(words[1]), words[2], words[3])
	case "commit": // the topic of the ticket is in the committed state
		ticket := w.number(words[1])
		w.cluster.commit(w.names[ticket], w.answers[ticket].Replicas)
		return nil
	case "settled":
		return w.step(actors.PlacementSettled{Ticket: w.number(words[1])})
	case "wait":
		d, err := time.ParseDuration(words[1])
		if err != nil {
			w.t.Fatal(err)
		}
		w.now += d
		return nil
	case "activated":
		return w.step(actors.Activated{Restarted: true})
	case "tick":
		return w.step(actors.Tick{})
	case "loads":
		return w.loads()
	case "explain":
		return w.answers[w.number(words[1])].Explanation
	}
	w.t.Fatalf("unknown line %q", words)
	return nil
}

func (w *world) place(ticket uint64, topic, size string) []string {
	partitions, factor, _ := strings.Cut(size, "x")
	w.names[ticket] = messages.TopicName(topic)
	return w.step(actors.PlaceTopic{
		Ticket: ticket, Name: messages.TopicName(topic),
		Partitions: int(w.number(partitions)), ReplicationFactor: int(w.number(factor)),
	})
}

// broker reads "id@rack", with "*weight", "+replicas/leaders" and "!state" behind it.
func (w *world) broker(word string) {
	word, state, _ := strings.Cut(word, "!")
	word, has, _ := strings.Cut(word, "+")
	word, weight, _ := strings.Cut(word, "*")
	id, rack, _ := strings.Cut(word, "@")
	b := &messages.Broker{
		ID: messages.BrokerID(id), Rack: messages.RackPath(rack), Weight: 100,
		Fenced: state == "fenced", Stopping: state == "stopping", Draining: state == "draining",
	}
	if weight != "" {
		b.Weight = int(w.number(weight))
	}
	if replicas, leaders, ok := strings.Cut(has, "/"); ok {
		w.cluster.loads[b.ID] = load{int(w.number(replicas)), int(w.number(leaders))}
	}
	w.cluster.brokers = maps.Clone(w.cluster.brokers)
	w.cluster.brokers[b.ID] = b
}

// loads tells what the placer takes each broker to have: replicas/leaders.
func (w *world) loads() []string {
	s := w.state.snapshot(w.env())
	var out []string
	for _, b := range s.Brokers {
		out = append(out, fmt.Sprintf("%s=%d/%d", b.ID, b.Replicas, b.Leaders))
	}
	slices.Sort(out)
	return []string{fmt.Sprintf("%s, %d reserved", strings.Join(out, " "), len(w.state.reserved))}
}

func (w *world) number(s string) uint64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		w.t.Fatal(err)
	}
	return uint64(n)
}
