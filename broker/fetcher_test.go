package broker

import (
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/highwater-io/highwater/messages"
)

// A fetch that was in flight when the connection broke is given up as soon as the connection is back: its answer, which may
// be due in an hour, will never come.
func TestAFetchInFlightOverAReconnectIsGivenUpAtOnce(t *testing.T) {
	s := &Server{log: zerolog.Nop(), fetchers: map[messages.BrokerID]*fetcher{}}
	p := &partition{srv: s}
	f := &fetcher{srv: s, leader: "b1", signal: make(chan struct{}, 1), parts: map[*partition]bool{p: true}, listed: map[*partition]bool{},
		writing: map[*partition]bool{}, asked: map[messages.PartitionID]statedPosition{p.id: {}},
		pauses: backoff{first: time.Hour, limit: time.Hour}, session: 7, inFlight: true, deadline: time.Now().Add(time.Hour)}
	s.fetchers["b1"] = f
	f.look("")
	if !f.inFlight || f.session != 7 {
		t.Fatal("given up without a reason")
	}
	s.reconnected()
	select {
	case <-f.signal:
	default:
		t.Error("the fetcher is not woken")
	}
	f.look("")
	if f.inFlight || f.session != 0 || len(f.asked) != 0 || len(f.ready) != 1 {
		t.Errorf("still waited for: %+v", f)
	}
	f.inFlight = true
	f.look("")
	if !f.inFlight {
		t.Error("one reconnect costs two fetches")
	}
}
