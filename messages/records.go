package messages

import "time"

// A Record is the full new state of one thing, as the journal keeps it. Records are immutable once made: whoever changes
// one makes a copy, which keeps what is Unknown of it. Kinds: *Cluster, *ControllerClaimed, *Broker, *Topic, *Partition,
// *TopicDeletion, *BrokerForgotten, *TopicDeletionDone, and *UnknownRecord for those of later versions.
type Record interface{ record() }

// Settings hold for the whole cluster.
type Settings struct {
	Heartbeat       time.Duration // pause between two heartbeats of a broker; default 500 ms
	Session         time.Duration // silence after which a broker is fenced; default 3 s, at least 3 heartbeats
	DisconnectGrace time.Duration // time to reconnect after a closed connection before the broker is fenced; default 100 ms
	LeaderReady     time.Duration // time a new leader has to prove that it is current; default 10 s
	ReplicaLag      time.Duration // time a follower may be behind before the leader proposes to drop it; default 10 s
	Checkpoint      time.Duration // pause between two reports of a leader's high-water mark; default 5 s

	DefaultReplicationFactor int // default 3
	DefaultMinISR            int // default 2
	MaxPartitionsPerTopic    int // default 10,000: a topic is one journal entry
}

// DefaultSettings returns the defaults.
func DefaultSettings() Settings {
	return Settings{
		Heartbeat: 500 * time.Millisecond, Session: 3 * time.Second, DisconnectGrace: 100 * time.Millisecond,
		LeaderReady: 10 * time.Second, ReplicaLag: 10 * time.Second, Checkpoint: 5 * time.Second,
		DefaultReplicationFactor: 3, DefaultMinISR: 2, MaxPartitionsPerTopic: 10_000,
	}
}

// Lease returns how long after sending an answered heartbeat a broker may rely on its leaderships: 0.9 of the session.
func (s Settings) Lease() time.Duration { return s.Session * 9 / 10 }

// Cluster is the identity and the settings of the cluster.
type Cluster struct {
	Name     ClusterName
	ID       string // made once, when the journal is empty
	Settings Settings
	Store    string  // made whenever a journal begins: with the cluster, and when it is restored from a backup; "" = not known
	Version  Version // as it stands in the record; FinalizedVersion is what counts
	Unknown  *Unknown
}

// ControllerClaimed makes its writer the active controller from this entry on, or, released, ends that for good.
type ControllerClaimed struct {
	Controller string
	Epoch      ControllerEpoch
	Released   bool   // the last entry of this epoch: nothing is granted or committed under it any more
	Successor  string // who should claim next, "" for anybody; of a released one
	Unknown    *Unknown
}

// Broker is one registered broker.
type Broker struct {
	ID           BrokerID
	Incarnation  IncarnationID
	Storage      StorageID
	Epoch        BrokerEpoch
	Rack         RackPath
	Endpoints    map[string]string
	Weight       int // relative capacity, 1 to 1000, 100 is usual
	Fsyncs       bool
	Fenced       bool
	Stopping     bool // in controlled shutdown
	Draining     bool // gets no new replicas and no new leaderships
	Suspect      bool // may hold less than it acknowledged: stays fenced until it has left every ISR and eligible set
	FencedReason string
	Host         string
	PID          int64
	Version      string       // of its build, for people
	Speaks       VersionRange // of the protocol
	Unknown      *Unknown
}

// CanLead reports whether the broker may be in an ISR and lead: registered, not fenced, not stopping.
func (b *Broker) CanLead() bool { return b != nil && !b.Fenced && !b.Stopping }

// Topic is one topic. Its partitions are records of their own.
type Topic struct {
	ID                TopicID
	Name              TopicName
	Partitions        int
	ReplicationFactor int
	MinISR            int
	Labels            map[string]string
	CreatedUnixMs     int64
	Unknown           *Unknown
}

// EffectiveMinISR is min(setting, replicas).
func EffectiveMinISR(minISR, replicas int) int { return max(1, min(minISR, replicas)) }

// Partition is the full state of one partition. Invariants: ISR ⊆ Replicas; Leader ∈ ISR or none; no duplicates;
// ISR ∩ Eligible = ∅; Eligible ⊆ Replicas.
type Partition struct {
	ID            PartitionID
	Replicas      []BrokerID // in order of preference
	ISR           []BrokerID
	Eligible      []BrokerID // outside the ISR but known to hold everything below the frozen mark
	Leader        BrokerID   // "" = none
	LeaderEpoch   LeaderEpoch
	Epoch         PartitionEpoch
	MinISR        int
	LastLeader    BrokerID
	HighWatermark Offset // the highest mark that a leader has reported and that was committed with this record
	LeaderProven  bool   // the leader of LeaderEpoch has shown that it holds everything below HighWatermark
	Reason        string // why the leader changed last, for people
	Unknown       *Unknown
}

// TopicDeletion is the order to delete what brokers hold of a topic. Its commit ends the topic and its partitions.
type TopicDeletion struct {
	ID         TopicID
	Name       TopicName
	Partitions int
	Epochs     []PartitionEpoch // last epoch of each partition
	Pending    []BrokerID       // brokers that have not confirmed yet
	Unknown    *Unknown
}

// BrokerForgotten ends a registration for good.
type BrokerForgotten struct{ ID BrokerID }

// TopicDeletionDone ends a TopicDeletion: nobody holds anything of it any more.
type TopicDeletionDone struct{ ID TopicID }

func (*Cluster) record()           {}
func (*ControllerClaimed) record() {}
func (*Broker) record()            {}
func (*Topic) record()             {}
func (*Partition) record()         {}
func (*TopicDeletion) record()     {}
func (*BrokerForgotten) record()   {}
func (*TopicDeletionDone) record() {}
