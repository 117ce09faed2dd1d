package journal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/highwater-io/highwater/messages"
)

// scripted is a committer whose log is the test itself.
type scripted struct {
	*testing.T
	m     *Committer
	order Order
}

func script(t *testing.T, l Limits) *scripted {
	return &scripted{T: t, m: NewCommitter(Position{}, Writer{Controller: "c1", Epoch: 1}, l)}
}

// propose proposes n records under a ticket and returns the error.
func (s *scripted) propose(ticket Ticket, n int) error {
	records := make([]messages.Record, n)
	for i := range records {
		records[i] = &messages.Broker{ID: name(ticket, i)}
	}
	return s.m.Propose(ticket, records)
}

func (s *scripted) mustPropose(ticket Ticket, n int) {
	s.Helper()
	if err := s.propose(ticket, n); err != nil {
		s.Fatal(err)
	}
}

// wantAppend takes the next order, which must be an append behind expected, and returns the entry.
func (s *scripted) wantAppend(expected messages.Sequence) *Entry {
	s.Helper()
	var ok bool
	if s.order, ok = s.m.Next(NewStamp()); !ok || s.order.At != 0 || s.order.Expected != expected {
		s.Fatalf("the order is %+v, %v", s.order, ok)
	}
	e, err := DecodeEntry(expected+1, s.order.Payload)
	if err != nil {
		s.Fatal(err)
	}
	return e
}

func (s *scripted) wantGet(at messages.Sequence) {
	s.Helper()
	var ok bool
	if s.order, ok = s.m.Next(NewStamp()); !ok || s.order.At != at {
		s.Fatalf("the order is %+v, %v", s.order, ok)
	}
}

func (s *scripted) answer(r Result) {
	r.Number = s.order.Number
	s.m.Done(r)
}

func (s *scripted) wantCommitted(want ...string) {
	s.Helper()
	got := []string{}
	for _, c := range s.m.Committed() {
		got = append(got, fmt.Sprintf("%d@%d", c.Ticket, c.Sequence))
	}
	if !slices.Equal(got, want) {
		s.Fatalf("committed are %v, not %v", got, want)
	}
}

func TestWhatIsProposedDuringAnAppendGoesIntoTheNextEntry(t *testing.T) {
	s := script(t, Limits{})
	s.mustPropose(1, 1)
	s.wantAppend(0)
	for ticket := Ticket(2); ticket <= 5; ticket++ {
		s.mustPropose(ticket, 2)
		if _, ok := s.m.Next(NewStamp()); ok {
			t.Fatal("there is a second order while one is outstanding")
		}
	}
	s.answer(Result{Sequence: 1})
	s.wantCommitted("1@1")
	if e := s.wantAppend(1); len(e.Records) != 8 {
		t.Errorf("the second entry has %d records", len(e.Records))
	}
	s.answer(Result{Sequence: 2})
	s.wantCommitted("2@2", "3@2", "4@2", "5@2")
	if !s.m.Idle() {
		t.Error("the committer is not idle")
	}
}

func TestEntriesAreBoundedAndProposalsAreNeverSplit(t *testing.T) {
	s := script(t, Limits{Records: 10})
	for ticket, n := range []int{4, 6, 1, 25, 9, 2} {
		s.mustPropose(Ticket(ticket+1), n)
	}
	for i, want := range []int{10, 1, 25, 9, 2} {
		if e := s.wantAppend(messages.Sequence(i)); len(e.Records) != want {
			t.Fatalf("entry %d has %d records, not %d", i+1, len(e.Records), want)
		}
		s.answer(Result{Sequence: messages.Sequence(i + 1)})
	}
	s.wantCommitted("1@1", "2@1", "3@2", "4@3", "5@4", "6@5")

	s = script(t, Limits{Bytes: 100})
	for ticket := range 20 {
		s.mustPropose(Ticket(ticket+1), 1)
	}
	for at := messages.Sequence(0); !s.m.Idle(); at++ {
		if s.wantAppend(at); len(s.order.Payload) > 100+headRoom {
			t.Errorf("an entry has %d bytes", len(s.order.Payload))
		}
		s.answer(Result{Sequence: at + 1})
	}
}

