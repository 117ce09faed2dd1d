package main

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// plainWork is what a failover cannot do without: records to commit, and assignments to deliver to each survivor.
type plainWork struct {
	records     []*pb.Record
	assignments map[string][]*pb.Assignment // by survivor
}

// assignmentsPerBatch is how many assignments an outbox puts into one message at most.
const assignmentsPerBatch = 2000

// plainFailover commits the records and then delivers the assignments over TCP: each survivor's to a connection of its own
// and to one that hears them all. Both read every batch, as the simulated brokers and the watch do.
func plainFailover(ctx context.Context, dir string, w plainWork) (took, cpu time.Duration, err error) {
	p, err := startPlain(ctx, dir)
	if err != nil {
		return 0, 0, err
	}
	defer p.stop()
	r := &plainReceivers{}
	defer r.close()
	survivors := slices.Sorted(maps.Keys(w.assignments))
	all, err := r.connect(p.server.ClientURL())
	if err != nil {
		return 0, 0, err
	}
	for _, b := range survivors {
		own, err := r.connect(p.server.ClientURL())
		if err != nil {
			return 0, 0, err
		}
		for _, nc := range []*nats.Conn{own, all} {
			if err := r.expect(nc, "plain."+b, len(w.assignments[b])); err != nil {
				return 0, 0, err
			}
		}
	}
	if err := p.commit(ctx, w.records[:1]); err != nil { // the first one makes the stream's files
		return 0, 0, err
	}
	runtime.GC()
	began := time.Now()
	cpu, err = cpuOf(func() error {
		if err := p.commit(ctx, w.records); err != nil {
			return err
		}
		if err := p.deliver(w.assignments); err != nil {
			return err
		}
		r.open.Wait()
		return nil
	})
	return time.Since(began), cpu, err
}

// deliver sends every survivor its assignments.
func (p *plainServer) deliver(assignments map[string][]*pb.Assignment) error {
	for b, all := range assignments {
		for batch := range slices.Chunk(all, assignmentsPerBatch) {
			raw, err := proto.Marshal(&pb.AssignmentBatch{Broker: b, Assignments: batch})
			if err != nil {
				return err
			}
			if err := p.nc.Publish("plain."+b, raw); err != nil {
				return err
			}
		}
	}
	return nil
}

// plainReceivers are connections that read assignments and count them.
type plainReceivers struct {
	open        sync.WaitGroup
	connections []*nats.Conn
}

func (r *plainReceivers) connect(url string) (*nats.Conn, error) {
	nc, err := nats.Connect(url)
	if err == nil {
		r.connections = append(r.connections, nc)
	}
	return nc, err
}

// expect waits on a subject for a number of assignments.
func (r *plainReceivers) expect(nc *nats.Conn, subject string, n int) error {
	r.open.Add(1)
	_, err := nc.Subscribe(subject, func(m *nats.Msg) {
		var batch pb.AssignmentBatch
		if err := proto.Unmarshal(m.Data, &batch); err != nil {
			panic(fmt.Sprintf("a batch of our own cannot be read: %v", err))
		}
		if n -= len(batch.GetAssignments()); n == 0 {
			r.open.Done()
		}
	})
	if err != nil {
		return err
	}
	return nc.Flush()
}

func (r *plainReceivers) close() {
	for _, nc := range r.connections {
		nc.Close()
	}
}
