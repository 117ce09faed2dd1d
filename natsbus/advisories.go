package natsbus

import (
	"encoding/json"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// disconnectSubject is where a NATS server says in its system account that a client connection has ended.
const disconnectSubject = "$SYS.ACCOUNT.*.DISCONNECT"

// disconnectNotice is what the edge reads of such a notice.
type disconnectNotice struct {
	Server struct {
		ID string `json:"id"`
	} `json:"server"`
	Client struct {
		ID   uint64 `json:"id"`
		Kind string `json:"kind"`
	} `json:"client"`
	Reason string `json:"reason"`
}

// abruptReasons are the reasons for which the other side is gone, or its network: end of file ("Client Closed"), a reset
// while reading, a broken pipe while writing. Every other reason is the server's own doing (stale, slow, kicked, expired,
// lame duck, shutdown, a protocol error): the process behind the connection may be well and come again.
var abruptReasons = map[string]bool{"Client Closed": true, "Read Error": true, "Write Error": true}

// disconnected passes the end of a client connection on to the registry.
func (e *Edge) disconnected(m *nats.Msg) {
	var n disconnectNotice
	if err := json.Unmarshal(m.Data, &n); err != nil || n.Server.ID == "" || n.Client.ID == 0 {
		e.cfg.Logger.Warn().Err(err).Str("subject", clip(m.Subject, 200)).Msg("system event cannot be read")
		return
	}
	if n.Client.Kind != "" && n.Client.Kind != "Client" {
		return
	}
	msg := actors.Disconnected{
		Connection: &pb.Connection{ServerId: n.Server.ID, ClientId: n.Client.ID},
		Abrupt:     abruptReasons[n.Reason], Reason: clip(n.Reason, 200),
	}
	if err := e.tree.Tell(actors.Registry, msg); err != nil {
		e.cfg.Logger.Warn().Err(err).Uint64("client", n.Client.ID).Msg("end of a connection not passed on; the session will end it")
	}
}

// heard remembers when the last heartbeat of each registered broker came in.
type heard struct {
	mu   sync.Mutex
	last map[messages.BrokerID]time.Time
}

func newHeard() *heard { return &heard{last: map[messages.BrokerID]time.Time{}} }

func (h *heard) from(b messages.BrokerID, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last[b] = now
}

// age returns the age of a broker's last heartbeat in milliseconds, nil if this controller has heard none.
func (h *heard) age(b messages.BrokerID, now time.Time) *int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	at, ok := h.last[b]
	if !ok {
		return nil
	}
	ms := now.Sub(at).Milliseconds()
	return &ms
}
