package broker_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/broker"
	"github.com/highwater-io/highwater/broker/brokertest"
	"github.com/highwater-io/highwater/broker/memlog"
	"github.com/highwater-io/highwater/broker/replica"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

const clusterName = "test"

// cluster is a NATS server, a test controller, and servers over disks in memory.
type cluster struct {
	t       testing.TB
	url     string
	ctl     *brokertest.Controller
	client  *nats.Conn
	disks   map[broker.ID]*memlog.Disk
	servers map[broker.ID]*broker.Server
	conns   map[broker.ID]*nats.Conn
}

func newCluster(t testing.TB, ids ...broker.ID) *cluster {
	t.Helper()
	url := brokertest.StartNATS(t)
	ctl, err := brokertest.New(brokertest.Connect(t, url), clusterName, brokertest.Settings())
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, url: url, ctl: ctl, client: brokertest.Connect(t, url), disks: map[broker.ID]*memlog.Disk{},
		servers: map[broker.ID]*broker.Server{}, conns: map[broker.ID]*nats.Conn{}}
	for _, id := range ids {
		c.disks[id] = memlog.NewDisk(true)
		c.start(id)
	}
	t.Cleanup(func() {
		for _, s := range c.servers {
			s.Close()
		}
	})
	return c
}

// start opens a broker's disk and serves it, and waits until it is unfenced.
func (c *cluster) start(id broker.ID, opts ...broker.Option) *broker.Server {
	c.t.Helper()
	nc := brokertest.Connect(c.t, c.url)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	s, err := broker.Serve(ctx, nc, clusterName, id, c.disks[id].Open(), opts...)
	if err != nil {
		c.t.Fatalf("%s does not start: %v", id, err)
	}
	c.servers[id], c.conns[id] = s, nc
	select {
	case <-s.Ready():
	case <-ctx.Done():
		c.t.Fatalf("%s is not ready: %+v", id, s.State())
	}
	return s
}

// crash ends a broker at once. The controller does not notice.
func (c *cluster) crash(id broker.ID) {
	c.disks[id].Crash()
	c.conns[id].Close()
	c.servers[id].Close()
	delete(c.servers, id)
}

func (c *cluster) topic(minISR int, replicas ...broker.ID) (messages.PartitionID, messages.TopicName) {
	c.t.Helper()
	name := messages.TopicName(fmt.Sprintf("t%d", rand.Uint32()))
	id := messages.PartitionID{Topic: c.ctl.CreateTopic(name, minISR, replicas)}
	return id, name
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	if !within(15*time.Second, f) {
		t.Fatalf("not in time: %s", what)
	}
}

