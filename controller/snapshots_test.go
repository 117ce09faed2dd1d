package controller

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// crash ends a controller as the end of its process would: the server goes away under it, and nothing is done in order.
func crash(t *testing.T, c *Controller) {
	t.Helper()
	_ = c.server.stop(true) // it ends, or the test does not
	select {
	case <-c.Done():
	case <-time.After(20 * time.Second):
		t.Fatal("the controller does not end")
	}
	if c.Err() == nil {
		t.Fatal("the controller has ended in order")
	}
}

// logBuffer keeps what many goroutines log.
type logBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// launch starts a controller that may be crashed.
func launch(t *testing.T, dir string, change func(*Config)) *Controller {
	t.Helper()
	cfg := Config{DataDir: dir, Listen: "127.0.0.1:0", Settings: settings()}
	change(&cfg)
	c, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := c.Stop(ctx); err != nil && c.Err() == nil { // after a crash nothing stops in order
			t.Errorf("stopping: %v", err)
		}
	})
	return c
}

// state lists everything that is committed, but for who is active.
func state(c *journal.Catalog) []string {
	var out []string
	for _, b := range c.Brokers() {
		out = append(out, fmt.Sprintf("%+v", *b))
	}
	c.Topics(func(topic *messages.Topic) bool {
		out = append(out, fmt.Sprintf("%+v", *topic))
		return true
	})
	c.Partitions(func(_ *messages.Topic, p *messages.Partition) bool {
		out = append(out, fmt.Sprintf("%+v", *p))
		return true
	})
	c.Deletions(func(d *messages.TopicDeletion) bool {
		out = append(out, fmt.Sprintf("%+v", *d))
		return true
	})
	slices.Sort(out)
	return out
}

