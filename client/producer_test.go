package client_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/highwater-io/highwater/broker"
	"github.com/highwater-io/highwater/client"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

func TestRecordsOfAPartitionAreStoredInTheOrderOfSend(t *testing.T) {
	c := newCluster(t)
	c.topic("t", 4)
	p := c.producer("t", client.ProducerOptions{BatchRecords: 7})
	got, last := newResults(), map[int32]messages.Offset{}
	want := map[int32][]string{}
	const n = 500
	for i := range n {
		key, value := []byte(fmt.Sprintf("k%d", i%23)), fmt.Sprint(i)
		at := client.PartitionOf(key, 4)
		want[at] = append(want[at], value)
		must(t, p.Send(t.Context(), client.Record{Partition: client.ByKey, Key: key, Value: []byte(value)}, got.add))
	}
	must(t, p.Close(t.Context()))
	for _, r := range got.wait(t, n) {
		must(t, r.Err)
		next, seen := last[r.Partition]
		if seen && r.Offset != next+1 || !seen && r.Offset != 0 || !r.Protected || r.Duplicate {
			t.Errorf("result %+v after offset %d", r, next)
		}
		last[r.Partition] = r.Offset
	}
	if got, want := fmt.Sprint(c.read("t")), fmt.Sprint(want); got != want {
		t.Errorf("read %s\nwant %s", got, want)
	}
}

func TestRecordsWithoutAKeyAreSpread(t *testing.T) {
	c := newCluster(t)
	c.topic("t", 3)
	p := c.producer("t", client.ProducerOptions{})
	for i := range 300 {
		send(t, p, client.ByKey, fmt.Sprint(i), nil)
	}
	must(t, p.Flush(t.Context()))
	for partition, values := range c.read("t") {
		if len(values) < 80 || len(values) > 120 {
			t.Errorf("partition %d has %d of 300", partition, len(values))
		}
	}
}

// The first answer is lost: the request times out while the followers' slow disks hold the commit up.
func TestARetryIsStoredOnce(t *testing.T) {
	c := newCluster(t)
	topic := c.topic("t", 1)
	leader := c.leader("t", 0, 3)
	for name, lose := range map[string]func(*cluster){
		"after a timeout":         func(*cluster) {},
		"after a lost connection": func(c *cluster) { must(t, c.nc.ForceReconnect()) },
	} {
		t.Run(name, func(t *testing.T) {
			for id, d := range c.disks {
				if id != leader {
					d.Delay(300 * time.Millisecond)
				}
			}
			before := c.end(leader, topic, 0)
			p := c.producer("t", client.ProducerOptions{RequestTimeout: 100 * time.Millisecond})
			got := newResults()
			send(t, p, 0, name, got.add)
			eventually(t, "the leader to append", func() bool { return c.end(leader, topic, 0) > before })
			lose(c)
			r := got.wait(t, 1)[0]
			if r.Err != nil || r.Offset != before || !r.Duplicate || !r.Protected {
				t.Errorf("result %+v, want a duplicate at offset %d", r, before)
			}
			for _, d := range c.disks {
				d.Delay(0)
			}
			send(t, p, 0, "next", got.add)
			if r := got.wait(t, 2)[1]; r.Err != nil || r.Offset != before+1 || r.Duplicate {
				t.Errorf("the next one: %+v", r)
			}
		})
	}
	if all := c.read("t")[0]; len(all) != 4 {
		t.Errorf("stored %q", all)
	}
}

// The leader dies after its followers have stored the batch and before it could answer.
func TestARetryAfterFailoverIsStoredOnce(t *testing.T) {
	c := newCluster(t)
	topic := c.topic("t", 1)
	leader := c.leader("t", 0, 3)
	c.disks[leader].Delay(2 * time.Second)
	p, got := c.producer("t", client.ProducerOptions{}), newResults()
	send(t, p, 0, "once", got.add)
	eventually(t, "the followers to store it", func() bool {
		for id := range c.servers {
			if id != leader && c.end(id, topic, 0) != 1 {
				return false
			}
		}
		return true
	})
	c.conns[leader].Close()
	r := got.wait(t, 1)[0]
	if r.Err != nil || r.Offset != 0 || !r.Duplicate {
		t.Errorf("result %+v, want a duplicate at offset 0", r)
	}
	if all := c.read("t")[0]; len(all) != 1 || all[0] != "once" {
		t.Errorf("stored %q", all)
	}
	c.disks[leader].Delay(0)
}

