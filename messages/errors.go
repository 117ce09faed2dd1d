package messages

import (
	"errors"
	"fmt"
	"strings"

	"github.com/highwater-io/highwater/messages/highwaterpb"
)

// Code is an error code of the wire. The set is closed; Codes explains each.
type Code string

// The error codes.
const (
	CodeInvalidRequest           Code = "INVALID_REQUEST"
	CodeInvalidName              Code = "INVALID_NAME"
	CodeInvalidRack              Code = "INVALID_RACK"
	CodeInvalidPartitions        Code = "INVALID_PARTITIONS"
	CodeInvalidReplicationFactor Code = "INVALID_REPLICATION_FACTOR"
	CodeInvalidMinISR            Code = "INVALID_MIN_ISR"
	CodeInvalidAssignment        Code = "INVALID_REPLICA_ASSIGNMENT"
	CodeTopicExists              Code = "TOPIC_ALREADY_EXISTS"
	CodeUnknownTopic             Code = "UNKNOWN_TOPIC"
	CodeUnknownTopicID           Code = "UNKNOWN_TOPIC_ID"
	CodeUnknownPartition         Code = "UNKNOWN_PARTITION"
	CodeUnknownBroker            Code = "UNKNOWN_BROKER"
	CodeClusterMismatch          Code = "CLUSTER_MISMATCH"
	CodeBrokerIDInUse            Code = "BROKER_ID_IN_USE"
	CodeUnsupportedVersion       Code = "UNSUPPORTED_VERSION"
	CodeUpgradeBlocked           Code = "UPGRADE_BLOCKED"
	CodeBrokerNotEmpty           Code = "BROKER_NOT_EMPTY"
	CodeStaleBrokerEpoch         Code = "STALE_BROKER_EPOCH"
	CodeNotActiveController      Code = "NOT_ACTIVE_CONTROLLER"
	CodeStoreWentBack            Code = "STORE_WENT_BACK"
	CodeFencedLeaderEpoch        Code = "FENCED_LEADER_EPOCH"
	CodeUnknownLeaderEpoch       Code = "UNKNOWN_LEADER_EPOCH"
	CodeNotLeader                Code = "NOT_LEADER"
	CodeStalePartitionEpoch      Code = "STALE_PARTITION_EPOCH"
	CodeIneligibleReplica        Code = "INELIGIBLE_REPLICA"
	CodeBrokerFenced             Code = "BROKER_FENCED"
	CodeNotEnoughReplicas        Code = "NOT_ENOUGH_REPLICAS"
	CodeOutcomeUnknown           Code = "OUTCOME_UNKNOWN"
	CodeOutOfOrderSequence       Code = "OUT_OF_ORDER_SEQUENCE"
	CodeUnknownProducer          Code = "UNKNOWN_PRODUCER"
	CodeOffsetOutOfRange         Code = "OFFSET_OUT_OF_RANGE"
	CodeCorruptBatch             Code = "CORRUPT_BATCH"
	CodeNoLease                  Code = "NO_LEASE"
	CodeStorageFailed            Code = "STORAGE_FAILED"
	CodeUnknownSession           Code = "UNKNOWN_FETCH_SESSION"
	CodeTooLarge                 Code = "TOO_LARGE"
	CodeBusy                     Code = "BUSY"
	CodeUnavailable              Code = "UNAVAILABLE"
	CodeDenied                   Code = "DENIED"
	CodeInternal                 Code = "INTERNAL"
)

// CodeInfo explains an error code.
type CodeInfo struct {
	Code      Code   `json:"code"`
	Retryable bool   `json:"retryable"`
	Meaning   string `json:"meaning"`
	Remedy    string `json:"remedy"`
}

