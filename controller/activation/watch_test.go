package activation

import (
	"testing"
	"time"

	"github.com/highwater-io/highwater/messages"
)

const sec = time.Second

func at(seconds float64) time.Duration { return time.Duration(seconds * float64(sec)) }

// c2 watches from 10 s on; c1 is active under epoch 4 and was heard at 10 s, c3 stands by.
func watching() *Watch {
	w := New(Config{Name: "c2", Suspicion: 2 * sec}, at(10))
	w.Hear(at(10), Beat{Name: "c1", Role: Active, Epoch: 4, Applied: 70})
	w.Hear(at(10), Beat{Name: "c3", Role: Standby, Epoch: 4, Applied: 69})
	return w
}

// awake looks regularly up to a time.
func (w *Watch) awake(to time.Duration) *Watch {
	for ; w.looked+sec/2 < to; w.Look(w.looked + sec/2) {
	}
	w.Look(to)
	return w
}

var (
	claimed  = messages.ControllerClaimed{Controller: "c1", Epoch: 4}
	released = func(successor string) messages.ControllerClaimed {
		return messages.ControllerClaimed{Controller: "c1", Epoch: 4, Released: true, Successor: successor}
	}
)

var suspicions = map[string]struct {
	do      func(w *Watch)
	at      time.Duration
	claimed messages.ControllerClaimed
	want    string
}{
	"heard just now":            {at: at(12), claimed: claimed},
	"silent for too long":       {do: func(w *Watch) { w.awake(at(12.1)) }, at: at(12.1), claimed: claimed, want: "not heard for 2.1s"},
	"its connection ends":       {do: func(w *Watch) { w.Lose("c1") }, at: at(10.1), claimed: claimed, want: "its connection has ended"},
	"another's connection ends": {do: func(w *Watch) { w.Lose("c3") }, at: at(10.1), claimed: claimed},
	"a beat after the end": {do: func(w *Watch) {
		w.Lose("c1")
		w.Hear(at(10.1), Beat{Name: "c1", Role: Active, Epoch: 4})
	}, at: at(10.2), claimed: claimed},
	"this process was stopped": {do: func(w *Watch) { w.Look(at(20)) }, at: at(20), claimed: claimed},
	"stopped, and then silence": {do: func(w *Watch) { w.Look(at(20)); w.awake(at(22.5)) }, at: at(22.5),
		claimed: claimed, want: "not heard for 2.5s"},
	"the end of a connection from before this term": {do: func(w *Watch) { w.Lose("c1"); w.Stand(at(11), false) }, at: at(11.1), claimed: claimed},
	"stepped down": {do: func(w *Watch) { w.Stand(at(10), true); w.awake(at(14)) }, at: at(14), claimed: claimed},
	"stepped down long ago": {do: func(w *Watch) { w.Stand(at(10), true); w.awake(at(15.1)) }, at: at(15.1), claimed: claimed,
		want: "not heard for 5.1s"},
	"a claim was refused, and still nobody is heard": {do: func(w *Watch) { w.awake(at(13)); w.Refused(at(13)); w.awake(at(13.6)) }, at: at(13.6),
		claimed: claimed, want: "not heard for 2.1s"},
	"a claim was refused, and its winner is heard": {do: func(w *Watch) {
		w.awake(at(13))
		w.Refused(at(13))
		w.Hear(at(13.4), Beat{Name: "c3", Role: Activating, Epoch: 5})
		w.awake(at(13.6))
	}, at: at(13.6), claimed: messages.ControllerClaimed{Controller: "c3", Epoch: 5}},
	"a claim was refused": {do: func(w *Watch) { w.awake(at(13)); w.Refused(at(13)) }, at: at(13.1), claimed: claimed},
	"refused by the last entry of one that is gone": {do: func(w *Watch) { w.Lose("c1"); w.Refused(at(10.1)) }, at: at(10.21), claimed: claimed,
		want: "its connection has ended"},
	"refused a moment ago":    {do: func(w *Watch) { w.Lose("c1"); w.Refused(at(10.1)) }, at: at(10.15), claimed: claimed},
	"handed over to this one": {at: at(10.01), claimed: released("c2"), want: "handed over"},
	"handed over to this one, which has stepped down": {do: func(w *Watch) { w.Stand(at(10), true) }, at: at(10.1), claimed: released("c2"),
		want: "handed over"},
	"handed over to another, and stepped down": {do: func(w *Watch) { w.Stand(at(10), true); w.awake(at(11)) }, at: at(11), claimed: released("c3")},
	"handed over to another":                   {at: at(10.01), claimed: released("c3")},
	"who does not take it":                     {do: func(w *Watch) { w.Suspicion(at(10), released("c3")) }, at: at(10.6), claimed: released("c3"), want: "handed over"},
	"handed over to another long after this one began to stand by": {do: func(w *Watch) {
		w.awake(at(60))
		w.Hear(at(60), Beat{Name: "c1", Role: Standby, Epoch: 4, Applied: 71})
	}, at: at(60), claimed: released("c3")},
	"another has claimed, and takes its time": {do: func(w *Watch) {
		w.awake(at(60))
		w.Hear(at(60), Beat{Name: "c3", Role: Activating, Epoch: 5})
	}, at: at(60), claimed: messages.ControllerClaimed{Controller: "c3", Epoch: 5}},
	"handed over to nobody":      {at: at(10.01), claimed: released("")},
	"nobody has ever claimed":    {do: func(w *Watch) { *w = *New(w.cfg, at(10)) }, at: at(11)},
	"nor does anybody":           {do: func(w *Watch) { *w = *New(w.cfg, at(10)); w.awake(at(12.5)) }, at: at(12.5), want: "not heard for 2.5s"},
	"claimed, and not heard yet": {do: func(w *Watch) { w.Stand(at(11), false) }, at: at(11.5), claimed: messages.ControllerClaimed{Epoch: 5}},
	"a later epoch was heard": {do: func(w *Watch) {
		w.Lose("c1")
		w.Hear(at(10.1), Beat{Name: "c3", Role: Active, Epoch: 5})
	}, at: at(10.2), claimed: released("c2")},
	"an old active one still speaks": {do: func(w *Watch) {
		w.Hear(at(12.4), Beat{Name: "c1", Role: Active, Epoch: 4})
		w.awake(at(12.5))
	}, at: at(12.5), claimed: messages.ControllerClaimed{Controller: "c3", Epoch: 5}, want: "not heard for 2.5s"},
}

