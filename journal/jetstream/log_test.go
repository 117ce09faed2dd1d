package jetstream

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"

	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/journal/journaltest"
	"github.com/highwater-io/highwater/messages"
)

// startServer starts a server that syncs every write, reached in process only.
func startServer(t testing.TB, dir string) *server.Server {
	t.Helper()
	s, err := server.NewServer(&server.Options{ServerName: "n1", DontListen: true, JetStream: true, StoreDir: dir,
		SyncAlways: true, NoSigs: true, NoLog: true, MaxPayload: 8 << 20})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(20 * time.Second) {
		t.Fatal("the server does not start")
	}
	return s
}

func connect(t testing.TB, s *server.Server) js.JetStream {
	t.Helper()
	nc, err := nats.Connect("", nats.InProcessServer(s), nats.ReconnectBufSize(-1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	client, err := js.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func ensure(t testing.TB, client js.JetStream, cluster messages.ClusterName) *Log {
	t.Helper()
	log, err := Ensure(t.Context(), client, cluster, 1)
	if err != nil {
		t.Fatal(err)
	}
	return log
}

func TestJetStreamPassesTheSuite(t *testing.T) {
	client := connect(t, startServer(t, t.TempDir()))
	clusters := 0
	for name, short := range map[string]uint64{"entry by entry": shortReplay, "by a consumer": 0} {
		t.Run("read "+name, func(t *testing.T) {
			journaltest.Run(t, func(t *testing.T) journal.Log {
				clusters++
				log := ensure(t, client, messages.ClusterName(fmt.Sprintf("suite-%d", clusters)))
				log.short = short
				return log
			})
		})
	}
}
