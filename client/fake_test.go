package client

import (
	"context"
	"fmt"
	"hash/crc32"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/broker/brokertest"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

const (
	patience  = 20 * time.Second
	fakeTopic = messages.TopicName("t")
)

// fake is a controller and a leader that say what the test wants.
type fake struct {
	t        *testing.T
	nc       *nats.Conn
	subjects messages.Subjects
	client   *Client

	mu       sync.Mutex
	page     *pb.LeadershipPage // nil: no answer
	asked    int
	produced []*pb.ProduceRequest
	produce  func(n int, r *pb.ProduceRequest) proto.Message // n from 0; nil: no answer
	fetch    func(*pb.FetchRequest) *pb.FetchResponse
}

func newFake(t *testing.T, partitions int32) *fake {
	t.Helper()
	url := brokertest.StartNATS(t)
	f := &fake{t: t, nc: brokertest.Connect(t, url), subjects: messages.NewSubjects("fake")}
	f.page = pageOf(1, partitions)
	nc, err := nats.Connect(url, ConnectOptions("fake")...)
	must(t, err)
	t.Cleanup(nc.Close)
	f.client, err = New(nc, "fake", WithTimeout(200*time.Millisecond))
	must(t, err)
	t.Cleanup(func() { must(t, f.client.Close()) })
	f.serve(f.subjects.Monitor("leadership"), f.answerPage)
	f.serve(f.subjects.Data(messages.Data{Principal: "*", Topic: fakeTopic, Verb: messages.VerbProduce}), f.answerProduce)
	f.serve(f.subjects.Data(messages.Data{Principal: "*", Topic: fakeTopic, Verb: messages.VerbFetch}), f.answerFetch)
	must(t, f.nc.Flush())
	return f
}

func (f *fake) serve(subject string, answer func([]byte) proto.Message) {
	f.t.Helper()
	_, err := f.nc.Subscribe(subject, func(m *nats.Msg) {
		if out := answer(m.Data); out != nil {
			body, err := proto.Marshal(out)
			if err != nil || m.Respond(body) != nil {
				f.t.Error("an answer cannot be sent")
			}
		}
	})
	must(f.t, err)
}

func (f *fake) answerPage([]byte) proto.Message {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	if f.page == nil {
		return nil
	}
	return f.page
}

func (f *fake) answerProduce(body []byte) proto.Message {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := &pb.ProduceRequest{}
	must(f.t, proto.Unmarshal(body, r))
	f.produced = append(f.produced, r)
	return f.produce(len(f.produced)-1, r)
}

func (f *fake) answerFetch(body []byte) proto.Message {
	r := &pb.FetchRequest{}
	must(f.t, proto.Unmarshal(body, r))
	return f.fetch(r)
}

// sent returns the produce requests so far.
func (f *fake) sent() []*pb.ProduceRequest {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.produced)
}

func (f *fake) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fake) say(l *pb.Leadership) {
	f.t.Helper()
	body, err := proto.Marshal(l)
	must(f.t, err)
	must(f.t, f.nc.Publish(f.subjects.Leadership(fakeTopic, l.GetPartition()), body))
	must(f.t, f.nc.Flush())
}

func topicID(n byte) messages.TopicID { return messages.TopicID{15: n} }

// word is the leadership of a partition of the topic with number id, at a position of the journal.
func word(id byte, partition int32, epoch int64, seen uint64) *pb.Leadership {
	return &pb.Leadership{TopicId: topicID(id).Bytes(), Topic: string(fakeTopic), Partition: partition, Leader: "b1", LeaderEpoch: epoch,
		PartitionEpoch: epoch, Seen: &pb.Seen{ControllerEpoch: 1, Sequence: seen}}
}

func pageOf(id byte, partitions int32) *pb.LeadershipPage {
	page := &pb.LeadershipPage{Seen: &pb.Seen{ControllerEpoch: 1, Sequence: uint64(id) * 10}}
	for i := range partitions {
		page.Partitions = append(page.Partitions, word(id, i, 0, uint64(id)*10))
	}
	return page
}

// stored seals records with the values as the leader would store them.
func stored(base int64, values ...string) *pb.StoredBatch {
	batch := &pb.RecordBatch{}
	for _, v := range values {
		batch.Records = append(batch.Records, &pb.LogRecord{Value: []byte(v), NullKey: true})
	}
	body, err := proto.Marshal(batch)
	if err != nil {
		panic(fmt.Sprint("a batch cannot be written: ", err))
	}
	return &pb.StoredBatch{BaseOffset: base, Count: uint32(len(values)), Body: body, Crc: crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli))}
}

func (f *fake) producer(o ProducerOptions) *Producer {
	f.t.Helper()
	p, err := f.client.NewProducer(f.t.Context(), fakeTopic, o)
	must(f.t, err)
	f.t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = p.Close(ctx)
	})
	return p
}

// one sends one record to partition 0 and returns its result.
func (f *fake) one(p *Producer, value string) Result {
	f.t.Helper()
	done := make(chan Result, 1)
	must(f.t, p.Send(f.t.Context(), Record{Value: []byte(value)}, func(r Result) { done <- r }))
	select {
	case r := <-done:
		return r
	case <-time.After(patience):
		f.t.Fatalf("no result of %q", value)
		return Result{}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantCode(t testing.TB, err error, code messages.Code) {
	t.Helper()
	if messages.CodeOf(err) != code {
		t.Errorf("error %v, want %s", err, code)
	}
}
