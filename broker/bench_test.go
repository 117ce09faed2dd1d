package broker_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/broker"
	"github.com/highwater-io/highwater/broker/brokertest"
	"github.com/highwater-io/highwater/broker/pebblelog"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// BenchmarkProduce stores records of 200 bytes on three replicas, each with an fsync, one record a request.
func BenchmarkProduce(b *testing.B) {
	ids := []broker.ID{"b1", "b2", "b3"}
	c := newCluster(b)
	for _, id := range ids {
		storage, err := pebblelog.Open(b.TempDir(), pebblelog.Options{})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = storage.Close() })
		s, err := broker.Serve(b.Context(), brokertest.Connect(b, c.url), clusterName, id, storage)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(s.Close)
		<-s.Ready()
	}
	for _, partitions := range []int{1, 12} {
		targets := make([]target, partitions)
		for i := range targets {
			p, topic := c.topic(2, ids[i%3], ids[(i+1)%3], ids[(i+2)%3])
			c.producer(p, topic).send("first")
			body, _ := proto.Marshal(&pb.ProduceRequest{TopicId: p.Topic.Bytes(), Acks: pb.Acks_ACKS_ALL,
				Batch: &pb.RecordBatch{Records: records(string(make([]byte, 200)))}})
			targets[i] = target{c.subject(p, topic, c.ctl.Partition(p).LeaderEpoch, messages.VerbProduce), body}
		}
		for _, inFlight := range []int{1, 64, 1000} {
			b.Run(fmt.Sprintf("partitions=%d/in_flight=%d", partitions, inFlight), func(b *testing.B) {
				produce(b, brokertest.Connect(b, c.url), targets, inFlight)
			})
		}
	}
}

// target is where a request goes, and the request.
type target struct {
	subject string
	body    []byte
}

// produce sends b.N requests, so many at once.
func produce(b *testing.B, nc *nats.Conn, targets []target, inFlight int) {
	slots := make(chan struct{}, inFlight)
	var waiting sync.WaitGroup
	var failed atomic.Int64
	inbox := nc.NewInbox()
	sub, err := nc.Subscribe(inbox, func(m *nats.Msg) {
		r := &pb.ProduceResponse{}
		if err := proto.Unmarshal(m.Data, r); err != nil || r.GetError() != nil {
			failed.Add(1)
		}
		<-slots
		waiting.Done()
	})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	b.ResetTimer()
	for i := range b.N {
		slots <- struct{}{}
		waiting.Add(1)
		if err := nc.PublishRequest(targets[i%len(targets)].subject, inbox, targets[i%len(targets)].body); err != nil {
			b.Fatal(err)
		}
	}
	waiting.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
	if n := failed.Load(); n > 0 {
		b.Errorf("%d of %d requests failed", n, b.N)
	}
}