func TestAProposalLargerThanAnEntryMayBeIsRefused(t *testing.T) {
	s := script(t, Limits{MaxBytes: 10_000})
	for n := 1; ; n++ {
		err := s.propose(1, n)
		if err == nil {
			if s.wantAppend(messages.Sequence(n - 1)); len(s.order.Payload) > 10_000 {
				t.Fatalf("an entry has %d bytes", len(s.order.Payload))
			}
			s.answer(Result{Sequence: messages.Sequence(n)})
			continue
		}
		if messages.CodeOf(err) != messages.CodeTooLarge || n < 500 {
			t.Fatalf("%d records: %v", n, err)
		}
		break
	}
	if !s.m.Idle() {
		t.Error("a refused proposal is pending")
	}
}

func TestALongBacklogIsBusyButNotForWhatIsUrgent(t *testing.T) {
	for _, l := range []Limits{{BacklogRecords: 10}, {BacklogBytes: 100}} {
		s := script(t, l)
		var err error
		accepted := 0
		for ; err == nil && accepted < 100; accepted++ {
			err = s.propose(Ticket(accepted+1), 1)
		}
		busy := (*messages.Error)(nil)
		if !errors.As(err, &busy) || busy.Code != messages.CodeBusy || busy.RetryAfterMs == 0 {
			t.Fatalf("after %d proposals: %v", accepted, err)
		}
		if err := s.m.ProposeUrgent(99, []messages.Record{&messages.Broker{ID: "b"}}); err != nil {
			t.Fatal(err)
		}
		s.wantAppend(0)
		s.answer(Result{Sequence: 1})
		if p, r, b := s.m.Backlog(); p+r+b != 0 {
			t.Errorf("the backlog is %d proposals, %d records, %d bytes", p, r, b)
		}
		if err := s.propose(100, 1); err != nil {
			t.Errorf("after the backlog is gone: %v", err)
		}
	}
}

func TestARecordThatNobodyCouldReadIsNotWritten(t *testing.T) {
	s := script(t, Limits{})
	for _, r := range []messages.Record{
		&messages.Broker{ID: "no name"},
		&messages.Topic{ID: messages.TopicID{1}, Name: "t", Partitions: 1 << 30},
		&messages.Partition{ID: messages.PartitionID{Topic: messages.TopicID{1}}, Replicas: []messages.BrokerID{"a"},
			ISR: []messages.BrokerID{"b"}},
	} {
		if err := s.m.Propose(1, []messages.Record{&messages.Broker{ID: "b"}, r}); messages.CodeOf(err) != messages.CodeInternal {
			t.Errorf("%T: %v", r, err)
		}
	}
	if err := s.m.Propose(0, nil); err == nil {
		t.Error("ticket 0 is accepted")
	}
	if !s.m.Idle() {
		t.Error("a refused proposal is pending")
	}
}

func TestAConflictWithoutAnEntryIsSettledByATick(t *testing.T) {
	s := script(t, Limits{})
	s.mustPropose(1, 1)
	s.wantAppend(0)
	s.answer(Result{Err: &Conflict{Last: 1}})
	s.wantGet(1)
	s.answer(Result{Err: errors.New("no answer")}) // try again
	s.wantGet(1)
	s.answer(Result{Err: ErrNotFound}) // a server that promised what it did not keep
	if e := s.wantAppend(0); len(e.Records) != 0 {
		t.Fatal("it is no tick")
	}
	tick := s.order.Payload
	s.answer(Result{Err: errors.New("no answer")})
	if s.wantAppend(0); !bytes.Equal(s.order.Payload, tick) {
		t.Error("the second tick is another one")
	}
	s.answer(Result{Sequence: 1})
	s.wantCommitted("0@1")
	if e := s.wantAppend(1); len(e.Records) != 1 {
		t.Fatal("the proposal is gone")
	}
	s.answer(Result{Sequence: 2})
	s.wantCommitted("1@2")
	if s.m.Err() != nil || s.m.Trouble() != nil {
		t.Error(s.m.Err(), s.m.Trouble())
	}
}

func TestB119ALogThatShrinksIsBroken(t *testing.T) {
	s := script(t, Limits{})
	s.mustPropose(1, 1)
	s.wantAppend(0)
	s.answer(Result{Sequence: 1})
	s.mustPropose(2, 1)
	shrunk := func(times int) {
		for range times {
			s.wantAppend(1)
			s.answer(Result{Err: &Conflict{Last: 0}})
		}
	}
	shrunk(maxShrunk - 1)
	s.wantAppend(1)
	s.answer(Result{Err: errors.New("no answer")}) // it may have been the opinion of one server that was cut off
	shrunk(maxShrunk - 1)
	if s.m.Err() != nil {
		t.Fatal("the committer gave up on the log too early")
	}
	shrunk(1)
	wantBroken(t, s.m.Err(), 1, DefectGap)
	if got := s.m.Pending(); !slices.Equal(got, []Ticket{2}) {
		t.Errorf("pending are %v", got)
	}
}

