package client

import (
	"errors"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

func anyWord(ids byte) *rapid.Generator[*pb.Leadership] {
	return rapid.Custom(func(t *rapid.T) *pb.Leadership {
		l := word(rapid.ByteRange(1, ids).Draw(t, "topic"), 0, rapid.Int64Range(0, 3).Draw(t, "epoch"), rapid.Uint64Range(1, 5).Draw(t, "seen"))
		l.PartitionEpoch = rapid.Int64Range(0, 3).Draw(t, "partition epoch")
		l.Deleted = rapid.Bool().Draw(t, "deleted")
		return l
	})
}

func TestNewerIsAnOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := anyWord(1).Draw(t, "a"), anyWord(1).Draw(t, "b"), anyWord(1).Draw(t, "c")
		if newer(a, a) || newer(a, b) && newer(b, a) || newer(a, b) && newer(b, c) && !newer(a, c) {
			t.Fatal("not an order")
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := anyWord(3).Draw(t, "a"), anyWord(3).Draw(t, "b")
		if newer(a, b) && newer(b, a) {
			t.Fatal("each is newer than the other")
		}
	})
}

// In whatever order words of one topic come, and however often, the same one is kept.
func TestWordsOfATopicMayComeInAnyOrder(t *testing.T) {
	f := newFake(t, 0)
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.SliceOfN(anyWord(1), 1, 8).Draw(t, "words")
		first, second := f.deaf(), f.deaf()
		for _, w := range words {
			first.learn(w)
		}
		for _, w := range rapid.Permutation(append(words, words[0])).Draw(t, "again") {
			second.learn(w)
		}
		if a, b := first.of(0).leadership, second.of(0).leadership; newer(a, b) || newer(b, a) {
			t.Fatalf("%v\n%v", a, b)
		}
	})
}

// deaf are leaders that hear nothing.
func (f *fake) deaf() *leaders {
	return &leaders{client: f.client, name: fakeTopic, partitions: map[int32]*standing{}}
}

func TestANewerWordEndsARequestAndAnOlderOneDoesNot(t *testing.T) {
	f := newFake(t, 0)
	l := f.deaf()
	l.learn(word(1, 0, 5, 10))
	now := l.of(0)
	isr := word(1, 0, 5, 11)
	isr.PartitionEpoch = 6
	for _, w := range []*pb.Leadership{word(1, 0, 4, 12), word(1, 0, 5, 12), isr, word(1, 1, 9, 12)} {
		l.learn(w)
	}
	if now.reign.Err() != nil || l.of(0).leadership != isr {
		t.Fatalf("after older words: %v", l.of(0).leadership)
	}
	select {
	case <-now.news:
	default:
		t.Error("a change of the ISR wakes nobody")
	}
	l.learn(word(1, 0, 6, 13))
	if now.reign.Err() == nil {
		t.Error("a newer leader does not end the request to the old one")
	}
}

func TestATopicOfTheSameNameIsAnother(t *testing.T) {
	f := newFake(t, 0)
	l := f.deaf()
	l.learn(word(1, 0, 5, 10))
	old := l.of(0)
	gone := word(1, 0, 5, 20)
	gone.Deleted, gone.Leader = true, ""
	l.learn(word(2, 0, 0, 21))
	for _, late := range []*pb.Leadership{gone, word(1, 0, 9, 19)} {
		l.learn(late)
	}
	if got := l.of(0).leadership; got.GetTopicId()[15] != 2 || old.reign.Err() == nil {
		t.Errorf("a late word of the old topic counts: %v", got)
	}
	wantCode(t, current(l.of(0).leadership, topicID(1)), messages.CodeUnknownTopicID)
	must(t, current(l.of(0).leadership, topicID(2)))
}

func TestOnlyAWholeSnapshotIsATopic(t *testing.T) {
	for name, x := range map[string]struct {
		page []*pb.Leadership
		ok   bool
		n    int32
	}{
		"none":      {nil, true, 0},
		"three":     {pageOf(1, 3).Partitions, true, 3},
		"a hole":    {[]*pb.Leadership{word(1, 0, 0, 1), word(1, 2, 0, 1)}, false, 0},
		"two ids":   {[]*pb.Leadership{word(1, 0, 0, 1), word(2, 1, 0, 1)}, false, 0},
		"no id":     {[]*pb.Leadership{{Topic: "t"}}, false, 0},
		"no first":  {[]*pb.Leadership{word(1, 1, 0, 1)}, false, 0},
		"twice one": {[]*pb.Leadership{word(1, 0, 0, 1), word(1, 0, 0, 1)}, false, 0},
	} {
		if got, ok := wholeTopic(x.page); ok != x.ok || got.partitions != x.n {
			t.Errorf("%s: %+v, %t", name, got, ok)
		}
	}
}

