package controller

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

func remove(nc *nats.Conn, name string) error {
	return call(nc, subjects.Control("op", "topic", "delete"), &pb.DeleteTopicRequest{Name: name}, &pb.DeleteTopicResponse{})
}

func createOn(t testing.TB, nc *nats.Conn, name string, partitions int, replicas ...string) {
	t.Helper()
	q := &pb.CreateTopicRequest{Name: name}
	for range partitions {
		q.Assignment = append(q.Assignment, &pb.ReplicaList{Brokers: replicas})
	}
	if err := call(nc, subjects.Control("op", "topic", "create"), q, &pb.CreateTopicResponse{}); err != nil {
		t.Fatalf("creating %s: %v", name, err)
	}
}

func partitionCounts(t testing.TB, nc *nats.Conn) messages.PartitionCount {
	t.Helper()
	h, _ := look[messages.HealthView](t, nc, "health")
	return h.Partitions
}

func TestK32UnknownTopicIdsAndPartitionsAreAnsweredInTheirPlaces(t *testing.T) {
	c := start(t, t.TempDir(), nil)
	brokers := cluster(t, c, 2)
	nc := connect(t, c.URL())
	createOn(t, nc, "t", 1, "b1", "b2")
	b := brokers[0]
	eventually(t, "the leader to know of its partition", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.assigned["t/0"] != nil
	})
	view, _ := look[messages.TopicView](t, nc, "topic.t")
	before := epochs(t, nc)
	q := &pb.IsrRequest{Broker: "b1", BrokerEpoch: b.epoch}
	for _, p := range []struct {
		id    []byte
		index int32
	}{{make([]byte, 15), 0}, {[]byte("sixteen bytes id"), 0}, {view.ID.Bytes(), 1}, {view.ID.Bytes(), -1}, {view.ID.Bytes(), 0}} {
		q.Proposals = append(q.Proposals, &pb.IsrProposal{TopicId: p.id, Partition: p.index,
			Isr: []*pb.IsrMember{{Broker: "b1", BrokerEpoch: b.epoch}, {Broker: "b2", BrokerEpoch: brokers[1].epoch}}})
	}
	answer := &pb.IsrResponse{}
	if err := call(nc, subjects.Broker("b1", messages.VerbISR), q, answer); err != nil {
		t.Fatal(err)
	}
	want := []messages.Code{messages.CodeInvalidRequest, messages.CodeUnknownTopicID, messages.CodeUnknownPartition, messages.CodeUnknownPartition, ""}
	for i, r := range answer.Results {
		if got := messages.Code(r.GetError().GetCode()); got != want[i] {
			t.Errorf("proposal %d: %q, want %q", i, got, want[i])
		}
	}
	if len(answer.Results) != len(want) {
		t.Errorf("%d answers for %d proposals", len(answer.Results), len(want))
	}
	if after := epochs(t, nc); after["t/0"] != before["t/0"] {
		t.Errorf("%s, before %s", after["t/0"], before["t/0"])
	}
}

// countingLog fails appends while it is told to, and counts those.
type countingLog struct {
	journal.Log
	broken atomic.Bool
	failed atomic.Int64
}

func (f *countingLog) Append(ctx context.Context, expected messages.Sequence, payload []byte) (messages.Sequence, error) {
	if f.broken.Load() {
		f.failed.Add(1)
		return 0, errors.New("no space left on device")
	}
	return f.Log.Append(ctx, expected, payload)
}

// The leader dies while nothing can be stored. When the store works again its partitions get leaders, without another event.
func TestB30ADeathDuringAnOutageOfTheStoreIsDealtWithAfterIt(t *testing.T) {
	f := &countingLog{}
	c := start(t, t.TempDir(), func(c *Config) {
		c.AppendTimeout, c.AppendLimit = 100*time.Millisecond, time.Minute
		c.wrapLog = func(l journal.Log) journal.Log {
			f.Log = l
			return f
		}
	})
	brokers := cluster(t, c, 3)
	nc := connect(t, c.URL())
	createOn(t, nc, "t", 50, "b1", "b2", "b3")
	before := epochs(t, nc)
	f.broken.Store(true)
	brokers[0].die()
	eventually(t, "a write to fail", func() bool { return f.failed.Load() > 0 })
	if after := epochs(t, nc); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("something changed that is not stored: %v, before %v", after, before)
	}
	f.broken.Store(false)
	eventually(t, "every partition to be led by a survivor", func() bool {
		list, _ := look[[]messages.PartitionView](t, nc, "partitions")
		for _, p := range list {
			if p.Leader != "b2" || p.LeaderEpoch != 1 || !p.LeaderProven {
				return false
			}
		}
		return len(list) == 50
	})
}

