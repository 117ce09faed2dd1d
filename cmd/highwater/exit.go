package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

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

// Error returns what is wrong with it.
func (u usageError) Error() string { return u.message }

func usage(format string, args ...any) error { return usageError{fmt.Sprintf(format, args...)} }

// errUnhealthy is the answer of a health command that has already been printed.
var errUnhealthy = errors.New("unhealthy")

// errNotRunning is a process of the cluster that could not start or did not end in order. Its code says why, but not that
// somebody else is unreachable.
type errNotRunning struct{ error }

// Unwrap returns why.
func (e errNotRunning) Unwrap() error { return e.error }

// exit prints an error and returns the exit code that belongs to it.
func (a *app) exit(ctx context.Context, err error) int {
	if err == nil {
		return exitOK
	}
	if errors.Is(err, errUnhealthy) {
		return exitUnhealthy
	}
	code := exitCode(ctx, err)
	var u usageError
	coded := messages.AsError(err)
	switch {
	case errors.As(err, &u):
		coded = messages.Errorf(messages.CodeInvalidRequest, "%s", err).WithHint("see `highwater help`")
	case code == exitInterrupted && errors.Is(err, context.Canceled):
		coded = messages.Errorf(messages.CodeUnavailable, "interrupted")
	case coded.Code == messages.CodeInternal && err.Error() != coded.Error():
		coded = messages.Errorf(messages.CodeInternal, "%v", err).WithHint("the message says what failed")
	case err.Error() != coded.Error():
		// What is around a coded error belongs to the message.
		c := *coded
		c.Message = strings.Replace(err.Error(), coded.Error(), coded.Message, 1)
		coded = &c
	}
	a.printError(coded)
	return code
}

func (a *app) printError(e *messages.Error) {
	p := e.Proto()
	if a.output == "json" {
		raw, err := json.Marshal(map[string]any{"error": map[string]any{
			"code": p.Code, "message": p.Message, "hint": p.Hint, "retryable": p.Retryable}})
		if err == nil { // strings and a bool
			fmt.Fprintf(a.err, "%s\n", raw)
		}
		return
	}
	fmt.Fprintf(a.err, "error: %s\n", printable(e.Error()))
	if p.Hint != "" {
		fmt.Fprintf(a.err, "hint:  %s\n", printable(p.Hint))
	}
}

// exitCode returns the exit code of an error.
func exitCode(ctx context.Context, err error) int {
	var u usageError
	var running errNotRunning
	var coded *messages.Error
	switch {
	case errors.As(err, &u):
		return exitUsage
	case errors.As(err, &running) && isUnavailable(err):
		return exitFailed
	case ctx.Err() != nil && !errors.As(err, &running):
		return exitInterrupted
	case errors.As(err, &coded):
		return exitCodeOf(coded.Code)
	}
	return exitFailed
}

func isUnavailable(err error) bool {
	c := messages.CodeOf(err)
	return c == messages.CodeUnavailable || c == messages.CodeInternal
}

func exitCodeOf(c messages.Code) int {
	switch c {
	case messages.CodeInvalidRequest, messages.CodeInvalidName, messages.CodeInvalidRack:
		return exitUsage
	case messages.CodeUnavailable, messages.CodeNotActiveController:
		return exitUnreachable
	case messages.CodeDenied:
		return exitDenied
	case messages.CodeUnknownTopic, messages.CodeUnknownTopicID, messages.CodeUnknownPartition, messages.CodeUnknownBroker:
		return exitNotFound
	case messages.CodeTopicExists, messages.CodeBrokerIDInUse, messages.CodeClusterMismatch,
		messages.CodeUpgradeBlocked, messages.CodeBrokerNotEmpty:
		return exitConflict
	}
	return exitFailed
}

// wantsJSON reports whether a command line asks for JSON, understood or not.
func wantsJSON(args []string) bool {
	json := false
	for i, a := range args {
		switch value, ok := strings.CutPrefix(a, "--output="); {
		case a == "--":
			return json
		case ok:
			json = value == "json"
		case (a == "-o" || a == "--output") && i+1 < len(args):
			json = args[i+1] == "json"
		case strings.HasPrefix(a, "-o") && len(a) > 2:
			json = strings.TrimPrefix(a[2:], "=") == "json"
		}
	}
	return json
}
