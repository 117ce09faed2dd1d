package controller

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/broker"
	"github.com/highwater-io/highwater/broker/memlog"
	"github.com/highwater-io/highwater/broker/replica"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// realBroker is the SDK's server over a disk in memory, connected through a wire.
type realBroker struct {
	t    testing.TB
	id   broker.ID
	wire *wire
	disk *memlog.Disk
	nc   *nats.Conn
	srv  *broker.Server
}

// realBrokers starts brokers b1.. with the SDK, and waits until they are unfenced.
func realBrokers(t testing.TB, url string, ids ...broker.ID) map[broker.ID]*realBroker {
	t.Helper()
	all := map[broker.ID]*realBroker{}
	for _, id := range ids {
		all[id] = &realBroker{t: t, id: id, wire: newWire(t, url), disk: memlog.NewDisk(true)}
		all[id].start()
	}
	for _, b := range all {
		b.ready()
	}
	return all
}

func (b *realBroker) start(opts ...broker.Option) {
	b.t.Helper()
	nc, err := nats.Connect(b.wire.url(), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond), nats.ReconnectBufSize(-1),
		nats.IgnoreDiscoveredServers())
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(b.t.Context(), 30*time.Second)
	defer cancel()
	srv, err := broker.Serve(ctx, nc, "dev", b.id, b.disk.Open(), opts...)
	if err != nil {
		b.t.Fatalf("%s: %v", b.id, err)
	}
	b.nc, b.srv = nc, srv
	b.t.Cleanup(func() {
		srv.Close()
		nc.Close()
	})
}

func (b *realBroker) ready() {
	b.t.Helper()
	select {
	case <-b.srv.Ready():
	case <-time.After(30 * time.Second):
		b.t.Fatalf("%s is not unfenced: %+v", b.id, b.srv.State())
	}
}

// kill ends a broker as kill -9 would; its disk keeps what was synced.
func (b *realBroker) kill() {
	b.disk.Crash()
	b.nc.Close()
	b.srv.Close()
}

func (b *realBroker) replica(id messages.PartitionID) replica.Status {
	s, _ := b.srv.Replica(id)
	return s
}

// verb matches requests of brokers, or with down their answers.
func verb(v messages.BrokerVerb, down bool) func(message) bool {
	return func(m message) bool {
		_, of, ok := subjects.ParseBroker(m.subject)
		return ok && of == v && m.down == down
	}
}

// token matches messages of subjects like hw.dev.<token>.…
func token(name string) func(message) bool {
	return func(m message) bool { return strings.HasPrefix(m.subject, "hw.dev."+name+".") }
}

// realTopic makes a topic of one partition by hand.
func realTopic(t testing.TB, nc *nats.Conn, name messages.TopicName, minISR uint32, replicas ...string) messages.PartitionID {
	t.Helper()
	answer := &pb.CreateTopicResponse{}
	if err := call(nc, subjects.Control("op", "topic", "create"), &pb.CreateTopicRequest{Name: string(name), MinIsr: minISR,
		Assignment: []*pb.ReplicaList{{Brokers: replicas}}}, answer); err != nil {
		t.Fatalf("creating %s: %v", name, err)
	}
	id, err := messages.ParseTopicID(answer.GetTopicId())
	if err != nil {
		t.Fatal(err)
	}
	return messages.PartitionID{Topic: id}
}

func partitionView(t testing.TB, nc *nats.Conn, topic messages.TopicName) messages.PartitionView {
	t.Helper()
	v, _, err := inquire[messages.PartitionView](nc, "partition."+string(topic)+".0", time.Second)
	if err != nil && !errors.Is(err, nats.ErrNoResponders) && !errors.Is(err, nats.ErrTimeout) {
		t.Fatal(err)
	}
	return v // empty while nobody is active
}

// inSync waits for exactly these members, and a proven leader.
func inSync(t testing.TB, nc *nats.Conn, topic messages.TopicName, want ...messages.BrokerID) messages.PartitionView {
	t.Helper()
	var v messages.PartitionView
	eventually(t, string(topic)+" in sync on "+strings.Join(messages.BrokerStrings(want), ","), func() bool {
		v = partitionView(t, nc, topic)
		got := slices.Sorted(slices.Values(v.ISR))
		return slices.Equal(got, want) && v.LeaderProven
	})
	return v
}

// write produces one record in a leader epoch; it is acknowledged if the error is nil. It waits long: the leader answers.
func write(nc *nats.Conn, id messages.PartitionID, topic messages.TopicName, epoch messages.LeaderEpoch, value string) error {
	return send(nc, dataSubject(topic, epoch, messages.VerbProduce), id, value, 30*time.Second)
}

func dataSubject(topic messages.TopicName, epoch messages.LeaderEpoch, verb messages.DataVerb) string {
	return subjects.Data(messages.Data{Principal: "anonymous", Topic: topic, LeaderEpoch: epoch, Verb: verb})
}

func send(nc *nats.Conn, subject string, id messages.PartitionID, value string, patience time.Duration) error {
	body, err := proto.Marshal(&pb.ProduceRequest{TopicId: id.Topic.Bytes(), Acks: pb.Acks_ACKS_ALL, TimeoutMs: 60_000,
		Batch: &pb.RecordBatch{Records: []*pb.LogRecord{{Value: []byte(value), NullKey: true}}}})
	if err != nil {
		return err
	}
	m, err := nc.Request(subject, body, patience)
	if err != nil {
		return err
	}
	answer := &pb.ProduceResponse{}
	if err := proto.Unmarshal(m.Data, answer); err != nil {
		return err
	}
	if answer.GetError() != nil {
		return messages.ErrorFromProto(answer.GetError())
	}
	return nil
}

// mustWrite writes values to the present leader, which has to acknowledge them; it asks again while that changes.
func mustWrite(t testing.TB, nc *nats.Conn, id messages.PartitionID, topic messages.TopicName, values ...string) {
	t.Helper()
	for _, value := range values {
		var last error
		eventually(t, "an acknowledgement", func() bool {
			last = send(nc, dataSubject(topic, partitionView(t, nc, topic).LeaderEpoch, messages.VerbProduce), id, value, time.Second)
			return last == nil
		})
	}
}

// read returns the values below the mark of the present leader.
func read(t testing.TB, nc *nats.Conn, id messages.PartitionID, topic messages.TopicName) []string {
	t.Helper()
	var out []string
	for {
		answer := &pb.FetchResponse{}
		eventually(t, "a fetch to be answered", func() bool {
			body, err := proto.Marshal(&pb.FetchRequest{TopicId: id.Topic.Bytes(), Offset: int64(len(out))})
			if err != nil {
				t.Fatal(err)
			}
			m, err := nc.Request(dataSubject(topic, partitionView(t, nc, topic).LeaderEpoch, messages.VerbFetch), body, time.Second)
			answer.Reset()
			return err == nil && proto.Unmarshal(m.Data, answer) == nil && answer.GetError() == nil
		})
		if len(answer.GetBatches()) == 0 {
			return out
		}
		for _, b := range answer.GetBatches() {
			records := &pb.RecordBatch{}
			if err := proto.Unmarshal(b.GetBody(), records); err != nil {
				t.Fatal(err)
			}
			for i, r := range records.GetRecords() {
				if b.GetBaseOffset()+int64(i) >= int64(len(out)) {
					out = append(out, string(r.GetValue()))
				}
			}
		}
	}
}
