//go:build e2e && linux

package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/highwater-io/highwater/client"
	"github.com/highwater-io/highwater/e2e/history"
	"github.com/highwater-io/highwater/messages"
)

// load writes to a topic and reads it, at a steady pace, from the topic's first record on, and keeps the history of it.
type load struct {
	s          *site
	topic      messages.TopicName
	partitions int32
	client     *client.Client
	producer   *client.Producer
	cancel     context.CancelFunc
	stopped    chan struct{} // closed to end the writing
	writing    sync.WaitGroup
	reading    sync.WaitGroup

	mu      sync.Mutex
	history history.History
	acked   int
	read    int
	changed chan struct{} // closed with every acknowledgement and every record that is read
}

// pace is the time between two records of a load.
const pace = 4 * time.Millisecond

// startLoad begins writing and reading over some of the servers.
func (s *site) startLoad(topic string, partitions int32, servers ...string) *load {
	s.t.Helper()
	nc := s.connection(servers...)
	c, err := client.New(nc, clusterName, client.WithTimeout(time.Second))
	must(s.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{s: s, topic: messages.TopicName(topic), partitions: partitions, client: c, cancel: cancel, stopped: make(chan struct{}),
		changed: make(chan struct{}), history: history.History{Sent: map[string]int64{}}}
	eventually(s.t, 30*time.Second, "a producer of "+topic, func() error {
		l.producer, err = c.NewProducer(ctx, l.topic, client.ProducerOptions{})
		return err
	})
	s.t.Cleanup(func() {
		cancel()
		_ = c.Close()
	})
	l.writing.Go(func() { l.write(ctx) })
	l.reading.Go(func() { l.follow(ctx) })
	l.reading.Go(func() { l.readStrictly(ctx) })
	return l
}

// write sends a record to one partition after another.
func (l *load) write(ctx context.Context) {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-l.stopped:
			return
		case <-tick.C:
		}
		v, called := fmt.Sprintf("%s-%06d", l.topic, i), machineClock()
		l.mu.Lock()
		l.history.Sent[v] = called
		l.mu.Unlock()
		err := l.producer.Send(ctx, client.Record{Partition: int32(i) % l.partitions, Value: []byte(v)}, func(r client.Result) {
			if r.Err != nil {
				if ctx.Err() == nil {
					l.s.t.Errorf("%s was not acknowledged: %v", v, r.Err)
				}
				return
			}
			l.note(history.Op{Kind: history.Append, Partition: r.Partition, Offset: int64(r.Offset), Value: v, Call: called, Return: machineClock()})
		})
		if err != nil && ctx.Err() == nil {
			l.s.t.Errorf("%s was not sent: %v", v, err)
		}
	}
}

func (l *load) note(o history.Op) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.history.Ops = append(l.history.Ops, o)
	switch {
	case o.Kind == history.Append:
		l.acked++
	case o.Kind == history.Read && o.Client == follower:
		l.read++
	default:
		return
	}
	close(l.changed)
	l.changed = make(chan struct{})
}

// The clients of a history, besides the producer.
const (
	follower = 1
	strict   = 2
)

// record notes what was read. That it was committed is as true when it comes as it was when it left.
func (l *load) record(who int, r client.Fetched) {
	now := machineClock()
	l.note(history.Op{Kind: history.Read, Client: who, Partition: r.Partition, Offset: int64(r.Offset), Value: string(r.Value), Call: now, Return: now})
}

