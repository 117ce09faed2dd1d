package registry

import (
	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// known returns the versions that this controller knows.
func (m Machine) known() messages.VersionRange {
	if m.Known == (messages.VersionRange{}) {
		return messages.Known()
	}
	return m.Known
}

// checkProtocol refuses a broker that does not speak the cluster's version.
func (t *step) checkProtocol(low, high uint32) *messages.Error {
	at := t.cluster.FinalizedVersion()
	if low <= uint32(at) && high >= uint32(at) {
		return nil
	}
	older := "the broker"
	if low > uint32(at) {
		older = "the cluster (`highwater cluster upgrade status`)"
	}
	return messages.Errorf(messages.CodeUnsupportedVersion, "the broker speaks protocol versions %d to %d, the cluster is at version %d, "+
		"and this controller knows versions %d to %d", low, high, at, t.known.Min, t.known.Max).WithHint("upgrade %s", older)
}

// finalize raises the version of the cluster, once everybody knows it. It cannot be taken back: what is written in the forms
// of a version can be read by nobody who does not know it.
func (t *step) finalize(m actors.FinalizeUpgrade) *pb.FinalizeUpgradeResponse {
	from := t.cluster.FinalizedVersion()
	to := messages.Version(m.Body.GetVersion())
	out := &pb.FinalizeUpgradeResponse{From: uint32(from), To: uint32(to), Revision: uint64(t.env.Applied)}
	fail := func(err *messages.Error) *pb.FinalizeUpgradeResponse { out.Error = err.Proto(); return out }
	switch {
	case to == 0:
		return fail(invalid("the request names no version").WithHint("`highwater cluster upgrade status` says which one could be finalized"))
	case to < from:
		return fail(invalid("version %d is finalized, and cannot be lowered to %d", from, to))
	case to > t.known.Max:
		return fail(messages.Errorf(messages.CodeUnsupportedVersion, "version %d is not known: this controller knows versions %d to %d",
			to, t.known.Min, t.known.Max).WithHint("start later builds of all controllers and brokers first"))
	case to == from:
		return out
	}
	if blockers := messages.UpgradeBlockers(to, t.brokers, m.Controllers); len(blockers) > 0 {
		for _, b := range blockers[:min(len(blockers), maxBlockers)] {
			out.Blockers = append(out.Blockers, &pb.UpgradeBlocker{Kind: b.Kind, Name: b.Name, MinVersion: uint32(b.Versions.Min),
				MaxVersion: uint32(b.Versions.Max), Release: b.Release, Detail: b.Detail})
		}
		return fail(messages.ErrUpgradeBlocked(to, blockers))
	}
	if m.Body.GetDryRun() {
		return out
	}
	if err := t.doubt(); err != nil {
		return fail(err)
	}
	c := *t.cluster
	c.Version = to
	t.record(&c)
	t.event(UpgradeFinalized{From: from, To: to})
	out.Revision = uint64(t.env.Applied) + 1
	return out
}

// forget ends the registration of a broker that is gone for good. One that may be alive, or that has replicas, stays.
func (t *step) forget(r *pb.ForgetBrokerRequest) (*pb.ForgetBrokerResponse, *messages.Error) {
	id := messages.BrokerID(r.GetName())
	if err := id.Validate(); err != nil {
		return nil, messages.AsError(err)
	}
	b := t.brokers[id]
	if b == nil {
		return nil, messages.Errorf(messages.CodeUnknownBroker, "no broker is registered as %s", id)
	}
	if !b.Fenced || t.alive(id) {
		return nil, errInUse(b)
	}
	if replicas, _ := t.env.Cluster.Load(id); replicas > 0 {
		return nil, messages.Errorf(messages.CodeBrokerNotEmpty, "broker %s has replicas of %d partitions", id, replicas)
	}
	out := &pb.ForgetBrokerResponse{Revision: uint64(t.env.Applied)}
	if r.GetDryRun() {
		return out, nil
	}
	if err := t.doubt(); err != nil {
		return nil, err
	}
	t.record(&messages.BrokerForgotten{ID: id})
	t.strikeEmpty(id)
	if ses := t.state.sessions[id]; ses != nil {
		ses.end()
		t.forgetSession(ses)
	}
	delete(t.state.claims, id)
	t.event(BrokerForgotten{Broker: id})
	out.Revision++
	return out, nil
}
