package messages

// Limits of what one request or answer may hold. Senders split what is larger; the controller refuses it with TOO_LARGE.
const (
	// MaxBatchItems bounds the items of one isr, ready or offsets request.
	MaxBatchItems = 1000
	// MaxHeldTopics bounds the held topics that one page of a snapshot request names.
	MaxHeldTopics = 20_000
	// MaxRemovedTopics bounds the topic ids of one removed request.
	MaxRemovedTopics = 10_000
	// SnapshotPageBytes is what one page of a snapshot stays under, in bytes.
	SnapshotPageBytes = 512 << 10
)