// follow reads everything as it is committed.
func (l *load) follow(ctx context.Context) {
	err := l.client.Consume(ctx, l.topic, client.ConsumeOptions{From: client.FromBeginning}, func(r client.Fetched) error {
		l.record(follower, r)
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		l.s.t.Errorf("the follower of %s has ended: %v", l.topic, err)
	}
}

// strictLimit is the patience of a strict read: without a lease there is none.
const strictLimit = 2 * time.Second

// readStrictly asks one partition after another, of its leader under a lease, for what is there since the last time.
func (l *load) readStrictly(ctx context.Context) {
	ends := make([]messages.Offset, l.partitions)
	tick := time.NewTicker(2 * pace)
	defer tick.Stop()
	for p := int32(0); ctx.Err() == nil; p = (p + 1) % l.partitions {
		<-tick.C
		bounded, cancel := context.WithTimeout(ctx, strictLimit)
		called, end := machineClock(), ends[p]
		var got []client.Fetched
		err := l.client.Consume(bounded, l.topic, client.ConsumeOptions{Partitions: []int32{p}, Offsets: map[int32]messages.Offset{p: end}, ExitAtEnd: true},
			func(r client.Fetched) error { got = append(got, r); return nil })
		cancel()
		for _, r := range got {
			l.record(strict, r)
			end = r.Offset + 1
		}
		switch {
		case err == nil:
			l.note(history.Op{Kind: history.End, Client: strict, Partition: p, Offset: int64(end), Call: called, Return: machineClock()})
			ends[p] = end
		case messages.CodeOf(err) == messages.CodeOffsetOutOfRange:
			l.s.t.Errorf("partition %d of %s ended at %d or later, and now: %v", p, l.topic, ends[p], err)
			return
		case bounded.Err() == nil && messages.CodeOf(err) != messages.CodeUnavailable:
			l.s.t.Errorf("a strict read of %s: %v", l.topic, err)
		}
	}
}

// progress waits until more records have been written and read by clients.
func (l *load) progress(records int) {
	l.s.t.Helper()
	l.mu.Lock()
	acked, read := l.acked+records, l.read+records
	l.mu.Unlock()
	l.reach(acked, read)
}

// reach waits until so many records have been acknowledged, and so many read.
func (l *load) reach(acked, read int) {
	l.s.t.Helper()
	limit := time.NewTimer(60 * time.Second)
	defer limit.Stop()
	for {
		l.mu.Lock()
		a, r, changed := l.acked, l.read, l.changed
		l.mu.Unlock()
		if a >= acked && r >= read {
			return
		}
		select {
		case <-changed:
		case <-limit.C:
			l.s.t.Fatalf("after a minute %d of %d records are acknowledged, and %d of %d read", a, acked, r, read)
		}
	}
}

// gaps are the longest times without an acknowledgement and without a record read, between two moments.
func (l *load) gaps(from, until int64) (produce, consume time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Duration(l.history.LongestGap(history.Append, from, until)), time.Duration(l.history.LongestGap(history.Read, from, until))
}

// finish ends the load and holds its history, and the leaderships that the brokers have had, against what is promised.
func (l *load) finish() {
	l.s.t.Helper()
	close(l.stopped)
	l.writing.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	if err := l.producer.Close(ctx); err != nil {
		l.s.t.Errorf("the producer of %s does not end: %v", l.topic, err)
	}
	l.mu.Lock()
	acked := l.acked
	l.mu.Unlock()
	l.reach(acked, acked)
	l.cancel()
	l.reading.Wait()
	last := map[history.Place]string{}
	ctx, cancel = context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	must(l.s.t, l.client.Consume(ctx, l.topic, client.ConsumeOptions{From: client.FromBeginning, ExitAtEnd: true}, func(r client.Fetched) error {
		last[history.Place{Partition: r.Partition, Offset: int64(r.Offset)}] = string(r.Value)
		return nil
	}))
	began := time.Now()
	if err := l.history.Check(last); err != nil {
		l.s.t.Errorf("the history of %s is wrong: %v", l.topic, err)
	}
	produce, consume := l.gaps(l.bounds())
	l.s.t.Logf("%s: %d records acknowledged, %d operations checked in %s; longest gap %s writing, %s reading", l.topic, acked, len(l.history.Ops),
		time.Since(began), produce, consume)
	l.s.checkTenures()
}

// bounds are the first and the last moment of the history.
func (l *load) bounds() (from, until int64) {
	for _, o := range l.history.Ops {
		if from == 0 || o.Return < from {
			from = o.Return
		}
		until = max(until, o.Return)
	}
	return from, until
}

// checkTenures holds the leases of all brokers' lives against each other.
func (s *site) checkTenures() {
	s.t.Helper()
	var all []history.Tenure
	partitions := map[string]bool{}
	for _, r := range s.runs {
		all = append(all, history.Tenures(r.name, r.events(s.t))...)
	}
	for _, t := range all {
		partitions[t.Partition] = true
	}
	if len(all) == 0 {
		s.t.Error("no broker speaks of its leases")
	}
	if err := history.Overlaps(all); err != nil {
		s.t.Error(err)
	}
	s.t.Logf("%d intervals of leadership of %d partitions, none at the same time as another's", len(all), len(partitions))
}

// events are what a broker's log says of its leases.
func (r *run) events(t testing.TB) []history.Event {
	t.Helper()
	f, err := os.Open(r.log)
	must(t, err)
	defer f.Close()
	kinds := map[string]history.EventKind{"leads": history.Leads, "leads no more": history.LeadsNoMore, "leased": history.Leased,
		"lease ended": history.LeaseEnded}
	var out []history.Event
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var line struct {
			Message   string `json:"message"`
			At        int64  `json:"at_ns"`
			Until     int64  `json:"until_ns"`
			Partition string `json:"partition"`
			Epoch     int64  `json:"leader_epoch"`
		}
		if json.Unmarshal(lines.Bytes(), &line) != nil {
			continue // a panic, or a line that was cut off by a kill
		}
		if kind, of := kinds[line.Message]; of {
			out = append(out, history.Event{Kind: kind, At: line.At, Partition: line.Partition, Epoch: line.Epoch, Until: line.Until})
		}
	}
	must(t, lines.Err())
	if at := r.ended.Load(); at != 0 {
		out = append(out, history.Event{Kind: history.Died, At: at})
	}
	return out
}