func TestAnAppendWithAnUnexpectedSequenceIsBroken(t *testing.T) {
	s := script(t, Limits{})
	s.mustPropose(1, 1)
	s.wantAppend(0)
	s.answer(Result{Sequence: 3})
	wantBroken(t, s.m.Err(), 1, DefectGap)
	s.wantCommitted()
}

func TestAnEntryInOurPlaceThatIsNoneIsBroken(t *testing.T) {
	s := script(t, Limits{})
	s.mustPropose(1, 1)
	s.wantAppend(0)
	s.answer(Result{Err: &Conflict{Last: 1}})
	s.wantGet(1)
	s.answer(Result{Payload: []byte("junk")})
	wantBroken(t, s.m.Err(), 1, DefectEntry)
}

func TestResultsOfOtherOrdersAreIgnored(t *testing.T) {
	s := script(t, Limits{})
	s.mustPropose(1, 1)
	s.wantAppend(0)
	stale := s.order
	s.answer(Result{Err: errors.New("no answer")})
	s.m.Done(Result{Number: stale.Number, Sequence: 1}) // nothing is outstanding
	s.wantAppend(0)
	s.m.Done(Result{Number: stale.Number, Sequence: 1}) // the tick is
	s.wantCommitted()
	if s.m.Position().Last != 0 {
		t.Error("a stale result counted")
	}
}

func TestDeposedWritersLeaveTheirProposalsPending(t *testing.T) {
	s := script(t, Limits{Records: 1})
	for ticket := Ticket(1); ticket <= 3; ticket++ {
		s.mustPropose(ticket, 1)
	}
	other, _, err := EncodeEntry(Position{}, Writer{"c2", 2}, NewStamp(), nil)
	if err != nil {
		t.Fatal(err)
	}
	s.wantAppend(0)
	s.answer(Result{Err: &Conflict{Last: 5}})
	s.wantGet(1)
	s.answer(Result{Payload: other})
	deposed := (*Deposed)(nil)
	if !errors.As(s.m.Err(), &deposed) || *deposed != (Deposed{At: 1, By: "c2", Epoch: 2}) {
		t.Fatal(s.m.Err())
	}
	if got := s.m.Pending(); !slices.Equal(got, []Ticket{1, 2, 3}) {
		t.Errorf("pending are %v", got)
	}
	if _, ok := s.m.Next(NewStamp()); ok {
		t.Error("a deposed writer has an order")
	}
}

func TestPausesGrowWithFailuresAndStayBounded(t *testing.T) {
	for failures, want := range []time.Duration{0, 0, 50, 100, 200, 400, 800, 1600, 1600} {
		if got := (Order{Failures: failures}).Pause(); got != want*time.Millisecond {
			t.Errorf("after %d failures the pause is %v", failures, got)
		}
	}
	s := script(t, Limits{})
	s.mustPropose(1, 1)
	at := messages.Sequence(0)
	for range 5 { // a log that takes ticks but not the entry is paused for all the same
		s.wantAppend(at)
		s.answer(Result{Err: errors.New("no answer")})
		s.wantAppend(at)
		at++
		s.answer(Result{Sequence: at})
	}
	if s.wantAppend(at); s.order.Failures != 5 {
		t.Errorf("%d failures are counted", s.order.Failures)
	}
	s.answer(Result{Sequence: at + 1})
	s.mustPropose(2, 1)
	if s.wantAppend(at + 1); s.order.Failures != 0 {
		t.Errorf("%d failures are counted after a commit", s.order.Failures)
	}
}

func TestDriveEndsWithItsContextAndSaysThatTheOutcomeIsUnknown(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	log := NewMemory()
	gate := make(chan struct{})
	log.Inject(Fault{Before: gate})
	log.InjectFunc(func(messages.Sequence, []byte) Fault {
		cancel()
		return Fault{Kind: FaultLostBefore}
	})
	go func() { gate <- struct{}{} }()
	if _, _, err := Claim(ctx, log, NewCatalog(), Position{}, "c1"); err != nil {
		t.Fatal(err)
	}
	_, _, err := Claim(ctx, log, NewCatalog(), Position{Last: 1}, "c2")
	if messages.CodeOf(err) != messages.CodeOutcomeUnknown {
		t.Fatal(err)
	}
}
