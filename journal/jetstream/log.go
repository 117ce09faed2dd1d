package jetstream

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"

	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/messages"
)

// Log is a journal in a stream. It is safe for concurrent use.
type Log struct {
	js      js.JetStream
	stream  js.Stream
	name    string
	subject string
	short   uint64 // up to how many entries are a short replay
}

var _ journal.Log = (*Log)(nil)

// headerRoom bounds the headers of a publish, in bytes: they count as payload.
const headerRoom = 256

// replayBuffer bounds what a replay holds in the client, in bytes; it must take the largest entry.
const replayBuffer = 16 << 20

// MaxEntry returns the size of the largest entry that the connected server takes, in bytes.
func (l *Log) MaxEntry() int { return int(l.js.Conn().MaxPayload()) - headerRoom }

// Append publishes a payload that expects a last sequence. Errors: *journal.Conflict when the server says so; TOO_LARGE
// for a payload that the server would not take, which is not sent; anything else says nothing about the outcome.
func (l *Log) Append(ctx context.Context, expected messages.Sequence, payload []byte) (messages.Sequence, error) {
	if len(payload) > l.MaxEntry() {
		return 0, messages.Errorf(messages.CodeTooLarge, "the journal entry has %d bytes, the server takes %d",
			len(payload), l.MaxEntry()).WithHint("set max_payload of the NATS server to 8 MB")
	}
	ack, err := l.js.PublishMsg(ctx, &nats.Msg{Subject: l.subject, Data: payload},
		js.WithExpectLastSequence(uint64(expected)), js.WithExpectStream(l.name), js.WithRetryAttempts(0))
	if err != nil {
		return 0, appendError(err)
	}
	if ack.Stream != l.name || ack.Duplicate {
		return 0, fmt.Errorf("journal: an append was answered by stream %q, duplicate %v", ack.Stream, ack.Duplicate)
	}
	return messages.Sequence(ack.Sequence), nil
}

// appendError tells the one definite refusal from everything else. Error 10164, "wrong last sequence" without a number,
// also comes while something is in flight that may yet fail; it decides nothing.
func appendError(err error) error {
	var api *js.APIError
	if errors.As(err, &api) && api.ErrorCode == js.JSErrCodeStreamWrongLastSequence {
		_, number, found := strings.Cut(api.Description, "wrong last sequence: ")
		if last, parseErr := strconv.ParseUint(number, 10, 64); found && parseErr == nil {
			return &journal.Conflict{Last: messages.Sequence(last)}
		}
	}
	return fmt.Errorf("journal: no outcome of an append: %w", err)
}

// Get returns the payload at a sequence. A server that has fallen behind answers journal.ErrNotFound for what exists.
func (l *Log) Get(ctx context.Context, at messages.Sequence) ([]byte, error) {
	if at == 0 {
		return nil, journal.ErrNotFound
	}
	m, err := l.stream.GetMsg(ctx, uint64(at))
	if errors.Is(err, js.ErrMsgNotFound) {
		return nil, journal.ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("journal: reading entry %d: %w", at, err)
	}
	return m.Data, nil
}

// Last returns the last sequence that the answering server knows of.
func (l *Log) Last(ctx context.Context) (messages.Sequence, error) {
	state, err := l.state(ctx)
	return messages.Sequence(state.LastSeq), err
}

func (l *Log) state(ctx context.Context) (js.StreamState, error) {
	info, err := l.stream.Info(ctx)
	if err != nil {
		return js.StreamState{}, fmt.Errorf("journal: asking for the state of stream %s: %w", l.name, err)
	}
	return info.State, nil
}

// A replay of up to shortReplay entries asks the leader of the stream for each, readAhead at a time. A longer one has a consumer,
// which is quicker, but needs more: the leader of all JetStream to make it, and a server to keep it, which may be just the one
// that has gone silent.
const (
	shortReplay = 512
	readAhead   = 16
)

