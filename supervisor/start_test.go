package supervisor

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/messages"
)

// reconciling writes a record when it is activated.
func reconciling(env actors.Env, s *toyState, msg actors.Message) actors.Effects {
	if _, first := msg.(actors.Activated); first && s.self.Kind == actors.KindPartition {
		return actors.Effects{Records: []messages.Record{s.bump()}}
	}
	return echo(env, s, msg)
}

func TestStartWaitsForWhatActivationCommits(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStage(t, slices.Repeat([]int{3}, 50)...)
		s.config.Limits = Limits{Slice: 2, Children: 2}
		s.config.Machines[actors.KindPlacer] = Host(&toy{onStep: echo})
		s.partitions(&toy{onStep: reconciling})
		open := s.gate()
		started := false
		go func() { s.start(); started = true }()
		synctest.Wait()
		if started {
			t.Error("started before the records were stored")
		}
		open()
		synctest.Wait()
		if !started {
			t.Fatal("not started")
		}
		defer s.stop()
		for topic := range 50 {
			for i := range 3 {
				if p, _ := s.catalog.Partition(partitionID(topic, i)); p.Epoch != 1 {
					t.Errorf("partition %d of topic %d is at epoch %d", i, topic, p.Epoch)
				}
			}
		}
		s.tell(actors.Placer, call(1, "read"))
		s.tell(actors.Topics, actors.EnsureTopic{Topic: topicID(3)}) // is there already
		s.tell(actors.Topics, actors.EnsureTopic{Topic: topicID(99)})
		s.tell(actors.Topics, actors.DropTopic{Topic: topicID(99), Deletion: &messages.TopicDeletion{ID: topicID(99)}})
		s.expect(map[actors.RequestID]string{1: "read"})
		if n := len(s.tree.topics.running); n != 50 {
			t.Errorf("%d topics", n)
		}
	})
}

func TestStartReturnsWhyItsTreeHasEnded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStage(t, 3)
		s.partitions(&toy{onStep: reconciling})
		other := journal.NewCatalog()
		at, _, err := journal.Recover(t.Context(), s.log, other)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := journal.Claim(t.Context(), s.log, other, at, "c2"); err != nil {
			t.Fatal(err)
		}
		_, err = Start(s.config)
		if deposed := (*journal.Deposed)(nil); !errors.As(err, &deposed) || deposed.Epoch != 2 {
			t.Errorf("started with %v", err)
		}
	})
}

func TestATellToNobodyIsDroppedAndARequestToNobodyAnswered(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStage(t, 1)
		s.partitions(&toy{onStep: func(env actors.Env, st *toyState, msg actors.Message) actors.Effects {
			fx := echo(env, st, msg)
			if _, w := word(msg); w == "forward" {
				fx.Replies = nil
				fx.Tells = []actors.Tell{{To: partitionAt(5, 0), Msg: noted("x")}, {To: partitionAt(5, 0), Msg: msg},
					{To: actors.Address{}, Msg: noted("x")}, {To: actors.Outbox("gone"), Msg: actors.Flush{}}}
			}
			return fx
		}})
		s.start()
		defer s.stop()
		s.tell(partitionAt(0, 0), call(1, "forward"))
		s.tell(partitionAt(0, 0), call(2, "write"))
		s.expect(map[actors.RequestID]string{1: string(messages.CodeUnknownTopicID), 2: "write"})
	})
}
