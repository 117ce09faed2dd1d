package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/asynkron/protoactor-go/eventstream"
	"github.com/rs/zerolog"

	"github.com/highwater-io/highwater/messages"
)

// newSystem makes the library's part of a tree: no metrics, its log lines in ours, its dead letters to us.
func newSystem(t *Tree) *actor.ActorSystem {
	system := actor.NewActorSystem(actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger {
		return slog.New(&bridge{logger: t.logger})
	}))
	// A new event stream is one without the library's subscribers: the one for dead letters writes whole messages into
	// the log, and keeps a goroutine for a second after each.
	system.EventStream = eventstream.NewEventStream()
	system.EventStream.Subscribe(t.deadLetter)
	return system
}

// deadLetter sees what was sent by PID to an actor that is gone. That is the library's own traffic, as the end of a pause
// of an actor that has been stopped meanwhile; our own messages are refused by the mailbox itself.
func (t *Tree) deadLetter(event any) {
	if dead, is := event.(*actor.DeadLetterEvent); is {
		t.refuse(dead.Message, t.gone())
		t.logger.Debug().Str("actor", pidName(dead.PID)).Str("type", fmt.Sprintf("%T", dead.Message)).Msg("dead letter")
	}
}

// bridge writes the library's log lines with zerolog. It prints types instead of messages, which may be large, secret or
// still in use, and it lowers the levels: what the library calls information is said once for every panic.
type bridge struct {
	logger zerolog.Logger
	attrs  []slog.Attr
}

func level(l slog.Level) zerolog.Level {
	switch {
	case l >= slog.LevelError:
		return zerolog.ErrorLevel
	case l >= slog.LevelWarn:
		return zerolog.WarnLevel
	case l >= slog.LevelInfo:
		return zerolog.DebugLevel
	}
	return zerolog.TraceLevel
}

// Enabled reports whether a level is logged.
func (b *bridge) Enabled(_ context.Context, l slog.Level) bool {
	return level(l) >= b.logger.GetLevel()
}

// Handle writes one line.
func (b *bridge) Handle(_ context.Context, r slog.Record) error {
	e := b.logger.WithLevel(level(r.Level)).Str("library", "protoactor")
	add := func(a slog.Attr) bool {
		e = attribute(e, a)
		return true
	}
	for _, a := range b.attrs {
		add(a)
	}
	r.Attrs(add)
	e.Msg(r.Message)
	return nil
}

func attribute(e *zerolog.Event, a slog.Attr) *zerolog.Event {
	key := a.Key
	if key == zerolog.MessageFieldName || key == zerolog.LevelFieldName {
		key = "actor_" + key
	}
	switch v := a.Value.Any().(type) {
	case *actor.PID:
		return e.Str(key, pidName(v))
	case actor.Directive:
		return e.Stringer(key, v)
	case string:
		return e.Str(key, v)
	case int64:
		return e.Int64(key, v)
	case error:
		return e.Str(key, v.Error())
	default:
		return e.Str(key, fmt.Sprintf("%T", v))
	}
}

// WithAttrs returns a bridge that adds attributes to each line.
func (b *bridge) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &bridge{logger: b.logger, attrs: append(b.attrs[:len(b.attrs):len(b.attrs)], attrs...)}
}

// WithGroup returns the same bridge; the library has no groups.
func (b *bridge) WithGroup(string) slog.Handler { return b }

func pidName(p *actor.PID) string {
	if p == nil {
		return "none"
	}
	return p.Id
}

// logCrash reports the end of an incarnation, with the stack of a panic, which is still there while it is recovered. When
// very many actors crash, most are only counted: writing it all would cost more than the crashes.
func (t *Tree) logCrash(h *host, reason any) {
	skipped, ok := t.crashes.allow(t.now())
	if !ok {
		return
	}
	e := t.logger.Error().Str("actor", addressName(h.address)).Uint64("incarnation", h.incarnation).
		Str("message_type", fmt.Sprintf("%T", h.current)).Str("reason", fmt.Sprint(reason))
	var load errLoad
	var commit errCommit
	if err, is := reason.(error); !is || !errors.As(err, &load) && !errors.As(err, &commit) {
		e = e.Bytes("stack", debug.Stack())
	}
	if skipped > 0 {
		e = e.Int("skipped", skipped)
	}
	e.Msg("an actor has crashed and is loaded again")
}

// fault reports a panic of the tree itself and returns it as an error.
func (t *Tree) fault(name string, reason any) *messages.Error {
	t.logger.Error().Str("supervisor", name).Str("reason", fmt.Sprint(reason)).Bytes("stack", debug.Stack()).
		Msg("a fault of the tree itself")
	return messages.Errorf(messages.CodeInternal, "a fault in the supervisor %q: %v", name, reason)
}

// kernel is deferred by every supervisor: a panic there ends the tree.
func (t *Tree) kernel(name string) {
	if reason := recover(); reason != nil {
		t.end(t.fault(name, reason))
	}
}

// giveUp and forgive keep the list of the failed.
func (t *Tree) giveUp(h *host) {
	t.mu.Lock()
	_, already := t.failed[h.address]
	t.failed[h.address] = struct{}{}
	t.mu.Unlock()
	if already {
		t.logger.Warn().Str("actor", addressName(h.address)).Msg("the failed actor has failed again")
		return
	}
	t.logger.Error().Str("actor", addressName(h.address)).Dur("retry_after", t.limits.RestartWindow).
		Msg("an actor has crashed too often and is marked failed")
}

func (t *Tree) forgive(h *host) {
	t.mu.Lock()
	delete(t.failed, h.address)
	t.mu.Unlock()
	t.logger.Info().Str("actor", addressName(h.address)).Msg("the failed actor has been loaded, or is gone")
}

// throttle lets through a bounded number of events in a second and counts the others.
type throttle struct {
	mu      sync.Mutex
	second  time.Duration
	used    int
	skipped int
}

// crashLines is how many crashes are logged in a second.
const crashLines = 20

// allow reports whether an event may pass, and how many have not since the last one that did.
func (r *throttle) allow(now time.Duration) (skipped int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if second := now.Truncate(time.Second); second != r.second {
		r.second, r.used = second, 0
	}
	if r.used++; r.used > crashLines {
		r.skipped++
		return 0, false
	}
	skipped, r.skipped = r.skipped, 0
	return skipped, true
}
