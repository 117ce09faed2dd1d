//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// write produces values [from, to) to a topic and waits until all are acknowledged.
func (c *cluster) write(topic string, from, to int) {
	c.t.Helper()
	p := c.produce(topic)
	feed(c.t, p.stdin, from, to)
	p.end()
}

// holds checks that a topic of one partition holds the values [0, n) in this order and nothing else.
func (c *cluster) holds(topic string, n int) {
	c.t.Helper()
	got := c.consumed(topic)
	for i := range n {
		if v := got[place{0, messages.Offset(i)}]; v != value(i) {
			c.t.Fatalf("%s: offset %d is %q, want %q", topic, i, v, value(i))
		}
	}
	if len(got) != n {
		c.t.Errorf("%s: %d records, want %d", topic, len(got), n)
	}
}

func (c *cluster) partition(topic string, i int32) messages.PartitionView {
	c.t.Helper()
	p, err := c.client.Partition(c.t.Context(), messages.TopicName(topic), i)
	must(c.t, err)
	return p
}

// until waits for a state of partition 0 of a topic.
func (c *cluster) until(topic, what string, is func(messages.PartitionView) bool) {
	c.t.Helper()
	eventually(c.t, 20*time.Second, topic+": "+what, func() error {
		p, err := c.client.Partition(c.t.Context(), messages.TopicName(topic), 0)
		if err == nil && !is(p) {
			err = fmt.Errorf("%+v", p)
		}
		return err
	})
}

func inSync(want ...messages.BrokerID) func(messages.PartitionView) bool {
	return func(p messages.PartitionView) bool {
		got := slices.Clone(p.ISR)
		slices.Sort(got)
		return slices.Equal(got, want)
	}
}

// active waits until a broker is.
func (c *cluster) active(id messages.BrokerID) {
	c.t.Helper()
	eventually(c.t, 20*time.Second, string(id)+" is active", func() error {
		b, err := c.client.Broker(c.t.Context(), id)
		if err == nil && b.State != "active" {
			err = fmt.Errorf("%+v", b)
		}
		return err
	})
}

