package broker_test

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/broker"
	"github.com/highwater-io/highwater/broker/memlog"
	"github.com/highwater-io/highwater/broker/storagetest"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

func TestConsumersWaitForTheMark(t *testing.T) {
	c := newCluster(t, "b1", "b2")
	p, topic := c.topic(1, "b1", "b2")
	prod := c.producer(p, topic)
	prod.send("a")
	if resp, err := c.fetch(p, topic, &pb.FetchRequest{Offset: 1}); err != nil || len(resp.GetBatches()) != 0 || resp.GetHighWatermark() != 1 {
		t.Fatalf("a read at the end: %v, %v", resp, err)
	}
	if _, err := c.fetch(p, topic, &pb.FetchRequest{Offset: 2}); messages.CodeOf(err) != messages.CodeOffsetOutOfRange {
		t.Errorf("a read behind the end: %v", err)
	}
	var wg sync.WaitGroup
	got := make([]string, 8)
	for i := range got {
		wg.Add(1)
		go func() {
			defer wg.Done()
			resp, err := c.fetch(p, topic, &pb.FetchRequest{Offset: 1, MaxWaitMs: 1400})
			if err == nil {
				got[i] = strings.Join(decode(t, resp.GetBatches(), 1), ",")
			}
		}()
	}
	c.client.Flush()
	prod.send("b")
	wg.Wait()
	for i, v := range got {
		if v != "b" {
			t.Errorf("reader %d got %q", i, v)
		}
	}
	start := time.Now()
	if resp, err := c.fetch(p, topic, &pb.FetchRequest{Offset: 2, MaxWaitMs: 50}); err != nil || len(resp.GetBatches()) != 0 {
		t.Errorf("a wait that ends: %v, %v", resp, err)
	} else if d := time.Since(start); d < 50*time.Millisecond {
		t.Errorf("answered with nothing after %v", d)
	}
}

func TestReadersNeverSeeWhatIsNotCommitted(t *testing.T) {
	c := newCluster(t, "b1", "b2")
	p, topic := c.topic(2, "b1", "b2")
	prod := c.producer(p, topic)
	prod.send("a")
	c.crash("b2") // the ISR still has it
	prod.acks = pb.Acks_ACKS_LEADER
	if resp, err := prod.try(1, "b"); err != nil || resp.GetProtected() {
		t.Fatalf("acks=leader: %v, %v", resp, err)
	}
	if got := c.values(p, topic); !slices.Equal(got, []string{"a"}) {
		t.Errorf("read %v", got)
	}
}

func TestRequestsAreBounded(t *testing.T) {
	c := newCluster(t)
	c.disks["b1"] = memlog.NewDisk(true)
	c.start("b1", broker.WithLimits(broker.Limits{ProduceBytes: 1000, BatchBytes: 5000, Waiting: 1}))
	p, topic := c.topic(1, "b1")
	prod := c.producer(p, topic)
	prod.send("a")
	if _, err := prod.try(1, strings.Repeat("x", 6000)); messages.CodeOf(err) != messages.CodeTooLarge {
		t.Errorf("a batch above the limit: %v", err)
	}
	c.disks["b1"].Delay(300 * time.Millisecond)
	var wg sync.WaitGroup
	codes := make([]messages.Code, 4)
	for i := range codes {
		wg.Add(1)
		other := c.producer(p, topic)
		go func() {
			defer wg.Done()
			_, err := other.try(0, strings.Repeat("x", 800))
			codes[i] = messages.CodeOf(err)
		}()
	}
	wg.Wait()
	slices.Sort(codes)
	if codes[0] != "" || codes[3] != messages.CodeBusy {
		t.Errorf("four batches of 800 bytes with a bound of 1,000: %v", codes)
	}
	c.disks["b1"].Delay(0)
	prod.send("b")
	// One reader may wait; the next is turned away.
	waits := make(chan messages.Code, 2)
	for range 2 {
		go func() {
			_, err := c.fetch(p, topic, &pb.FetchRequest{Offset: int64(c.status("b1", p).LogEnd), MaxWaitMs: 400})
			waits <- messages.CodeOf(err)
		}()
	}
	if first, second := <-waits, <-waits; first != messages.CodeBusy || second != "" {
		t.Errorf("two waiting reads with a bound of one: %q, %q", first, second)
	}
}

