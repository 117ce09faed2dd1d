package supervisor

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
)

// create commits a topic through the registry's actor, and has its actors started.
func creator(env actors.Env, s *toyState, msg actors.Message) (fx actors.Effects) {
	id, w := word(msg)
	topic := int(id)
	switch w {
	case "create":
		fx.Records = topicRecords(topic, 25)
		fx.Tells = []actors.Tell{{To: actors.Topics, Msg: actors.EnsureTopic{Topic: topicID(topic)}}}
	case "grow":
		fx.Records = topicRecords(topic, 45)
		fx.Tells = []actors.Tell{{To: actors.Topics, Msg: actors.EnsureTopic{Topic: topicID(topic)}}}
	case "delete":
		fx.Records = []messages.Record{&messages.TopicDeletion{ID: topicID(topic), Partitions: 45,
			Epochs: slices.Repeat([]messages.PartitionEpoch{9}, 45)}}
		fx.Tells = []actors.Tell{{To: actors.Topics, Msg: actors.DropTopic{Topic: topicID(topic), Deletion: fx.Records[0].(*messages.TopicDeletion)}}}
	default:
		return echo(env, s, msg)
	}
	fx.Replies = answer(id, w)
	return fx
}

func TestTopicsComeGrowAndGo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStage(t, 3)
		var activated, takeovers, deleted atomic.Int32
		s.partitions(&toy{onStep: func(env actors.Env, st *toyState, msg actors.Message) actors.Effects {
			switch m := msg.(type) {
			case actors.Activated:
				activated.Add(1)
				if m.Takeover {
					takeovers.Add(1)
				}
			case actors.TopicDeleted:
				deleted.Add(1)
			}
			return echo(env, st, msg)
		}})
		s.config.Machines[actors.KindRegistry] = Host(&toy{onStep: creator})
		s.config.Limits = Limits{Children: 10, Slice: 4}
		s.start()
		defer s.stop()
		if n := activated.Load(); n != 3 {
			t.Errorf("Start returned after %d of 3 activations", n)
		}
		unknown := func(topic, index int, want messages.Code) {
			t.Helper()
			if err := s.tree.Tell(partitionAt(topic, index), call(99, "x")); messages.CodeOf(err) != want {
				t.Errorf("partition %d of topic %d: %v, want %s", index, topic, err, want)
			}
		}
		unknown(7, 0, messages.CodeUnknownTopicID)
		for _, step := range []struct {
			word  string
			count int32
		}{{"create", 25}, {"grow", 45}} {
			s.tell(actors.Registry, call(7, step.word))
			synctest.Wait()
			if n := activated.Load() - 3; n != step.count {
				t.Errorf("%s: %d actors", step.word, n)
			}
			want := map[actors.RequestID]string{}
			for i := range int(step.count) {
				id := actors.RequestID(1000*int(step.count) + i)
				s.tell(partitionAt(7, i), call(id, "write"))
				want[id] = "write"
			}
			s.expect(want)
			unknown(7, int(step.count), messages.CodeUnknownPartition)
			unknown(7, -1, messages.CodeUnknownPartition)
			s.ear.answers = map[actors.RequestID][]string{}
		}
		if g := len(s.tree.topics.running[topicID(7)].groups); g != 4 {
			t.Errorf("45 partitions, 10 for one supervisor: %d groups below the first", g)
		}
		s.tell(actors.Registry, call(7, "delete"))
		synctest.Wait()
		if n := deleted.Load(); n != 45 {
			t.Errorf("%d partitions were told that they are deleted", n)
		}
		unknown(7, 0, messages.CodeUnknownTopicID)
		if n := takeovers.Load(); n != 3 {
			t.Errorf("%d actors are told of a takeover, 3 began with the tree", n)
		}
		if len(s.tree.topics.running) != 1 || len(s.tree.topics.byPID) != 1 {
			t.Errorf("supervisors left: %v", s.tree.topics.byPID)
		}
		s.tell(partitionAt(0, 0), call(5, "write"))
		s.expect(map[actors.RequestID]string{5: "write"})
	})
}

func TestADroppedTopicTakesItsFailedActorsAlong(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStage(t, 2, 1)
		f := &fragile{point: "load", broken: &atomic.Bool{}}
		m := f.machine()
		load := m.onLoad
		m.onLoad = func(env actors.Env, self actors.Address) error {
			if self.Partition.Topic == topicID(1) {
				return nil
			}
			return load(env, self)
		}
		f.broken.Store(true)
		s.partitions(m)
		s.config.Machines[actors.KindRegistry] = Host(&toy{onStep: creator})
		s.start()
		defer s.stop()
		if len(s.tree.Failed()) != 1 {
			t.Fatalf("failed: %v", s.tree.Failed())
		}
		s.tell(actors.Registry, call(0, "delete"))
		synctest.Wait()
		if len(s.tree.Failed()) != 0 || len(s.tree.topics.running) != 1 {
			t.Errorf("left: failed %v, topics %v", s.tree.Failed(), s.tree.topics.byPID)
		}
		s.lastWords(1)
	})
}

// lastWords checks how often it was said that the partition 0 is gone: a failed actor cannot, its supervisor does.
func (s *stage) lastWords(want int) {
	s.t.Helper()
	said := 0
	for _, heard := range s.ear.log() {
		if heard == "publish 0@9" {
			said++
		}
	}
	if said != want {
		s.t.Errorf("it was said %d times that the partition is gone, want %d: %q", said, want, s.ear.log())
	}
}

