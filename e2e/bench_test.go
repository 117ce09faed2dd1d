//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/client"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// BenchmarkKilledBroker kills with -9 a broker that leads about 100 of 300 partitions, real processes all, and reports the
// median until every one of them has a leader that answers (serving-ms) and the median of the longest gap between two
// acknowledgements of a producer that writes one record after the other to a partition that the victim led (ack-gap-ms).
//
//	go test -tags e2e -run '^$' -bench KilledBroker -benchtime 10x ./e2e/
func BenchmarkKilledBroker(b *testing.B) {
	c := newCluster(b, 3)
	var serving, gaps []time.Duration
	for i := range b.N {
		topic := fmt.Sprintf("t%d", i)
		c.createTopic(topic, 300)
		c.fullISR(topic)
		s, g := killOnce(b, c, topic)
		serving, gaps = append(serving, s), append(gaps, g)
		b.Logf("run %d: serving after %s, longest gap in acknowledgements %s", i, s, g)
		_, err := c.client.DeleteTopic(b.Context(), &pb.DeleteTopicRequest{Name: topic})
		must(b, err)
		c.startBroker("b1")
		c.allActive(3)
	}
	slices.Sort(serving)
	slices.Sort(gaps)
	b.ReportMetric(ms(serving[len(serving)/2]), "serving-ms")
	b.ReportMetric(ms(serving[len(serving)-1]), "serving-max-ms")
	b.ReportMetric(ms(gaps[len(gaps)/2]), "ack-gap-ms")
	b.ReportMetric(ms(gaps[len(gaps)-1]), "ack-gap-max-ms")
	b.ReportMetric(0, "ns/op")
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func killOnce(b *testing.B, c *cluster, topic string) (serving, gap time.Duration) {
	b.Helper()
	led := map[int32]int64{}
	for _, p := range c.partitions(topic) {
		if p.Leader == "b1" {
			led[p.Partition] = int64(p.LeaderEpoch)
		}
	}
	if len(led) < 90 {
		b.Fatalf("b1 leads %d partitions only", len(led))
	}
	w := watchServing(b, c, topic, led)
	var one int32
	for one = range led {
		break
	}
	stop := make(chan struct{})
	gapOf := closedLoop(b, c, topic, one, stop)
	c.brokers["b1"].kill()
	killed := time.Now()
	last := w.wait(b)
	close(stop)
	return last.Sub(killed), gapOf()
}

// servingWatch notes when each partition has a newer leader that answers a request.
type servingWatch struct {
	nc   *nats.Conn
	mu   sync.Mutex
	left map[int32]int64
	last time.Time
	done chan struct{}
}

func watchServing(b *testing.B, c *cluster, topic string, led map[int32]int64) *servingWatch {
	b.Helper()
	nc, err := nats.Connect(c.url())
	must(b, err)
	b.Cleanup(nc.Close)
	w := &servingWatch{nc: nc, left: led, done: make(chan struct{})}
	subjects := messages.NewSubjects(clusterName)
	_, err = nc.Subscribe(subjects.LeadershipTopic(messages.TopicName(topic)), func(m *nats.Msg) {
		var l pb.Leadership
		if proto.Unmarshal(m.Data, &l) == nil {
			go w.ask(subjects, &l)
		}
	})
	must(b, err)
	must(b, nc.Flush())
	return w
}

func (w *servingWatch) ask(subjects messages.Subjects, l *pb.Leadership) {
	w.mu.Lock()
	epoch, waited := w.left[l.GetPartition()]
	w.mu.Unlock()
	if !waited || l.GetLeader() == "" || l.GetLeaderEpoch() <= epoch {
		return
	}
	subject := subjects.Data(messages.Data{Principal: client.Anonymous, Topic: messages.TopicName(l.GetTopic()), Partition: l.GetPartition(),
		LeaderEpoch: messages.LeaderEpoch(l.GetLeaderEpoch()), Verb: messages.VerbFetch})
	raw, err := proto.Marshal(&pb.FetchRequest{TopicId: l.GetTopicId(), Offset: -1})
	if err != nil {
		return
	}
	for {
		m, err := w.nc.Request(subject, raw, time.Second)
		if err == nil {
			var answer pb.FetchResponse
			if proto.Unmarshal(m.Data, &answer) == nil && answer.GetError() == nil {
				break
			}
		}
		if w.nc.IsClosed() {
			return
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, waited := w.left[l.GetPartition()]; waited {
		delete(w.left, l.GetPartition())
		w.last = time.Now()
		if len(w.left) == 0 {
			close(w.done)
		}
	}
}

func (w *servingWatch) wait(b *testing.B) time.Time {
	b.Helper()
	select {
	case <-w.done:
	case <-time.After(30 * time.Second):
		b.Fatal("not every partition has a serving leader after 30 s")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
}

// closedLoop writes one record after the other until stop is closed; the returned function then gives the longest gap.
func closedLoop(b *testing.B, c *cluster, topic string, partition int32, stop chan struct{}) func() time.Duration {
	b.Helper()
	p, err := c.client.NewProducer(b.Context(), messages.TopicName(topic), client.ProducerOptions{})
	must(b, err)
	var gap time.Duration
	warm, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		var last time.Time
		for n := 0; ; n++ {
			acked := make(chan error, 1)
			if err := p.Send(b.Context(), client.Record{Partition: partition, Value: []byte("x")}, func(r client.Result) { acked <- r.Err }); err != nil {
				b.Error(err)
				return
			}
			if err := <-acked; err != nil {
				b.Error(err)
				return
			}
			if now := time.Now(); n > 0 {
				gap, last = max(gap, now.Sub(last)), now
			} else {
				last = now
			}
			if n == 20 {
				gap = 0
				close(warm)
			}
			select {
			case <-stop:
				if n > 20 {
					return
				}
			default:
			}
		}
	}()
	<-warm
	return func() time.Duration {
		<-ended
		must(b, p.Close(b.Context()))
		return gap
	}
}
