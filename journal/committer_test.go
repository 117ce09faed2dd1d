package journal

import (
	"testing"

	"github.com/highwater-io/highwater/messages"
)

func TestClaimThenCommitThenRecover(t *testing.T) {
	ctx := t.Context()
	log, live := NewMemory(), NewCatalog()
	at, epoch, err := Claim(ctx, log, live, Position{}, "c1", &messages.Cluster{Name: "one", ID: "id"})
	if err != nil || epoch != 1 || at.Last != 1 {
		t.Fatalf("claim: %v, epoch %d, at %d", err, epoch, at.Last)
	}
	m := NewCommitter(at, Writer{Controller: "c1", Epoch: epoch}, Limits{})
	topic := &messages.Topic{ID: messages.TopicID{1}, Name: "t", Partitions: 1, ReplicationFactor: 1, MinISR: 1}
	if err := m.Propose(7, []messages.Record{topic}); err != nil {
		t.Fatal(err)
	}
	log.Inject(Fault{Kind: FaultLostAfter})
	var tickets []Ticket
	err = Drive(ctx, log, m, func(c Committed) {
		live.Apply(c.Sequence, c.Records)
		tickets = append(tickets, c.Ticket)
	})
	if err != nil || len(tickets) != 1 || tickets[0] != 7 {
		t.Fatalf("commit: %v, tickets %v", err, tickets)
	}
	again := NewCatalog()
	end, epoch, err := Recover(ctx, log, again)
	if err != nil || epoch != 1 || end != m.Position() {
		t.Fatalf("recover: %v, epoch %d, %v instead of %v", err, epoch, end, m.Position())
	}
	if got, ok := again.TopicByName("t"); !ok || got.ID != topic.ID || again.Identity().ID != "id" {
		t.Fatal("the recovered catalog misses what was committed")
	}
}
