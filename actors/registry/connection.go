package registry

import (
	"fmt"
	"slices"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// connection names a NATS connection; the zero value is an unknown one. No connection ever comes back after its end.
type connection struct {
	server string
	client uint64
}

func connectionOf(c *pb.Connection) connection {
	return connection{server: c.GetServerId(), client: c.GetClientId()}
}

// bind makes c the connection that a broker speaks through.
func (s *State) bind(ses *session, c connection) {
	if old := ses.speaks; old != (connection{}) {
		others := slices.DeleteFunc(s.spoken[old], func(b messages.BrokerID) bool { return b == ses.broker })
		if len(others) == 0 {
			delete(s.spoken, old)
		} else {
			s.spoken[old] = others
		}
	}
	ses.speaks = c
	if c != (connection{}) {
		s.spoken[c] = append(s.spoken[c], ses.broker)
	}
}

// maxEnded bounds the ended connections that are remembered; a message that was delayed for longer than so many ends is rare.
const maxEnded = 4096

// end remembers that a connection has ended.
func (s *State) end(c connection) {
	if s.ended[c] {
		return
	}
	if len(s.endedOrder) == maxEnded {
		delete(s.ended, s.endedOrder[0])
		s.endedOrder = s.endedOrder[1:]
	}
	s.ended[c] = true
	s.endedOrder = append(s.endedOrder, c)
}

// hear notes contact over a connection. It returns false for a message that was sent before the reported end of its
// connection: it says nothing about now. One that was delayed from before a reconnect is contact, but no news of where the
// broker speaks from.
func (t *step) hear(ses *session, over connection) bool {
	unknown := over == connection{}
	known := !unknown && (over == ses.speaks || over == ses.spoke)
	switch {
	case known && ses.gone && (over == ses.speaks || t.state.ended[over]):
		return false
	case (!known || ses.gone) && (!unknown || ses.gone): // that before may be the newer one, if what was sent over it came first
		ses.spoke = ses.speaks
		t.state.bind(ses, over)
		ses.gone = false
	}
	t.touch(ses, t.env.Now)
	return true
}

// disconnected starts the grace of every broker that spoke through a connection, if it was cut off. The end of a connection
// that the server closed by itself says nothing about the process, except for one that was told that it may stop.
func (t *step) disconnected(d actors.Disconnected) {
	c := connectionOf(d.Connection)
	t.state.end(c)
	for _, b := range slices.Sorted(slices.Values(t.state.spoken[c])) {
		ses, rec := t.state.sessions[b], t.brokers[b]
		if rec == nil || !ses.live || ses.gone || !d.Abrupt && !ses.mayStop {
			continue
		}
		ses.gone, ses.lost = true, d.Reason
		t.armGrace(ses, rec)
	}
}

func (t *step) armGrace(ses *session, rec *messages.Broker) {
	grace := max(t.settings.DisconnectGrace, 0)
	ses.graceDue = t.env.Now + grace
	t.fx.Wakes = append(t.fx.Wakes, actors.Wake{After: grace, Msg: actors.GraceEnded{
		Broker: ses.broker, Epoch: rec.Epoch,
		Connection: &pb.Connection{ServerId: ses.speaks.server, ClientId: ses.speaks.client},
	}})
}

// graceEnded gives up a broker that did not come back over another connection.
func (t *step) graceEnded(g actors.GraceEnded) {
	ses, rec := t.state.sessions[g.Broker], t.brokers[g.Broker]
	if ses == nil || rec == nil || rec.Epoch != g.Epoch || !ses.live || !ses.gone || ses.speaks != connectionOf(g.Connection) {
		return
	}
	if t.env.Now-ses.graceDue > t.settings.Session/2 || t.doubt() != nil {
		// This process was not running, and the broker's heartbeat may stand in the queue behind this message; or nothing may
		// be decided.
		t.armGrace(ses, rec)
		return
	}
	reason := fmt.Sprintf("connection closed (%s) and not back within %v", ses.lost, t.settings.DisconnectGrace)
	if ses.mayStop {
		reason = reasonStopped
	}
	t.giveUp(ses, reason)
}
