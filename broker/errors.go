package broker

import (
	"errors"

	"github.com/highwater-io/highwater/messages"
)

// Errors to test for with errors.Is. Each error that comes from the wire carries its messages.Error besides.
var (
	// ErrFenced: the broker is fenced; it may not act until a heartbeat says otherwise.
	ErrFenced = errors.New("broker is fenced")
	// ErrStaleEpoch: the registration, leadership or partition state that the request was made under has been replaced.
	ErrStaleEpoch = errors.New("epoch is stale")
	// ErrNotLeader: this broker does not lead the partition (any more).
	ErrNotLeader = errors.New("not the leader")
	// ErrClusterMismatch: the broker or its data folder belongs to another cluster or broker.
	ErrClusterMismatch = errors.New("another cluster or broker")
	// ErrDenied: the principal may not do this.
	ErrDenied = errors.New("denied")
	// ErrIncompatible: there is no protocol version in common.
	ErrIncompatible = errors.New("no common protocol version")
	// ErrBrokerIDInUse: another live process holds the broker id.
	ErrBrokerIDInUse = errors.New("broker id is in use")
	// ErrClosed: the member or server has been stopped.
	ErrClosed = errors.New("closed")
)

var sentinels = map[messages.Code]error{
	messages.CodeBrokerFenced:        ErrFenced,
	messages.CodeStaleBrokerEpoch:    ErrStaleEpoch,
	messages.CodeFencedLeaderEpoch:   ErrStaleEpoch,
	messages.CodeStalePartitionEpoch: ErrStaleEpoch,
	messages.CodeNotLeader:           ErrNotLeader,
	messages.CodeClusterMismatch:     ErrClusterMismatch,
	messages.CodeDenied:              ErrDenied,
	messages.CodeUnsupportedVersion:  ErrIncompatible,
	messages.CodeBrokerIDInUse:       ErrBrokerIDInUse,
}

// codedError is a coded error that is also one of the sentinels.
type codedError struct {
	sentinel error
	coded    *messages.Error
}

func (e *codedError) Error() string   { return e.coded.Error() }
func (e *codedError) Unwrap() []error { return []error{e.sentinel, e.coded} }

// withSentinel makes a coded error recognisable by errors.Is; nil for nil.
func withSentinel(e *messages.Error) error {
	if e == nil {
		return nil
	}
	if s, ok := sentinels[e.Code]; ok {
		return &codedError{sentinel: s, coded: e}
	}
	return e
}