// Replay calls f for every stored payload from a sequence on. Entries below the stream's first sequence have been purged
// and are passed over.
func (l *Log) Replay(ctx context.Context, from messages.Sequence, f func(messages.Sequence, []byte) error) error {
	state, err := l.state(ctx)
	if err != nil {
		return err
	}
	start, last := max(uint64(from), state.FirstSeq, 1), state.LastSeq
	if start > last {
		return nil
	}
	if last-start < l.short {
		return l.replayShort(ctx, messages.Sequence(start), messages.Sequence(last), f)
	}
	return l.replayLong(ctx, start, last, f)
}

func (l *Log) replayShort(ctx context.Context, start, last messages.Sequence, f func(messages.Sequence, []byte) error) error {
	type answer struct {
		payload []byte
		err     error
	}
	for ; start <= last; start += readAhead {
		ahead := make([]answer, min(readAhead, last-start+1))
		var reading sync.WaitGroup
		for i := range ahead {
			reading.Go(func() { ahead[i].payload, ahead[i].err = l.Get(ctx, start+messages.Sequence(i)) })
		}
		reading.Wait()
		for i, a := range ahead {
			if errors.Is(a.err, journal.ErrNotFound) {
				continue // purged meanwhile, or lost: the reader sees the gap
			}
			if a.err != nil {
				return a.err
			}
			if err := f(start+messages.Sequence(i), a.payload); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l *Log) replayLong(ctx context.Context, start, last uint64, f func(messages.Sequence, []byte) error) error {
	consumer, err := l.stream.OrderedConsumer(ctx, js.OrderedConsumerConfig{
		DeliverPolicy: js.DeliverByStartSequencePolicy, OptStartSeq: start})
	if err != nil {
		return fmt.Errorf("journal: starting to replay from %d: %w", start, err)
	}
	iterator, err := consumer.Messages(js.PullMaxBytes(replayBuffer))
	if err != nil {
		return fmt.Errorf("journal: starting to replay from %d: %w", start, err)
	}
	defer iterator.Stop()
	for {
		m, err := iterator.Next(js.NextContext(ctx))
		if err != nil {
			return fmt.Errorf("journal: replaying up to %d: %w", last, err)
		}
		at, err := m.Metadata()
		if err != nil {
			return fmt.Errorf("journal: replaying: %w", err)
		}
		if at.Sequence.Stream > last {
			return nil
		}
		if err := f(messages.Sequence(at.Sequence.Stream), m.Data()); err != nil {
			return err
		}
		if at.Sequence.Stream == last || at.NumPending == 0 {
			return nil
		}
	}
}

// Purge drops every entry up to a sequence; a snapshot must hold what they say. The last sequence stays what it is.
func (l *Log) Purge(ctx context.Context, upTo messages.Sequence) error {
	if err := l.stream.Purge(ctx, js.WithPurgeSequence(uint64(upTo)+1)); err != nil {
		return fmt.Errorf("journal: purging up to %d: %w", upTo, err)
	}
	return nil
}

// Begin makes an empty log that has never held anything go on behind a sequence, as if everything up to it had been purged.
// CLUSTER_MISMATCH for a log that holds or has held something.
func (l *Log) Begin(ctx context.Context, behind messages.Sequence) error {
	state, err := l.state(ctx)
	if err != nil {
		return err
	}
	if state.LastSeq > 0 || state.Msgs > 0 {
		return messages.Errorf(messages.CodeClusterMismatch, "the journal is not empty: it ends at %d", state.LastSeq)
	}
	return l.Restart(ctx, behind)
}

// Restart drops every entry and goes on behind a sequence above the last one.
func (l *Log) Restart(ctx context.Context, behind messages.Sequence) error {
	if err := l.Purge(ctx, behind); err != nil {
		return err
	}
	if last, err := l.Last(ctx); err != nil || last != behind {
		return fmt.Errorf("journal: the empty log was to begin behind %d, it is at %d: %w", behind, last, err)
	}
	return nil
}
