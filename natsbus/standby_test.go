package natsbus

import (
	"context"
	"testing"
	"time"

	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/messages"
)

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
