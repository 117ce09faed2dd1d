package client_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/highwater-io/highwater/client"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// fill writes values 0 to n-1 to partition 0.
func (c *cluster) fill(name messages.TopicName, n int) {
	c.t.Helper()
	p, got := c.producer(name, client.ProducerOptions{BatchRecords: 7}), newResults()
	for i := range n {
		send(c.t, p, 0, fmt.Sprint(i), got.add)
	}
	for _, r := range got.wait(c.t, n) {
		must(c.t, r.Err)
	}
	must(c.t, p.Close(c.t.Context()))
}

func TestConsumingFromWhereItIsAskedFor(t *testing.T) {
	c := newCluster(t)
	c.topic("t", 2)
	c.fill("t", 50)
	for name, x := range map[string]struct {
		options client.ConsumeOptions
		want    int
	}{
		"beginning":                       {client.ConsumeOptions{From: client.FromBeginning}, 50},
		"the middle of a batch":           {client.ConsumeOptions{Offsets: map[int32]messages.Offset{0: 17}}, 33},
		"small fetches":                   {client.ConsumeOptions{MaxBytes: 1}, 50},
		"end":                             {client.ConsumeOptions{From: client.FromEnd}, 0},
		"the mark":                        {client.ConsumeOptions{Partitions: []int32{0}, From: 50}, 0},
		"another partition":               {client.ConsumeOptions{Partitions: []int32{1, 1}}, 0},
		"a partition that is named twice": {client.ConsumeOptions{Partitions: []int32{0, 0}}, 50},
	} {
		t.Run(name, func(t *testing.T) {
			x.options.ExitAtEnd = true
			next := 50 - x.want
			must(t, c.client.Consume(t.Context(), "t", x.options, func(r client.Fetched) error {
				if int(r.Offset) != next || string(r.Value) != fmt.Sprint(next) || r.Key != nil || r.TimestampUnixMs == 0 {
					t.Errorf("record %+v, want offset %d", r, next)
				}
				next++
				return nil
			}))
			if next != 50 {
				t.Errorf("ended at %d", next)
			}
		})
	}
}

func TestAnOffsetOutOfRangeIsAnErrorAndNotSkipped(t *testing.T) {
	c := newCluster(t)
	c.topic("t", 1)
	c.fill("t", 5)
	for _, atEnd := range []bool{false, true} {
		err := c.client.Consume(t.Context(), "t", client.ConsumeOptions{From: 6, ExitAtEnd: atEnd}, func(r client.Fetched) error {
			t.Errorf("record %+v", r)
			return nil
		})
		wantCode(t, err, messages.CodeOffsetOutOfRange)
	}
}

func TestConsumingGoesOnAndEnds(t *testing.T) {
	c := newCluster(t)
	c.topic("t", 3)
	p, got := c.producer("t", client.ProducerOptions{}), newResults()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	read, ended := make(chan string, 100), make(chan error, 1)
	go func() {
		ended <- c.client.Consume(ctx, "t", client.ConsumeOptions{}, func(r client.Fetched) error {
			read <- string(r.Value)
			return nil
		})
	}()
	for i := range 20 {
		send(t, p, int32(i%3), fmt.Sprint(i), got.add)
		if v := <-read; v != fmt.Sprint(i) {
			t.Fatalf("read %s, want %d", v, i)
		}
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
}

func TestAfterAnErrorOfTheReaderNothingIsHandedToIt(t *testing.T) {
	c := newCluster(t)
	c.topic("t", 6)
	p := c.producer("t", client.ProducerOptions{})
	for i := range 60 {
		send(t, p, int32(i%6), "x", nil)
	}
	must(t, p.Flush(t.Context()))
	enough, calls := errors.New("enough"), 0
	err := c.client.Consume(t.Context(), "t", client.ConsumeOptions{}, func(client.Fetched) error {
		if calls++; calls >= 5 {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) || calls != 5 {
		t.Errorf("%d calls, %v", calls, err)
	}
}

func TestKeysAndHeadersComeBackAsTheyWere(t *testing.T) {
	c := newCluster(t)
	c.topic("t", 1)
	p := c.producer("t", client.ProducerOptions{})
	headers := []*pb.Header{{Key: "h", Value: []byte{0, 255}}}
	for _, key := range [][]byte{nil, {}, []byte("k")} {
		must(t, p.Send(t.Context(), client.Record{Key: key, Headers: headers, TimestampUnixMs: 42}, nil))
	}
	must(t, p.Close(t.Context()))
	var got []string
	must(t, c.client.Consume(t.Context(), "t", client.ConsumeOptions{ExitAtEnd: true}, func(r client.Fetched) error {
		got = append(got, fmt.Sprintf("%q %t %s=%v @%d", r.Key, r.Key == nil, r.Headers[0].GetKey(), r.Headers[0].GetValue(), r.TimestampUnixMs))
		return nil
	}))
	if want := `["" true h=[0 255] @42 "" false h=[0 255] @42 "k" false h=[0 255] @42]`; fmt.Sprint(got) != want {
		t.Errorf("got  %v\nwant %s", got, want)
	}
}

// A new leader does not know at once how far its predecessor had committed. Reading to the end waits until it does.
func TestReadingToTheEndRightAfterAFailoverHasEverythingAcknowledged(t *testing.T) {
	c := newCluster(t)
	c.topic("t", 1)
	for round := range 3 {
		c.fill("t", 20)
		leader := c.leader("t", 0, 3)
		c.crash(leader)
		if n := len(c.read("t")[0]); n != 20*(round+1) {
			t.Fatalf("round %d: %d records are read", round, n)
		}
		c.start(leader)
	}
}

func TestAProducerOfADeletedTopicNeverWritesToItsSuccessor(t *testing.T) {
	c, ctx := newCluster(t), t.Context()
	c.topic("t", 3)
	c.leader("t", 0, 3)
	old, got := c.producer("t", client.ProducerOptions{}), newResults()
	send(t, old, 0, "old", got.add)
	must(t, got.wait(t, 1)[0].Err)
	ended := make(chan error, 1)
	go func() {
		ended <- c.client.Consume(ctx, "t", client.ConsumeOptions{}, func(client.Fetched) error { return nil })
	}()
	_, err := c.client.DeleteTopic(ctx, &pb.DeleteTopicRequest{Name: "t"})
	must(t, err)
	wantCode(t, <-ended, messages.CodeUnknownTopicID)
	c.topic("t", 1)
	for partition := range int32(3) {
		send(t, old, partition, "late", got.add)
	}
	for _, r := range got.wait(t, 4)[1:] {
		wantCode(t, r.Err, messages.CodeUnknownTopicID)
	}
	successor := c.producer("t", client.ProducerOptions{})
	wantCode(t, successor.Send(ctx, client.Record{Partition: 1}, nil), messages.CodeUnknownPartition)
	send(t, successor, client.ByKey, "new", nil)
	must(t, successor.Close(ctx))
	if all := c.read("t"); fmt.Sprint(all) != "map[0:[new]]" {
		t.Errorf("the successor holds %v", all)
	}
}
