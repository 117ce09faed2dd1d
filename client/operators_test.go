package client_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/client"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

func TestTopicsAreMadeListedDescribedAndDeleted(t *testing.T) {
	c, ctx := newCluster(t), t.Context()
	out, err := c.client.CreateTopic(ctx, &pb.CreateTopicRequest{Name: "a.b", Partitions: 3, Labels: map[string]string{"class": "pii"}})
	must(t, err)
	if len(out.GetPartitions()) != 3 || len(out.GetTopicId()) != 16 {
		t.Errorf("created: %v", out)
	}
	dry, err := c.client.CreateTopic(ctx, &pb.CreateTopicRequest{Name: "dry", Partitions: 2, DryRun: true})
	must(t, err)
	if len(dry.GetPartitions()) != 2 {
		t.Errorf("dry run: %v", dry)
	}
	list, err := c.client.Topics(ctx, messages.ListQuery{})
	must(t, err)
	if len(list) != 1 || list[0].Name != "a.b" || list[0].Labels["class"] != "pii" {
		t.Errorf("list: %+v", list)
	}
	one, err := c.client.Topic(ctx, "a.b")
	must(t, err)
	if one.Partitions != 3 || len(one.Detail) != 3 || one.MinISR != 2 {
		t.Errorf("describe: %+v", one)
	}
	pages, err := c.client.Partitions(ctx, messages.ListQuery{Limit: 1, Filter: map[string]string{"topic": "a.b"}})
	must(t, err)
	if len(pages) != 3 || pages[2].Partition != 2 {
		t.Errorf("partitions over three pages: %+v", pages)
	}
	p, err := c.client.Partition(ctx, "a.b", 1)
	must(t, err)
	if p.Partition != 1 || len(p.Replicas) != 3 {
		t.Errorf("partition: %+v", p)
	}
	if _, err := c.client.DeleteTopic(ctx, &pb.DeleteTopicRequest{Name: "a.b", TopicId: make([]byte, 16)}); err == nil {
		t.Error("a deletion under another id was accepted")
	}
	_, err = c.client.DeleteTopic(ctx, &pb.DeleteTopicRequest{Name: "a.b", TopicId: out.GetTopicId()})
	must(t, err)
	_, err = c.client.Topic(ctx, "a.b")
	wantCode(t, err, messages.CodeUnknownTopic)
}

func TestTheClusterIsDescribed(t *testing.T) {
	c, ctx := newCluster(t), t.Context()
	c.topic("t", 3)
	h, v, err := c.client.Health(ctx)
	must(t, err)
	if h.Status != "HEALTHY" || h.Brokers.Active != 3 || v.Cluster != clusterName || v.ControllerEpoch == 0 {
		t.Errorf("health: %+v in %+v", h, v)
	}
	o, _, err := c.client.Overview(ctx)
	must(t, err)
	if o.Topics != 1 || len(o.Brokers) != 3 {
		t.Errorf("overview: %+v", o)
	}
	all, err := c.client.Brokers(ctx, messages.ListQuery{Limit: 2})
	must(t, err)
	if len(all) != 3 || all[0].ID != "b1" || all[0].Rack != "r-b1" {
		t.Errorf("brokers over two pages: %+v", all)
	}
	b, err := c.client.Broker(ctx, "b1")
	must(t, err)
	if len(b.Partitions) != 3 || b.Replicas != 3 {
		t.Errorf("broker: %+v", b)
	}
}