func TestSuspicion(t *testing.T) {
	for name, c := range suspicions {
		t.Run(name, func(t *testing.T) {
			w := watching()
			if c.do != nil {
				c.do(w)
			}
			if got := w.Suspicion(c.at, c.claimed); got != c.want {
				t.Errorf("the suspicion is %q, want %q", got, c.want)
			}
		})
	}
}

func TestTheSuccessorIsTheFurthestStandbyThatIsThere(t *testing.T) {
	w := watching()
	w.Hear(at(10), Beat{Name: "c4", Role: Standby, Applied: 70})
	w.Hear(at(10), Beat{Name: "c5", Role: Standby, Applied: 70})
	for _, step := range []struct {
		do   func()
		at   time.Duration
		want string
	}{
		{func() {}, at(10), "c4"},
		{func() { w.Lose("c4") }, at(10), "c5"},
		{func() { w.Hear(at(11), Beat{Name: "c3", Role: Standby, Applied: 60}) }, at(11), "c5"},
		{func() {}, at(12.5), "c3"},
		{func() {}, at(14), ""},
	} {
		if step.do(); w.Successor(step.at) != step.want {
			t.Errorf("at %v the successor is %q, want %q", step.at, w.Successor(step.at), step.want)
		}
	}
}

func TestWhatIsKnownOfOthers(t *testing.T) {
	w := watching()
	if !w.News(69) || w.News(70) || !w.Deposed(3) || w.Deposed(4) {
		t.Error("news, or a later controller")
	}
	w.Hear(at(11), Beat{Name: "c2", Role: Active, Epoch: 9})
	w.Hear(at(11), Beat{Role: Active, Epoch: 9})
	if w.Deposed(4) {
		t.Error("a process listens to itself, or to nobody")
	}
	w.Hear(at(11), Beat{Name: "c0"})
	if all := w.Members(); len(all) != 3 || all[0].Name != "c0" || all[1].Name != "c1" || all[1].Heard != at(10) {
		t.Errorf("%+v", all)
	}
}
