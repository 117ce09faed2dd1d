package journal

import (
	"context"
	"errors"
	"fmt"

	"github.com/highwater-io/highwater/messages"
)

// Log is where entries are kept: an ordered sequence of payloads with one rule, that an append names the sequence it
// expects to follow. The first payload has sequence 1. Implementations: Memory, and journal/jetstream.
type Log interface {
	// Append stores payload right behind expected and returns its sequence, which is above expected. It returns only
	// after the payload is as durable as the log makes it. Errors: *Conflict when something else follows expected
	// already (nothing was stored); anything else, also a context that ended, means that the outcome is not known.
	Append(ctx context.Context, expected messages.Sequence, payload []byte) (messages.Sequence, error)

	// Get returns the payload at a sequence. ErrNotFound if there is none (yet, or any more).
	Get(ctx context.Context, at messages.Sequence) ([]byte, error)

	// Replay calls f for every stored payload from a sequence on, in order, up to the last one that was stored when the
	// call began. An error of f ends it and is returned.
	Replay(ctx context.Context, from messages.Sequence, f func(messages.Sequence, []byte) error) error

	// Last returns the last sequence, 0 for an empty log. It may be stale; only an append proves that it is not.
	Last(ctx context.Context) (messages.Sequence, error)
}

// ErrNotFound says that a sequence holds nothing.
var ErrNotFound = errors.New("journal: no entry at this sequence")

// Conflict is the refusal of an append: another writer was faster. Last is the log's last sequence.
type Conflict struct{ Last messages.Sequence }

// Error returns the refusal with the last sequence.
func (c *Conflict) Error() string {
	return fmt.Sprintf("journal: another entry has been appended, the last sequence is %d", c.Last)
}
