package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/highwater-io/highwater/messages"
)

func TestEveryErrorHasItsExitCode(t *testing.T) {
	running, ended := context.Background(), func() context.Context {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		return ctx
	}()
	code := func(c messages.Code) error { return messages.Errorf(c, "x") }
	for _, x := range []struct {
		ctx  context.Context
		err  error
		want int
	}{
		{running, usage("x"), exitUsage},
		{running, code(messages.CodeInvalidRequest), exitUsage},
		{running, code(messages.CodeInvalidName), exitUsage},
		{running, code(messages.CodeInvalidRack), exitUsage},
		{running, code(messages.CodeUnavailable), exitUnreachable},
		{running, code(messages.CodeNotActiveController), exitUnreachable},
		{running, code(messages.CodeDenied), exitDenied},
		{running, code(messages.CodeUnknownTopic), exitNotFound},
		{running, code(messages.CodeUnknownTopicID), exitNotFound},
		{running, code(messages.CodeUnknownPartition), exitNotFound},
		{running, code(messages.CodeUnknownBroker), exitNotFound},
		{running, code(messages.CodeTopicExists), exitConflict},
		{running, code(messages.CodeBrokerIDInUse), exitConflict},
		{running, code(messages.CodeClusterMismatch), exitConflict},
		{running, code(messages.CodeOutcomeUnknown), exitFailed},
		{running, code("A_CODE_OF_THE_FUTURE"), exitFailed},
		{running, fmt.Errorf("around: %w", code(messages.CodeDenied)), exitDenied},
		{running, errors.Join(nil, code(messages.CodeUnknownTopic)), exitNotFound},
		{running, io.ErrUnexpectedEOF, exitFailed},
		{running, errUnhealthy, exitUnhealthy},
		{running, errNotRunning{code(messages.CodeUnavailable)}, exitFailed},
		{running, errNotRunning{code(messages.CodeClusterMismatch)}, exitConflict},
		{ended, errNotRunning{context.DeadlineExceeded}, exitFailed},
		{ended, context.Canceled, exitInterrupted},
		{ended, code(messages.CodeOutcomeUnknown), exitInterrupted},
		{ended, nil, exitOK},
	} {
		a := &app{streams: streams{err: io.Discard}}
		if got := a.exit(x.ctx, x.err); got != x.want {
			t.Errorf("%v: %d, want %d", x.err, got, x.want)
		}
	}
}

func TestAnErrorIsPrintedWithWhatIsAroundIt(t *testing.T) {
	var b strings.Builder
	a := &app{streams: streams{err: &b}}
	a.exit(context.Background(), fmt.Errorf("2 records were not acknowledged: %w", messages.Errorf(messages.CodeDenied, "no \x1b[31mright")))
	if want := "error: DENIED: 2 records were not acknowledged: no \\x1b[31mright\nhint:  ask an operator for the right\n"; b.String() != want {
		t.Errorf("got  %q\nwant %q", b.String(), want)
	}
}

func TestWhoAsksForJSONIsUnderstood(t *testing.T) {
	for line, want := range map[string]bool{
		"": false, "-o json": true, "-o=json": true, "-ojson": true, "--output json": true, "--output=json": true, "-o table": false,
		"-o": false, "-o json -o yaml": false, "--bogus -o json": true, "-- -o json": false, "produce json": false,
	} {
		if got := wantsJSON(strings.Fields(line)); got != want {
			t.Errorf("%q: %t", line, got)
		}
	}
}

func TestTablesCannotSpeakToTheTerminal(t *testing.T) {
	var b strings.Builder
	a := &app{streams: streams{out: &b}, output: "table"}
	must(t, a.print(nil, rows{header: []string{"name", "n"}, wide: []string{"more"}, cells: [][]any{{"ü \x1b]0;x\a", 7, "hidden"}}}))
	if want := "NAME           N\nü \\x1b]0;x\\a   7\n"; b.String() != want {
		t.Errorf("got  %q\nwant %q", b.String(), want)
	}
}

func TestNumbersSurviveYAML(t *testing.T) {
	var b strings.Builder
	a := &app{streams: streams{out: &b}, output: "yaml"}
	must(t, a.print(map[string]any{"n": uint64(1<<63 + 1), "s": "123", "no": "no", "e": []string{}}, rows{}))
	if want := "e: []\n\"n\": 9223372036854775809\n\"no\": \"no\"\ns: \"123\"\n"; b.String() != want {
		t.Errorf("got  %q\nwant %q", b.String(), want)
	}
}

func TestLinesAreSplitAtLineFeedsAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringOf(rapid.SampledFrom([]rune("ab\r\n \x00"))).Draw(t, "text")
		want := strings.Split(text, "\n")
		if want[len(want)-1] == "" {
			want = want[:len(want)-1]
		}
		s := bufio.NewScanner(iotestReader{strings.NewReader(text)})
		s.Split(splitLines)
		var got []string
		for s.Scan() {
			got = append(got, s.Text())
		}
		if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) || s.Err() != nil {
			t.Fatalf("%q is split into %q", text, got)
		}
	})
}

// iotestReader gives a byte at a time.
type iotestReader struct{ r io.Reader }

func (r iotestReader) Read(p []byte) (int, error) { return r.r.Read(p[:min(1, len(p))]) }

func TestReadingLinesEndsWithTheContextAndTheReader(t *testing.T) {
	blocked, w := io.Pipe()
	defer w.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := eachLine(ctx, blocked, func([]byte) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("an ended context: %v", err)
	}
	enough := errors.New("enough")
	if err := eachLine(t.Context(), strings.NewReader("a\nb"), func([]byte) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("a reader that has enough: %v", err)
	}
	long := strings.NewReader(strings.Repeat("x", maxLine+1))
	if err := eachLine(t.Context(), long, func([]byte) error { return nil }); messages.CodeOf(err) != messages.CodeTooLarge {
		t.Errorf("a long line: %v", err)
	}
}

func TestPartitionsAreListedTheWorstFirst(t *testing.T) {
	last := -1
	for _, p := range []messages.PartitionView{{State: "offline"}, {State: "under_min_isr"}, {State: "under_replicated"}, {State: "online", RackViolation: true}, {State: "online"}} {
		if severity(p) <= last {
			t.Errorf("%+v is not less grave than the one before", p)
		}
		last = severity(p)
	}
}

func TestPasswordsAreNotShown(t *testing.T) {
	for value, want := range map[string]string{
		"": "", "nats://a:4222": "nats://a:4222", "nats://u:p@a, nats://b": "nats://u:xxxxx@a,nats://b", "nats://u:%zz@a": "xxxxx",
	} {
		if got := withoutSecret(value); got != want {
			t.Errorf("%q is shown as %q", value, got)
		}
	}
}