// Codes is the table of every code, in the order of the constants.
var Codes = []CodeInfo{
	{CodeInvalidRequest, false, "the request cannot be read or contradicts itself", "correct the request; the message says what is wrong"},
	{CodeInvalidName, false, "a name is empty, too long, or has bytes that are not allowed", "topics: 1-249 of [A-Za-z0-9._-]; brokers: 1-64 of [A-Za-z0-9_-]"},
	{CodeInvalidRack, false, "a rack label cannot be read", "use levels of [A-Za-z0-9._-] with '/' between them, at most 8"},
	{CodeInvalidPartitions, false, "the number of partitions is out of bounds", "ask for 1 up to the cluster's limit"},
	{CodeInvalidReplicationFactor, false, "the replication factor is out of bounds or more than the live brokers", "lower it, or start more brokers"},
	{CodeInvalidMinISR, false, "min ISR is out of bounds or above the replication factor", "choose 1 up to the replication factor"},
	{CodeInvalidAssignment, false, "a manual assignment is incomplete or names brokers that cannot take it", "name distinct, registered brokers, the same number for each partition"},
	{CodeTopicExists, false, "a topic has this name", "use it, delete it first, or choose another name"},
	{CodeUnknownTopic, false, "no topic has this name", "see `highwater topic list`"},
	{CodeUnknownTopicID, false, "no topic has this id; it may have been deleted and made again", "read the topic's current id"},
	{CodeUnknownPartition, false, "the topic has no such partition", "see `highwater topic describe`"},
	{CodeUnknownBroker, false, "no broker is registered under this id", "see `highwater broker list`"},
	{CodeClusterMismatch, false, "the data folder or the request belongs to another cluster or broker", "point the broker to its own cluster and data folder"},
	{CodeBrokerIDInUse, true, "another live process holds this broker id", "stop it, or wait until its session has ended"},
	{CodeUnsupportedVersion, false, "a build is too old, or too new, for what it is to read or to speak with", "upgrade the older side; both ranges are in the message"},
	{CodeUpgradeBlocked, false, "a version cannot be finalized while somebody does not know it", "see `highwater cluster upgrade status`"},
	{CodeBrokerNotEmpty, false, "the broker has replicas, so it cannot be forgotten", "delete the topics or bring the broker back; see `highwater partition list --broker`"},
	{CodeStaleBrokerEpoch, false, "a newer registration of this broker exists, or this one has ended", "register again"},
	{CodeNotActiveController, true, "the request knows of newer state than this controller, or the controller is not active", "ask again; another controller may answer"},
	{CodeStoreWentBack, true, "brokers know more than the journal holds, or it is damaged: nothing is decided, nothing is deleted", "restore the newest journal, or see `highwater cluster recover --help`"},
	{CodeFencedLeaderEpoch, false, "the leader epoch is older than the current one", "wait for the new assignment or leadership"},
	{CodeUnknownLeaderEpoch, true, "the leader epoch is newer than this replica knows", "ask again shortly"},
	{CodeNotLeader, true, "this broker does not lead the partition", "follow the leadership subject"},
	{CodeStalePartitionEpoch, true, "the partition has changed since; the current state comes with the answer", "adopt the current state and propose again"},
	{CodeIneligibleReplica, true, "a proposed ISR member is fenced, stopping, or registered anew", "propose again without it"},
	{CodeBrokerFenced, true, "the broker is fenced and may not serve", "wait until it has caught up and is unfenced"},
	{CodeNotEnoughReplicas, true, "fewer replicas are in sync than min ISR asks for; nothing was appended", "bring replicas back; see `highwater partition describe`"},
	{CodeOutcomeUnknown, true, "the commit was not seen in time; the records may or may not be committed", "send the same batch again; it is stored once"},
	{CodeOutOfOrderSequence, true, "a batch of this producer before this one is missing", "send the missing batch first"},
	{CodeUnknownProducer, false, "the log has no memory of this producer and the batch is not its first", "start again with a new producer id"},
	{CodeOffsetOutOfRange, false, "the offset is below the log's start or above its end", "read from an offset within the range in the message"},
	{CodeCorruptBatch, false, "a batch fails its checksum", "read from another replica; see the broker's log"},
	{CodeNoLease, true, "the leader holds no valid lease for this kind of request", "ask again, or use acks=all"},
	{CodeStorageFailed, false, "the broker's storage refuses work", "see the broker's log; replace the disk"},
	{CodeUnknownSession, true, "the fetch session is not known any more", "open a new session"},
	{CodeTooLarge, false, "the request or record is larger than the limit", "split it; the limit is in the message"},
	{CodeBusy, true, "too much is waiting already", "ask again after retry_after_ms"},
	{CodeUnavailable, true, "the store cannot be written at the moment", "ask again; see `highwater cluster health`"},
	{CodeDenied, false, "the principal may not do this", "ask an operator for the right"},
	{CodeInternal, true, "a fault in Highwater; nothing was changed", "report it with the log lines around it"},
}

var codeIndex = func() map[Code]CodeInfo {
	m := make(map[Code]CodeInfo, len(Codes))
	for _, c := range Codes {
		m[c.Code] = c
	}
	return m
}()

// Info returns the explanation of a code and whether the code is known.
func (c Code) Info() (CodeInfo, bool) {
	i, ok := codeIndex[c]
	return i, ok
}

// Error is a coded error, the same on the wire and in Go. errors.Is compares the codes.
type Error struct {
	Code         Code
	Message      string
	Hint         string
	RetryAfterMs uint32
}

// Errorf makes a coded error.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// WithHint returns a copy that says what to do.
func (e *Error) WithHint(format string, args ...any) *Error {
	c := *e
	c.Hint = fmt.Sprintf(format, args...)
	return &c
}

// Error returns code and message.
func (e *Error) Error() string { return string(e.Code) + ": " + e.Message }

// Is reports whether target is a coded error with the same code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}

// Retryable reports whether the same request may succeed later.
func (e *Error) Retryable() bool { return codeIndex[e.Code].Retryable }

// Proto returns the error for a wire message; nil for nil.
func (e *Error) Proto() *highwaterpb.Error {
	if e == nil {
		return nil
	}
	hint := e.Hint
	if hint == "" {
		hint = codeIndex[e.Code].Remedy
	}
	// A text that quotes what a stranger sent may hold anything; a message with bytes that are no UTF-8 could not be written.
	message, said := strings.ToValidUTF8(e.Message, "?"), strings.ToValidUTF8(hint, "?")
	return &highwaterpb.Error{Code: string(e.Code), Message: message, Hint: said, Retryable: e.Retryable(), RetryAfterMs: e.RetryAfterMs}
}

// ErrorFromProto returns the error of a wire message, nil if it has none.
func ErrorFromProto(p *highwaterpb.Error) *Error {
	if p == nil {
		return nil
	}
	return &Error{Code: Code(p.Code), Message: p.Message, Hint: p.Hint, RetryAfterMs: p.RetryAfterMs}
}

// AsError returns err as a coded error; one without a code becomes INTERNAL.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return Errorf(CodeInternal, "%v", err)
}

// CodeOf returns the code of err, "" for nil and INTERNAL for one without a code.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	return AsError(err).Code
}