func TestUnreadableRequestsAreRefused(t *testing.T) {
	c := newCluster(t, "b1")
	p, topic := c.topic(1, "b1")
	c.producer(p, topic).send("a")
	good, err := proto.Marshal(&pb.RecordBatch{Records: records("x")})
	if err != nil {
		t.Fatal(err)
	}
	request := func(batch []byte) []byte {
		out := append([]byte{0x0a, 16}, p.Topic[:]...)
		return append(append(out, 0x1a, byte(len(batch))), batch...)
	}
	for name, data := range map[string][]byte{
		"garbage":              {0xff, 0xff, 0xff},
		"no batch":             append([]byte{0x0a, 16}, p.Topic[:]...),
		"an empty batch":       request(nil),
		"a record cut short":   request([]byte{0x1a, 5, 0x0a}),
		"a record of garbage":  request([]byte{0x1a, 2, 0x0a, 9}),
		"a header that is not": request([]byte{0x1a, 2, 0x20, 1}),
		"two batches":          append(request(good), request(good)[18:]...),
		"unknown acks":         append(request(good), 0x10, 77),
	} {
		m, err := c.client.Request(c.subject(p, topic, 0, messages.VerbProduce), data, 2*time.Second)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		resp := &pb.ProduceResponse{}
		if err := proto.Unmarshal(m.Data, resp); err != nil || resp.GetError().GetCode() != string(messages.CodeInvalidRequest) {
			t.Errorf("%s: %v %v", name, resp, err)
		}
	}
	m, err := c.client.Request(c.subject(p, topic, 0, "nonsense"), nil, 2*time.Second)
	resp := &pb.ProduceResponse{}
	if err != nil || proto.Unmarshal(m.Data, resp) != nil || resp.GetError().GetCode() != string(messages.CodeInvalidRequest) {
		t.Errorf("an unknown verb: %v, %v", resp, err)
	}
	other := p
	other.Topic[0]++
	resp = &pb.ProduceResponse{}
	if err := call(c.client, c.subject(p, topic, 0, messages.VerbProduce), &pb.ProduceRequest{TopicId: other.Topic.Bytes(),
		Batch: &pb.RecordBatch{Records: records("x")}}, resp); err != nil || resp.GetError().GetCode() != string(messages.CodeUnknownTopicID) {
		t.Errorf("another topic's id: %v, %v", resp, err)
	}
	if got := c.values(p, topic); !slices.Equal(got, []string{"a"}) {
		t.Errorf("stored: %v", got)
	}
}

// Whoever fetches under a name that is no replica of anything here costs nothing that stays.
func TestStrangersGetNoFetchSession(t *testing.T) {
	c := newCluster(t, "b1", "b2")
	c.producer(c.topic(1, "b1", "b2")).send("a")
	before := runtime.NumGoroutine()
	subjects := messages.NewSubjects(clusterName)
	for i := range 300 {
		name := messages.BrokerID(fmt.Sprintf("stranger%d", i))
		resp := &pb.ReplicaFetchResponse{}
		err := call(c.client, subjects.Replication("b1", name), &pb.ReplicaFetchRequest{Follower: string(name)}, resp)
		if err != nil || resp.GetError().GetCode() != string(messages.CodeUnknownLeaderEpoch) {
			t.Fatalf("%s: %v, %v", name, resp, err)
		}
	}
	if after := runtime.NumGoroutine(); after > before+100 {
		t.Errorf("%d goroutines before, %d after", before, after)
	}
}

func TestAReplicaThatIsFarBehindCatchesUpFromTheStorage(t *testing.T) {
	c := newCluster(t, "b1", "b2")
	p, topic := c.topic(1, "b1", "b2")
	prod := c.producer(p, topic)
	prod.send("first")
	c.crash("b2")
	c.ctl.Lose("b2")
	big := strings.Repeat("x", 100_000)
	for range 40 {
		prod.send(big)
	}
	c.start("b2")
	c.inSync(p, 2)
	if end := c.status("b2", p).LogEnd; end != 41 {
		t.Errorf("ends at %d", end)
	}
	if got := c.values(p, topic); len(got) != 41 || got[40] != big {
		t.Errorf("read %d records", len(got))
	}
}

