package client_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/highwater-io/highwater/broker"
	"github.com/highwater-io/highwater/broker/memlog"
	"github.com/highwater-io/highwater/client"
	"github.com/highwater-io/highwater/controller"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	clusterName = "test"
	patience    = 30 * time.Second
)

// cluster is a real controller with real brokers over disks in memory, all in this process.
type cluster struct {
	t          *testing.T
	controller *controller.Controller
	disks      map[broker.ID]*memlog.Disk
	servers    map[broker.ID]*broker.Server
	conns      map[broker.ID]*nats.Conn
	nc         *nats.Conn // of client
	client     *client.Client
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	s := messages.DefaultSettings()
	s.Heartbeat, s.Session, s.DisconnectGrace = 50*time.Millisecond, time.Minute, 20*time.Millisecond
	ctl, err := controller.Start(t.Context(), controller.Config{Cluster: clusterName, DataDir: t.TempDir(), Listen: "127.0.0.1:0", Settings: s})
	must(t, err)
	c := &cluster{t: t, controller: ctl, disks: map[broker.ID]*memlog.Disk{}, servers: map[broker.ID]*broker.Server{}, conns: map[broker.ID]*nats.Conn{}}
	t.Cleanup(func() {
		for id := range c.servers {
			c.crash(id)
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		must(t, ctl.Stop(ctx))
	})
	for _, id := range []broker.ID{"b1", "b2", "b3"} {
		c.disks[id] = memlog.NewDisk(true)
		c.start(id)
	}
	for _, s := range c.servers {
		await(t, "a broker to be unfenced", s.Ready())
	}
	c.nc, c.client = c.connect()
	return c
}

// connect returns another client with a connection of its own.
func (c *cluster) connect(opts ...client.Option) (*nats.Conn, *client.Client) {
	c.t.Helper()
	nc, err := nats.Connect(c.controller.URL(), client.ConnectOptions("client-test")...)
	must(c.t, err)
	cl, err := client.New(nc, clusterName, opts...)
	must(c.t, err)
	c.t.Cleanup(func() {
		must(c.t, cl.Close())
		nc.Close()
	})
	return nc, cl
}

func (c *cluster) start(id broker.ID) {
	c.t.Helper()
	nc, err := nats.Connect(c.controller.URL(), client.ConnectOptions(string(id))...)
	must(c.t, err)
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	s, err := broker.Serve(ctx, nc, clusterName, id, c.disks[id].Open(), broker.WithRack(messages.RackPath("r-"+id)))
	must(c.t, err)
	c.servers[id], c.conns[id] = s, nc
}

// crash ends a broker as kill -9 would.
func (c *cluster) crash(id broker.ID) {
	c.disks[id].Crash()
	c.conns[id].Close()
	c.servers[id].Close()
	delete(c.servers, id)
}

// topic makes a topic on all brokers with min ISR 2 and returns its id.
func (c *cluster) topic(name messages.TopicName, partitions uint32) messages.TopicID {
	c.t.Helper()
	out, err := c.client.CreateTopic(c.t.Context(), &pb.CreateTopicRequest{Name: string(name), Partitions: partitions})
	must(c.t, err)
	id, err := messages.ParseTopicID(out.GetTopicId())
	must(c.t, err)
	return id
}

func (c *cluster) producer(name messages.TopicName, o client.ProducerOptions) *client.Producer {
	c.t.Helper()
	p, err := c.client.NewProducer(c.t.Context(), name, o)
	must(c.t, err)
	c.t.Cleanup(func() { closeNow(p) })
	return p
}

// closeNow ends a producer without waiting for acknowledgements.
func closeNow(p *client.Producer) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = p.Close(ctx)
}

// leader returns who leads a partition, once it serves and has a full ISR.
func (c *cluster) leader(name messages.TopicName, partition int32, isr int) broker.ID {
	c.t.Helper()
	var leader broker.ID
	eventually(c.t, fmt.Sprintf("%s/%d to be led with %d in sync", name, partition, isr), func() bool {
		p, err := c.client.Partition(c.t.Context(), name, partition)
		leader = p.Leader
		return err == nil && p.LeaderProven && len(p.ISR) == isr && c.servers[leader] != nil
	})
	return leader
}

// end returns the durable end of a broker's replica.
func (c *cluster) end(b broker.ID, topic messages.TopicID, partition int32) messages.Offset {
	s, _ := c.servers[b].Replica(messages.PartitionID{Topic: topic, Index: partition})
	return s.LogEnd
}

// read returns the values of a topic, which must have dense offsets from 0 on in every partition.
func (c *cluster) read(name messages.TopicName) map[int32][]string {
	c.t.Helper()
	all := map[int32][]string{}
	err := c.client.Consume(c.t.Context(), name, client.ConsumeOptions{From: client.FromBeginning, ExitAtEnd: true}, func(r client.Fetched) error {
		if int(r.Offset) != len(all[r.Partition]) {
			return fmt.Errorf("partition %d: offset %d comes after %d records", r.Partition, r.Offset, len(all[r.Partition]))
		}
		all[r.Partition] = append(all[r.Partition], string(r.Value))
		return nil
	})
	must(c.t, err)
	return all
}

// results gathers what became of records.
type results struct {
	mu   sync.Mutex
	all  []client.Result
	more chan struct{} // has a token when there may be more
}

func newResults() *results { return &results{more: make(chan struct{}, 1)} }

func (r *results) add(x client.Result) {
	r.mu.Lock()
	r.all = append(r.all, x)
	r.mu.Unlock()
	select {
	case r.more <- struct{}{}:
	default:
	}
}

func (r *results) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.all)
}

// wait returns the results once there are n.
func (r *results) wait(t *testing.T, n int) []client.Result {
	t.Helper()
	deadline := time.After(patience)
	for r.count() < n {
		select {
		case <-r.more:
		case <-deadline:
			t.Fatalf("%d of %d results came", r.count(), n)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]client.Result(nil), r.all...)
}

func send(t *testing.T, p *client.Producer, partition int32, value string, done func(client.Result)) {
	t.Helper()
	must(t, p.Send(t.Context(), client.Record{Partition: partition, Value: []byte(value)}, done))
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

func await(t testing.TB, what string, ch <-chan struct{}) {
	t.Helper()
	select {
	case <-ch:
	case <-time.After(patience):
		t.Fatalf("in vain waited for %s", what)
	}
}

func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	poll := time.NewTicker(2 * time.Millisecond)
	defer poll.Stop()
	for deadline := time.Now().Add(patience); !condition(); <-poll.C {
		if time.Now().After(deadline) {
			t.Fatalf("in vain waited for %s", what)
		}
	}
}