// appendEntry appends an entry with raw records after a position, under the rules of the journal but for the records.
func appendEntry(t testing.TB, log journal.Log, at journal.Position, w journal.Writer, records ...[]byte) {
	t.Helper()
	body, err := proto.Marshal(&pb.EntryBody{Format: journal.Format, Controller: w.Controller, ControllerEpoch: uint64(w.Epoch),
		EntryId: []byte("sixteen bytes id")})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		body = protowire.AppendBytes(protowire.AppendTag(body, 6, protowire.BytesType), r)
	}
	chain := sha256.Sum256(append(at.Chain[:], body...))
	payload, err := proto.Marshal(&pb.Entry{Body: body, Chain: chain[:]})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := log.Append(t.Context(), at.Last, payload); err != nil {
		t.Fatal(err)
	}
}

// A record that no controller would have written is in the journal: a leader outside its ISR, and bytes that are no record
// at all. The next controller is active, says so, and rules the rest.
func TestB31B113APoisonedJournalStopsNobody(t *testing.T) {
	dir := t.TempDir()
	var log journal.Log
	first := start(t, dir, func(c *Config) {
		c.wrapLog = func(l journal.Log) journal.Log {
			log = l
			return l
		}
	})
	cluster(t, first, 3)
	nc := connect(t, first.URL())
	createOn(t, nc, "t", 2, "b1", "b2", "b3")
	view, _ := look[messages.TopicView](t, nc, "topic.t")
	catalog := journal.NewCatalog()
	at, _, err := journal.Recover(t.Context(), log, catalog)
	if err != nil {
		t.Fatal(err)
	}
	at, epoch, err := journal.Claim(t.Context(), log, catalog, at, "other")
	if err != nil {
		t.Fatal(err)
	}
	bad, err := proto.Marshal(&pb.Record{Kind: &pb.Record_Partition{Partition: &pb.PartitionRecord{TopicId: view.ID.Bytes(), Partition: 0,
		Replicas: []string{"b1", "b2", "b3"}, Isr: []string{"b2", "b3"}, Leader: "b1", LeaderEpoch: 7, PartitionEpoch: 7, MinIsr: 2}}})
	if err != nil {
		t.Fatal(err)
	}
	appendEntry(t, log, at, journal.Writer{Controller: "other", Epoch: epoch}, bad, []byte{0xff, 0xff, 0xff}, nil)
	listen := strings.TrimPrefix(first.URL(), "nats://")
	stop(t, first)

	second := start(t, dir, func(c *Config) { c.Listen = listen })
	nc = connect(t, second.URL())
	h, _ := look[messages.HealthView](t, nc, "health")
	reported := false
	for _, r := range h.Reasons {
		reported = reported || r.Code == "JOURNAL_DAMAGED" && r.Count == 3
	}
	if !reported || len(h.Failed) != 0 {
		t.Errorf("health: %+v", h)
	}
	list, _ := look[[]messages.PartitionView](t, nc, "partitions")
	for _, p := range list {
		led := p.Leader == ""
		for _, b := range p.ISR {
			led = led || b == p.Leader
		}
		if !led {
			t.Errorf("led from outside its ISR: %+v", p)
		}
	}
	eventually(t, "topics to be made", func() bool {
		err := call(nc, subjects.Control("op", "topic", "create"), &pb.CreateTopicRequest{Name: "u", Partitions: 3}, &pb.CreateTopicResponse{})
		return err == nil || messages.CodeOf(err) == messages.CodeTopicExists
	})
	if err := remove(nc, "t"); err != nil {
		t.Errorf("the topic with the bad record cannot be deleted: %v", err)
	}
}

