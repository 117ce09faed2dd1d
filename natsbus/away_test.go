package natsbus

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// While nothing can be stored, operators hear of it at once, and brokers are served as far as that goes.
func TestB121OperatorsAreRefusedAtOnceWhileNothingCanBeStored(t *testing.T) {
	var away atomic.Bool
	r := newRig(t, func(c *Config) {
		c.Problems = func() []messages.HealthReason {
			if away.Load() {
				return []messages.HealthReason{{Code: messages.ProblemStore, Count: 1, Detail: "the disk does not answer"}}
			}
			return nil
		}
	})
	r.catalog.Apply(1, []messages.Record{broker("b1", 5)})
	create := func() *messages.Error {
		answer := &pb.CreateTopicResponse{}
		r.ask("hw.dev.ctl.v1.op.topic.create", &pb.CreateTopicRequest{Name: "t", Partitions: 1}, answer)
		return messages.ErrorFromProto(answer.GetError())
	}
	if err := create(); err != nil {
		t.Errorf("all is well: %v", err)
	}
	away.Store(true)
	if err := create(); err == nil || err.Code != messages.CodeUnavailable || !err.Retryable() {
		t.Errorf("nothing can be stored: %v", err)
	}
	lease := &pb.HeartbeatResponse{}
	r.ask("hw.dev.brk.v1.b1.heartbeat", &pb.HeartbeatRequest{Broker: "b1"}, lease)
	if lease.GetError() != nil || lease.GetLeaseMs() == 0 {
		t.Errorf("a heartbeat: %v", lease)
	}
	away.Store(false)
	if err := create(); err != nil {
		t.Errorf("all is well again: %v", err)
	}
	r.settled()
}

// A process that is cut off stands by; that it cannot be asked at the moment is no reason to end.
func TestAStandbyOpensWithoutAConnection(t *testing.T) {
	s := startServer(t, 8<<20)
	nc := connect(t, s)
	s.Shutdown()
	eventually(t, "the connection to be gone", func() bool { return !nc.IsConnected() })
	e, err := New(t.Context(), Config{Conn: nc, Cluster: "dev", Controller: "c1", Catalog: journal.NewCatalog(),
		Standby: &Standby{Epoch: func() messages.ControllerEpoch { return 1 }, Age: func() (time.Duration, bool) { return 0, false }}})
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := e.OpenMonitor(short); err != nil {
		t.Errorf("a standby without a connection: %v", err)
	}
	if err := e.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
