package placement

import (
	"math/rand/v2"

	"github.com/highwater-io/highwater/messages"
)

// MaxReplicas bounds the replicas of one proposal: partitions times replication factor.
const MaxReplicas = 10_000_000

// NewTopic asks for the replicas of a topic that does not exist yet.
type NewTopic struct {
	Partitions        int
	ReplicationFactor int
	// Distinct is the level of the rack labels at which the replicas of a partition must be in different domains; 0: none.
	Distinct int
}

// Proposal says where replicas should go, and why. It changes nothing; whoever acts on it checks it against what is true
// then.
type Proposal struct {
	// Replicas has one list a partition, in order of preference: the first leads, the second leads if the first dies.
	Replicas [][]messages.BrokerID
	// Shares says what each usable broker gets, in the order of their ids.
	Shares []Share
	// Explanation is for people. The number of lines is bounded, whatever the size of cluster and topic.
	Explanation []string
	// Warnings begin with rack_violation, imbalance or unlabelled; each tells what could not be met.
	Warnings []string
}

// Share is what a proposal gives to one broker.
type Share struct {
	Broker   messages.BrokerID
	Replicas int // leaders included
	Leaders  int
}

// Place proposes the replicas of a new topic. The same snapshot, topic and seed give the same proposal, in whatever
// order the brokers come. Time is nearly linear in brokers plus replicas.
//
// Errors: INVALID_PARTITIONS below 1 or above MaxReplicas in all; INVALID_REPLICATION_FACTOR below 1 or above the number
// of usable brokers, or of their domains at the level that must be distinct.
func Place(s Snapshot, t NewTopic, seed [2]uint64) (*Proposal, error) {
	usable, refused := s.divided()
	if err := t.check(usable, refused); err != nil {
		return nil, err
	}
	random := rand.New(rand.NewPCG(seed[0], seed[1]))
	d := newDomains(usable, 0)
	if err := t.checkDistinct(d); err != nil {
		return nil, err
	}
	d.require(t.Distinct)
	d.bound(0, t.ReplicationFactor, t.ReplicationFactor)
	a := newAssigner(d, newQuotas(d, t.Partitions, t.ReplicationFactor, random), t.Partitions, random)

	p := &Proposal{Replicas: make([][]messages.BrokerID, t.Partitions)}
	all := make([]messages.BrokerID, 0, t.Partitions*t.ReplicationFactor)
	for i := range p.Replicas {
		start := len(all)
		all = a.next(t.ReplicationFactor, all)
		p.Replicas[i] = all[start:len(all):len(all)]
	}
	p.Shares = shares(usable, p.Replicas)
	r := report{snapshot: s, domains: d, refused: refused, topic: t, proposal: p, seed: seed}
	p.Warnings = r.warnings()
	p.Explanation = r.explanation()
	return p, nil
}

func (t NewTopic) check(usable, refused []Broker) error {
	switch {
	case t.Partitions < 1:
		return messages.Errorf(messages.CodeInvalidPartitions, "%d partitions were asked for, at least 1 is needed", t.Partitions)
	case t.ReplicationFactor < 1:
		return messages.Errorf(messages.CodeInvalidReplicationFactor,
			"the replication factor is %d, at least 1 is needed", t.ReplicationFactor)
	case t.ReplicationFactor > len(usable):
		err := messages.Errorf(messages.CodeInvalidReplicationFactor,
			"the replication factor is %d, but %d of %d registered brokers take new replicas",
			t.ReplicationFactor, len(usable), len(usable)+len(refused))
		if len(refused) > 0 {
			err = err.WithHint("lower it, or bring brokers back: %s", listRefused(refused))
		}
		return err
	case t.Partitions > MaxReplicas/t.ReplicationFactor:
		return messages.Errorf(messages.CodeInvalidPartitions,
			"%d partitions with %d replicas were asked for, the limit is %d replicas in all",
			t.Partitions, t.ReplicationFactor, MaxReplicas)
	}
	return nil
}

// checkDistinct checks that the usable brokers have domains enough.
func (t NewTopic) checkDistinct(d *domains) error {
	if t.Distinct < 0 || t.Distinct > d.depth {
		return messages.Errorf(messages.CodeInvalidRequest,
			"level %d of the racks is required to be distinct, but the rack labels have %s", t.Distinct, plural(d.depth, "level"))
	}
	if t.Distinct > 0 && len(d.level(t.Distinct)) < t.ReplicationFactor {
		return messages.Errorf(messages.CodeInvalidReplicationFactor,
			"the replication factor is %d, but the brokers that take new replicas are in %s at level %d, which must be distinct",
			t.ReplicationFactor, plural(len(d.level(t.Distinct)), "domain"), t.Distinct).
			WithHint("lower it, or label brokers in more racks")
	}
	return nil
}

// shares counts what each usable broker gets.
func shares(usable []Broker, replicas [][]messages.BrokerID) []Share {
	out := make([]Share, len(usable))
	index := make(map[messages.BrokerID]int, len(usable))
	for i := range usable {
		out[i].Broker = usable[i].ID
		index[usable[i].ID] = i
	}
	for _, list := range replicas {
		out[index[list[0]]].Leaders++
		for _, id := range list {
			out[index[id]].Replicas++
		}
	}
	return out
}
