package journal

import (
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/highwater-io/highwater/messages"
)

// Numbers of the fields on the way to a partition's record, and in it.
const (
	fieldPartition      protowire.Number = 5 // of Record
	partitionTopicID    protowire.Number = 1 // of PartitionRecord, and so on
	partitionIndex      protowire.Number = 2
	partitionReplicas   protowire.Number = 3
	partitionISR        protowire.Number = 4
	partitionEligible   protowire.Number = 5
	partitionLeader     protowire.Number = 6
	partitionLeaderEp   protowire.Number = 7
	partitionEpoch      protowire.Number = 8
	partitionMinISR     protowire.Number = 9
	partitionLastLeader protowire.Number = 10
	partitionHWM        protowire.Number = 11
	partitionProven     protowire.Number = 12
	partitionReason     protowire.Number = 13
)

// appendPartition writes a partition's record with its tag in the body, byte for byte as the protobuf library does. Nearly all
// records are partitions, and one broker's death makes thousands of them; without the detour over a message and reflection
// they cost half. It reports false, and writes nothing, for a text that is not UTF-8, which the library refuses, and for one with fields
// that are not known.
func appendPartition(out []byte, p *messages.Partition) ([]byte, bool) {
	if p.Unknown != nil || !utf8.ValidString(p.Reason) || !utf8.ValidString(string(p.Leader)) || !utf8.ValidString(string(p.LastLeader)) ||
		!validNames(p.Replicas) || !validNames(p.ISR) || !validNames(p.Eligible) {
		return out, false
	}
	size := sizeOfPartition(p)
	out = protowire.AppendTag(out, fieldRecords, protowire.BytesType)
	out = protowire.AppendVarint(out, uint64(protowire.SizeTag(fieldPartition)+protowire.SizeBytes(size)))
	out = protowire.AppendTag(out, fieldPartition, protowire.BytesType)
	out = protowire.AppendVarint(out, uint64(size))
	out = protowire.AppendTag(out, partitionTopicID, protowire.BytesType)
	out = protowire.AppendBytes(out, p.ID.Topic[:])
	out = appendNumber(out, partitionIndex, uint64(p.ID.Index))
	out = appendNames(out, partitionReplicas, p.Replicas)
	out = appendNames(out, partitionISR, p.ISR)
	out = appendNames(out, partitionEligible, p.Eligible)
	out = appendText(out, partitionLeader, string(p.Leader))
	out = appendNumber(out, partitionLeaderEp, uint64(p.LeaderEpoch))
	out = appendNumber(out, partitionEpoch, uint64(p.Epoch))
	out = appendNumber(out, partitionMinISR, uint64(uint32(p.MinISR)))
	out = appendText(out, partitionLastLeader, string(p.LastLeader))
	out = appendNumber(out, partitionHWM, uint64(p.HighWatermark))
	out = appendNumber(out, partitionProven, protowire.EncodeBool(p.LeaderProven))
	return appendText(out, partitionReason, p.Reason), true
}

func sizeOfPartition(p *messages.Partition) int {
	return protowire.SizeTag(partitionTopicID) + protowire.SizeBytes(len(p.ID.Topic)) +
		sizeOfNumber(partitionIndex, uint64(p.ID.Index)) +
		sizeOfNames(partitionReplicas, p.Replicas) + sizeOfNames(partitionISR, p.ISR) + sizeOfNames(partitionEligible, p.Eligible) +
		sizeOfText(partitionLeader, string(p.Leader)) + sizeOfNumber(partitionLeaderEp, uint64(p.LeaderEpoch)) +
		sizeOfNumber(partitionEpoch, uint64(p.Epoch)) + sizeOfNumber(partitionMinISR, uint64(uint32(p.MinISR))) +
		sizeOfText(partitionLastLeader, string(p.LastLeader)) + sizeOfNumber(partitionHWM, uint64(p.HighWatermark)) +
		sizeOfNumber(partitionProven, protowire.EncodeBool(p.LeaderProven)) + sizeOfText(partitionReason, p.Reason)
}

func validNames(ids []messages.BrokerID) bool {
	for _, b := range ids {
		if !utf8.ValidString(string(b)) {
			return false
		}
	}
	return true
}

// appendNumber and appendText leave out what is zero or empty, as proto3 does; appendNames leaves out nothing.
func appendNumber(out []byte, n protowire.Number, v uint64) []byte {
	if v == 0 {
		return out
	}
	return protowire.AppendVarint(protowire.AppendTag(out, n, protowire.VarintType), v)
}

func appendText(out []byte, n protowire.Number, s string) []byte {
	if s == "" {
		return out
	}
	return protowire.AppendString(protowire.AppendTag(out, n, protowire.BytesType), s)
}

func appendNames(out []byte, n protowire.Number, ids []messages.BrokerID) []byte {
	for _, b := range ids {
		out = protowire.AppendString(protowire.AppendTag(out, n, protowire.BytesType), string(b))
	}
	return out
}

func sizeOfNumber(n protowire.Number, v uint64) int {
	if v == 0 {
		return 0
	}
	return protowire.SizeTag(n) + protowire.SizeVarint(v)
}

func sizeOfText(n protowire.Number, s string) int {
	if s == "" {
		return 0
	}
	return protowire.SizeTag(n) + protowire.SizeBytes(len(s))
}

func sizeOfNames(n protowire.Number, ids []messages.BrokerID) int {
	size := 0
	for _, b := range ids {
		size += protowire.SizeTag(n) + protowire.SizeBytes(len(b))
	}
	return size
}
