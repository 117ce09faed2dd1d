package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// plainServer is a NATS server as the controller embeds it, with one stream of one replica that fsyncs, and nothing else.
type plainServer struct {
	server *server.Server
	nc     *nats.Conn
	js     jetstream.JetStream
}

func startPlain(ctx context.Context, dir string) (*plainServer, error) {
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: dir, SyncAlways: true, NoSigs: true,
		NoLog: true, MaxPayload: 8 << 20})
	if err != nil {
		return nil, err
	}
	s.Start()
	p := &plainServer{server: s}
	if !s.ReadyForConnections(10 * time.Second) {
		p.stop()
		return nil, fmt.Errorf("the plain server does not become ready")
	}
	if p.nc, err = nats.Connect("", nats.InProcessServer(s)); err == nil {
		if p.js, err = jetstream.New(p.nc); err == nil {
			_, err = p.js.CreateStream(ctx, jetstream.StreamConfig{Name: "PLAIN", Subjects: []string{"plain.log"}, Storage: jetstream.FileStorage})
		}
	}
	if err != nil {
		p.stop()
		return nil, err
	}
	return p, nil
}

func (p *plainServer) stop() {
	if p.nc != nil {
		p.nc.Close()
	}
	p.server.Shutdown()
	p.server.WaitForShutdown()
}

// recordsPerEntry is how many records the journal puts into one entry at most.
const recordsPerEntry = 4000

// commit publishes the records as the journal would, one entry after the other.
func (p *plainServer) commit(ctx context.Context, records []*pb.Record) error {
	for len(records) > 0 {
		n := min(len(records), recordsPerEntry)
		raw, err := proto.Marshal(&pb.EntryBody{Records: records[:n]})
		if err != nil {
			return err
		}
		if _, err := p.js.Publish(ctx, "plain.log", raw); err != nil {
			return err
		}
		records = records[n:]
	}
	return nil
}

// plainFailover commits the records of the assignments and delivers these to subscribers over TCP, each to one of them.
func plainFailover(ctx context.Context, dir string, assignments []*pb.Assignment, subscribers int) (time.Duration, error) {
	p, err := startPlain(ctx, dir)
	if err != nil {
		return 0, err
	}
	defer p.stop()
	var got sync.WaitGroup
	for i := range subscribers {
		nc, err := nats.Connect(p.server.ClientURL())
		if err != nil {
			return 0, err
		}
		defer nc.Close()
		got.Add(1)
		once := sync.OnceFunc(got.Done)
		if _, err := nc.Subscribe(fmt.Sprintf("plain.%d", i), func(*nats.Msg) { once() }); err != nil {
			return 0, err
		}
		if err := nc.Flush(); err != nil {
			return 0, err
		}
	}
	records := map[string]*pb.Record{}
	for _, a := range assignments {
		records[fmt.Sprintf("%x/%d", a.GetTopicId(), a.GetPartition())] = recordOf(a)
	}
	list := make([]*pb.Record, 0, len(records))
	for _, r := range records {
		list = append(list, r)
	}
	began := time.Now()
	if err := p.commit(ctx, list); err != nil {
		return 0, err
	}
	share := (len(assignments) + subscribers - 1) / subscribers
	for i := range subscribers {
		from := min(i*share, len(assignments))
		raw, err := proto.Marshal(&pb.AssignmentBatch{Assignments: assignments[from:min(from+share, len(assignments))]})
		if err != nil {
			return 0, err
		}
		if err := p.nc.Publish(fmt.Sprintf("plain.%d", i), raw); err != nil {
			return 0, err
		}
	}
	got.Wait()
	return time.Since(began), nil
}

func recordOf(a *pb.Assignment) *pb.Record {
	id, _ := messages.ParseTopicID(a.GetTopicId()) // read before
	return messages.RecordToProto(&messages.Partition{ID: messages.PartitionID{Topic: id, Index: a.GetPartition()},
		Replicas: messages.BrokerIDs(a.GetReplicas()), ISR: messages.BrokerIDs(a.GetIsr()), Leader: messages.BrokerID(a.GetLeader()),
		LeaderEpoch: messages.LeaderEpoch(a.GetLeaderEpoch()), Epoch: messages.PartitionEpoch(a.GetPartitionEpoch()), MinISR: int(a.GetMinIsr()),
		HighWatermark: messages.Offset(a.GetFloor()), Reason: "the leader is fenced"})
}
