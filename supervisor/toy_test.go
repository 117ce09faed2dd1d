package supervisor

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/messages"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// toy is a machine whose decisions are made by the test. Its state counts what it has seen since it was loaded.
type toy struct {
	// onLoad and onStep may be nil.
	onLoad func(env actors.Env, self actors.Address) error
	onStep func(env actors.Env, s *toyState, msg actors.Message) actors.Effects
}

type toyState struct {
	self      actors.Address
	partition *messages.Partition
	steps     int
}

func (m *toy) Load(env actors.Env, self actors.Address) (*toyState, error) {
	if m.onLoad != nil {
		if err := m.onLoad(env, self); err != nil {
			return nil, err
		}
	}
	s := &toyState{self: self}
	if self.Kind == actors.KindPartition {
		p, ok := env.Cluster.Partition(self.Partition)
		if !ok {
			return nil, messages.Errorf(messages.CodeUnknownPartition, "the partition is gone")
		}
		s.partition = p
	}
	return s, nil
}

func (m *toy) Step(env actors.Env, s *toyState, msg actors.Message) (*toyState, actors.Effects) {
	s.steps++
	var fx actors.Effects
	if m.onStep != nil {
		fx = m.onStep(env, s, msg)
	}
	if _, deleted := msg.(actors.TopicDeleted); deleted {
		fx.Stop = true
	}
	return s, fx
}

// call is a request with a word as its body, word reads it.
func call(id actors.RequestID, word string) actors.Request {
	return actors.Request{ID: id, Principal: "test", Body: wrapperspb.String(word)}
}

func word(msg actors.Message) (actors.RequestID, string) {
	if r, is := msg.(actors.Request); is {
		return r.ID, r.Body.(*wrapperspb.StringValue).GetValue()
	}
	return 0, ""
}

// answer is the reply to a request.
func answer(id actors.RequestID, text string) []actors.Reply {
	return []actors.Reply{{To: id, Body: wrapperspb.String(text)}}
}

// bump returns the partition's next record.
func (s *toyState) bump() messages.Record {
	p := *s.partition
	p.Epoch++
	s.partition = &p
	return &p
}

// echo answers requests: "write" with a commit, everything else without.
func echo(_ actors.Env, s *toyState, msg actors.Message) (fx actors.Effects) {
	id, w := word(msg)
	if w == "" {
		return fx
	}
	if w == "write" {
		fx.Records = []messages.Record{s.bump()}
	}
	fx.Replies = answer(id, w)
	return fx
}

// noted is an event with a text.
type noted string

func (n noted) EventName() string { return "toy." + string(n) }

// ear is an edge that writes down what it is told.
type ear struct {
	mu      sync.Mutex
	heard   []string // in order
	answers map[actors.RequestID][]string
	fails   map[actors.RequestID]*messages.Error
	seen    []messages.Seen
	// onCall is called first, without a lock; it may panic.
	onCall func(call string)
}

func newEar() *ear {
	return &ear{answers: map[actors.RequestID][]string{}, fails: map[actors.RequestID]*messages.Error{}}
}

func (e *ear) note(call, what string) {
	if e.onCall != nil {
		e.onCall(call)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.heard = append(e.heard, call+" "+what)
}

func (e *ear) Reply(r actors.Reply) {
	text := r.Body.(*wrapperspb.StringValue).GetValue()
	e.note("reply", fmt.Sprintf("%d %s", r.To, text))
	e.mu.Lock()
	defer e.mu.Unlock()
	e.answers[r.To] = append(e.answers[r.To], text)
}

func (e *ear) Fail(id actors.RequestID, err *messages.Error) {
	e.note("fail", fmt.Sprintf("%d %s", id, err.Code))
	e.mu.Lock()
	defer e.mu.Unlock()
	e.answers[id] = append(e.answers[id], string(err.Code))
	e.fails[id] = err
}

func (e *ear) Publish(p []actors.Publication, seen messages.Seen) {
	for _, one := range p {
		l := one.(actors.PublishLeadership)
		e.note("publish", fmt.Sprintf("%d@%d", l.Partition.ID.Index, l.Partition.Epoch))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seen = append(e.seen, seen)
}

func (e *ear) Observe(_ actors.Address, events []actors.Event) {
	for _, one := range events {
		e.note("event", one.EventName())
	}
}

// log returns what was heard so far.
func (e *ear) log() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.heard)
}

