package jetstream

import (
	"fmt"
	"testing"
	"time"

	js "github.com/nats-io/nats.go/jetstream"

	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/messages"
)

// BenchmarkCommit commits entries of 1 to 1,000 partition records through a committer to one server that syncs every
// write, and in the same run publishes the same bytes to another stream without any of it. records/s is the committer's;
// raw-records/s the bare publish's; ratio the one by the other.
func BenchmarkCommit(b *testing.B) {
	for _, batch := range []int{1, 10, 100, 1000} {
		b.Run(fmt.Sprintf("records=%d", batch), func(b *testing.B) { benchCommit(b, batch) })
	}
}

func benchCommit(b *testing.B, batch int) {
	client := connect(b, startServer(b, b.TempDir()))
	raw := Config("raw", 1)
	if _, err := client.CreateStream(b.Context(), raw); err != nil {
		b.Fatal(err)
	}
	log, c := ensure(b, client, "bench"), journal.NewCatalog()
	records := benchRecords(batch)
	at, epoch, err := journal.Claim(b.Context(), log, c, journal.Position{}, "c1", benchTopic)
	if err != nil {
		b.Fatal(err)
	}
	m := journal.NewCommitter(at, journal.Writer{Controller: "c1", Epoch: epoch}, journal.Limits{})
	payload, _, err := journal.EncodeEntry(at, m.Writer(), journal.NewStamp(), records)
	if err != nil {
		b.Fatal(err)
	}
	var committing, publishing time.Duration
	for b.Loop() { // by turns, so that both meet the same machine
		start := time.Now()
		if err := m.Propose(1, records); err != nil {
			b.Fatal(err)
		}
		err := journal.Drive(b.Context(), log, m, func(done journal.Committed) { c.Apply(done.Sequence, done.Records) })
		if err != nil {
			b.Fatal(err)
		}
		middle := time.Now()
		if _, err := client.Publish(b.Context(), raw.Subjects[0], payload, js.WithRetryAttempts(0)); err != nil {
			b.Fatal(err)
		}
		committing += middle.Sub(start)
		publishing += time.Since(middle)
	}
	n := float64(b.N * batch)
	b.ReportMetric(n/committing.Seconds(), "records/s")
	b.ReportMetric(n/publishing.Seconds(), "raw-records/s")
	b.ReportMetric(publishing.Seconds()/committing.Seconds(), "ratio")
	b.ReportMetric(float64(len(payload)), "bytes/entry")
}

// BenchmarkRecover replays a hundred thousand partitions from the server into a catalog.
func BenchmarkRecover(b *testing.B) {
	log, c := ensure(b, connect(b, startServer(b, b.TempDir())), "bench"), journal.NewCatalog()
	at, epoch, err := journal.Claim(b.Context(), log, c, journal.Position{}, "c1", benchTopic)
	if err != nil {
		b.Fatal(err)
	}
	m := journal.NewCommitter(at, journal.Writer{Controller: "c1", Epoch: epoch}, journal.Limits{})
	records := benchRecords(benchTopic.Partitions)
	for i := 0; i < len(records); i += 1000 {
		if err := m.Propose(1, records[i:i+1000]); err != nil {
			b.Fatal(err)
		}
	}
	if err := journal.Drive(b.Context(), log, m, func(journal.Committed) {}); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, _, err := journal.Recover(b.Context(), log, journal.NewCatalog()); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N*len(records))/b.Elapsed().Seconds(), "records/s")
}

// BenchmarkSnapshot takes snapshots of a hundred thousand partitions to the server, with reading back, and recovers from them.
func BenchmarkSnapshot(b *testing.B) {
	client := connect(b, startServer(b, b.TempDir()))
	log, c, store := ensure(b, client, "bench"), journal.NewCatalog(), snapshots(b, client, "bench")
	at, _, err := journal.Claim(b.Context(), log, c, journal.Position{}, "c1", benchTopic)
	if err != nil {
		b.Fatal(err)
	}
	c.ApplyAt(at, benchRecords(benchTopic.Partitions))
	var taking, recovering, held time.Duration
	var size int64
	for b.Loop() {
		start := time.Now()
		taken, err := journal.TakeSnapshot(b.Context(), c, store, start)
		if err != nil {
			b.Fatal(err)
		}
		middle := time.Now()
		if _, err := journal.RecoverFrom(b.Context(), log, store, journal.NewCatalog()); err != nil {
			b.Fatal(err)
		}
		taking += middle.Sub(start)
		recovering += time.Since(middle)
		held, size = max(held, taken.LockHeld), taken.Bytes
	}
	b.ReportMetric(taking.Seconds()*1000/float64(b.N), "ms-to-take")
	b.ReportMetric(recovering.Seconds()*1000/float64(b.N), "ms-to-recover")
	b.ReportMetric(float64(held.Microseconds()), "µs-lock-held-longest")
	b.ReportMetric(float64(size)/1e6, "MB")
}

var benchTopic = &messages.Topic{ID: messages.TopicID{1}, Name: "orders", Partitions: 100_000, ReplicationFactor: 3, MinISR: 2}

// benchRecords returns partitions as they are after some life: about 150 bytes each.
func benchRecords(n int) []messages.Record {
	out := make([]messages.Record, n)
	for i := range out {
		set := make([]messages.BrokerID, 3)
		for r := range set {
			set[r] = messages.BrokerID(fmt.Sprintf("broker-%d", (i+r)%9))
		}
		out[i] = &messages.Partition{ID: messages.PartitionID{Topic: benchTopic.ID, Index: int32(i)}, Replicas: set, ISR: set,
			Leader: set[0], LeaderEpoch: 17, Epoch: 42, MinISR: 2, LastLeader: set[1], HighWatermark: 123_456_789,
			LeaderProven: true, Reason: "broker fenced: session ended"}
	}
	return out
}