// throughout looks at a condition again and again for a time, which must hold all along.
func throughout(t testing.TB, d time.Duration, what string, holds func() error) {
	t.Helper()
	end := time.NewTimer(d)
	defer end.Stop()
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	for {
		if err := holds(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		select {
		case <-end.C:
			return
		case <-poll.C:
		}
	}
}

// The last replica in the ISR comes back with less than it had acknowledged: its folder is as it was before. Either it says
// so itself, because its storage does not promise to keep what it acknowledges, or the mark that the controller knows gives
// it away. It never leads, and the one that was in the ISR before it, with everything, does.
func TestB16TheLastReplicaStandingHasLostItsTail(t *testing.T) {
	for _, fsync := range []string{"always", "interval"} {
		t.Run("B16 fsync "+fsync, func(t *testing.T) {
			c := emptyCluster(t, quick...)
			c.brokerArgs = []string{"--fsync", fsync}
			c.startController()
			c.connect()
			c.controllerReady()
			for _, b := range []messages.BrokerID{"b1", "b2", "b3"} {
				c.startBroker(b)
			}
			c.allActive(3)
			c.createOn("t", 1, 2, "b1", "b2", "b3")
			c.write("t", 0, 100)
			c.fullISR("t")
			c.brokers["b3"].kill()
			old := c.folder("b3") + ".old"
			must(t, os.CopyFS(old, os.DirFS(c.folder("b3"))))
			c.startBroker("b3")
			c.fullISR("t")
			c.brokers["b1"].kill()
			c.until("t", "b1 is out", inSync("b2", "b3"))
			c.write("t", 100, 150)
			c.until("t", "the mark is known", func(p messages.PartitionView) bool { return p.HighWatermark >= 150 })
			c.brokers["b2"].signal(syscall.SIGSTOP) // cut off
			c.until("t", "b3 is alone", inSync("b3"))
			if _, errs, code := c.run(lines("refused"), "produce", "t", "--delivery-timeout", "500ms"); code == 0 {
				t.Errorf("written below min ISR: %s", errs)
			}
			c.brokers["b3"].kill()
			must(t, os.RemoveAll(c.folder("b3")))
			must(t, os.Rename(old, c.folder("b3")))
			c.startBroker("b3")
			c.startBroker("b1")
			c.active("b1")
			c.until("t", "neither b1 nor b3 leads", func(p messages.PartitionView) bool { return p.Leader == "" && !slices.Contains(p.Eligible, "b3") })
			throughout(t, time.Second, "who has less than was acknowledged does not lead", func() error {
				if p := c.partition("t", 0); p.Leader != "" {
					return fmt.Errorf("%+v", p)
				}
				return nil
			})
			c.brokers["b2"].signal(syscall.SIGCONT)
			c.until("t", "b2 leads", func(p messages.PartitionView) bool { return p.Leader == "b2" })
			c.fullISR("t")
			c.holds("t", 150)
		})
	}
}

// Everyone who holds all of it is down: the others are alive and must not lead, however long that takes. Health tells of
// partitions without a leader as of under-replicated ones.
func TestB17B22B108NobodyLeadsWithoutTheLastInSync(t *testing.T) {
	c := newClusterWith(t, 3, quick...)
	c.createOn("solo", 1, 1, "b1", "b2", "b3")
	c.createOn("many", 6, 2, "b1", "b2", "b3")
	c.fullISR("many")
	c.brokers["b3"].kill()
	c.until("solo", "b3 is out, although it leads nothing", inSync("b1", "b2"))
	c.brokers["b2"].kill()
	c.until("solo", "b1 is alone", inSync("b1"))
	eventually(t, 10*time.Second, "six partitions are under min ISR", func() error { return c.counts(0, 6, 7) })
	c.write("solo", 0, 50)
	epoch := c.partition("solo", 0).LeaderEpoch
	c.brokers["b1"].kill()
	eventually(t, 10*time.Second, "all are offline and under-replicated", func() error { return c.counts(7, 7, 7) })
	c.startBroker("b3")
	c.active("b3")
	if err := c.counts(7, 7, 7); err != nil {
		t.Errorf("with the one that was out of sync: %v", err)
	}
	c.startBroker("b2")
	c.active("b2")
	c.until("many", "b2 leads, which was eligible", func(p messages.PartitionView) bool { return p.Leader == "b2" && p.LeaderProven })
	throughout(t, 3*time.Second, "solo waits for b1", func() error {
		if p := c.partition("solo", 0); p.Leader != "" || p.State != "offline" {
			return fmt.Errorf("%+v", p)
		}
		return nil
	})
	c.startBroker("b1")
	c.fullISR("solo")
	if p := c.partition("solo", 0); p.Leader != "b1" || p.LeaderEpoch <= epoch {
		t.Errorf("after b1 is back, which led in epoch %d: %+v", epoch, p)
	}
	c.holds("solo", 50)
}

// counts compares what health says of partitions.
func (c *cluster) counts(offline, underMinISR, underReplicated int) error {
	h, err := c.health()
	p := h.Partitions
	if err == nil && (p.Offline != offline || p.UnderMinISR != underMinISR || p.UnderReplicated != underReplicated) {
		err = fmt.Errorf("%+v", p)
	}
	return err
}

// The only replica in sync comes back with an empty disk: the partition stays offline, with a reason.
func TestB44TheOnlyReplicaInSyncReturnsEmpty(t *testing.T) {
	c := newClusterWith(t, 3, quick...)
	c.createOn("t", 1, 1, "b2", "b1", "b3")
	c.fullISR("t")
	c.brokers["b1"].kill()
	c.brokers["b3"].kill()
	c.until("t", "b2 is alone", inSync("b2"))
	c.write("t", 0, 50)
	before, err := c.client.Broker(t.Context(), "b2")
	must(t, err)
	c.brokers["b2"].kill()
	must(t, os.RemoveAll(c.folder("b2")))
	for _, b := range []messages.BrokerID{"b2", "b1", "b3"} {
		c.startBroker(b)
	}
	eventually(t, 20*time.Second, "b2 has registered with its new storage", func() error {
		now, err := c.client.Broker(t.Context(), "b2")
		if err == nil && now.Storage == before.Storage {
			err = fmt.Errorf("%+v", now)
		}
		return err
	})
	c.allActive(3)
	throughout(t, 2*time.Second, "nobody leads", func() error {
		p := c.partition("t", 0)
		h, err := c.health()
		if err == nil && (p.Leader != "" || len(p.ISR) > 0 || p.Reason == "" || h.Status != "UNHEALTHY") {
			err = fmt.Errorf("%s, %+v", h.Status, p)
		}
		return err
	})
}

// A leader that hangs with its connection open is replaced after its session, and what reaches it under its old epoch is
// not acknowledged when it wakes up, neither committed nor stored only.
func TestB30B42B43AHangingLeaderIsReplacedAndAcknowledgesNothingLater(t *testing.T) {
	c := newClusterWith(t, 3, quick...)
	c.createOn("t", 1, 2, "b1", "b2", "b3")
	c.write("t", 0, 100)
	c.fullISR("t")
	was := c.partition("t", 0)
	b1 := c.brokers["b1"]
	b1.signal(syscall.SIGSTOP)
	c.until("t", "another leads", func(p messages.PartitionView) bool { return p.Leader == "b2" && p.LeaderProven })
	inbox := nats.NewInbox()
	answers, err := c.nc.SubscribeSync(inbox)
	must(t, err)
	subject := messages.NewSubjects(clusterName).Data(messages.Data{Principal: "anonymous", Topic: "t", LeaderEpoch: was.LeaderEpoch, Verb: messages.VerbProduce})
	const late = 20
	for i := range late {
		body, err := proto.Marshal(&pb.ProduceRequest{TopicId: was.TopicID.Bytes(), Acks: pb.Acks(1 + i%2), TimeoutMs: 500,
			Batch: &pb.RecordBatch{Records: []*pb.LogRecord{{Value: []byte("late")}}}})
		must(t, err)
		must(t, c.nc.PublishRequest(subject, inbox, body))
	}
	c.write("t", 100, 150)
	b1.signal(syscall.SIGCONT)
	c.active("b1")
	c.fullISR("t")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	for range late {
		m, err := answers.NextMsgWithContext(ctx)
		if err != nil {
			break // it may say nothing, as it is not the leader any more
		}
		r := &pb.ProduceResponse{}
		if len(m.Data) > 0 {
			must(t, proto.Unmarshal(m.Data, r))
			if r.GetError() == nil {
				t.Errorf("acknowledged under the old epoch: %v", r)
			}
		}
	}
	if p := c.partition("t", 0); p.Leader != "b2" {
		t.Errorf("the one that woke up took over: %+v", p)
	}
	c.holds("t", 150)
}

// Brokers are restarted one after the other, in order, under load: nothing fails, nothing is lost, no replica moves.
func TestB59ARollingRestartMovesNoData(t *testing.T) {
	const records = 9000
	c := newCluster(t, 3)
	c.createTopic("t", 12)
	before := byPartition(c.partitions("t"))
	p := c.produce("t")
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		feed(t, p.stdin, 0, records)
	}()
	for _, b := range []messages.BrokerID{"b1", "b2", "b3"} {
		c.brokers[b].term()
		c.startBroker(b)
		c.allActive(3)
		c.fullISR("t")
	}
	<-fed
	p.end()
	for i, now := range byPartition(c.partitions("t")) {
		was := before[i]
		if !slices.Equal(now.Replicas, was.Replicas) || now.LeaderEpoch > was.LeaderEpoch+6 {
			t.Errorf("partition %d: %+v, before %+v", i, now, was)
		}
	}
	c.check("t", p, records)
}

func lines(list ...string) *strings.Reader { return strings.NewReader(strings.Join(list, "\n") + "\n") }