func TestDamagedBatchesAreNotServed(t *testing.T) {
	c := newCluster(t)
	disk := memlog.NewDisk(true)
	c.disks["b1"] = disk
	c.start("b1")
	p, topic := c.topic(1, "b1")
	c.producer(p, topic).send("a")
	c.crash("b1")
	c.ctl.Lose("b1")
	bad := storagetest.Batch(1, 1, 1, 0, 0)
	bad.Body = bytes.Replace(bad.GetBody(), []byte("records"), []byte("rekords"), 1)
	if err := disk.Open().Write([]broker.Write{{Partition: p, Batches: []*pb.StoredBatch{bad}, HighWatermark: 2}}); err != nil {
		t.Fatal(err)
	}
	c.start("b1")
	eventually(t, "a leader", func() bool { return c.ctl.Partition(p).LeaderProven })
	if resp, err := c.fetch(p, topic, &pb.FetchRequest{Offset: 1}); messages.CodeOf(err) != messages.CodeCorruptBatch {
		t.Errorf("a damaged batch: %v, %v", resp, err)
	}
	if resp, err := c.fetch(p, topic, &pb.FetchRequest{Offset: 0, MaxBytes: 1}); err != nil || len(resp.GetBatches()) != 1 {
		t.Errorf("the batch before it: %v, %v", resp, err)
	}
}

func TestDeletedTopicsAreRemovedAndUnknownOnesAreKept(t *testing.T) {
	c := newCluster(t, "b1", "b2")
	p, topic := c.topic(1, "b1", "b2")
	q, _ := c.topic(1, "b2", "b1")
	c.producer(p, topic).send("a")
	holds := func(b broker.ID, id messages.PartitionID) bool {
		held, err := c.disks[b].Open().Replicas()
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(held, func(h broker.HeldReplica) bool { return h.Partition == id })
	}
	c.crash("b2")
	c.ctl.Lose("b2")
	c.ctl.DeleteTopic(p.Topic)
	eventually(t, "the removal at the live broker", func() bool {
		_, ok := c.servers["b1"].Replica(p)
		return !ok
	})
	if !c.ctl.Deleting(p.Topic) {
		t.Error("the deletion is done while a broker that holds the topic is away")
	}
	// The broker returns with the deleted topic, and with one that the controller has never heard of.
	strange := messages.PartitionID{Topic: messages.TopicID{0xee}}
	if err := c.disks["b2"].Open().Create(strange, "strange"); err != nil {
		t.Fatal(err)
	}
	s := c.start("b2")
	eventually(t, "the removal at the returned broker", func() bool { return !c.ctl.Deleting(p.Topic) })
	if got := s.State().Unknown; !slices.Equal(got, []messages.TopicID{strange.Topic}) {
		t.Errorf("unknown topics: %v", got)
	}
	c.crash("b1")
	c.crash("b2")
	if holds("b1", p) || holds("b2", p) || !holds("b1", q) || !holds("b2", q) || !holds("b2", strange) {
		t.Errorf("held: deleted %v %v, kept %v %v, unknown %v", holds("b1", p), holds("b2", p), holds("b1", q), holds("b2", q), holds("b2", strange))
	}
}

func TestManyPartitionsOfManyLeaders(t *testing.T) {
	ids := []broker.ID{"b1", "b2", "b3"}
	c := newCluster(t, ids...)
	var wg sync.WaitGroup
	for i := range 24 {
		p, topic := c.topic(2, ids[i%3], ids[(i+1)%3], ids[(i+2)%3])
		wg.Add(1)
		go func() {
			defer wg.Done()
			prod := c.producer(p, topic)
			var want []string
			for n := range 20 {
				v := fmt.Sprint(n)
				prod.send(v)
				want = append(want, v)
			}
			if got := c.values(p, topic); !slices.Equal(got, want) {
				t.Errorf("%s: read %v", topic, got)
			}
		}()
	}
	wg.Wait()
	for _, id := range ids {
		eventually(t, "reported marks", func() bool { return c.servers[id].State().Leading == 8 })
	}
}
