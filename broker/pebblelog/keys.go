package pebblelog

import (
	"encoding/binary"

	"github.com/highwater-io/highwater/messages"
)

const (
	kindIdentity = 'i'
	kindSeen     = 's'
	kindReplica  = 'r'
	kindMark     = 'h'
	kindEpoch    = 'e'
	kindProducer = 'p'
	kindData     = 'd'
)

const partitionKeyLen = 1 + 16 + 4

func partitionKey(kind byte, p messages.PartitionID) []byte {
	k := make([]byte, partitionKeyLen, partitionKeyLen+8)
	k[0] = kind
	copy(k[1:], p.Topic[:])
	binary.BigEndian.PutUint32(k[17:], uint32(p.Index))
	return k
}

func numberedKey(kind byte, p messages.PartitionID, n uint64) []byte {
	return binary.BigEndian.AppendUint64(partitionKey(kind, p), n)
}

// afterPartition is the first key behind all keys of a kind and partition.
func afterPartition(kind byte, p messages.PartitionID) []byte {
	k := partitionKey(kind, p)
	for i := len(k) - 1; i >= 0; i-- {
		k[i]++
		if k[i] != 0 {
			return k[:i+1]
		}
	}
	return nil
}

func partitionOf(key []byte) messages.PartitionID {
	var p messages.PartitionID
	copy(p.Topic[:], key[1:17])
	p.Index = int32(binary.BigEndian.Uint32(key[17:21]))
	return p
}

func numberOf(key []byte) uint64 { return binary.BigEndian.Uint64(key[partitionKeyLen:]) }
