package natsbus

import (
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/highwater-io/highwater/actors"
)

// endOf waits for the word of the end of a connection.
func (r *rig) endOf(server string, client uint64) actors.Disconnected {
	r.t.Helper()
	var found actors.Disconnected
	eventually(r.t, "the end of a connection", func() bool {
		for _, m := range r.tree.messages() {
			d, ok := m.msg.(actors.Disconnected)
			if ok && d.Connection.ServerId == server && d.Connection.ClientId == client {
				if m.to != actors.Registry {
					r.t.Errorf("told to %+v", m.to)
				}
				found = d
				return true
			}
		}
		return false
	})
	return found
}

func identify(t *testing.T, nc *nats.Conn) (string, uint64) {
	t.Helper()
	id, err := nc.GetClientID()
	if err != nil {
		t.Fatal(err)
	}
	return nc.ConnectedServerId(), id
}

func TestAClosedConnectionIsAbruptAndAKickedOneIsNot(t *testing.T) {
	r := newRig(t, nil)
	closed, kicked := connect(t, r.server), connect(t, r.server, nats.NoReconnect())
	server, id := identify(t, closed)
	closed.Close()
	if d := r.endOf(server, id); !d.Abrupt {
		t.Errorf("closed by its process: %+v", d)
	}
	server, id = identify(t, kicked)
	if err := r.server.DisconnectClientByID(id); err != nil {
		t.Fatal(err)
	}
	if d := r.endOf(server, id); d.Abrupt || d.Reason == "" {
		t.Errorf("kicked by the server: %+v", d)
	}
}

func TestOnlyTheOtherSidesEndIsAbrupt(t *testing.T) {
	r := newRig(t, nil)
	for reason, abrupt := range map[string]bool{
		"Client Closed": true, "Read Error": true, "Write Error": true,
		"Stale Connection": false, "Slow Consumer (Pending Bytes)": false, "Slow Consumer (Write Deadline)": false,
		"Server Shutdown": false, "Authentication Expired": false, "Kicked": false, "Parse Error": false, "Unknown State": false, "": false,
	} {
		before := len(r.tree.messages())
		r.edge.disconnected(&nats.Msg{Data: []byte(`{"server":{"id":"S"},"client":{"id":7,"kind":"Client"},"reason":"` + reason + `"}`)})
		told := r.tree.messages()[before:]
		if len(told) != 1 || told[0].msg.(actors.Disconnected).Abrupt != abrupt {
			t.Errorf("%q: %+v", reason, told)
		}
	}
	before := len(r.tree.messages())
	for _, data := range []string{"", "{", "[]", `{"server":{"id":""},"client":{"id":7}}`, `{"server":{"id":"S"},"client":{"id":-1}}`,
		`{"server":{"id":"S"},"client":{"id":7,"kind":"Leafnode"},"reason":"Client Closed"}`} {
		r.edge.disconnected(&nats.Msg{Data: []byte(data)})
	}
	if n := len(r.tree.messages()) - before; n != 0 {
		t.Errorf("%d unreadable notices were passed on", n)
	}
}
