package journaltest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/messages"
)

// errHidden is what a committer hears of an append whose outcome the suite hides.
var errHidden = errors.New("journaltest: the outcome is hidden")

func broker(i int) *messages.Broker {
	return &messages.Broker{ID: messages.BrokerID(fmt.Sprintf("b%d", i)), Incarnation: "i", Storage: "s"}
}

func claim(t *testing.T, ctx context.Context, log journal.Log, c *journal.Catalog, at journal.Position,
	who string) *journal.Committer {
	t.Helper()
	at, epoch, err := journal.Claim(ctx, log, c, at, who)
	if err != nil {
		t.Fatalf("the claim of %s: %v", who, err)
	}
	return journal.NewCommitter(at, journal.Writer{Controller: who, Epoch: epoch}, journal.Limits{Records: 5})
}

func propose(t *testing.T, m *journal.Committer, ticket int, n int) {
	t.Helper()
	records := make([]messages.Record, n)
	for i := range records {
		records[i] = broker(100*ticket + i)
	}
	if err := m.Propose(journal.Ticket(ticket), records); err != nil {
		t.Fatal(err)
	}
}

// next returns the committer's next order, which must be there.
func next(t *testing.T, m *journal.Committer) journal.Order {
	t.Helper()
	o, ok := m.Next(journal.NewStamp())
	if !ok {
		t.Fatalf("the committer has no order; err %v", m.Err())
	}
	return o
}

// drain drives a committer to the end of what is pending and returns the committed tickets, with those that were already
// committed.
func drain(t *testing.T, ctx context.Context, log journal.Log, m *journal.Committer, c *journal.Catalog) []int {
	t.Helper()
	var tickets []int
	take := func(done journal.Committed) {
		c.ApplyAt(done.At(), done.Records)
		if done.Ticket != 0 {
			tickets = append(tickets, int(done.Ticket))
		}
	}
	for _, done := range m.Committed() {
		take(done)
	}
	if err := journal.Drive(ctx, log, m, take); err != nil {
		t.Fatalf("committing: %v", err)
	}
	return tickets
}

// recovers checks that a new process finds exactly what this one has committed.
func recovers(t *testing.T, ctx context.Context, log journal.Log, m *journal.Committer, live *journal.Catalog) {
	t.Helper()
	again := journal.NewCatalog()
	at, epoch, err := journal.Recover(ctx, log, again)
	if err != nil || at != m.Position() || epoch != m.Writer().Epoch {
		t.Fatalf("recovered up to %d (epoch %d), %v; the writer is at %d", at.Last, epoch, err, m.Position().Last)
	}
	if got, want := len(again.Brokers()), len(live.Brokers()); got != want {
		t.Fatalf("recovered %d brokers, there were %d", got, want)
	}
}

func wantTickets(t *testing.T, got []int, want ...int) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("the committed tickets are %v, not %v", got, want)
	}
}

func commits(t *testing.T, ctx context.Context, log journal.Log) {
	live := journal.NewCatalog()
	m := claim(t, ctx, log, live, journal.Position{}, "c1")
	for ticket := 1; ticket <= 6; ticket++ {
		propose(t, m, ticket, ticket)
	}
	wantTickets(t, drain(t, ctx, log, m, live), 1, 2, 3, 4, 5, 6)
	recovers(t, ctx, log, m, live)
}

func unknown(t *testing.T, ctx context.Context, log journal.Log) {
	live := journal.NewCatalog()
	m := claim(t, ctx, log, live, journal.Position{}, "c1")
	ticket := 0
	for _, storeBatch := range []bool{true, false} {
		for _, storeTick := range []bool{true, false} {
			ticket++
			propose(t, m, ticket, 2)
			hide := func(store bool) {
				o := next(t, m)
				if store {
					_, _ = log.Append(ctx, o.Expected, o.Payload)
				}
				m.Done(journal.Result{Number: o.Number, Err: errHidden})
			}
			hide(storeBatch)
			ticket++
			propose(t, m, ticket, 1) // must wait for the outcome of the one before
			hide(storeTick)          // the tick that settles it has no known outcome either
			wantTickets(t, drain(t, ctx, log, m, live), ticket-1, ticket)
		}
	}
	if got := len(live.Brokers()); got != 4*3 {
		t.Errorf("%d brokers are committed", got)
	}
	recovers(t, ctx, log, m, live)
}

func lateDelivery(t *testing.T, ctx context.Context, log journal.Log) {
	live := journal.NewCatalog()
	m := claim(t, ctx, log, live, journal.Position{}, "c1")
	propose(t, m, 1, 1)
	late := next(t, m)
	m.Done(journal.Result{Number: late.Number, Err: errHidden})
	m.Done(journal.Do(ctx, log, next(t, m))) // the tick
	if _, err := log.Append(ctx, late.Expected, late.Payload); err == nil {
		t.Fatal("the late delivery was stored")
	}
	wantTickets(t, drain(t, ctx, log, m, live), 1)
	if _, err := log.Append(ctx, late.Expected, late.Payload); err == nil {
		t.Fatal("the late delivery was stored")
	}
	recovers(t, ctx, log, m, live)
}

func zombie(t *testing.T, ctx context.Context, log journal.Log) {
	first, second := journal.NewCatalog(), journal.NewCatalog()
	old := claim(t, ctx, log, first, journal.Position{}, "c1")
	propose(t, old, 1, 1)
	frozen := next(t, old) // decided, not yet sent
	at, _, err := journal.Recover(ctx, log, second)
	if err != nil {
		t.Fatal(err)
	}
	young := claim(t, ctx, log, second, at, "c2")
	propose(t, young, 7, 1)
	wantTickets(t, drain(t, ctx, log, young, second), 7)

	old.Done(journal.Do(ctx, log, frozen))
	err = journal.Drive(ctx, log, old, func(journal.Committed) { t.Error("a zombie's proposal was committed") })
	deposed := (*journal.Deposed)(nil)
	if !errors.As(err, &deposed) || deposed.By != "c2" || deposed.Epoch != 2 || deposed.At != 2 {
		t.Fatalf("the old writer heard: %v", err)
	}
	if messages.CodeOf(err) != messages.CodeNotActiveController || !errors.Is(old.Propose(2, nil), err) {
		t.Errorf("the old writer goes on: %v", err)
	}
	recovers(t, ctx, log, young, second)
}

func refusedClaim(t *testing.T, ctx context.Context, log journal.Log) {
	one, two := journal.NewCatalog(), journal.NewCatalog()
	if _, _, err := journal.Claim(ctx, log, one, journal.Position{}, "c1"); err != nil {
		t.Fatal(err)
	}
	_, _, err := journal.Claim(ctx, log, two, journal.Position{}, "c2")
	refused := (*journal.Conflict)(nil)
	if !errors.As(err, &refused) || two.Applied() != 0 {
		t.Fatalf("a claim behind the start: %v, applied %d", err, two.Applied())
	}
	at, epoch, err := journal.Follow(ctx, log, two, journal.Position{})
	if err != nil || epoch != 1 {
		t.Fatalf("following: epoch %d, %v", epoch, err)
	}
	if _, epoch, err = journal.Claim(ctx, log, two, at, "c2"); err != nil || epoch != 2 {
		t.Fatalf("the second claim: epoch %d, %v", epoch, err)
	}
}
