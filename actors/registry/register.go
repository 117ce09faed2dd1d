package registry

import (
	"maps"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// register admits a broker, or says why not. The same incarnation again is amended and keeps its epoch; a new one gets a
// higher epoch and is fenced until it is ready.
func (t *step) register(principal string, r *pb.RegisterRequest) (*pb.RegisterResponse, *messages.Error) {
	if err := speaksFor(principal, r.GetBroker()); err != nil {
		return nil, err
	}
	b, err := t.identify(r)
	if err != nil {
		return nil, err
	}
	if err := t.ahead(b.ID, b.Incarnation, r.GetSeen(), 0); err != nil {
		return nil, err
	}
	if err := t.doubt(); err != nil {
		return nil, err
	}
	if err := t.checkStorage(b); err != nil {
		return nil, err
	}
	old, over := t.brokers[b.ID], connectionOf(r.GetConnection())
	switch {
	case old != nil && old.Incarnation == b.Incarnation && old.Storage != b.Storage:
		return nil, invalid("incarnation %s registered with storage %s and now names %s: a process keeps its storage",
			b.Incarnation, old.Storage, b.Storage)
	case old != nil && old.Incarnation == b.Incarnation:
		t.amend(old, b)
		t.hear(t.state.session(b.ID), over)
	case old != nil && t.alive(b.ID) && !closedInOrder(old, b, r.GetCleanEpoch()):
		return nil, errInUse(old)
	case old == nil && len(t.brokers) >= maxBrokers:
		return nil, messages.Errorf(messages.CodeTooLarge, "the cluster has %d brokers, the limit is %d",
			len(t.brokers), maxBrokers)
	default:
		t.admit(old, b, r.GetCleanEpoch())
		t.begin(b.ID, over)
	}
	return &pb.RegisterResponse{
		ClusterId: t.cluster.ID, BrokerEpoch: uint64(b.Epoch), Settings: messages.SettingsToProto(t.settings),
		Seen: t.seen(), Protocol: uint32(t.cluster.FinalizedVersion()),
	}, nil
}

// checkStorage refuses a storage that belongs to another broker: a data folder that was copied, or a broker that was
// started with another one's id.
func (t *step) checkStorage(b *messages.Broker) *messages.Error {
	for _, id := range sortedKeys(t.brokers) {
		if other := t.brokers[id]; id != b.ID && other.Storage == b.Storage {
			return messages.Errorf(messages.CodeClusterMismatch, "storage %s belongs to broker %s", b.Storage, id).
				WithHint("start the broker under the id of its data folder, or with an empty one")
		}
	}
	return nil
}

// amend takes over what a running incarnation says of itself now. What it is stays: epoch and flags. It may take back that
// its storage fsyncs, but not claim it for what was acknowledged before.
func (t *step) amend(old, b *messages.Broker) {
	b.Epoch, b.Fenced, b.Stopping, b.Draining = old.Epoch, old.Fenced, old.Stopping, old.Draining
	b.Suspect, b.FencedReason, b.Unknown = old.Suspect, old.FencedReason, old.Unknown
	b.Fsyncs = b.Fsyncs && old.Fsyncs
	same := b.Rack == old.Rack && b.Weight == old.Weight && b.Fsyncs == old.Fsyncs && b.Host == old.Host && b.PID == old.PID &&
		b.Version == old.Version && b.Speaks == old.Speaks && maps.Equal(b.Endpoints, old.Endpoints)
	if same {
		return
	}
	t.record(b)
	t.event(BrokerAmended{Broker: b.ID})
}

// admit registers a new incarnation. It can be trusted to hold what it acknowledged if its storage is the same and was
// either closed in order in the registration before, or has put everything on disk before it acknowledged.
func (t *step) admit(old, b *messages.Broker, cleanEpoch uint64) {
	b.Epoch = messages.BrokerEpoch(t.env.Applied) + 1
	b.Fenced, b.FencedReason = true, reasonRegistered
	empty, trusted := false, true
	if old == nil {
		// A forgotten id may still stand in the replicas of partitions.
		replicas, _ := t.env.Cluster.Load(b.ID)
		empty, trusted = replicas > 0, replicas == 0
	} else {
		b.Epoch = max(b.Epoch, old.Epoch+1)
		b.Draining, b.Unknown = old.Draining, old.Unknown
		empty = old.Storage != b.Storage
		trusted = !empty && (cleanEpoch == uint64(old.Epoch) || old.Fsyncs)
		b.Suspect = old.Suspect
	}
	b.Suspect = b.Suspect || !trusted
	t.record(b)
	if old != nil && empty {
		t.strikeEmpty(b.ID)
	}
	if b.Suspect {
		t.broadcast(b.ID, actors.BrokerRestarted{Broker: b.ID, Epoch: b.Epoch, Empty: empty})
	}
	if old != nil && !old.Fenced {
		t.broadcast(b.ID, actors.BrokerChanged{Broker: b.ID})
	}
	t.event(BrokerRegistered{Broker: b.ID, Epoch: b.Epoch, Incarnation: b.Incarnation, Known: old != nil, Trusted: trusted})
}

// closedInOrder reports whether the storage that a new incarnation brings was closed in order under the registration that
// is in force. Its mark is written last of all, after the lease was given up, so the incarnation that wrote it is no holder of
// the id any more, whatever its session says: the controller may have ended before it could fence it.
func closedInOrder(old, b *messages.Broker, cleanEpoch uint64) bool {
	return old.Storage == b.Storage && cleanEpoch != 0 && cleanEpoch == uint64(old.Epoch)
}

// begin starts the session of a new incarnation.
func (t *step) begin(b messages.BrokerID, over connection) {
	ses := t.state.session(b)
	ses.end()
	ses.spoke, ses.gone = connection{}, false
	t.state.bind(ses, over)
	t.touch(ses, t.env.Now)
}

func errInUse(holder *messages.Broker) *messages.Error {
	return messages.Errorf(messages.CodeBrokerIDInUse,
		"broker id %s is held by incarnation %s, pid %d on host %q, whose session is valid",
		holder.ID, holder.Incarnation, holder.PID, holder.Host).
		WithHint("stop that process, or give this broker an id of its own; a dead holder's session ends by itself")
}
