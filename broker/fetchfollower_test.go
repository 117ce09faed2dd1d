package broker

import (
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// A leader that has answered for a partition waits for its next position. When that answer is lost and a later one comes, as
// after a reconnect of the leader, the follower would wait for the first for ever.
func TestAnAnswerThatIsLostEndsTheFetchSession(t *testing.T) {
	answer := func(session uint64) *nats.Msg {
		data, err := proto.Marshal(&pb.ReplicaFetchResponse{Session: session})
		if err != nil {
			t.Fatal(err)
		}
		return &nats.Msg{Data: data}
	}
	begin := func() *fetcher {
		f := &fetcher{srv: &Server{log: zerolog.Nop()}, parts: map[*partition]bool{}, listed: map[*partition]bool{},
			writing: map[*partition]bool{}, asked: map[messages.PartitionID]statedPosition{}, number: 7, inFlight: true, opening: true}
		f.onAnswer(answer(3), 7)
		if f.session != 3 || f.inFlight {
			t.Fatalf("session %d", f.session)
		}
		f.number, f.inFlight = 9, true // 8 is on its way too
		return f
	}
	f := begin()
	f.onAnswer(answer(3), 8)
	f.onAnswer(answer(3), 9)
	if f.session != 3 || f.inFlight {
		t.Error("answers in order end the session")
	}
	f = begin()
	f.onAnswer(answer(3), 9)
	if f.session != 0 || f.inFlight {
		t.Error("the session goes on without the answer to request 8")
	}
	f.onAnswer(answer(3), 8)
	if f.session != 0 {
		t.Error("a late answer revives the session")
	}
}
