package broker

import (
	"github.com/highwater-io/highwater/broker/replica"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// Storage keeps the replicas of one broker. broker/storagetest checks an implementation; broker/pebblelog is the
// reference. All methods may be called from many goroutines; calls for one partition are serialized by the caller, except
// Read, which may run beside a Write. Errors that are not coded mean that the storage refuses work from now on.
type Storage interface {
	StorageIdentity
	ReplicaLogs

	// Close releases the storage. It does not mark it clean.
	Close() error
}

// StorageIdentity is what a storage is, and whose.
type StorageIdentity interface {
	// Identity returns what the storage knows of itself.
	Identity() Identity

	// Bind ties an empty storage to a cluster and broker, durably. On a bound one it returns CLUSTER_MISMATCH if they differ.
	Bind(clusterID string, b messages.BrokerID) error

	// MarkRunning makes the next open an unclean one, durably, until MarkClean: called after registration.
	MarkRunning() error

	// SaveSeen keeps, durably, the highest position of the journal that the broker has heard of.
	SaveSeen(s messages.Seen) error

	// MarkClean records, durably, that the broker stopped in order under this broker epoch.
	MarkClean(epoch messages.BrokerEpoch) error
}

// ReplicaLogs are the logs of a storage's replicas.
type ReplicaLogs interface {
	// Replicas lists what the storage holds, in no order.
	Replicas() ([]HeldReplica, error)

	// Create makes an empty replica; it is no error if there is one already.
	Create(p messages.PartitionID, topic messages.TopicName) error

	// Log returns the state of one replica's log; ErrNoReplica if it is not held.
	Log(p messages.PartitionID) (replica.LogState, error)

	// Write applies writes of any number of partitions, all or nothing. On return they are durable if Identity().Fsyncs.
	Write(writes []Write) error

	// Read returns whole batches from the one that holds the offset on, up to about maxBytes but at least one batch if
	// there is any. Batches come in order and without gaps. It returns none at the log's end, and a CORRUPT_BATCH error
	// for a batch whose checksum fails. ErrNoReplica if the replica is not held.
	Read(p messages.PartitionID, from messages.Offset, maxBytes int) ([]*pb.StoredBatch, error)

	// Truncate removes every record at and above the offset, durably. A batch that spans the offset is removed whole
	// (batches are truncated only at their boundaries; the log end returned says where it ended up).
	Truncate(p messages.PartitionID, to messages.Offset) (replica.LogState, error)

	// Remove deletes a replica, durably; it is no error if there is none.
	Remove(p messages.PartitionID) error
}

// Identity is what a storage knows of itself.
type Identity struct {
	Storage   messages.StorageID
	ClusterID string            // "" while not bound
	Broker    messages.BrokerID // "" while not bound
	// CleanEpoch is the broker epoch of the last orderly stop, 0 if the storage was open or new since.
	CleanEpoch messages.BrokerEpoch
	// Seen is what SaveSeen was told last; zero if it never was.
	Seen messages.Seen
	// Fsyncs: a Write is durable when it returns.
	Fsyncs bool
}

// HeldReplica is one replica of the storage.
type HeldReplica struct {
	Partition messages.PartitionID
	Topic     messages.TopicName
}

// Write is a change of one replica. Batches go to the log's end in order; their base offsets must be dense with it.
type Write struct {
	Partition messages.PartitionID
	Batches   []*pb.StoredBatch
	// HighWatermark replaces the stored one if it is higher; -1 leaves it.
	HighWatermark messages.Offset
	// Epoch, if set, is recorded as starting at the log's end even if no batch of it follows. Whatever follows, an epoch or
	// a batch (also of a lower epoch), replaces epochs that have no record: replica.Epochs.With does this.
	Epoch *replica.EpochStart
}

// ErrNoReplica says that a storage does not hold a replica.
var ErrNoReplica = messages.Errorf(messages.CodeUnknownPartition, "the storage holds no such replica")