// commit makes and deletes topics until the journal has so many entries more, and all is quiet.
func commit(t *testing.T, c *Controller, brokers []*rawBroker, entries int) {
	t.Helper()
	nc := connect(t, c.URL())
	goal := c.current().catalog.Applied() + messages.Sequence(entries)
	for i := 0; c.current().catalog.Applied() < goal; i++ {
		name := fmt.Sprintf("t%d-%d", goal, i)
		createOn(t, nc, name, 2, "b1", "b2")
		if i%3 == 0 {
			if err := remove(nc, name); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, b := range brokers {
		b.die() // abruptly: it is fenced, and then nothing changes any more
	}
	eventually(t, "every broker to be fenced and every partition to know", func() bool {
		for _, b := range c.current().catalog.Brokers() {
			if !b.Fenced {
				return false
			}
		}
		return c.current().catalog.Counts().Offline == c.current().catalog.Counts().Total
	})
}

func firstEntry(t *testing.T, c *Controller) uint64 {
	t.Helper()
	client, err := js.New(connect(t, c.URL()))
	if err != nil {
		t.Fatal(err)
	}
	stream, err := client.Stream(t.Context(), messages.JournalStream("dev"))
	if err != nil {
		t.Fatal(err)
	}
	return stream.CachedInfo().State.FirstSeq
}

func every(entries int) func(*Config) {
	return func(c *Config) { c.SnapshotEntries = entries }
}

func TestTheCatalogSurvivesAKillThroughSnapshotAndTail(t *testing.T) {
	const n, commits = 150, 2000
	dir := t.TempDir()
	c := launch(t, dir, every(n))
	commit(t, c, cluster(t, c, 2), commits)
	eventually(t, "snapshots and cuts", func() bool { return c.current().shots.last() > commits-3*n && firstEntry(t, c) > commits-6*n })
	before, applied, last := state(c.current().catalog), c.current().catalog.Applied(), c.current().shots.last()
	crash(t, c)

	c = launch(t, dir, every(n))
	if got := state(c.current().catalog); !slices.Equal(got, before) {
		t.Errorf("%d things are recovered, there were %d", len(got), len(before))
	}
	r := c.current().from
	if r.From.At.Last < last || r.At.Last < applied || r.Replayed >= 3*n || len(r.Unusable) > 0 {
		t.Errorf("recovered from %d to %d, %d entries replayed, unusable %v; the last snapshot was %d", r.From.At.Last, r.At.Last, r.Replayed, r.Unusable, last)
	}
	if first := firstEntry(t, c); first < 2 {
		t.Errorf("the journal begins at %d", first)
	}

	// Somebody damages the newest snapshot.
	client, err := js.New(c.conns.journal)
	if err != nil {
		t.Fatal(err)
	}
	store, err := client.ObjectStore(t.Context(), messages.SnapshotBucket("dev"))
	if err != nil {
		t.Fatal(err)
	}
	kept, err := c.current().shots.store.List(t.Context())
	if err != nil || len(kept) != 2 {
		t.Fatalf("kept are %v, %v", kept, err)
	}
	name := fmt.Sprintf("%020d", kept[0].At)
	data, err := store.GetBytes(t.Context(), name)
	if err == nil {
		_, err = store.PutBytes(t.Context(), name, journal.Corrupt(data))
	}
	if err != nil {
		t.Fatal(err)
	}
	crash(t, c)
	var logs logBuffer
	logger := zerolog.New(&logs)
	c = start(t, dir, func(c *Config) { c.Logger = &logger })
	if got := state(c.current().catalog); !slices.Equal(got, before) {
		t.Errorf("%d things are recovered, there were %d", len(got), len(before))
	}
	if r := c.current().from; r.From.At.Last != kept[1].At || len(r.Unusable) != 1 || r.Unusable[0].At != kept[0].At {
		t.Errorf("recovered from %d, unusable %v", r.From.At.Last, r.Unusable)
	}
	stop(t, c)
	if !strings.Contains(logs.String(), "a snapshot cannot be used") {
		t.Error("it is not said that a snapshot cannot be used")
	}
}

func TestAnOrderlyStopTakesASnapshotThatIsWorthIt(t *testing.T) {
	dir := t.TempDir()
	c := start(t, dir, every(100))
	stop(t, c)
	c = start(t, dir, every(100))
	if c.current().from.From.Pieces != 0 {
		t.Errorf("a snapshot of next to nothing was taken: %+v", c.current().from)
	}
	commit(t, c, cluster(t, c, 2), 30)
	if c.current().shots.last() != 0 {
		t.Fatal("a snapshot was taken too early")
	}
	before := state(c.current().catalog)
	stop(t, c)
	c = start(t, dir, every(100))
	if c.current().from.From.Pieces == 0 || c.current().from.Replayed != 0 || !slices.Equal(state(c.current().catalog), before) {
		t.Errorf("recovered from %+v", c.current().from)
	}
}

func TestSnapshotsByBytesAndByTime(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"bytes": func(c *Config) { c.SnapshotBytes = 300 },
		"time":  func(c *Config) { c.SnapshotInterval = 20 * time.Millisecond },
	} {
		t.Run(name, func(t *testing.T) {
			c := start(t, t.TempDir(), change)
			cluster(t, c, 2)
			eventually(t, "a snapshot", func() bool { return c.current().shots.last() > 0 })
		})
	}
}

func TestSnapshotsThatFailAgainAndAgainAreAReasonNotToBeHealthy(t *testing.T) {
	store := journal.NewMemorySnapshots()
	store.FailSaves(errors.New("no space left on device"), true)
	c := start(t, t.TempDir(), func(c *Config) {
		c.SnapshotEntries, c.snapshotRetry = 1, time.Millisecond
		c.wrapSnapshots = func(journal.Snapshots) journal.Snapshots { return store }
	})
	nc := connect(t, c.URL())
	reason := func() string {
		h, _ := look[messages.HealthView](t, nc, "health")
		for _, r := range h.Reasons {
			if r.Code == "SNAPSHOTS_FAILING" && r.Count >= snapshotAlarm {
				return r.Detail
			}
		}
		return ""
	}
	eventually(t, "the reason", func() bool { return strings.Contains(reason(), "no space left") })
	if c.Err() != nil || firstEntry(t, c) != 1 {
		t.Errorf("the controller suffers from it, or has cut its journal: %v", c.Err())
	}
	store.FailSaves(nil, false)
	join(t, c.URL(), "b1")
	eventually(t, "the reason to go", func() bool { return reason() == "" })
}

// readAll reads a snapshot as a client would, with each page asked for twice.
func readAll(t *testing.T, nc *nats.Conn) []byte {
	t.Helper()
	var data []byte
	q := &pb.SnapshotReadRequest{}
	for {
		first, again := &pb.SnapshotReadResponse{}, &pb.SnapshotReadResponse{}
		if err := call(nc, subjects.Control("op", "snapshot", "read"), q, first); err != nil {
			t.Fatal(err)
		}
		q.Export = first.Export
		if err := call(nc, subjects.Control("op", "snapshot", "read"), q, again); err != nil || !bytes.Equal(first.Data, again.Data) {
			t.Fatalf("page %d differs the second time, %v", q.Page, err)
		}
		data = append(data, first.Data...)
		if first.Last {
			return data
		}
		q.Page++
	}
}

func TestABackupIsRestoredIntoANewFolderAndTheBrokersGoOn(t *testing.T) {
	c := start(t, t.TempDir(), nil)
	brokers := cluster(t, c, 2)
	nc := connect(t, c.URL())
	createOn(t, nc, "orders", 50, "b1", "b2")
	eventually(t, "every leader to be proven", func() bool { return c.current().catalog.Counts().Unproven == 0 })
	backup := readAll(t, nc)
	before, seen, id := state(c.current().catalog), c.current().catalog.Seen(), c.current().catalog.Identity()
	epoch := brokers[0].epoch
	for _, b := range brokers {
		b.die()
	}
	stop(t, c)

	dir := t.TempDir()
	if _, err := Restore(t.Context(), Config{DataDir: dir}, bytes.NewReader(journal.Corrupt(bytes.Clone(backup)))); messages.CodeOf(err) != messages.CodeInvalidRequest {
		t.Errorf("a corrupt backup: %v", err)
	}
	if _, err := Restore(t.Context(), Config{DataDir: dir, Cluster: "other"}, bytes.NewReader(backup)); messages.CodeOf(err) != messages.CodeClusterMismatch {
		t.Errorf("into a cluster of another name: %v", err)
	}
	restored, err := Restore(t.Context(), Config{DataDir: dir, Name: "c9"}, bytes.NewReader(backup))
	if err != nil || restored.Epoch <= seen.Controller || restored.At <= seen.Sequence || restored.Store == id.Store {
		t.Fatalf("%+v, %v; before it was %+v", restored, err, seen)
	}
	if _, err := Restore(t.Context(), Config{DataDir: dir}, bytes.NewReader(backup)); messages.CodeOf(err) != messages.CodeClusterMismatch {
		t.Errorf("a second time: %v", err)
	}

	c = start(t, dir, nil)
	if got := state(c.current().catalog); !slices.Equal(got, before) {
		t.Errorf("%d things are restored, there were %d", len(got), len(before))
	}
	if now := c.current().catalog.Identity(); now.ID != id.ID || now.Store != restored.Store || c.current().epoch <= restored.Epoch {
		t.Errorf("the identity is %+v with epoch %d", now, c.current().epoch)
	}
	brokers = cluster(t, c, 3)
	if brokers[0].epoch != epoch || brokers[2].epoch <= 1<<32 {
		t.Errorf("b1 went on with broker epoch %d, before it had %d; b3 is new and has %d", brokers[0].epoch, epoch, brokers[2].epoch)
	}
	create(t, connect(t, c.URL()), "more", 3)
}

func TestExportsAreFewAndEndWhenNobodyAsks(t *testing.T) {
	c := start(t, t.TempDir(), nil)
	nc := connect(t, c.URL())
	ask := func(q *pb.SnapshotReadRequest) (*pb.SnapshotReadResponse, messages.Code) {
		answer := &pb.SnapshotReadResponse{}
		err := call(nc, subjects.Control("op", "snapshot", "read"), q, answer)
		return answer, messages.CodeOf(err)
	}
	for range maxExports {
		if _, code := ask(&pb.SnapshotReadRequest{}); code != "" {
			t.Fatal(code)
		}
	}
	if _, code := ask(&pb.SnapshotReadRequest{}); code != messages.CodeBusy {
		t.Errorf("one too many: %q", code)
	}
	c.current().exports.mu.Lock()
	first := c.current().exports.open[0]
	c.current().exports.mu.Unlock()
	if _, code := ask(&pb.SnapshotReadRequest{Export: first.id, Page: 9}); code != messages.CodeInvalidRequest {
		t.Errorf("a page out of order: %q", code)
	}
	first.idle.Reset(0)
	eventually(t, "the export to end", func() bool {
		c.current().exports.mu.Lock()
		defer c.current().exports.mu.Unlock()
		return len(c.current().exports.open) < maxExports
	})
	if _, code := ask(&pb.SnapshotReadRequest{Export: first.id}); code != messages.CodeUnknownSession {
		t.Errorf("an export that has ended: %q", code)
	}
	if _, code := ask(&pb.SnapshotReadRequest{}); code != "" {
		t.Errorf("in its place: %q", code)
	}
}

// slowSnapshots lets a save wait until the test has seen that commits go on.
type slowSnapshots struct {
	journal.Snapshots
	begun chan struct{}
	once  sync.Once
	goOn  chan struct{}
}

func (s *slowSnapshots) Save(ctx context.Context, at messages.Sequence, from io.Reader) error {
	s.once.Do(func() { close(s.begun) })
	select {
	case <-s.goOn:
	case <-ctx.Done():
		return ctx.Err()
	}
	return s.Snapshots.Save(ctx, at, from)
}

func TestCommitsDoNotWaitForASnapshot(t *testing.T) {
	s := &slowSnapshots{begun: make(chan struct{}), goOn: make(chan struct{})}
	c := start(t, t.TempDir(), func(c *Config) {
		c.SnapshotEntries = 5
		c.wrapSnapshots = func(under journal.Snapshots) journal.Snapshots {
			s.Snapshots = under
			return s
		}
	})
	cluster(t, c, 2)
	createOn(t, connect(t, c.URL()), "a", 1, "b1", "b2")
	<-s.begun
	createOn(t, connect(t, c.URL()), "b", 20, "b1", "b2") // answered while the snapshot is under way
	if c.current().shots.written() == 0 {
		t.Error("nothing is written")
	}
	close(s.goOn)
	eventually(t, "the snapshot", func() bool { return c.current().shots.last() > 0 })
}
