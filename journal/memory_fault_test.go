package journal

import (
	"context"
	"errors"
	"testing"

	"github.com/highwater-io/highwater/messages"
)

func TestFaultsDoWhatTheySay(t *testing.T) {
	other := errors.New("no responders")
	for _, c := range []struct {
		name   string
		fault  Fault
		err    error
		stored int // entries of the log after the append
		later  int // and after Deliver
	}{
		{"none", Fault{}, nil, 1, 1},
		{"refused", Fault{Kind: FaultRefused, Err: other}, other, 0, 0},
		{"lost before", Fault{Kind: FaultLostBefore}, ErrInjected, 0, 0},
		{"lost after", Fault{Kind: FaultLostAfter}, ErrInjected, 1, 1},
		{"late", Fault{Kind: FaultLate}, ErrInjected, 0, 1},
		{"twice", Fault{Kind: FaultTwice}, &Conflict{Last: 1}, 1, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := NewMemory()
			m.Inject(c.fault)
			_, err := m.Append(t.Context(), 0, []byte("x"))
			conflict := (*Conflict)(nil)
			if !errors.Is(err, c.err) && !(errors.As(err, &conflict) && conflict.Last == 1 && c.name == "twice") {
				t.Errorf("the error is %v", err)
			}
			if last, _ := m.Last(t.Context()); int(last) != c.stored {
				t.Errorf("%d entries are stored", last)
			}
			m.Deliver()
			if last, _ := m.Last(t.Context()); int(last) != c.later || m.Appends() != 1 {
				t.Errorf("%d entries are stored in the end", last)
			}
		})
	}
}

func TestGatesHoldAnAppendBeforeAndAfterStoring(t *testing.T) {
	m := NewMemory()
	before, after := make(chan struct{}), make(chan struct{})
	m.Inject(Fault{Before: before, After: after})
	ctx, cancel := context.WithCancel(t.Context())
	answer := make(chan error)
	go func() {
		_, err := m.Append(ctx, 0, []byte("x"))
		answer <- err
	}()
	if last, _ := m.Last(t.Context()); last != 0 {
		t.Fatal("it is stored before the gate is open")
	}
	before <- struct{}{}
	cancel() // while it waits at the second gate, or just before
	if err := <-answer; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if last, _ := m.Last(t.Context()); last != 1 {
		t.Fatal("it is not stored")
	}
}

func TestDamageToTheMemoryLog(t *testing.T) {
	m := NewMemory()
	for i := range 6 {
		if _, err := m.Append(t.Context(), messages.Sequence(i), []byte{byte(i + 1)}); err != nil {
			t.Fatal(err)
		}
	}
	_ = m.Purge(t.Context(), 2)
	m.Truncate(5)
	if m.Replace(2, nil) || m.Replace(6, nil) || !m.Replace(4, nil) {
		t.Error("replaced what is not there, or not what is")
	}
	var got []messages.Sequence
	err := m.Replay(t.Context(), 1, func(seq messages.Sequence, payload []byte) error {
		if payload[0] != byte(seq) {
			t.Errorf("entry %d is %v", seq, payload)
		}
		got = append(got, seq)
		return nil
	})
	if err != nil || len(got) != 2 || got[0] != 3 || got[1] != 5 {
		t.Fatalf("%v, %v", got, err)
	}
	for _, gone := range []messages.Sequence{2, 4, 6} {
		if _, err := m.Get(t.Context(), gone); !errors.Is(err, ErrNotFound) {
			t.Errorf("get %d: %v", gone, err)
		}
	}
	if seq, err := m.Append(t.Context(), 5, []byte{6}); seq != 6 || err != nil {
		t.Errorf("append: %d, %v", seq, err)
	}
}
