package replica

import "github.com/highwater-io/highwater/messages"

// LogState describes one replica's log as the storage holds it.
type LogState struct {
	Start messages.Offset // first offset kept
	End   messages.Offset // next offset to write
	// HighWatermark is the last one that was written; it may be older than what was in memory before a crash.
	HighWatermark messages.Offset
	// Epochs are the leader epochs of the log with their first offsets, rising in both; see the type Epochs.
	Epochs []EpochStart
	// Producers is the memory of idempotent producers, rebuilt from the log as far as it is kept.
	Producers []ProducerState
}

// EpochStart is the first offset of a leader epoch in a log.
type EpochStart struct {
	Epoch messages.LeaderEpoch
	Start messages.Offset
}

// ProducerState is the last batches of one producer in one log, oldest first, at most ProducerBatches of them.
type ProducerState struct {
	Producer uint64
	Batches  []ProducerBatch
}

// ProducerBatch is where a batch was stored.
type ProducerBatch struct {
	BaseSequence int64
	Count        uint32
	BaseOffset   messages.Offset
}

// ProducerBatches is how many batches of a producer a log remembers for recognising retries.
const ProducerBatches = 5