func TestFailoversMidStreamLoseNothing(t *testing.T) {
	c := newCluster(t)
	c.topic("t", 6)
	p := c.producer("t", client.ProducerOptions{MaxInFlight: 200, BatchRecords: 20})
	got := newResults()
	sent := map[int32][]string{}
	var stop atomic.Bool
	var sending sync.WaitGroup
	sending.Go(func() {
		for i := 0; !stop.Load(); i++ {
			at, value := int32(i%6), fmt.Sprint(i)
			sent[at] = append(sent[at], value)
			if err := p.Send(t.Context(), client.Record{Partition: at, Value: []byte(value)}, got.add); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for _, id := range []broker.ID{"b1", "b3"} {
		got.wait(t, got.count()+500)
		c.crash(id)
		got.wait(t, got.count()+500)
		c.start(id)
		for partition := range int32(6) {
			c.leader("t", partition, 3)
		}
	}
	stop.Store(true)
	sending.Wait()
	must(t, p.Close(t.Context()))
	stored := c.read("t")
	if got, want := fmt.Sprint(stored), fmt.Sprint(sent); got != want {
		t.Error("what is stored is not what was sent")
	}
	for _, r := range got.wait(t, 1) {
		if r.Err != nil || stored[r.Partition][r.Offset] != string(r.Record.Value) {
			t.Fatalf("acknowledged %+v", r)
		}
	}
}

func TestTooFewReplicasAreWaitedFor(t *testing.T) {
	c := newCluster(t)
	topic := c.topic("t", 1)
	leader := c.leader("t", 0, 3)
	var produced atomic.Int64
	_, cl := c.connect(client.WithTrace(func(subject string, _ time.Duration, err error) {
		if strings.HasSuffix(subject, ".produce") && err == nil {
			produced.Add(1)
		}
	}))
	var followers []broker.ID
	for id := range c.servers {
		if id != leader {
			followers = append(followers, id)
		}
	}
	for _, id := range followers {
		c.crash(id)
	}
	eventually(t, "the leader to know", func() bool {
		s, _ := c.servers[leader].Replica(messages.PartitionID{Topic: topic})
		return len(s.ISR) == 1
	})
	p, err := cl.NewProducer(t.Context(), "t", client.ProducerOptions{})
	must(t, err)
	defer closeNow(p)
	got := newResults()
	send(t, p, 0, "patient", got.add)
	eventually(t, "some refusals", func() bool { return produced.Load() >= 3 })
	if got.count() > 0 {
		t.Fatalf("answered with too few replicas: %+v", got.wait(t, 1))
	}
	impatient := c.producer("t", client.ProducerOptions{DeliveryTimeout: 50 * time.Millisecond})
	gaveUp := newResults()
	send(t, impatient, 0, "impatient", gaveUp.add)
	wantCode(t, gaveUp.wait(t, 1)[0].Err, messages.CodeNotEnoughReplicas) // and not OUTCOME_UNKNOWN: it was refused each time
	c.start(followers[0])
	if r := got.wait(t, 1)[0]; r.Err != nil || r.Offset != 0 || r.Duplicate {
		t.Errorf("result %+v", r)
	}
}

func TestAcksOfTheLeaderAreNotProtected(t *testing.T) {
	c := newCluster(t)
	c.topic("t", 1)
	c.leader("t", 0, 3)
	p, got := c.producer("t", client.ProducerOptions{Acks: pb.Acks_ACKS_LEADER}), newResults()
	for i := range 10 {
		send(t, p, 0, fmt.Sprint(i), got.add)
	}
	for i, r := range got.wait(t, 10) {
		if r.Err != nil || r.Protected || int(r.Offset) != i {
			t.Errorf("result %d: %+v", i, r)
		}
	}
}

func TestACloseThatIsCutShortGivesEveryRecordOneResult(t *testing.T) {
	c := newCluster(t)
	topic := c.topic("t", 3)
	leader := c.leader("t", 0, 3)
	for id, d := range c.disks {
		if id != leader {
			d.Delay(time.Second)
		}
	}
	p := c.producer("t", client.ProducerOptions{BatchRecords: 10})
	const n = 300
	var counts [n]atomic.Int32
	var unknown, unsent atomic.Int32
	for i := range n {
		send(t, p, 0, fmt.Sprint(i), func(r client.Result) {
			counts[i].Add(1)
			switch messages.CodeOf(r.Err) {
			case messages.CodeOutcomeUnknown:
				unknown.Add(1)
			case messages.CodeUnavailable:
				unsent.Add(1)
			}
		})
	}
	eventually(t, "the first batch to be appended", func() bool { return c.end(leader, topic, 0) > 0 })
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Close(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("Close returns %v", err)
	}
	for i := range counts {
		if got := counts[i].Load(); got != 1 {
			t.Errorf("record %d has %d results", i, got)
		}
	}
	if unknown.Load() == 0 || unknown.Load() > 10 || unknown.Load()+unsent.Load() != n {
		t.Errorf("%d records of unknown outcome, %d that were not sent, of %d in batches of 10", unknown.Load(), unsent.Load(), n)
	}
	wantCode(t, p.Send(t.Context(), client.Record{}, nil), messages.CodeUnavailable)
	must(t, p.Close(ended)) // nothing is out any more
	for _, d := range c.disks {
		d.Delay(0)
	}
}

func TestRecordsInFlightAreBounded(t *testing.T) {
	c := newCluster(t)
	c.topic("t", 2)
	leader := c.leader("t", 0, 3)
	for id, d := range c.disks {
		if id != leader {
			d.Delay(time.Second)
		}
	}
	p, got := c.producer("t", client.ProducerOptions{MaxInFlight: 5}), newResults()
	for i := range 5 {
		send(t, p, 0, fmt.Sprint(i), got.add)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := p.Send(ctx, client.Record{}, got.add); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the sixth of five: %v", err)
	}
	for _, d := range c.disks {
		d.Delay(0)
	}
	closeNow(p)
	if n := got.count(); n != 5 {
		t.Errorf("%d results of 5 records", n)
	}
}

func TestDoneMaySend(t *testing.T) {
	c := newCluster(t)
	c.topic("t", 1)
	p, got := c.producer("t", client.ProducerOptions{MaxInFlight: 8}), newResults()
	var again func(client.Result)
	again = func(r client.Result) {
		got.add(r)
		if r.Offset < 100 {
			must(t, p.Send(t.Context(), client.Record{Value: []byte("x")}, again))
		}
	}
	for range 8 {
		send(t, p, 0, "x", again)
	}
	got.wait(t, 108)
}

func TestARecordThatIsTooLargeIsRefusedAlone(t *testing.T) {
	c := newCluster(t)
	c.topic("t", 1)
	p, got := c.producer("t", client.ProducerOptions{}), newResults()
	limit := int(c.nc.MaxPayload())
	send(t, p, 0, "before", got.add)
	for name, r := range map[string]client.Record{
		"value":   {Value: make([]byte, limit)},
		"key":     {Key: make([]byte, limit)},
		"headers": {Headers: []*pb.Header{{Key: "h", Value: make([]byte, limit)}}},
	} {
		if err := p.Send(t.Context(), r, got.add); messages.CodeOf(err) != messages.CodeTooLarge {
			t.Errorf("a large %s: %v", name, err)
		}
	}
	wantCode(t, p.Send(t.Context(), client.Record{Headers: []*pb.Header{{Key: "\xff"}}}, got.add), messages.CodeInvalidRequest)
	wantCode(t, p.Send(t.Context(), client.Record{Partition: 1}, got.add), messages.CodeUnknownPartition)
	wantCode(t, p.Send(t.Context(), client.Record{Partition: -2}, got.add), messages.CodeUnknownPartition)
	must(t, p.Send(t.Context(), client.Record{Value: make([]byte, limit-8192-32)}, got.add)) // the largest
	send(t, p, 0, "after", got.add)
	for i, r := range got.wait(t, 3) {
		if r.Err != nil || int(r.Offset) != i {
			t.Errorf("result %d: offset %d, %v", i, r.Offset, r.Err)
		}
	}
}