// Words that come before the snapshot, of some partitions or of a topic before, do not change how many there are.
func TestAProducerNeverWorksWithHalfATopic(t *testing.T) {
	f := newFake(t, 4)
	f.set(func() { f.page = pageOf(2, 2) })
	l, err := f.client.use(fakeTopic)
	must(t, err)
	defer f.client.release(l)
	for i := range int32(4) {
		l.learn(word(1, i, 3, 10))
	}
	p := f.producer(ProducerOptions{})
	if p.topic != (topic{id: topicID(2), partitions: 2}) {
		t.Errorf("the topic is %+v", p.topic)
	}
	wantCode(t, current(l.of(3).leadership, topicID(1)), messages.CodeUnknownTopicID)
	must(t, p.Close(t.Context()))
}

func TestANewProducerDoesWithoutAControllerWhereTheTopicIsKnown(t *testing.T) {
	f := newFake(t, 2)
	first := f.producer(ProducerOptions{})
	f.set(func() { f.page = nil })
	if second := f.producer(ProducerOptions{}); second.topic != first.topic {
		t.Errorf("the topic is %+v, was %+v", second.topic, first.topic)
	}
	gone := word(1, 1, 0, 30)
	gone.Deleted = true
	first.leaders.learn(gone)
	_, err := f.client.NewProducer(t.Context(), fakeTopic, ProducerOptions{})
	wantCode(t, err, messages.CodeUnavailable)
}

func TestALostEndOfATopicIsFoundOut(t *testing.T) {
	f := newFake(t, 1)
	f.produce = func(int, *pb.ProduceRequest) proto.Message { return refusal(messages.CodeNotLeader) }
	p := f.producer(ProducerOptions{})
	f.set(func() { f.page = &pb.LeadershipPage{Seen: &pb.Seen{ControllerEpoch: 1, Sequence: 99}} })
	wantCode(t, f.one(p, "x").Err, messages.CodeUnknownTopicID)
}

func TestALostWordOfANewLeaderIsFoundOutAfterAReconnect(t *testing.T) {
	f := newFake(t, 1)
	f.produce = func(int, *pb.ProduceRequest) proto.Message { return nil } // the old leader hangs
	p := f.producer(ProducerOptions{RequestTimeout: time.Hour})
	done := make(chan Result, 1)
	must(t, p.Send(t.Context(), Record{}, func(r Result) { done <- r }))
	f.serve(f.subjects.Data(messages.Data{Principal: "*", Topic: fakeTopic, LeaderEpoch: 1, Verb: messages.VerbProduce}),
		func([]byte) proto.Message { return ok(nil) })
	f.set(func() { f.page.Partitions[0] = word(1, 0, 1, 11) })
	must(t, f.client.nc.ForceReconnect())
	select {
	case r := <-done:
		must(t, r.Err)
	case <-time.After(patience):
		t.Fatal("the request to the old leader goes on")
	}
}

func TestALeaderThatHangsIsLeftForANewOne(t *testing.T) {
	f := newFake(t, 1)
	reached := make(chan struct{}, 1)
	f.produce = func(int, *pb.ProduceRequest) proto.Message { reached <- struct{}{}; return nil }
	f.serve(f.subjects.Data(messages.Data{Principal: "*", Topic: fakeTopic, LeaderEpoch: 1, Verb: messages.VerbProduce}),
		func([]byte) proto.Message { return &pb.ProduceResponse{BaseOffset: 3, Duplicate: true} })
	p := f.producer(ProducerOptions{RequestTimeout: time.Hour})
	go func() {
		<-reached
		f.say(word(1, 0, 1, 11))
	}()
	if r := f.one(p, "x"); r.Err != nil || !r.Duplicate || r.Offset != 3 {
		t.Errorf("result %+v", r)
	}
}

