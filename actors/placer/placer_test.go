package placer

import (
	"fmt"
	"testing"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
)

// Thirty topics at once, none of them committed yet when the next is placed; one broker is new and empty.
func TestB11BurstOfCreationsIsSpread(t *testing.T) {
	w := newWorld(t)
	for _, word := range []string{"1@A+20/7", "2@B+20/7", "3@C+20/6", "4@A+20/7", "5@B+20/7", "6@C+20/6", "7@A+0/0"} {
		w.broker(word)
	}
	leads, gained := map[messages.BrokerID]int{}, map[messages.BrokerID]int{}
	for i := range uint64(30) {
		w.place(i+1, fmt.Sprint("t", i), "1x3")
		list := w.answers[i+1].Replicas[0]
		racks := map[messages.RackPath]bool{}
		for _, b := range list {
			racks[w.cluster.brokers[b].Rack] = true
			gained[b]++
		}
		leads[list[0]]++
		if len(racks) != 3 {
			t.Errorf("topic %d: %v is not in three racks", i, list)
		}
	}
	if leads["7"] > 15 || leads["7"] < 5 {
		t.Errorf("the empty broker leads %d of 30", leads["7"])
	}
	for _, pair := range [][2]messages.BrokerID{{"2", "5"}, {"3", "6"}, {"2", "3"}, {"5", "6"}} {
		if d := gained[pair[0]] - gained[pair[1]]; d < -3 || d > 3 {
			t.Errorf("brokers %s and %s gained %d and %d", pair[0], pair[1], gained[pair[0]], gained[pair[1]])
		}
	}
}

func TestReservationsAreBounded(t *testing.T) {
	w := newWorld(t)
	w.broker("1@A")
	for i := range uint64(maxReservations) {
		w.place(i, fmt.Sprint("t", i), "1x1")
	}
	out := w.place(maxReservations, "last", "1x1")
	if len(w.state.reserved) != maxReservations || w.state.reserved[0].ticket != 1 {
		t.Errorf("%d reservations, the oldest is %d", len(w.state.reserved), w.state.reserved[0].ticket)
	}
	if want := "event reservation.lapsed 0 t0"; len(out) != 3 || out[1] != want {
		t.Errorf("%q, want %q", out, want)
	}
}

func TestLoadRefusesAnotherAddress(t *testing.T) {
	for _, a := range []actors.Address{{}, actors.Registry, {Kind: actors.KindPlacer, Broker: "b"}} {
		if _, err := (Machine{}).Load(actors.Env{}, a); messages.CodeOf(err) != messages.CodeInternal {
			t.Errorf("%+v: %v", a, err)
		}
	}
}

func TestTheSameStepGivesTheSameAnswer(t *testing.T) {
	var first []string
	for range 5 {
		w := newWorld(t)
		for i := range 9 {
			w.broker(fmt.Sprintf("%d@r%d", i, i%3))
		}
		out := append(w.place(1, "t", "12x3"), w.place(2, "u", "5x2")...)
		if first == nil {
			first = out
		}
		if fmt.Sprint(out) != fmt.Sprint(first) {
			t.Fatalf("%q\n%q", out, first)
		}
	}
}
