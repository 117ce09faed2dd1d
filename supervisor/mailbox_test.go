package supervisor

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/asynkron/protoactor-go/actor"
	"pgregory.net/rapid"
)

// byHand is a dispatcher whose mailboxes are processed when the test says so.
type byHand struct{ waiting []*mailbox }

func (d *byHand) schedule(m *mailbox) { d.waiting = append(d.waiting, m) }

func (d *byHand) run(quantum int) {
	for len(d.waiting) > 0 {
		m := d.waiting[0]
		d.waiting = d.waiting[1:]
		if m.process(quantum) {
			d.schedule(m)
		}
	}
}

// listener is an actor seen from its mailbox.
type listener struct {
	heard    []string
	onUser   func(msg any)
	failures []any
}

func (l *listener) InvokeSystemMessage(m any) { l.heard = append(l.heard, fmt.Sprintf("system %v", m)) }
func (l *listener) InvokeUserMessage(m any) {
	l.heard = append(l.heard, fmt.Sprint(m))
	if l.onUser != nil {
		l.onUser(m)
	}
}
func (l *listener) EscalateFailure(reason, _ any) { l.failures = append(l.failures, reason) }

func newTestMailbox() (*mailbox, *byHand, *listener) {
	d, l := &byHand{}, &listener{}
	m := &mailbox{dispatch: d}
	return m, d, l
}

func TestAMailboxKeepsWhatComesBeforeItsActor(t *testing.T) {
	m, d, l := newTestMailbox()
	m.post(laneOrdinary, "early", 0)
	d.run(10)
	m.RegisterHandlers(l, nil)
	m.PostSystemMessage("started")
	m.Start()
	d.run(10)
	if want := []string{"system started", "early"}; !slices.Equal(l.heard, want) {
		t.Errorf("heard %q, want %q", l.heard, want)
	}
	if m.queues != nil || m.running {
		t.Error("an empty mailbox keeps its queues, or thinks that it is running")
	}
}

func TestTheLanesOfAMailbox(t *testing.T) {
	m, d, l := newTestMailbox()
	m.RegisterHandlers(l, nil)
	m.Start()
	m.post(laneOrdinary, 1, 0)
	m.post(laneOrdinary, 2, 0)
	m.post(laneUrgent, "result", 0)
	m.hold(true)
	m.PostSystemMessage("watch")
	d.run(10)
	if want := []string{"system watch", "result"}; !slices.Equal(l.heard, want) {
		t.Errorf("held: %q, want %q", l.heard, want)
	}
	m.PostSystemMessage(&actor.SuspendMailbox{})
	m.post(laneUrgent, "while suspended", 0)
	m.hold(false)
	d.run(10)
	if len(l.heard) != 2 {
		t.Errorf("suspended: %q", l.heard)
	}
	m.PostSystemMessage(&actor.ResumeMailbox{})
	d.run(1)
	if want := []string{"system watch", "result", "while suspended", "1", "2"}; !slices.Equal(l.heard, want) {
		t.Errorf("in all: %q, want %q", l.heard, want)
	}
}

func TestAPanicGoesToTheSupervisorAndTheMailboxGoesOn(t *testing.T) {
	m, d, l := newTestMailbox()
	l.onUser = func(msg any) {
		if msg == 1 {
			panic("one")
		}
	}
	m.RegisterHandlers(l, nil)
	m.Start()
	for i := range 3 {
		m.PostUserMessage(i)
	}
	if n := m.UserMessageCount(); n != 3 {
		t.Errorf("%d messages wait", n)
	}
	d.run(2)
	if !slices.Equal(l.failures, []any{"one"}) || len(l.heard) != 3 || m.UserMessageCount() != 0 {
		t.Errorf("failures %v, heard %q", l.failures, l.heard)
	}
}

