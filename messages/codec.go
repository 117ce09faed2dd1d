package messages

import (
	"time"

	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// RecordToProto returns the wire form of a record.
func RecordToProto(r Record) *pb.Record {
	switch r := r.(type) {
	case *Cluster:
		return clusterToProto(r)
	case *ControllerClaimed:
		m := &pb.ControllerClaimed{Controller: r.Controller, ControllerEpoch: uint64(r.Epoch), Released: r.Released, Successor: r.Successor}
		return r.Unknown.restore(&pb.Record{Kind: &pb.Record_ControllerClaimed{ControllerClaimed: m}}, m)
	case *Broker:
		m := brokerToProto(r)
		return r.Unknown.restore(&pb.Record{Kind: &pb.Record_Broker{Broker: m}}, m)
	case *Topic:
		m := &pb.TopicRecord{TopicId: r.ID.Bytes(), Name: string(r.Name), Partitions: uint32(r.Partitions),
			ReplicationFactor: uint32(r.ReplicationFactor), MinIsr: uint32(r.MinISR), Labels: r.Labels, CreatedUnixMs: r.CreatedUnixMs}
		return r.Unknown.restore(&pb.Record{Kind: &pb.Record_Topic{Topic: m}}, m)
	case *Partition:
		m := partitionToProto(r)
		return r.Unknown.restore(&pb.Record{Kind: &pb.Record_Partition{Partition: m}}, m)
	case *TopicDeletion:
		m := topicDeletionToProto(r)
		return r.Unknown.restore(&pb.Record{Kind: &pb.Record_TopicDeletion{TopicDeletion: m}}, m)
	case *BrokerForgotten:
		return &pb.Record{Ends: kindBroker, Key: []byte(r.ID)}
	case *TopicDeletionDone:
		return &pb.Record{Ends: kindTopicDeletion, Key: r.ID.Bytes()}
	case *UnknownRecord:
		return r.toProto()
	}
	panic(Errorf(CodeInternal, "record kind %T has no wire form", r))
}

// RecordFromProto reads a record; INVALID_REQUEST for one that cannot be read or breaks the invariants of its kind. One of a
// kind that is not known is an *UnknownRecord.
func RecordFromProto(p *pb.Record) (Record, error) {
	if p.GetEnds() != 0 {
		return tombstone(p)
	}
	switch k := p.GetKind().(type) {
	case *pb.Record_Cluster:
		return &Cluster{Name: ClusterName(k.Cluster.GetName()), ID: k.Cluster.GetClusterId(), Settings: SettingsFromProto(k.Cluster.GetSettings()),
			Store: k.Cluster.GetStoreId(), Version: Version(k.Cluster.GetVersion()), Unknown: unknownOf(p, k.Cluster)}, nil
	case *pb.Record_ControllerClaimed:
		c := k.ControllerClaimed
		return &ControllerClaimed{Controller: c.GetController(), Epoch: ControllerEpoch(c.GetControllerEpoch()), Released: c.GetReleased(),
			Successor: c.GetSuccessor(), Unknown: unknownOf(p, c)}, nil
	case *pb.Record_Broker:
		b, err := brokerFromProto(k.Broker)
		b.Unknown = unknownOf(p, k.Broker)
		return b, err
	case *pb.Record_Topic:
		t := k.Topic
		id, err := ParseTopicID(t.GetTopicId())
		if err != nil {
			return nil, err
		}
		return &Topic{ID: id, Name: TopicName(t.GetName()), Partitions: int(t.GetPartitions()),
			ReplicationFactor: int(t.GetReplicationFactor()), MinISR: int(t.GetMinIsr()), Labels: t.GetLabels(),
			CreatedUnixMs: t.GetCreatedUnixMs(), Unknown: unknownOf(p, t)}, nil
	case *pb.Record_Partition:
		return partitionFromProto(p, k.Partition)
	case *pb.Record_TopicDeletion:
		return topicDeletionFromProto(p, k.TopicDeletion)
	}
	return unknownRecord(p)
}

func clusterToProto(c *Cluster) *pb.Record {
	m := &pb.ClusterRecord{Name: string(c.Name), ClusterId: c.ID, Settings: SettingsToProto(c.Settings), StoreId: c.Store,
		Version: uint32(c.Version)}
	out := &pb.Record{Kind: &pb.Record_Cluster{Cluster: m}}
	if c.Version > FirstVersion {
		out.MinReader = m.Version // also for one that does not know that clusters have versions
	}
	return c.Unknown.restore(out, m)
}

func brokerToProto(b *Broker) *pb.BrokerRecord {
	return &pb.BrokerRecord{
		Broker: string(b.ID), Incarnation: string(b.Incarnation), Storage: string(b.Storage), BrokerEpoch: uint64(b.Epoch),
		Rack: string(b.Rack), Endpoints: b.Endpoints, Weight: uint32(b.Weight), Fsyncs: b.Fsyncs, Fenced: b.Fenced,
		Stopping: b.Stopping, Draining: b.Draining, FencedReason: b.FencedReason, Host: b.Host, Pid: b.PID, Version: b.Version,
		Suspect: b.Suspect, MinProtocol: uint32(b.Speaks.Min), MaxProtocol: uint32(b.Speaks.Max),
	}
}

func brokerFromProto(p *pb.BrokerRecord) (*Broker, error) {
	b := &Broker{
		ID: BrokerID(p.GetBroker()), Incarnation: IncarnationID(p.GetIncarnation()), Storage: StorageID(p.GetStorage()),
		Epoch: BrokerEpoch(p.GetBrokerEpoch()), Rack: RackPath(p.GetRack()), Endpoints: p.GetEndpoints(),
		Weight: int(p.GetWeight()), Fsyncs: p.GetFsyncs(), Fenced: p.GetFenced(), Stopping: p.GetStopping(),
		Draining: p.GetDraining(), FencedReason: p.GetFencedReason(), Host: p.GetHost(), PID: p.GetPid(), Version: p.GetVersion(),
		Suspect: p.GetSuspect(), Speaks: VersionRange{Min: Version(p.GetMinProtocol()), Max: Version(p.GetMaxProtocol())},
	}
	return b, b.ID.Validate()
}

func partitionToProto(p *Partition) *pb.PartitionRecord {
	return &pb.PartitionRecord{
		TopicId: p.ID.Topic.Bytes(), Partition: p.ID.Index, Replicas: BrokerStrings(p.Replicas), Isr: BrokerStrings(p.ISR),
		Eligible: BrokerStrings(p.Eligible), Leader: string(p.Leader), LeaderEpoch: int64(p.LeaderEpoch),
		PartitionEpoch: int64(p.Epoch), MinIsr: uint32(p.MinISR), LastLeader: string(p.LastLeader),
		HighWatermark: int64(p.HighWatermark), LeaderProven: p.LeaderProven, Reason: p.Reason,
	}
}

func partitionFromProto(r *pb.Record, p *pb.PartitionRecord) (*Partition, error) {
	id, err := ParseTopicID(p.GetTopicId())
	if err != nil {
		return nil, err
	}
	out := &Partition{
		ID: PartitionID{Topic: id, Index: p.GetPartition()}, Replicas: BrokerIDs(p.GetReplicas()), ISR: BrokerIDs(p.GetIsr()),
		Eligible: BrokerIDs(p.GetEligible()), Leader: BrokerID(p.GetLeader()), LeaderEpoch: LeaderEpoch(p.GetLeaderEpoch()),
		Epoch: PartitionEpoch(p.GetPartitionEpoch()), MinISR: int(p.GetMinIsr()), LastLeader: BrokerID(p.GetLastLeader()),
		HighWatermark: Offset(p.GetHighWatermark()), LeaderProven: p.GetLeaderProven(), Reason: p.GetReason(),
		Unknown: unknownOf(r, p),
	}
	return out, nil
}

func topicDeletionToProto(d *TopicDeletion) *pb.TopicDeletionRecord {
	epochs := make([]int64, len(d.Epochs))
	for i, e := range d.Epochs {
		epochs[i] = int64(e)
	}
	return &pb.TopicDeletionRecord{TopicId: d.ID.Bytes(), Name: string(d.Name), Partitions: uint32(d.Partitions), PartitionEpochs: epochs,
		Pending: BrokerStrings(d.Pending)}
}

func topicDeletionFromProto(r *pb.Record, p *pb.TopicDeletionRecord) (*TopicDeletion, error) {
	id, err := ParseTopicID(p.GetTopicId())
	if err != nil {
		return nil, err
	}
	epochs := make([]PartitionEpoch, len(p.GetPartitionEpochs()))
	for i, e := range p.GetPartitionEpochs() {
		epochs[i] = PartitionEpoch(e)
	}
	return &TopicDeletion{ID: id, Name: TopicName(p.GetName()), Partitions: int(p.GetPartitions()), Epochs: epochs,
		Pending: BrokerIDs(p.GetPending()), Unknown: unknownOf(r, p)}, nil
}

// SettingsToProto returns the wire form of the settings, in milliseconds.
func SettingsToProto(s Settings) *pb.ClusterSettings {
	ms := func(d time.Duration) uint32 { return uint32(d / time.Millisecond) }
	return &pb.ClusterSettings{
		HeartbeatMs: ms(s.Heartbeat), SessionMs: ms(s.Session), DisconnectGraceMs: ms(s.DisconnectGrace),
		LeaderReadyMs: ms(s.LeaderReady), ReplicaLagMs: ms(s.ReplicaLag), CheckpointMs: ms(s.Checkpoint),
		DefaultReplicationFactor: uint32(s.DefaultReplicationFactor), DefaultMinIsr: uint32(s.DefaultMinISR),
		MaxPartitionsPerTopic: uint32(s.MaxPartitionsPerTopic),
	}
}

// SettingsFromProto reads settings.
func SettingsFromProto(p *pb.ClusterSettings) Settings {
	d := func(ms uint32) time.Duration { return time.Duration(ms) * time.Millisecond }
	return Settings{
		Heartbeat: d(p.GetHeartbeatMs()), Session: d(p.GetSessionMs()), DisconnectGrace: d(p.GetDisconnectGraceMs()),
		LeaderReady: d(p.GetLeaderReadyMs()), ReplicaLag: d(p.GetReplicaLagMs()), Checkpoint: d(p.GetCheckpointMs()),
		DefaultReplicationFactor: int(p.GetDefaultReplicationFactor()), DefaultMinISR: int(p.GetDefaultMinIsr()),
		MaxPartitionsPerTopic: int(p.GetMaxPartitionsPerTopic()),
	}
}

// SeenToProto returns the wire form of a position.
func SeenToProto(s Seen) *pb.Seen {
	return &pb.Seen{ControllerEpoch: uint64(s.Controller), Sequence: uint64(s.Sequence)}
}

// SeenFromProto reads a position.
func SeenFromProto(p *pb.Seen) Seen {
	return Seen{Controller: ControllerEpoch(p.GetControllerEpoch()), Sequence: Sequence(p.GetSequence())}
}

// BrokerStrings returns ids as strings, nil for none.
func BrokerStrings(ids []BrokerID) []string { return convert[string](ids) }

// BrokerIDs returns strings as ids, nil for none.
func BrokerIDs(ids []string) []BrokerID { return convert[BrokerID](ids) }

func convert[To, From ~string](in []From) []To {
	if len(in) == 0 {
		return nil
	}
	out := make([]To, len(in))
	for i, s := range in {
		out[i] = To(s)
	}
	return out
}

// AssignmentOf returns a partition as its replicas must see it. The floor is the mark that the controller knows.
func AssignmentOf(topic TopicName, p *Partition) *pb.Assignment {
	return &pb.Assignment{
		TopicId: p.ID.Topic.Bytes(), Topic: string(topic), Partition: p.ID.Index, Replicas: BrokerStrings(p.Replicas),
		Isr: BrokerStrings(p.ISR), Leader: string(p.Leader), LeaderEpoch: int64(p.LeaderEpoch),
		PartitionEpoch: int64(p.Epoch), MinIsr: uint32(EffectiveMinISR(p.MinISR, len(p.Replicas))),
		Floor: int64(p.HighWatermark), LeaderProven: p.LeaderProven,
	}
}

// LeadershipOf returns what everyone may know of a partition.
func LeadershipOf(topic TopicName, p *Partition, seen Seen) *pb.Leadership {
	return &pb.Leadership{
		TopicId: p.ID.Topic.Bytes(), Topic: string(topic), Partition: p.ID.Index, Leader: string(p.Leader),
		LeaderEpoch: int64(p.LeaderEpoch), PartitionEpoch: int64(p.Epoch), Replicas: BrokerStrings(p.Replicas),
		Isr: BrokerStrings(p.ISR), Seen: SeenToProto(seen),
	}
}