// within asks for a condition until it holds; false if it does not in time.
func within(d time.Duration, f func() bool) bool {
	every := time.NewTicker(2 * time.Millisecond)
	defer every.Stop()
	for deadline := time.Now().Add(d); !f(); <-every.C {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// producer sends batches to whoever leads a partition.
type producer struct {
	c     *cluster
	nc    *nats.Conn
	p     messages.PartitionID
	topic messages.TopicName
	id    uint64
	next  int64
	acks  pb.Acks
}

func (c *cluster) producer(p messages.PartitionID, topic messages.TopicName) *producer {
	return &producer{c: c, nc: c.client, p: p, topic: topic, id: rand.Uint64() | 1, acks: pb.Acks_ACKS_ALL}
}

func (c *cluster) subject(p messages.PartitionID, topic messages.TopicName, epoch messages.LeaderEpoch, verb messages.DataVerb) string {
	return messages.NewSubjects(clusterName).Data(messages.Data{Principal: "anonymous", Topic: topic, Partition: p.Index,
		LeaderEpoch: epoch, Verb: verb})
}

func records(values ...string) []*pb.LogRecord {
	out := make([]*pb.LogRecord, len(values))
	for i, v := range values {
		out[i] = &pb.LogRecord{Value: []byte(v), NullKey: true}
	}
	return out
}

// try sends a batch once, to the leader that the controller names.
func (p *producer) try(sequence int64, values ...string) (*pb.ProduceResponse, error) {
	return p.tryAt(p.c.ctl.Partition(p.p).LeaderEpoch, sequence, values...)
}

func (p *producer) tryAt(epoch messages.LeaderEpoch, sequence int64, values ...string) (*pb.ProduceResponse, error) {
	resp := &pb.ProduceResponse{}
	err := call(p.nc, p.c.subject(p.p, p.topic, epoch, messages.VerbProduce), &pb.ProduceRequest{TopicId: p.p.Topic.Bytes(), Acks: p.acks,
		TimeoutMs: 800, Batch: &pb.RecordBatch{ProducerId: p.id, BaseSequence: sequence, Records: records(values...)}}, resp)
	if err == nil && resp.GetError() != nil {
		err = messages.ErrorFromProto(resp.GetError())
	}
	return resp, err
}

// send sends a batch until it is acknowledged.
func (p *producer) send(values ...string) *pb.ProduceResponse {
	p.c.t.Helper()
	var resp *pb.ProduceResponse
	var err error
	if !within(20*time.Second, func() bool { resp, err = p.try(p.next, values...); return err == nil }) {
		p.c.t.Fatalf("not acknowledged: %v; %+v", err, p.c.ctl.Partition(p.p))
	}
	p.next += int64(len(values))
	return resp
}

func call(nc *nats.Conn, subject string, req, resp proto.Message) error {
	data, err := proto.Marshal(req)
	if err != nil {
		return err
	}
	m, err := nc.Request(subject, data, 1500*time.Millisecond)
	if err != nil {
		return err
	}
	return proto.Unmarshal(m.Data, resp)
}

func (c *cluster) fetch(p messages.PartitionID, topic messages.TopicName, req *pb.FetchRequest) (*pb.FetchResponse, error) {
	req.TopicId = p.Topic.Bytes()
	resp := &pb.FetchResponse{}
	err := call(c.client, c.subject(p, topic, c.ctl.Partition(p).LeaderEpoch, messages.VerbFetch), req, resp)
	if err == nil && resp.GetError() != nil {
		err = messages.ErrorFromProto(resp.GetError())
	}
	return resp, err
}

// values reads a partition from its start and returns the value of each offset below the mark.
func (c *cluster) values(p messages.PartitionID, topic messages.TopicName) []string {
	c.t.Helper()
	var out []string
	for {
		var resp *pb.FetchResponse
		var err error
		if !within(15*time.Second, func() bool {
			resp, err = c.fetch(p, topic, &pb.FetchRequest{Offset: int64(len(out))})
			return err == nil
		}) {
			c.t.Fatalf("cannot read: %v", err)
		}
		if len(resp.GetBatches()) == 0 {
			return out
		}
		out = append(out, decode(c.t, resp.GetBatches(), int64(len(out)))...)
	}
}

// decode returns the values of batches from an offset on.
func decode(t testing.TB, batches []*pb.StoredBatch, from int64) []string {
	t.Helper()
	var out []string
	for _, b := range batches {
		if err := replica.Verify(b); err != nil {
			t.Fatal(err)
		}
		body := &pb.RecordBatch{}
		if err := proto.Unmarshal(b.GetBody(), body); err != nil {
			t.Fatal(err)
		}
		for i, r := range body.GetRecords() {
			if b.GetBaseOffset()+int64(i) >= from {
				out = append(out, string(r.GetValue()))
			}
		}
	}
	return out
}

func (c *cluster) status(b broker.ID, p messages.PartitionID) replica.Status {
	if s := c.servers[b]; s != nil {
		st, _ := s.Replica(p)
		return st
	}
	return replica.Status{}
}

func (c *cluster) inSync(p messages.PartitionID, n int) {
	c.t.Helper()
	defer func() {
		if c.t.Failed() {
			for id := range c.servers {
				c.t.Logf("%s: %+v", id, c.status(id, p))
			}
			c.t.Logf("%+v", c.ctl.Partition(p))
		}
	}()
	eventually(c.t, fmt.Sprintf("%d in sync", n), func() bool { return len(c.ctl.Partition(p).ISR) == n })
}
