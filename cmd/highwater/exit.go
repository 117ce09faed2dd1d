package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/highwater-io/highwater/messages"
)

// Exit codes.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitUnreachable = 3
	exitDenied      = 4
	exitNotFound    = 5
	exitConflict    = 6
	exitUnhealthy   = 10
	exitInterrupted = 130
)

// usageError is a command line that cannot be understood.
type usageError struct{ message string }

func (u usageError) Error() string { return u.message }

func usage(format string, args ...any) error { return usageError{fmt.Sprintf(format, args...)} }

// errUnhealthy is the answer of a health command that has already been printed.
var errUnhealthy = errors.New("unhealthy")

// exit prints an error and returns the exit code that belongs to it.
func (a *app) exit(ctx context.Context, err error) int {
	if err == nil {
		return exitOK
	}
	if errors.Is(err, errUnhealthy) {
		return exitUnhealthy
	}
	code := exitCode(ctx, err)
	coded := messages.AsError(err)
	var u usageError
	switch {
	case errors.As(err, &u), isCobraUsage(err):
		coded = messages.Errorf(messages.CodeInvalidRequest, "%s", err).WithHint("see `highwater help`")
		code = exitUsage
	case code == exitInterrupted:
		coded = messages.Errorf(messages.CodeUnavailable, "interrupted")
	case coded.Code == messages.CodeInternal && code == exitUnreachable:
		coded = messages.Errorf(messages.CodeUnavailable, "%v", err)
	}
	if a.output == "json" {
		p := coded.Proto()
		raw, _ := json.Marshal(map[string]any{"error": map[string]any{
			"code": p.Code, "message": p.Message, "hint": p.Hint, "retryable": p.Retryable}}) // strings and a bool
		fmt.Fprintf(a.err, "%s\n", raw)
		return code
	}
	fmt.Fprintf(a.err, "error: %s\n", coded.Error())
	if hint := coded.Proto().Hint; hint != "" {
		fmt.Fprintf(a.err, "hint:  %s\n", hint)
	}
	return code
}

func exitCode(ctx context.Context, err error) int {
	if ctx.Err() != nil {
		return exitInterrupted
	}
	var coded *messages.Error
	if !errors.As(err, &coded) {
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout) || errors.Is(err, nats.ErrNoResponders) ||
			errors.Is(err, nats.ErrConnectionClosed) {
			return exitUnreachable
		}
		return exitFailed
	}
	switch coded.Code {
	case messages.CodeInvalidRequest, messages.CodeInvalidName, messages.CodeInvalidRack:
		return exitUsage
	case messages.CodeUnavailable, messages.CodeNotActiveController:
		return exitUnreachable
	case messages.CodeDenied:
		return exitDenied
	case messages.CodeUnknownTopic, messages.CodeUnknownTopicID, messages.CodeUnknownPartition, messages.CodeUnknownBroker:
		return exitNotFound
	case messages.CodeTopicExists, messages.CodeBrokerIDInUse, messages.CodeClusterMismatch:
		return exitConflict
	}
	return exitFailed
}

// isCobraUsage recognises cobra's own complaints about a command line, which have no type.
func isCobraUsage(err error) bool {
	var coded *messages.Error
	if errors.As(err, &coded) {
		return false
	}
	for _, prefix := range []string{"unknown command", "accepts ", "requires at least", "required flag", "invalid argument"} {
		if len(err.Error()) >= len(prefix) && err.Error()[:len(prefix)] == prefix {
			return true
		}
	}
	return false
}
