package jetstream

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	js "github.com/nats-io/nats.go/jetstream"

	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/messages"
)

func TestEnsureMakesTheStreamOnceForAll(t *testing.T) {
	s := startServer(t, t.TempDir())
	var all sync.WaitGroup
	for range 4 {
		client := connect(t, s)
		all.Go(func() {
			if _, err := Ensure(t.Context(), client, "c", 1); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	client := connect(t, s)
	stream, err := client.Stream(t.Context(), messages.JournalStream("c"))
	if err != nil {
		t.Fatal(err)
	}
	have := stream.CachedInfo().Config
	if !have.DenyDelete || have.DenyPurge || have.AllowDirect || have.Storage != js.FileStorage || have.Discard != js.DiscardNew {
		t.Errorf("the stream is %+v", have)
	}
	log := ensure(t, client, "c")
	if _, err := log.Append(t.Context(), 0, []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := stream.DeleteMsg(t.Context(), 1); err == nil {
		t.Error("an entry can be deleted")
	}
	if log.MaxEntry() < 7<<20 {
		t.Errorf("the largest entry has %d bytes", log.MaxEntry())
	}
}

func TestEnsureNamesWhatHasDrifted(t *testing.T) {
	client := connect(t, startServer(t, t.TempDir()))
	ensure(t, client, "stays") // the server removes the folder of the last stream after it has said so, which races with the next
	for _, c := range []struct {
		setting string
		drift   func(*js.StreamConfig)
	}{
		{"subjects is", func(c *js.StreamConfig) { c.Subjects = append(c.Subjects, "else") }},
		{"storage is", func(c *js.StreamConfig) { c.Storage = js.MemoryStorage }},
		{"retention is", func(c *js.StreamConfig) { c.Retention = js.WorkQueuePolicy }},
		{"discard is", func(c *js.StreamConfig) { c.Discard = js.DiscardOld }},
		{"max_msgs is 5", func(c *js.StreamConfig) { c.MaxMsgs = 5 }},
		{"max_bytes is", func(c *js.StreamConfig) { c.MaxBytes = 1 << 20 }},
		{"max_msgs_per_subject is 1", func(c *js.StreamConfig) { c.MaxMsgsPerSubject = 1 }},
		{"max_age is 1h", func(c *js.StreamConfig) { c.MaxAge = time.Hour }},
		{"deny_delete is false", func(c *js.StreamConfig) { c.DenyDelete = false }},
		{"deny_purge is true", func(c *js.StreamConfig) { c.DenyPurge = true }},
		{"no_ack is true", func(c *js.StreamConfig) { c.NoAck = true }},
		{"allow_direct is true", func(c *js.StreamConfig) { c.AllowDirect = true }},
		{"persist_mode is", func(c *js.StreamConfig) { c.PersistMode = js.AsyncPersistMode }},
	} {
		config := Config("drift", 1)
		c.drift(&config)
		if _, err := client.CreateStream(t.Context(), config); err != nil {
			t.Fatalf("%s: %v", c.setting, err)
		}
		_, err := Ensure(t.Context(), client, "drift", 1)
		if messages.CodeOf(err) != messages.CodeInvalidRequest || !strings.Contains(err.Error(), c.setting) {
			t.Errorf("%s: the error is %v", c.setting, err)
		}
		if err := client.DeleteStream(t.Context(), config.Name); err != nil {
			t.Fatal(err)
		}
	}
	ensure(t, client, "grown")
	if _, err := Ensure(t.Context(), client, "grown", 3); err == nil || !strings.Contains(err.Error(), "replicas is 1 instead of 3") {
		t.Errorf("the error is %v", err)
	}
}

func TestEnsureRefusesWhatCannotBe(t *testing.T) {
	client := connect(t, startServer(t, t.TempDir()))
	if _, err := Ensure(t.Context(), client, "no name", 1); messages.CodeOf(err) != messages.CodeInvalidName {
		t.Error(err)
	}
	if _, err := Ensure(t.Context(), client, "c", 2); messages.CodeOf(err) != messages.CodeInvalidRequest {
		t.Error(err)
	}
	if _, err := Ensure(t.Context(), client, "c", 3); messages.CodeOf(err) != messages.CodeUnavailable {
		t.Errorf("three replicas on one server: %v", err)
	}
	for version, ok := range map[string]bool{"2.15.0": true, "2.16.1": true, "3.0.0-RC.1": true, "2.15.2-beta": true,
		"2.14.9": false, "1.99.0": false, "": false, "unknown": false} {
		if err := checkServer(version); (err == nil) != ok {
			t.Errorf("version %q: %v", version, err)
		}
	}
}

func TestAcknowledgedEntriesSurviveARestartOfTheServer(t *testing.T) {
	dir := t.TempDir()
	s := startServer(t, dir)
	log := ensure(t, connect(t, s), "c")
	live := journal.NewCatalog()
	at, epoch, err := journal.Claim(t.Context(), log, live, journal.Position{}, "c1")
	if err != nil {
		t.Fatal(err)
	}
	m := journal.NewCommitter(at, journal.Writer{Controller: "c1", Epoch: epoch}, journal.Limits{})
	if err := m.Propose(1, []messages.Record{&messages.Broker{ID: "b1"}}); err != nil {
		t.Fatal(err)
	}
	if err := journal.Drive(t.Context(), log, m, func(journal.Committed) {}); err != nil {
		t.Fatal(err)
	}
	stop(s)

	// The old connection is dead: no outcome, and certainly no conflict.
	short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	refused := (*journal.Conflict)(nil)
	if _, err := log.Append(short, m.Position().Last, []byte("x")); err == nil || errors.As(err, &refused) {
		t.Errorf("an append to a dead server: %v", err)
	}

	again := journal.NewCatalog()
	log = ensure(t, connect(t, startServer(t, dir)), "c")
	got, _, err := journal.Recover(t.Context(), log, again)
	if err != nil || got != m.Position() || again.Brokers()["b1"] == nil {
		t.Fatalf("recovered up to %d of %d, %v", got.Last, m.Position().Last, err)
	}
}

func stop(s *server.Server) {
	s.Shutdown()
	s.WaitForShutdown()
}

func TestAPurgedLogGoesOnBehindItsFirstSequence(t *testing.T) {
	log := ensure(t, connect(t, startServer(t, t.TempDir())), "c")
	c := journal.NewCatalog()
	var at [4]journal.Position
	for i := range at {
		var err error
		from := journal.Position{}
		if i > 0 {
			from = at[i-1]
		}
		if at[i], _, err = journal.Claim(t.Context(), log, c, from, "c1"); err != nil {
			t.Fatal(err)
		}
	}
	if err := log.Purge(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	var replayed []messages.Sequence
	err := log.Replay(t.Context(), 1, func(seq messages.Sequence, _ []byte) error {
		replayed = append(replayed, seq)
		return nil
	})
	if err != nil || len(replayed) != 2 || replayed[0] != 3 {
		t.Errorf("replayed %v, %v", replayed, err)
	}
	// Without the snapshot that allowed the purge there is a gap.
	broken := (*journal.Broken)(nil)
	if _, _, err := journal.Recover(t.Context(), log, journal.NewCatalog()); !errors.As(err, &broken) || broken.At != 1 {
		t.Errorf("recovering without a snapshot: %v", err)
	}
	if err := log.Purge(t.Context(), 4); err != nil {
		t.Fatal(err)
	}
	if last, err := log.Last(t.Context()); last != 4 || err != nil {
		t.Errorf("the last sequence is %d, %v", last, err)
	}
	if got, _, err := journal.Follow(t.Context(), log, c, at[3]); err != nil || got != at[3] {
		t.Errorf("following behind a purge: %d, %v", got.Last, err)
	}
	if next, _, err := journal.Claim(t.Context(), log, c, at[3], "c2"); err != nil || next.Last != 5 {
		t.Errorf("claiming behind a purge: %d, %v", next.Last, err)
	}
}

func TestWhatTheServerWouldNotTakeIsNotSent(t *testing.T) {
	log := ensure(t, connect(t, startServer(t, t.TempDir())), "c")
	if _, err := log.Append(t.Context(), 0, make([]byte, log.MaxEntry()+1)); messages.CodeOf(err) != messages.CodeTooLarge {
		t.Errorf("the error is %v", err)
	}
	if seq, err := log.Append(t.Context(), 0, make([]byte, log.MaxEntry())); seq != 1 || err != nil {
		t.Errorf("the largest entry: %d, %v", seq, err)
	}
}

func TestOnlyANumberedRefusalIsAConflict(t *testing.T) {
	for text, want := range map[string]messages.Sequence{"wrong last sequence: 17": 17, "wrong last sequence: 0": 0} {
		err := appendError(&js.APIError{ErrorCode: js.JSErrCodeStreamWrongLastSequence, Description: text})
		if c := (*journal.Conflict)(nil); !errors.As(err, &c) || c.Last != want {
			t.Errorf("%q: %v", text, err)
		}
	}
	for _, err := range []error{
		&js.APIError{ErrorCode: js.JSErrCodeStreamWrongLastSequenceConstant, Description: "wrong last sequence"},
		&js.APIError{ErrorCode: js.JSErrCodeStreamWrongLastSequence, Description: "wrong last sequence"},
		js.ErrNoStreamResponse, context.DeadlineExceeded,
	} {
		if c := (*journal.Conflict)(nil); errors.As(appendError(err), &c) {
			t.Errorf("%v counts as a conflict", err)
		}
	}
}