// Whatever is posted, taken, held and closed: each message is delivered once or handed back once, in order, or was
// refused; control messages are refused only when closed.
func TestNoMessageIsLostOrDoubled(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, d, l := newTestMailbox()
		m.RegisterHandlers(l, nil)
		m.Start()
		const limit = 5
		var expected, back []string
		next, isClosed := 0, false
		t.Repeat(map[string]func(*rapid.T){
			"request": func(t *rapid.T) {
				waiting := m.UserMessageCount()
				next++
				switch v := m.post(laneOrdinary, next, limit); {
				case isClosed != (v == closed), !isClosed && (v == full) != (waiting >= limit):
					t.Fatalf("verdict %d with %d waiting, closed %v", v, waiting, isClosed)
				case v == accepted:
					expected = append(expected, fmt.Sprint(next))
				}
			},
			"control": func(t *rapid.T) {
				next++
				if v := m.post(laneOrdinary, next, 0); (v == accepted) == isClosed {
					t.Fatalf("verdict %d for a control message, closed %v", v, isClosed)
				} else if v == accepted {
					expected = append(expected, fmt.Sprint(next))
				}
			},
			"hold":    func(*rapid.T) { m.hold(true) },
			"release": func(*rapid.T) { m.hold(false); m.post(laneUrgent, "go", 0) },
			"process": func(t *rapid.T) { d.run(rapid.IntRange(1, 4).Draw(t, "quantum")) },
			"take": func(*rapid.T) {
				for _, v := range m.take(func(v any) bool { return v.(int)%3 == 0 }) {
					back = append(back, fmt.Sprint(v))
				}
			},
			"close": func(*rapid.T) {
				for _, v := range m.close() {
					back = append(back, fmt.Sprint(v))
				}
				isClosed = true
			},
		})
		m.hold(false)
		m.PostSystemMessage("end")
		d.run(100)
		delivered := slices.DeleteFunc(slices.Clone(l.heard), func(s string) bool { return s == "go" || s == "system end" })
		if !slices.IsSortedFunc(delivered, byNumber) {
			t.Fatalf("delivered out of order: %q", delivered)
		}
		all := append(delivered, back...)
		slices.SortFunc(all, byNumber)
		if !slices.Equal(all, expected) {
			t.Fatalf("delivered or handed back %q, posted were %q", all, expected)
		}
		if m.queues != nil {
			t.Fatal("an empty mailbox keeps its queues")
		}
	})
}

func byNumber(a, b string) int {
	if len(a) != len(b) {
		return len(a) - len(b)
	}
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func TestAQueueThatNeverEmptiesDoesNotGrow(t *testing.T) {
	var f fifo
	for i := range 100_000 {
		f.push(i)
		if i >= 3 {
			if v := f.pop(); v != i-3 {
				t.Fatalf("popped %v, want %d", v, i-3)
			}
		}
	}
	if cap(f.items) > 8*keepItems {
		t.Errorf("three items occupy %d places", cap(f.items))
	}
	for range 10_000 {
		f.push(0)
	}
	for f.size() > 0 {
		f.pop()
	}
	if cap(f.items) > keepItems {
		t.Errorf("an empty queue occupies %d places after a burst", cap(f.items))
	}
}

func TestAPoolServesItsMailboxesInTurn(t *testing.T) {
	p := newPool(1, 4)
	var mu sync.Mutex
	var order []string
	var done sync.WaitGroup
	done.Add(40)
	gate, entered := make(chan struct{}), make(chan struct{})
	box := func(name string, express bool) *mailbox {
		l := &listener{}
		l.onUser = func(any) {
			if name == "gate" {
				close(entered)
				<-gate
				return
			}
			mu.Lock()
			order = append(order, name)
			mu.Unlock()
			done.Done()
		}
		m := &mailbox{dispatch: p, express: express}
		m.RegisterHandlers(l, nil)
		m.Start()
		return m
	}
	box("gate", false).post(laneOrdinary, 0, 0)
	<-entered
	for _, m := range []*mailbox{box("a", false), box("b", false), box("x", true), box("y", true)} {
		for i := range 10 {
			m.post(laneOrdinary, i, 0)
		}
	}
	close(gate)
	done.Wait()
	p.stop()
	var turns []string
	for i, name := range order {
		if i == 0 || order[i-1] != name {
			turns = append(turns, name)
		}
	}
	// Four messages a turn, the express line and the ordinary one alternating.
	if want := []string{"a", "x", "b", "y", "a", "x", "b", "y", "a", "x", "b", "y"}; !slices.Equal(turns, want) {
		t.Errorf("turns %v, want %v", turns, want)
	}
}
