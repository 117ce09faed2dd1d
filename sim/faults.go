package sim

// Faults are faults of the code under test. Each breaks one promise that a checker must see being broken.
type Faults struct {
	ElectOutsideISR     bool // the controller lets any live replica lead when no ISR member can
	ReuseLeaderEpoch    bool // a new leader gets the leader epoch of the one before
	AckBeforeCommit     bool // a leader acknowledges what only it has stored
	IgnoreDivergence    bool // logs that part are taken to agree
	ServeUncommitted    bool // a leader lets consumers read up to its log's end
	ReleaseBeforeCommit bool // the controller acts before the journal has stored the decision
	DeleteUnlisted      bool // a broker deletes replicas that a snapshot does not list
	EndlessLease        bool // a broker takes its lease to last ten times as long
	LeaseAtOnce         bool // a broker takes the lease of a new term before it knows what it still leads
	CommitWithoutISR    bool // a leader counts its own proposals as accepted
	ForgetLostAnswers   bool // a leader takes a proposal without an answer as refused
	TrustRefusals       bool // a leader takes a proposal that one controller has refused as refused by all
	SkipProof           bool // a leader does not look at the floor before it serves
	EndlessGrants       bool // a controller grants leases however long the journal has taken nothing
	FenceAtOnce         bool // a new active controller fences for silence after one session
	HandOverAtOnce      bool // a controller hands over although its predecessor may still be granting
	AppendAnywhere      bool // appends and claims do not say behind what
	ReuseEpoch          bool // a claim takes the epoch of the one before
	CutTooFar           bool // the journal is cut further than the snapshots reach
	ForgetMarks         bool // a catalog that is rebuilt lacks the marks
	ForgetSeen          bool // brokers do not say what they have seen
	DisksLie            bool // no fault of ours: disks that claim to fsync and do not, so that a proof is needed
}
