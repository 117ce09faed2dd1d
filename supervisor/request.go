package supervisor

import (
	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
)

// requestOf returns the id under which somebody waits for an answer to a message, and whether the message is a request
// at all. A request with id 0 is one that nobody waits for; it may be refused like any other, silently.
func requestOf(msg actors.Message) (actors.RequestID, bool) {
	switch m := msg.(type) {
	case actors.Request:
		return m.ID, true
	case actors.ISRProposal:
		return m.Request, true
	case actors.LeaderReport:
		return m.Request, true
	case actors.FeedStart:
		return m.Request, true
	}
	return 0, false
}

// refusable reports whether a message may be refused when too much waits: what comes from outside, and is asked or
// reported again when nothing comes of it. Everything else is a fact that is told once, and is always kept.
func refusable(msg actors.Message) bool {
	if _, is := requestOf(msg); is {
		return true
	}
	_, is := msg.(actors.OffsetReport) // comes again at the next checkpoint
	return is
}

// addressName writes an address for logs.
func addressName(a actors.Address) string {
	switch a.Kind {
	case actors.KindRegistry:
		return "registry"
	case actors.KindPlacer:
		return "placer"
	case actors.KindTopics:
		return "topics"
	case actors.KindPartition:
		return "partition " + a.Partition.String()
	case actors.KindOutbox:
		return "outbox " + string(a.Broker)
	}
	return "unknown"
}

func errBusy(what string) *messages.Error {
	e := messages.Errorf(messages.CodeBusy, "%s", what)
	e.RetryAfterMs = 100
	return e
}