func TestSubscriptionsEndWithTheirUsers(t *testing.T) {
	f := newFake(t, 1)
	p, q := f.producer(ProducerOptions{}), f.producer(ProducerOptions{})
	must(t, p.Close(t.Context()))
	must(t, p.Close(t.Context()))
	if len(f.client.topics) != 1 {
		t.Fatal("the leaders that another producer uses are gone")
	}
	must(t, q.Close(t.Context()))
	if len(f.client.topics) != 0 {
		t.Error("leaders that nobody uses are kept")
	}
	f.set(func() { f.page = pageOf(1, 0) })
	_, err := f.client.NewProducer(t.Context(), fakeTopic, ProducerOptions{})
	wantCode(t, err, messages.CodeUnknownTopic)
	if len(f.client.topics) != 0 {
		t.Error("leaders of no topic are kept")
	}
}

func TestAnAnswerWithAHoleIsAnError(t *testing.T) {
	corrupt := stored(0, "a", "b")
	corrupt.Crc++
	short := stored(0, "a", "b")
	short.Count = 3
	for name, x := range map[string]struct {
		batches []*pb.StoredBatch
		mark    int64
		code    messages.Code
		got     string
	}{
		"all of it":            {[]*pb.StoredBatch{stored(0, "a"), stored(1, "b", "c")}, 3, "", "abc"},
		"up to the mark":       {[]*pb.StoredBatch{stored(0, "a", "b", "c")}, 2, "", "ab"},
		"nothing":              {nil, 3, "", ""},
		"a hole at the start":  {[]*pb.StoredBatch{stored(1, "b")}, 3, messages.CodeInternal, ""},
		"a hole in the middle": {[]*pb.StoredBatch{stored(0, "a"), stored(2, "c")}, 3, messages.CodeInternal, "a"},
		"a repetition":         {[]*pb.StoredBatch{stored(0, "a", "b"), stored(0, "a", "b"), stored(2, "c")}, 3, "", "abc"},
		"no progress":          {[]*pb.StoredBatch{stored(-2, "y", "z")}, 3, messages.CodeInternal, ""},
		"a wrong checksum":     {[]*pb.StoredBatch{corrupt}, 3, messages.CodeCorruptBatch, ""},
		"a wrong count":        {[]*pb.StoredBatch{short}, 3, messages.CodeCorruptBatch, ""},
	} {
		got := ""
		r := &reader{each: func(f Fetched) error { got += string(f.Value); return nil }}
		at, err := r.hand(&pb.FetchResponse{Batches: x.batches, HighWatermark: x.mark}, 0, 100)
		wantCode(t, err, x.code)
		if got != x.got || int(at) != len(x.got) {
			t.Errorf("%s: read %q up to %d, want %q", name, got, at, x.got)
		}
	}
}

func TestAHoleEndsConsuming(t *testing.T) {
	f := newFake(t, 1)
	f.fetch = func(r *pb.FetchRequest) *pb.FetchResponse {
		if r.GetOffset() < 0 {
			return &pb.FetchResponse{HighWatermark: 9}
		}
		return &pb.FetchResponse{HighWatermark: 9, Batches: []*pb.StoredBatch{stored(r.GetOffset(), "x"), stored(r.GetOffset()+2, "y")}}
	}
	seen := 0
	err := f.client.Consume(t.Context(), fakeTopic, ConsumeOptions{ExitAtEnd: true}, func(Fetched) error { seen++; return nil })
	if !errors.Is(err, &messages.Error{Code: messages.CodeInternal}) || seen != 1 {
		t.Errorf("%d records, %v", seen, err)
	}
}

func FuzzHandNeverPanicsNorSkips(f *testing.F) {
	f.Add([]byte{}, int64(0), int64(5))
	answer, err := proto.Marshal(&pb.FetchResponse{HighWatermark: 3, Batches: []*pb.StoredBatch{stored(0, "a", "b")}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(answer, int64(1), int64(9))
	f.Fuzz(func(t *testing.T, body []byte, at, end int64) {
		var answer pb.FetchResponse
		if proto.Unmarshal(body, &answer) != nil || at < 0 {
			return
		}
		next := messages.Offset(at)
		r := &reader{each: func(f Fetched) error {
			if f.Offset != next {
				t.Fatalf("offset %d comes where %d should", f.Offset, next)
			}
			next++
			return nil
		}}
		if got, _ := r.hand(&answer, messages.Offset(at), messages.Offset(end)); got != next {
			t.Fatalf("goes on at %d after %d", got, next)
		}
	})
}
