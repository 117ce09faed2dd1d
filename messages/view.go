package messages

// The bodies of monitoring answers, in JSON. Numbers are plain; times are milliseconds since 1970 where they are for
// people and ages in milliseconds where they are measured.

// View is the envelope of every monitoring answer.
type View struct {
	Type            string          `json:"type"`
	Cluster         ClusterName     `json:"cluster"`
	Revision        Sequence        `json:"revision"`
	AsOf            string          `json:"as_of"` // RFC 3339 with milliseconds
	ServedBy        string          `json:"served_by"`
	Role            string          `json:"role"` // active, activating or standby, as it said last
	ControllerEpoch ControllerEpoch `json:"controller_epoch"`
	// Stale says that a standby has not heard for too long that it has everything; AgeMs for how long, 0 of the active one.
	Stale bool    `json:"stale"`
	AgeMs int64   `json:"age_ms,omitempty"`
	Data  any     `json:"data"`
	Next  *string `json:"next"`
}

// ListQuery is the request body of the lists.
type ListQuery struct {
	Filter      map[string]string `json:"filter,omitempty"`
	Limit       int               `json:"limit,omitempty"` // default 500, at most 5,000
	Cursor      string            `json:"cursor,omitempty"`
	MinRevision Sequence          `json:"min_revision,omitempty"`
}

// ControllerView is one controller process, in mon.v1.controllers.
type ControllerView struct {
	Name            string          `json:"name"`
	Role            string          `json:"role"` // active or standby
	ControllerEpoch ControllerEpoch `json:"controller_epoch"`
	Applied         Sequence        `json:"applied"` // the journal position of its catalog
	URL             string          `json:"url"`     // of its own NATS server, or where it is connected to
	AgeMs           int64           `json:"age_ms"`  // since it was heard last
	Versions        VersionRange    `json:"versions"`
	Release         string          `json:"release,omitempty"`
	// Unfit says why it must not become active, as that its build is too old for the journal; empty if it may.
	Unfit string `json:"unfit,omitempty"`
	// Silent: it is not heard any more, or its connection has ended. One that stays so is forgotten after an hour.
	Silent bool `json:"silent,omitempty"`
}

// HealthView is the data of mon.v1.health.
type HealthView struct {
	Status     string         `json:"status"` // HEALTHY, DEGRADED, UNHEALTHY
	Reasons    []HealthReason `json:"reasons"`
	ClusterID  string         `json:"cluster_id"`
	Controller string         `json:"controller"`
	Brokers    BrokerCounts   `json:"brokers"`
	Partitions PartitionCount `json:"partitions"`
	// Failed are the actors that supervision has given up on.
	Failed []string `json:"failed_actors"`
}

// ProblemStore is the code of the reason that the journal cannot be written.
const ProblemStore = "STORE_UNAVAILABLE"

// HealthReason is one thing that is not as it should be.
type HealthReason struct {
	// Code is UNDER_REPLICATED, UNDER_MIN_ISR, OFFLINE, BROKER_FENCED, BROKER_UNRESPONSIVE, RACK_VIOLATION, ACTOR_FAILED,
	// CONTROLLER_UNFIT, CONTROLLER_SILENT, or one of the process that answers.
	Code   string `json:"code"`
	Count  int    `json:"count"`
	Detail string `json:"detail,omitempty"`
}

// BrokerCounts counts brokers by state.
type BrokerCounts struct {
	Total    int        `json:"total"`
	Active   int        `json:"active"`
	Fenced   int        `json:"fenced"`
	Stopping int        `json:"stopping"`
	Draining int        `json:"draining"`
	IDs      []BrokerID `json:"fenced_ids"`
	// Unresponsive brokers are heard, but what they are told does not arrive or nothing comes of it, for longer than a new
	// leader may take to prove itself. Only the active controller knows.
	Unresponsive    int        `json:"unresponsive"`
	UnresponsiveIDs []BrokerID `json:"unresponsive_ids"`
}