// answered returns the one answer to a request, "" if there is none yet.
func (e *ear) answered(t testing.TB, id actors.RequestID) string {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	all := e.answers[id]
	if len(all) > 1 {
		t.Errorf("request %d was answered %d times: %q", id, len(all), all)
	}
	if len(all) == 0 {
		return ""
	}
	return all[0]
}

// stage is a log, a catalog and a tree in one test.
type stage struct {
	t       testing.TB
	log     *journal.Memory
	catalog *journal.Catalog
	config  Config
	ear     *ear
	tree    *Tree
}

// topicID returns the id of the n-th topic of a stage.
func topicID(n int) messages.TopicID { return messages.TopicID{byte(n + 1), byte(n >> 8), 15: 1} }

func partitionID(topic, index int) messages.PartitionID {
	return messages.PartitionID{Topic: topicID(topic), Index: int32(index)}
}

func partitionAt(topic, index int) actors.Address { return actors.Partition(partitionID(topic, index)) }

// topicRecords returns a topic with its partitions, all on brokers b1 and b2.
func topicRecords(topic, partitions int) []messages.Record {
	records := []messages.Record{&messages.Topic{ID: topicID(topic), Name: messages.TopicName(fmt.Sprintf("t%d", topic)),
		Partitions: partitions, ReplicationFactor: 2, MinISR: 1}}
	set := []messages.BrokerID{"b1", "b2"}
	for i := range partitions {
		records = append(records, &messages.Partition{ID: partitionID(topic, i), Replicas: set, ISR: set, Leader: "b1", MinISR: 1})
	}
	return records
}

// newStage prepares a cluster with topics of so many partitions each. Change config before start.
func newStage(t testing.TB, partitions ...int) *stage {
	t.Helper()
	s := &stage{t: t, log: journal.NewMemory(), catalog: journal.NewCatalog(), ear: newEar()}
	records := []messages.Record{&messages.Cluster{Name: "test", ID: "c", Settings: messages.DefaultSettings()},
		&messages.Broker{ID: "b1", Epoch: 1}, &messages.Broker{ID: "b2", Epoch: 2}}
	for topic, n := range partitions {
		records = append(records, topicRecords(topic, n)...)
	}
	at, epoch, err := journal.Claim(context.Background(), s.log, s.catalog, journal.Position{}, "c1", records...)
	if err != nil {
		t.Fatal(err)
	}
	s.config = Config{Log: s.log, Catalog: s.catalog, Position: at, Controller: "c1", Epoch: epoch, Edge: s.ear,
		Logger: zerolog.Nop(), Machines: map[actors.Kind]Factory{
			actors.KindPartition: Host(&toy{onStep: echo}), actors.KindRegistry: Host(&toy{onStep: echo}),
			actors.KindOutbox: Host(&toy{onStep: echo}),
		}}
	return s
}

// partitions sets the machine of the partitions.
func (s *stage) partitions(m *toy) { s.config.Machines[actors.KindPartition] = Host(m) }

func (s *stage) start() {
	s.t.Helper()
	tree, err := Start(s.config)
	if err != nil {
		s.t.Fatal(err)
	}
	s.tree = tree
}

func (s *stage) stop() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := s.tree.Stop(ctx); err != nil {
		s.t.Errorf("stop: %v", err)
	}
}

func (s *stage) tell(to actors.Address, msg actors.Message) {
	s.t.Helper()
	if err := s.tree.Tell(to, msg); err != nil {
		s.t.Errorf("tell %T: %v", msg, err)
	}
}

// expect waits until nothing moves any more, and checks the answers to requests.
func (s *stage) expect(want map[actors.RequestID]string) {
	s.t.Helper()
	synctest.Wait()
	for id, text := range want {
		if got := s.ear.answered(s.t, id); got != text {
			s.t.Errorf("request %d was answered %q, want %q", id, got, text)
		}
	}
}

// gate makes the next append wait until the returned function is called.
func (s *stage) gate() (open func()) {
	g := make(chan struct{})
	s.log.Inject(journal.Fault{Before: g})
	return func() { close(g) }
}

// bubble runs a test with virtual time.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}
