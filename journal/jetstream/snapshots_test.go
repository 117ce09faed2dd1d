package jetstream

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	js "github.com/nats-io/nats.go/jetstream"

	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/journal/journaltest"
	"github.com/highwater-io/highwater/messages"
)

func snapshots(t testing.TB, client js.JetStream, cluster messages.ClusterName) *Snapshots {
	t.Helper()
	s, err := EnsureSnapshots(t.Context(), client, cluster, 1)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// change exchanges the bytes of an object as somebody would who has the object store at hand.
func change(t *testing.T, s *Snapshots, at messages.Sequence, f func([]byte) []byte) {
	t.Helper()
	data, err := s.store.GetBytes(t.Context(), objectName(at))
	if err == nil {
		_, err = s.store.PutBytes(t.Context(), objectName(at), f(data))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// lose deletes the second message of an object from its stream.
func lose(t *testing.T, s *Snapshots, at messages.Sequence) {
	t.Helper()
	info, err := s.store.GetInfo(t.Context(), objectName(at))
	if err != nil {
		t.Fatal(err)
	}
	stream, err := s.js.Stream(t.Context(), "OBJ_"+s.bucket)
	if err != nil {
		t.Fatal(err)
	}
	subject := "$O." + s.bucket + ".C." + info.NUID
	first, err := stream.GetMsg(t.Context(), 1, js.WithGetMsgSubject(subject))
	if err != nil {
		t.Fatal(err)
	}
	second, err := stream.GetMsg(t.Context(), first.Sequence+1, js.WithGetMsgSubject(subject))
	if err != nil {
		t.Fatalf("the object has one message only: %v", err)
	}
	if err := stream.DeleteMsg(t.Context(), second.Sequence); err != nil {
		t.Fatal(err)
	}
}

func TestSnapshotsInJetStreamPassTheSuite(t *testing.T) {
	client := connect(t, startServer(t, t.TempDir()))
	clusters := 0
	journaltest.RunSnapshots(t, func(t *testing.T) journaltest.SnapshotStore {
		clusters++
		cluster := messages.ClusterName(fmt.Sprintf("snap-%d", clusters))
		s := snapshots(t, client, cluster)
		return journaltest.SnapshotStore{Snapshots: s, Log: ensure(t, client, cluster),
			Change: func(t *testing.T, at messages.Sequence, f func([]byte) []byte) { change(t, s, at, f) },
			Lose:   func(t *testing.T, at messages.Sequence) { lose(t, s, at) }}
	})
}

func TestSnapshotsSurviveARestartOfTheServer(t *testing.T) {
	dir := t.TempDir()
	server := startServer(t, dir)
	s := snapshots(t, connect(t, server), "c")
	if err := s.Save(t.Context(), 7, bytes.NewReader([]byte("one"))); err != nil {
		t.Fatal(err)
	}
	if _, err := s.store.PutString(t.Context(), "notes", "of somebody else"); err != nil {
		t.Fatal(err)
	}
	stop(server)
	s = snapshots(t, connect(t, startServer(t, dir)), "c")
	if all, err := s.List(t.Context()); err != nil || len(all) != 1 || all[0] != (journal.StoredSnapshot{At: 7, Bytes: 3}) {
		t.Fatalf("listed are %v, %v", all, err)
	}
}

func TestBucketsThatCannotBeAreRefused(t *testing.T) {
	client := connect(t, startServer(t, t.TempDir()))
	if _, err := EnsureSnapshots(t.Context(), client, "no name", 1); messages.CodeOf(err) != messages.CodeInvalidName {
		t.Error(err)
	}
	if _, err := EnsureSnapshots(t.Context(), client, "c", 3); messages.CodeOf(err) != messages.CodeUnavailable {
		t.Errorf("three replicas on one server: %v", err)
	}
}

// A journal that continues another one, far behind its end, begins where that one has ended.
func TestALogBeginsWhereItIsTold(t *testing.T) {
	server, dir := (*Log)(nil), t.TempDir()
	s := startServer(t, dir)
	server = ensure(t, connect(t, s), "c")
	if err := server.Begin(t.Context(), 5_000_000_000); err != nil {
		t.Fatal(err)
	}
	if last, err := server.Last(t.Context()); err != nil || last != 5_000_000_000 {
		t.Fatalf("the last sequence is %d, %v", last, err)
	}
	refused := (*journal.Conflict)(nil)
	if _, err := server.Append(t.Context(), 0, []byte("x")); !errors.As(err, &refused) || refused.Last != 5_000_000_000 {
		t.Errorf("an append at the start: %v", err)
	}
	stop(s)
	log := ensure(t, connect(t, startServer(t, dir)), "c")
	if at, err := log.Append(t.Context(), 5_000_000_000, []byte("x")); err != nil || at != 5_000_000_001 {
		t.Fatalf("the first append: %d, %v", at, err)
	}
	if err := log.Begin(t.Context(), 9_000_000_000); messages.CodeOf(err) != messages.CodeClusterMismatch {
		t.Errorf("a log with an entry begins anew: %v", err)
	}
}

func TestNoReplicaThatIsBehindAnswersForASnapshot(t *testing.T) {
	client := connect(t, startServer(t, t.TempDir()))
	if _, err := client.CreateObjectStore(t.Context(), BucketConfig("older", 1)); err != nil {
		t.Fatal(err)
	}
	for _, cluster := range []messages.ClusterName{"new", "older"} {
		for range 2 { // made, and found
			s, err := EnsureSnapshots(t.Context(), client, cluster, 1)
			if err != nil {
				t.Fatal(err)
			}
			stream, err := client.Stream(t.Context(), "OBJ_"+messages.SnapshotBucket(cluster))
			if err != nil {
				t.Fatal(err)
			}
			if stream.CachedInfo().Config.AllowDirect {
				t.Errorf("any replica answers for the snapshots of cluster %q", cluster)
			}
			if err := s.Save(t.Context(), 7, strings.NewReader("x")); err != nil {
				t.Error(err)
			}
			r, err := s.Load(t.Context(), 7)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(r); err != nil || string(got) != "x" || r.Close() != nil {
				t.Errorf("%q, %v", got, err)
			}
		}
	}
}
