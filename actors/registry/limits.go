package registry

import "time"

// Limits of what a request may ask, and of what one step may do.
const (
	maxBrokers           = 10_000  // registered at the same time
	maxWeight            = 1000    // of a broker; 0 in a request means defaultWeight
	defaultWeight        = 100     //
	maxEndpoints         = 16      // of a broker
	maxEndpointName      = 64      // bytes
	maxEndpoint          = 256     // bytes
	maxHost              = 255     // bytes
	maxVersion           = 64      // bytes
	maxServerID          = 128     // bytes
	maxReplicationFactor = 32      //
	maxTopicReplicas     = 100_000 // partitions times replication factor of one topic: it is one journal entry
	maxLabels            = 64      // of a topic
	maxLabelKey          = 63      // bytes
	maxLabelValue        = 256     // bytes
	maxCreations         = 256     // waiting for the placer at the same time
	maxUnfinished        = 100_000 // deletions that some broker has not confirmed
	maxTopicEntry        = 6 << 20 // bytes of a topic's records, roughly: a journal entry takes 7 MiB
	maxAnswerPartitions  = 1000    // in the answer to a creation
	maxAnswerBytes       = 512 << 10
	maxAnswerLines       = 200    // of explanation, and of warnings
	maxEpochsRewritten   = 50_000 // partition epochs in the deletions that one step writes again
	maxFencesPerStep     = 64     // brokers fenced for silence in one entry; the next step follows at once
	maxBlockers          = 1000   // named in one answer about an upgrade
	maxHoldouts          = 256    // partitions reminded by one heartbeat
)

const (
	// placementTimeout bounds how long a creation waits for the placer.
	placementTimeout = 10 * time.Second
	// retryAfterMs goes with BUSY.
	retryAfterMs = 100
	// minTick bounds how fast the clock ticks.
	minTick = time.Millisecond
	// ticksPerSession is the least number of ticks in a session: a silent broker is fenced within 1/8 session of its deadline.
	ticksPerSession = 8
	// epochRoom is added to the partition epochs in a deletion: see epochsOf.
	epochRoom = 1024
)