func TestAPartitionThatCannotEndIsStopped(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStage(t, 1)
		s.partitions(&toy{onStep: func(env actors.Env, st *toyState, msg actors.Message) actors.Effects {
			if _, is := msg.(actors.TopicDeleted); is {
				panic("cannot let go")
			}
			return echo(env, st, msg)
		}})
		s.config.Machines[actors.KindRegistry] = Host(&toy{onStep: creator})
		s.start()
		defer s.stop()
		s.tell(actors.Registry, call(0, "delete"))
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(s.tree.Failed()) != 0 || len(s.tree.topics.running) != 0 {
			t.Errorf("left: failed %v, topics %v", s.tree.Failed(), s.tree.topics.byPID)
		}
		s.lastWords(1)
	})
}

// The deletion is committed while the actor has just failed: it cannot be loaded any more, however often it is tried.
func TestAPartitionThatFailsAroundItsDeletionIsSaidToBeGone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStage(t, 1)
		s.partitions(&toy{onStep: func(env actors.Env, st *toyState, msg actors.Message) actors.Effects {
			if _, w := word(msg); w == "panic" {
				panic("on demand")
			}
			return echo(env, st, msg)
		}})
		s.config.Machines[actors.KindRegistry] = Host(&toy{onStep: creator})
		s.start()
		defer s.stop()
		open := s.gate()
		s.tell(actors.Registry, call(0, "delete"))
		for id := range actors.RequestID(3) { // the second one costs a pause
			s.tell(partitionAt(0, 0), call(id+1, "panic"))
		}
		synctest.Wait()
		open()
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(s.tree.Failed()) != 0 || len(s.tree.topics.running) != 0 {
			t.Errorf("left: failed %v, topics %v", s.tree.Failed(), s.tree.topics.byPID)
		}
		s.lastWords(1)
	})
}

func TestTheOutboxOfABrokerIsMadeWhenItIsFirstTold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStage(t)
		var loads atomic.Int32
		s.config.Machines[actors.KindOutbox] = Host(&toy{
			onLoad: func(actors.Env, actors.Address) error { loads.Add(1); return nil },
			onStep: func(env actors.Env, st *toyState, msg actors.Message) actors.Effects {
				fx := echo(env, st, msg)
				_, w := word(msg)
				fx.Stop = w == "stop"
				return fx
			},
		})
		s.start()
		defer s.stop()
		if loads.Load() != 0 {
			t.Error("an outbox was made before anybody needed it")
		}
		s.tell(actors.Outbox("b1"), call(1, "first"))
		s.tell(actors.Outbox("b1"), call(2, "second"))
		s.expect(map[actors.RequestID]string{1: "first", 2: "second"})
		if loads.Load() != 1 {
			t.Errorf("%d outboxes for one broker", loads.Load())
		}
		if err := s.tree.Tell(actors.Outbox("nobody"), actors.Flush{}); messages.CodeOf(err) != messages.CodeUnknownBroker {
			t.Errorf("the outbox of an unknown broker: %v", err)
		}
		s.tell(actors.Outbox("b1"), call(3, "stop"))
		s.expect(map[actors.RequestID]string{3: "stop"})
		s.tell(actors.Outbox("b1"), call(4, "again"))
		s.expect(map[actors.RequestID]string{4: "again"})
		if loads.Load() != 2 {
			t.Errorf("%d lives", loads.Load())
		}
	})
}

func TestAnOutboxThatIsFirstToldWhileTheTreeStopsKeepsNobodyWaiting(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStage(t)
		open := make(chan struct{})
		s.config.Machines[actors.KindOutbox] = Host(&toy{onStep: func(env actors.Env, st *toyState, msg actors.Message) actors.Effects {
			if _, w := word(msg); w == "busy" {
				<-open
			}
			return echo(env, st, msg)
		}})
		s.start()
		s.tell(actors.Outbox("b1"), call(1, "busy"))
		synctest.Wait()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := s.tree.Stop(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("stopped with %v although somebody is at work", err)
			}
		}()
		time.Sleep(2 * time.Second) // of the bubble: the supervisor of the outboxes is stopping, and waits for the first
		if verdict := s.tree.openOutbox(actors.Outbox("b2")).offer(call(2, "late")); verdict != nil {
			s.ear.Fail(2, verdict)
		}
		synctest.Wait()
		close(open)
		<-ended
		select {
		case <-s.tree.stopped:
		default:
			t.Error("the actors have not stopped")
		}
		s.expect(map[actors.RequestID]string{2: "UNAVAILABLE"})
	})
}

func TestAnIncompleteConfigurationIsRefused(t *testing.T) {
	s := newStage(t, 1)
	for name, spoil := range map[string]func(*Config){
		"log": func(c *Config) { c.Log = nil }, "catalog": func(c *Config) { c.Catalog = nil },
		"edge": func(c *Config) { c.Edge = nil }, "epoch": func(c *Config) { c.Epoch = 0 },
		"partitions": func(c *Config) { c.Machines = nil },
	} {
		c := s.config
		spoil(&c)
		if _, err := Start(c); !errors.Is(err, messages.Errorf(messages.CodeInvalidRequest, "")) {
			t.Errorf("without %s: %v", name, err)
		}
	}
	s.start()
	if err := s.tree.Tell(actors.Placer, call(1, "x")); messages.CodeOf(err) != messages.CodeUnavailable {
		t.Errorf("a kind without a machine: %v", err)
	}
	s.stop()
}