func TestBadInputHasACode(t *testing.T) {
	c, ctx := newCluster(t), t.Context()
	c.topic("t", 1)
	create := func(r *pb.CreateTopicRequest) error { _, err := c.client.CreateTopic(ctx, r); return err }
	view := func(_ any, err error) error { return err }
	for name, x := range map[string]struct {
		err  error
		code messages.Code
	}{
		"name":                 {create(&pb.CreateTopicRequest{Name: "bad name", Partitions: 1}), messages.CodeInvalidName},
		"no partitions":        {create(&pb.CreateTopicRequest{Name: "u"}), messages.CodeInvalidPartitions},
		"replication factor":   {create(&pb.CreateTopicRequest{Name: "u", Partitions: 1, ReplicationFactor: 4}), messages.CodeInvalidReplicationFactor},
		"exists":               {create(&pb.CreateTopicRequest{Name: "t", Partitions: 1}), messages.CodeTopicExists},
		"over-long":            {create(&pb.CreateTopicRequest{Name: strings.Repeat("x", 9<<20), Partitions: 1}), messages.CodeTooLarge},
		"not UTF-8":            {create(&pb.CreateTopicRequest{Name: "\xff", Partitions: 1}), messages.CodeInvalidRequest},
		"delete what is not":   {view(c.client.DeleteTopic(ctx, &pb.DeleteTopicRequest{Name: "u"})), messages.CodeUnknownTopic},
		"topic":                {view(c.client.Topic(ctx, "u")), messages.CodeUnknownTopic},
		"topic with no name":   {view(c.client.Topic(ctx, "")), messages.CodeInvalidName},
		"broker":               {view(c.client.Broker(ctx, "b9")), messages.CodeUnknownBroker},
		"broker with no name":  {view(c.client.Broker(ctx, "a.b")), messages.CodeInvalidName},
		"partition":            {view(c.client.Partition(ctx, "t", 1)), messages.CodeUnknownPartition},
		"partition of nothing": {view(c.client.Partition(ctx, "u", 0)), messages.CodeUnknownTopic},
		"partition of no name": {view(c.client.Partition(ctx, "..", 0)), messages.CodeInvalidName},
		"filter":               {view(c.client.Partitions(ctx, messages.ListQuery{Filter: map[string]string{"colour": "red"}})), messages.CodeInvalidRequest},
		"produce to nothing":   {view(c.client.NewProducer(ctx, "u", client.ProducerOptions{})), messages.CodeUnknownTopic},
		"produce to no name":   {view(c.client.NewProducer(ctx, "", client.ProducerOptions{})), messages.CodeInvalidName},
		"consume from nothing": {c.client.Consume(ctx, "u", client.ConsumeOptions{}, nil), messages.CodeUnknownTopic},
		"consume a partition":  {c.client.Consume(ctx, "t", client.ConsumeOptions{Partitions: []int32{1}}, nil), messages.CodeUnknownPartition},
		"consume from -3":      {c.client.Consume(ctx, "t", client.ConsumeOptions{From: -3}, nil), messages.CodeInvalidRequest},
		"a start of no reader": {c.client.Consume(ctx, "t", client.ConsumeOptions{Partitions: []int32{0}, Offsets: map[int32]messages.Offset{1: 0}}, nil),
			messages.CodeInvalidRequest},
	} {
		if got := messages.CodeOf(x.err); got != x.code {
			t.Errorf("%s: %v, want %s", name, x.err, x.code)
		}
	}
	if _, err := client.New(c.nc, "no.cluster"); messages.CodeOf(err) != messages.CodeInvalidName {
		t.Errorf("cluster name: %v", err)
	}
}

func TestARequestOutlivesAChangeOfControllers(t *testing.T) {
	c := newCluster(t)
	subjects := messages.NewSubjects("other")
	var successor sync.Once
	cl, err := client.New(c.nc, "other", client.WithTrace(func(subject string, _ time.Duration, err error) {
		if errors.Is(err, nats.ErrNoResponders) { // from now on there is somebody
			successor.Do(func() {
				_, err := c.nc.Subscribe(subjects.ControlWildcard("topic", "create"), func(m *nats.Msg) {
					body, _ := proto.Marshal(&pb.CreateTopicResponse{Name: "t"})
					_ = m.Respond(body)
				})
				must(t, err)
			})
		}
	}))
	must(t, err)
	defer func() { must(t, cl.Close()) }()
	if got, err := cl.CreateTopic(t.Context(), &pb.CreateTopicRequest{Name: "t", Partitions: 1}); err != nil || got.GetName() != "t" {
		t.Errorf("%v, %v", got, err)
	}
}

func TestNobodyAnswers(t *testing.T) {
	c := newCluster(t)
	other, err := client.New(c.nc, "other")
	must(t, err)
	defer func() { must(t, other.Close()) }()
	_, _, err = other.Health(t.Context())
	wantCode(t, err, messages.CodeUnavailable)
	_, err = other.CreateTopic(t.Context(), &pb.CreateTopicRequest{Name: "t", Partitions: 1})
	wantCode(t, err, messages.CodeUnavailable)
	_, err = other.NewProducer(t.Context(), "t", client.ProducerOptions{})
	wantCode(t, err, messages.CodeUnavailable)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err = c.client.Health(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestAClosedClientIsOver(t *testing.T) {
	c := newCluster(t)
	c.topic("t", 1)
	nc, cl := c.connect()
	p, err := cl.NewProducer(t.Context(), "t", client.ProducerOptions{})
	must(t, err)
	consumed := make(chan error, 1)
	go func() {
		consumed <- cl.Consume(t.Context(), "t", client.ConsumeOptions{}, func(client.Fetched) error { return nil })
	}()
	eventually(t, "the consumer to wait", func() bool { return nc.Stats().OutMsgs > 3 })
	must(t, cl.Close())
	must(t, cl.Close())
	wantCode(t, <-consumed, messages.CodeUnavailable)
	got := newResults()
	send(t, p, 0, "x", got.add)
	wantCode(t, got.wait(t, 1)[0].Err, messages.CodeUnavailable)
	must(t, p.Close(t.Context()))
	_, err = cl.NewProducer(t.Context(), "t", client.ProducerOptions{})
	wantCode(t, err, messages.CodeUnavailable)
	if nc.NumSubscriptions() > 1 || nc.Status() != nats.CONNECTED { // one is of nats.go's requests
		t.Errorf("%d subscriptions are left, the connection is %s", nc.NumSubscriptions(), nc.Status())
	}
}