// An offline partition is no obstacle to deleting others, nor to its own.
func TestB77TopicsAreDeletedBesideAndWithAnOfflinePartition(t *testing.T) {
	c := start(t, t.TempDir(), nil)
	brokers := cluster(t, c, 3)
	nc := connect(t, c.URL())
	createOn(t, nc, "a", 1, "b1")
	createOn(t, nc, "b", 3, "b2", "b3")
	brokers[0].die()
	eventually(t, "a to be offline", func() bool { return partitionCounts(t, nc).Offline == 1 })
	for _, step := range []struct {
		topic string
		code  messages.Code
		after messages.PartitionCount
	}{
		{"b", "", messages.PartitionCount{Total: 1, Offline: 1, UnderMinISR: 1, UnderReplicated: 1}},
		{"a", "", messages.PartitionCount{}},
		{"a", messages.CodeUnknownTopic, messages.PartitionCount{}},
		{"nope", messages.CodeUnknownTopic, messages.PartitionCount{}},
	} {
		if err := remove(nc, step.topic); messages.CodeOf(err) != step.code {
			t.Errorf("deleting %s: %v, want %q", step.topic, err, step.code)
		}
		got := partitionCounts(t, nc)
		got.AtMinISR, got.NonPreferred, got.Unproven = 0, 0, 0
		if got != step.after {
			t.Errorf("after deleting %s: %+v, want %+v", step.topic, got, step.after)
		}
	}
	createOn(t, nc, "a", 1, "b2")
}

// While topics come and go, nothing is told to be offline, and with a dead broker only what exists is under-replicated.
func TestB103NothingIsOfflineWhileTopicsComeAndGo(t *testing.T) {
	c := start(t, t.TempDir(), nil)
	brokers := cluster(t, c, 3)
	nc := connect(t, c.URL())
	churn := func(prefix string) {
		var all sync.WaitGroup
		for i := range 20 {
			name := fmt.Sprintf("%s%d", prefix, i)
			all.Go(func() {
				err := call(nc, subjects.Control("op", "topic", "create"), &pb.CreateTopicRequest{Name: name, Partitions: 10, ReplicationFactor: 2},
					&pb.CreateTopicResponse{})
				if err := errors.Join(err, remove(nc, name)); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			})
		}
		all.Wait()
	}
	watch := func(during func(), wrong func(messages.PartitionCount) bool) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			during()
		}()
		for running, looks := true, 0; running || looks < 3; looks++ {
			if got := partitionCounts(t, nc); got.Offline != 0 || wrong(got) {
				t.Errorf("health while topics come and go: %+v", got)
			}
			select {
			case <-done:
				running = false
			default:
			}
		}
	}
	watch(func() { churn("healthy") }, func(c messages.PartitionCount) bool {
		return c.UnderReplicated != 0 || c.UnderMinISR != 0 || c.NonPreferred != 0
	})
	if got := partitionCounts(t, nc); got != (messages.PartitionCount{}) {
		t.Errorf("after all are gone: %+v", got)
	}
	createOn(t, nc, "stays", 4, "b1", "b2", "b3")
	createOn(t, nc, "goes", 6, "b1", "b2", "b3")
	brokers[2].die()
	eventually(t, "b3 to be missed", func() bool { return partitionCounts(t, nc).UnderReplicated == 10 })
	watch(func() { churn("degraded") }, func(c messages.PartitionCount) bool { return c.UnderReplicated != 10 })
	if err := remove(nc, "goes"); err != nil {
		t.Fatal(err)
	}
	if got := partitionCounts(t, nc); got.UnderReplicated != 4 || got.Total != 4 {
		t.Errorf("after one of two is gone: %+v", got)
	}
}

func TestB11ThirtyCreationsAtOnceAreSpreadEvenly(t *testing.T) {
	c := start(t, t.TempDir(), nil)
	cluster(t, c, 4)
	nc := connect(t, c.URL())
	var all sync.WaitGroup
	for i := range 30 {
		mine := connect(t, c.URL())
		all.Go(func() {
			if err := call(mine, subjects.Control("op", "topic", "create"), &pb.CreateTopicRequest{Name: fmt.Sprint("t", i), Partitions: 1},
				&pb.CreateTopicResponse{}); err != nil {
				t.Errorf("topic %d: %v", i, err)
			}
		})
	}
	all.Wait()
	list, _ := look[[]messages.BrokerView](t, nc, "brokers")
	for _, b := range list {
		if b.Leaders < 6 || b.Leaders > 9 || b.Replicas < 21 || b.Replicas > 24 {
			t.Errorf("broker %s leads %d of 30 and holds %d of 90", b.ID, b.Leaders, b.Replicas)
		}
	}
	if len(list) != 4 {
		t.Errorf("%d brokers", len(list))
	}
}