// PartitionCount counts partitions by what is wrong with them; one partition may count in several.
type PartitionCount struct {
	Total           int `json:"total"`
	Offline         int `json:"offline"`
	UnderMinISR     int `json:"under_min_isr"`
	AtMinISR        int `json:"at_min_isr"`
	UnderReplicated int `json:"under_replicated"`
	NonPreferred    int `json:"non_preferred_leader"`
	Unproven        int `json:"leader_unproven"`
	RackViolation   int `json:"rack_violation"`
}

// OverviewView is the data of mon.v1.overview.
type OverviewView struct {
	Health   HealthView   `json:"health"`
	Topics   int          `json:"topics"`
	Brokers  []BrokerView `json:"brokers"`
	Settings Settings     `json:"settings"`
}

// BrokerView is one broker, in mon.v1.brokers and mon.v1.broker.<id>.
type BrokerView struct {
	ID                  BrokerID          `json:"id"`
	State               string            `json:"state"` // active, fenced, stopping, unresponsive, draining
	Rack                RackPath          `json:"rack"`
	Host                string            `json:"host"`
	PID                 int64             `json:"pid"`
	Epoch               BrokerEpoch       `json:"epoch"`
	Incarnation         IncarnationID     `json:"incarnation"`
	Storage             StorageID         `json:"storage"`
	Fsyncs              bool              `json:"fsyncs"`
	Weight              int               `json:"weight"`
	Endpoints           map[string]string `json:"endpoints"`
	Leaders             int               `json:"leaders"`
	Replicas            int               `json:"replicas"`
	InSync              int               `json:"in_sync"`
	FencedReason        string            `json:"fenced_reason,omitempty"`
	HeartbeatAgeMs      *int64            `json:"heartbeat_age_ms"` // null: not heard by this controller
	Version             string            `json:"version"`
	Speaks              VersionRange      `json:"protocol_versions"`
	Partitions          []PartitionView   `json:"partitions,omitempty"` // mon.v1.broker.<id> only
	PartitionsRemaining int               `json:"partitions_remaining,omitempty"`
}

// TopicView is one topic, in mon.v1.topics and mon.v1.topic.<t>.
type TopicView struct {
	ID                TopicID           `json:"id"`
	Name              TopicName         `json:"name"`
	Partitions        int               `json:"partitions"`
	ReplicationFactor int               `json:"replication_factor"`
	MinISR            int               `json:"min_isr"`
	Labels            map[string]string `json:"labels"`
	CreatedUnixMs     int64             `json:"created_unix_ms"`
	Counts            PartitionCount    `json:"counts"`
	Detail            []PartitionView   `json:"detail,omitempty"` // mon.v1.topic.<t> only, as many as fit
	DetailRemaining   int               `json:"detail_remaining,omitempty"`
}

// PartitionView is one partition, in mon.v1.partitions and mon.v1.partition.<t>.<p>.
type PartitionView struct {
	Topic         TopicName      `json:"topic"`
	TopicID       TopicID        `json:"topic_id"`
	Partition     int32          `json:"partition"`
	Leader        BrokerID       `json:"leader"` // "" = none
	LeaderEpoch   LeaderEpoch    `json:"leader_epoch"`
	Epoch         PartitionEpoch `json:"partition_epoch"`
	Replicas      []BrokerID     `json:"replicas"`
	ISR           []BrokerID     `json:"isr"`
	Eligible      []BrokerID     `json:"eligible"`
	Missing       []BrokerID     `json:"missing"` // replicas outside the ISR
	MinISR        int            `json:"min_isr"`
	HighWatermark Offset         `json:"high_watermark"` // as last journaled
	LeaderProven  bool           `json:"leader_proven"`
	LastLeader    BrokerID       `json:"last_leader,omitempty"`
	Reason        string         `json:"reason,omitempty"`
	State         string         `json:"state"` // online, offline, under_min_isr, under_replicated
	RackViolation bool           `json:"rack_violation"`
}
