package registry

import (
	"fmt"
	"maps"
	"unicode/utf8"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// identify reads what a broker says of itself into a record without epoch and flags. It refuses whatever is not well formed.
func (t *step) identify(r *pb.RegisterRequest) (*messages.Broker, *messages.Error) {
	b := &messages.Broker{
		ID: messages.BrokerID(r.GetBroker()), Incarnation: messages.IncarnationID(r.GetIncarnation()),
		Storage: messages.StorageID(r.GetStorage()), Endpoints: maps.Clone(r.GetEndpoints()), Weight: int(r.GetWeight()),
		Fsyncs: r.GetFsyncs(), Host: r.GetHost(), PID: r.GetPid(), Version: r.GetVersion(),
		Speaks: messages.VersionRange{Min: messages.Version(r.GetMinProtocol()), Max: messages.Version(r.GetMaxProtocol())},
	}
	for _, err := range []error{b.ID.Validate(), b.Incarnation.Validate(), b.Storage.Validate()} {
		if err != nil {
			return nil, messages.AsError(err)
		}
	}
	if err := t.checkProtocol(r.GetMinProtocol(), r.GetMaxProtocol()); err != nil {
		return nil, err
	}
	if id := r.GetClusterId(); id != "" && id != t.cluster.ID {
		return nil, messages.Errorf(messages.CodeClusterMismatch,
			"the broker's data folder belongs to cluster %.80q, this is cluster %q (%s)",
			id, t.cluster.ID, t.cluster.Name)
	}
	rack, err := messages.ParseRackPath(r.GetRack())
	if err != nil {
		return nil, messages.AsError(err)
	}
	b.Rack = rack
	if b.Weight == 0 {
		b.Weight = defaultWeight
	}
	if r.GetWeight() > maxWeight {
		return nil, invalid("the weight is %d, allowed are 1 to %d", r.GetWeight(), maxWeight)
	}
	return b, checkDetails(r)
}

func checkDetails(r *pb.RegisterRequest) *messages.Error {
	if n := len(r.GetEndpoints()); n > maxEndpoints {
		return invalid("the broker names %d endpoints, the limit is %d", n, maxEndpoints)
	}
	for name, address := range r.GetEndpoints() {
		if err := checkText("endpoint name", name, 1, maxEndpointName); err != nil {
			return err
		}
		if err := checkText("endpoint", address, 1, maxEndpoint); err != nil {
			return err
		}
	}
	if err := checkText("host", r.GetHost(), 0, maxHost); err != nil {
		return err
	}
	if err := checkText("version", r.GetVersion(), 0, maxVersion); err != nil {
		return err
	}
	if r.GetPid() < 0 {
		return invalid("the pid is %d", r.GetPid())
	}
	return checkConnection(r.GetConnection())
}

func checkConnection(c *pb.Connection) *messages.Error {
	if n := len(c.GetServerId()); n > maxServerID {
		return invalid("the server id of the connection has %d bytes, the limit is %d", n, maxServerID)
	}
	return nil
}

// checkText refuses what is too short or long in bytes, is not UTF-8, or has control characters.
func checkText(what, s string, low, high int) *messages.Error {
	if len(s) < low || len(s) > high {
		return invalid("the %s has %d bytes, allowed are %d to %d", what, len(s), low, high)
	}
	if !utf8.ValidString(s) {
		return invalid("the %s is not UTF-8", what)
	}
	for _, c := range s {
		if c < ' ' || c == 0x7f {
			return invalid("the %s has the control character %q", what, c)
		}
	}
	return nil
}

func invalid(format string, args ...any) *messages.Error {
	return &messages.Error{Code: messages.CodeInvalidRequest, Message: fmt.Sprintf(format, args...)}
}
