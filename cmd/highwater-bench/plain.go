package main

import (
	"context"
	"encoding/json"
	"fmt"
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
	server *server.Server // nil if it is somebody else's
	nc     *nats.Conn
	js     jetstream.JetStream
}

// newPlain starts a server on a folder, in which streams belong to an account; "" is the account of who names none.
func newPlain(dir, account string) (*plainServer, error) {
	o := &server.Options{}
	if account != "" {
		err := o.ProcessConfigString("accounts { " + account + " { jetstream: enabled, users: [{user: bench, password: bench}] } }\nno_auth_user: bench")
		if err != nil {
			return nil, err
		}
	}
	o.Host, o.Port, o.JetStream, o.StoreDir, o.SyncAlways, o.NoSigs, o.NoLog, o.MaxPayload = "127.0.0.1", -1, true, dir, true, true, true, 8<<20
	s, err := server.NewServer(o)
	if err != nil {
		return nil, err
	}
	s.Start()
	p := &plainServer{server: s}
	if !s.ReadyForConnections(10 * time.Second) {
		p.stop()
		return nil, fmt.Errorf("the plain server does not become ready")
	}
	return p, nil
}

func startPlain(ctx context.Context, dir string) (*plainServer, error) {
	p, err := startPlainIn(dir, "")
	if err != nil {
		return nil, err
	}
	if _, err = p.js.CreateStream(ctx, jetstream.StreamConfig{Name: "PLAIN", Subjects: []string{"plain.log"}, Storage: jetstream.FileStorage}); err != nil {
		p.stop()
		return nil, err
	}
	return p, nil
}

// plainBeside is what the journal of a cluster is compared with: a stream with as many replicas on the same servers, or one
// server of its own where the cluster is in this process.
func plainBeside(ctx context.Context, c *cluster, dir string) (*plainServer, error) {
	if c.processes == nil {
		return startPlain(ctx, dir)
	}
	nc, err := c.connect(ctx, "bench-plain")
	if err != nil {
		return nil, err
	}
	p := &plainServer{nc: nc}
	if p.js, err = jetstream.New(nc); err == nil {
		err = addPlainStream(ctx, nc, len(c.processes.all))
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
	if p.server == nil {
		return
	}
	p.server.Shutdown()
	p.server.WaitForShutdown()
}

// recordsPerEntry and bytesPerEntry are what the journal puts into one entry at most.
const (
	recordsPerEntry = 4000
	bytesPerEntry   = 512 << 10
)

// commit publishes the records as the journal would, one entry after the other.
func (p *plainServer) commit(ctx context.Context, records []*pb.Record) error {
	for len(records) > 0 {
		n := 0
		for size := 0; n < min(len(records), recordsPerEntry); n++ {
			if size += proto.Size(records[n]) + 4; size > bytesPerEntry && n > 0 {
				break
			}
		}
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

func recordOf(a *pb.Assignment) *pb.Record {
	id, _ := messages.ParseTopicID(a.GetTopicId()) // read before
	return messages.RecordToProto(&messages.Partition{ID: messages.PartitionID{Topic: id, Index: a.GetPartition()},
		Replicas: messages.BrokerIDs(a.GetReplicas()), ISR: messages.BrokerIDs(a.GetIsr()), Leader: messages.BrokerID(a.GetLeader()),
		LeaderEpoch: messages.LeaderEpoch(a.GetLeaderEpoch()), Epoch: messages.PartitionEpoch(a.GetPartitionEpoch()), MinISR: int(a.GetMinIsr()),
		HighWatermark: messages.Offset(a.GetFloor()), Reason: "the leader is fenced"})
}

// addPlainStream makes a stream beside the journal, on the same servers, with as many replicas and thus the same sync.
func addPlainStream(ctx context.Context, nc *nats.Conn, replicas int) error {
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	return within(ctx, 30*time.Second, "a plain stream", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		_, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: plainStream, Subjects: []string{"plain.log"}, Storage: jetstream.FileStorage, Replicas: replicas})
		return err
	})
}

// untilStored publishes to the plain stream until a message has been acknowledged that was sent after a moment, and returns
// how long after it that was. Of the tries, which overlap, the first counts.
func untilStored(ctx context.Context, nc *nats.Conn, began time.Time) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	stored := make(chan time.Duration, 1)
	every := time.NewTicker(probeEvery)
	defer every.Stop()
	for {
		go func() {
			m, err := nc.RequestWithContext(ctx, "plain.log", []byte("x"))
			var ack struct {
				Seq uint64 `json:"seq"`
			}
			if err == nil && json.Unmarshal(m.Data, &ack) == nil && ack.Seq > 0 {
				select {
				case stored <- time.Since(began):
				default:
				}
			}
		}()
		select {
		case took := <-stored:
			return took
		case <-ctx.Done():
			return time.Minute
		case <-every.C:
		}
	}
}
