package natsbus

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/messages"
)

// summary is what one pass over all partitions finds.
type summary struct {
	revision messages.Sequence
	counts   messages.PartitionCount
	loads    map[messages.BrokerID]load
}

// load is what a broker has to carry.
type load struct{ replicas, leaders, inSync int }

// add counts one partition with a replica on b.
func (l *load) add(p *messages.Partition, b messages.BrokerID) {
	l.replicas++
	if slices.Contains(p.ISR, b) {
		l.inSync++
	}
	if p.Leader == b {
		l.leaders++
	}
}

// summaries keeps what monitors ask for often and what changes seldom: the summary of the newest revision that was asked
// for, and the judge of the racks of the brokers as they are.
type summaries struct {
	mu   sync.Mutex
	last *summary

	racks   sync.Mutex
	brokers map[messages.BrokerID]*messages.Broker // that judge knows
	judge   func([]messages.BrokerID) bool
}

// of returns the summary of the catalog as it is, or as it was at a moment during the call.
func (s *summaries) of(e *Edge) *summary {
	violates := s.violates(e)
	s.mu.Lock()
	defer s.mu.Unlock()
	at := e.cfg.Catalog.Applied()
	if s.last != nil && s.last.revision == at {
		return s.last
	}
	out := &summary{revision: at, loads: map[messages.BrokerID]load{}}
	e.cfg.Catalog.Partitions(func(_ *messages.Topic, p *messages.Partition) bool {
		out.add(p, violates(p.Replicas))
		return true
	})
	s.last = out
	return out
}

// violates returns the judge of replica sets for the brokers as they are.
func (s *summaries) violates(e *Edge) func([]messages.BrokerID) bool {
	s.racks.Lock()
	defer s.racks.Unlock()
	brokers := e.cfg.Catalog.Brokers()
	if s.judge == nil || !maps.Equal(s.brokers, brokers) { // records are immutable: the same pointer is the same broker
		s.brokers, s.judge = brokers, e.cfg.Racks(brokers)
	}
	return s.judge
}

func (s *summary) add(p *messages.Partition, violation bool) {
	journal.CountPartition(&s.counts, p)
	if violation {
		s.counts.RackViolation++
	}
	for _, b := range p.Replicas {
		l := s.loads[b]
		l.add(p, b)
		s.loads[b] = l
	}
}

// viewHealth serves mon.v1.health.
func (e *Edge) viewHealth(*inquiry) (any, string, error) { return e.healthView(), "", nil }

func (e *Edge) healthView() messages.HealthView {
	v := messages.HealthView{
		Controller: e.cfg.Controller, Brokers: e.countBrokers(), Partitions: e.health.of(e).counts,
		Failed: []string{}, Reasons: []messages.HealthReason{},
	}
	if c := e.cfg.Catalog.Identity(); c != nil {
		v.ClusterID = c.ID
	}
	if e.tree != nil { // a standby has no actors
		for _, a := range e.tree.Failed() {
			v.Failed = append(v.Failed, address(a).String())
		}
	}
	unhealthy := false
	reason := func(grave bool, code string, n int, detail string) {
		if n > 0 {
			v.Reasons = append(v.Reasons, messages.HealthReason{Code: code, Count: n, Detail: detail})
			unhealthy = unhealthy || grave
		}
	}
	reason(true, "OFFLINE", v.Partitions.Offline, "partitions without a leader")
	reason(true, "UNDER_MIN_ISR", v.Partitions.UnderMinISR, "partitions that refuse acks=all")
	reason(true, "ACTOR_FAILED", len(v.Failed), strings.Join(v.Failed[:min(len(v.Failed), 10)], ", "))
	for _, p := range e.cfg.Problems() {
		reason(true, p.Code, p.Count, p.Detail)
	}
	reason(false, "UNDER_REPLICATED", v.Partitions.UnderReplicated, "partitions with a replica outside the ISR")
	reason(false, "BROKER_FENCED", v.Brokers.Fenced, strings.Join(messages.BrokerStrings(v.Brokers.IDs), ", "))
	reason(false, "BROKER_UNRESPONSIVE", v.Brokers.Unresponsive,
		strings.Join(messages.BrokerStrings(v.Brokers.UnresponsiveIDs), ", ")+": alive, but not doing what they are told")
	old, why := e.unfit()
	reason(false, "CONTROLLER_UNFIT", len(old), why)
	gone := e.silent()
	reason(false, "CONTROLLER_SILENT", len(gone), strings.Join(gone, ", ")+": not heard any more; fewer can stand in")
	reason(false, "RACK_VIOLATION", v.Partitions.RackViolation, "partitions that could be spread better over the racks")
	switch {
	case unhealthy:
		v.Status = "UNHEALTHY"
	case len(v.Reasons) > 0:
		v.Status = "DEGRADED"
	default:
		v.Status = "HEALTHY"
	}
	return v
}

// silent names the controller processes that are not heard any more.
func (e *Edge) silent() (names []string) {
	for _, c := range e.cfg.Controllers() {
		if c.Silent {
			names = append(names, c.Name)
		}
	}
	return names
}

func (e *Edge) countBrokers() messages.BrokerCounts {
	all := e.cfg.Catalog.Brokers()
	c := messages.BrokerCounts{IDs: []messages.BrokerID{}, UnresponsiveIDs: []messages.BrokerID{}}
	for _, id := range slices.Sorted(maps.Keys(all)) {
		c.Total++
		switch e.brokerState(all[id]) {
		case "fenced":
			c.Fenced++
			c.IDs = append(c.IDs, id)
		case "stopping":
			c.Stopping++
		case "unresponsive":
			c.Unresponsive++
			c.UnresponsiveIDs = append(c.UnresponsiveIDs, id)
		case "draining":
			c.Draining++
		default:
			c.Active++
		}
	}
	return c
}

// brokerState is the one state that says most about a broker.
func (e *Edge) brokerState(b *messages.Broker) string {
	switch {
	case b.Fenced:
		return "fenced"
	case b.Stopping:
		return "stopping"
	case e.unresponsive(b):
		return "unresponsive"
	case b.Draining:
		return "draining"
	}
	return "active"
}

// viewOverview serves mon.v1.overview.
func (e *Edge) viewOverview(q *inquiry) (any, string, error) {
	v := messages.OverviewView{Health: e.healthView(), Brokers: []messages.BrokerView{}}
	e.cfg.Catalog.Topics(func(*messages.Topic) bool {
		v.Topics++
		return true
	})
	if c := e.cfg.Catalog.Identity(); c != nil {
		v.Settings = c.Settings
	}
	f := filler{budget: q.budget / 2} // the health is in the other half
	loads := e.health.of(e).loads
	for _, b := range sortedBrokers(e.cfg.Catalog.Brokers()) {
		view := e.brokerView(b, loads[b.ID])
		if _, fits := f.take(view); !fits {
			break // more brokers than fit: the list endpoint pages
		}
		v.Brokers = append(v.Brokers, view)
	}
	return v, "", nil
}

func sortedBrokers(all map[messages.BrokerID]*messages.Broker) []*messages.Broker {
	out := make([]*messages.Broker, 0, len(all))
	for _, id := range slices.Sorted(maps.Keys(all)) {
		out = append(out, all[id])
	}
	return out
}

func (e *Edge) brokerView(b *messages.Broker, l load) messages.BrokerView {
	endpoints := b.Endpoints
	if endpoints == nil {
		endpoints = map[string]string{}
	}
	return messages.BrokerView{
		ID: b.ID, State: e.brokerState(b), Rack: b.Rack, Host: b.Host, PID: b.PID, Epoch: b.Epoch, Incarnation: b.Incarnation,
		Storage: b.Storage, Fsyncs: b.Fsyncs, Weight: b.Weight, Endpoints: endpoints, Leaders: l.leaders, Replicas: l.replicas,
		InSync: l.inSync, FencedReason: b.FencedReason, HeartbeatAgeMs: e.heard.age(b.ID, time.Now()), Version: b.Version, Speaks: b.Speaks.Or(),
	}
}

// viewBroker serves mon.v1.broker.<id>, with as many of its partitions as fit.
func (e *Edge) viewBroker(q *inquiry) (any, string, error) {
	id := messages.BrokerID(q.args[0])
	b, ok := e.cfg.Catalog.Brokers()[id]
	if !ok {
		return nil, "", messages.Errorf(messages.CodeUnknownBroker, "broker %q is not registered", clip(q.args[0], 64))
	}
	violates := e.health.violates(e)
	var mine []messages.PartitionView
	var carries load
	e.cfg.Catalog.PartitionsOf(id, func(p *messages.Partition) bool {
		carries.add(p, id)
		if t, ok := e.cfg.Catalog.Topic(p.ID.Topic); ok {
			mine = append(mine, partitionView(t, p, violates))
		}
		return true
	})
	slices.SortFunc(mine, comparePartitionViews)
	v := e.brokerView(b, carries)
	f := filler{budget: q.budget}
	v.Partitions, v.PartitionsRemaining = fit(&f, mine)
	return v, "", nil
}

func comparePartitionViews(a, b messages.PartitionView) int {
	if n := strings.Compare(string(a.Topic), string(b.Topic)); n != 0 {
		return n
	}
	return int(a.Partition) - int(b.Partition)
}

// viewTopic serves mon.v1.topic.<t>, with as many of its partitions as fit.
func (e *Edge) viewTopic(q *inquiry) (any, string, error) {
	t, ok := e.cfg.Catalog.TopicByName(messages.TopicName(q.args[0]))
	if !ok {
		return nil, "", messages.Errorf(messages.CodeUnknownTopic, "no topic has the name %q", clip(q.args[0], 64))
	}
	v := e.topicView(t)
	violates := e.health.violates(e)
	var all []messages.PartitionView
	e.cfg.Catalog.PartitionsOfTopic(t.ID, func(p *messages.Partition) bool {
		all = append(all, partitionView(t, p, violates))
		return true
	})
	f := filler{budget: q.budget}
	v.Detail, v.DetailRemaining = fit(&f, all)
	return v, "", nil
}

func (e *Edge) topicView(t *messages.Topic) messages.TopicView {
	labels := t.Labels
	if labels == nil {
		labels = map[string]string{}
	}
	v := messages.TopicView{ID: t.ID, Name: t.Name, Partitions: t.Partitions, ReplicationFactor: t.ReplicationFactor,
		MinISR: t.MinISR, Labels: labels, CreatedUnixMs: t.CreatedUnixMs}
	violates := e.health.violates(e)
	e.cfg.Catalog.PartitionsOfTopic(t.ID, func(p *messages.Partition) bool {
		journal.CountPartition(&v.Counts, p)
		if violates(p.Replicas) {
			v.Counts.RackViolation++
		}
		return true
	})
	return v
}

// viewPartition serves mon.v1.partition.<t>.<p>.
func (e *Edge) viewPartition(q *inquiry) (any, string, error) {
	t, ok := e.cfg.Catalog.TopicByName(messages.TopicName(q.args[0]))
	if !ok {
		return nil, "", messages.Errorf(messages.CodeUnknownTopic, "no topic has the name %q", clip(q.args[0], 64))
	}
	index, err := strconv.ParseInt(q.args[1], 10, 32)
	p, ok := e.cfg.Catalog.Partition(messages.PartitionID{Topic: t.ID, Index: int32(index)})
	if err != nil || !ok {
		return nil, "", messages.Errorf(messages.CodeUnknownPartition, "topic %q has the partitions 0 to %d, not %q", t.Name, t.Partitions-1,
			clip(q.args[1], 32))
	}
	return partitionView(t, p, e.health.violates(e)), "", nil
}

func partitionView(t *messages.Topic, p *messages.Partition, violates func([]messages.BrokerID) bool) messages.PartitionView {
	v := messages.PartitionView{
		Topic: t.Name, TopicID: t.ID, Partition: p.ID.Index, Leader: p.Leader, LeaderEpoch: p.LeaderEpoch, Epoch: p.Epoch,
		Replicas: present(p.Replicas), ISR: present(p.ISR), Eligible: present(p.Eligible), Missing: []messages.BrokerID{},
		MinISR: messages.EffectiveMinISR(p.MinISR, len(p.Replicas)), HighWatermark: p.HighWatermark, LeaderProven: p.LeaderProven,
		LastLeader: p.LastLeader, Reason: p.Reason, State: partitionState(p),
		RackViolation: violates(p.Replicas),
	}
	for _, b := range p.Replicas {
		if !slices.Contains(p.ISR, b) {
			v.Missing = append(v.Missing, b)
		}
	}
	return v
}

// partitionState is the worst that can be said of a partition.
func partitionState(p *messages.Partition) string {
	switch {
	case p.Leader == "":
		return "offline"
	case len(p.ISR) < messages.EffectiveMinISR(p.MinISR, len(p.Replicas)):
		return "under_min_isr"
	case len(p.ISR) < len(p.Replicas):
		return "under_replicated"
	}
	return "online"
}

// present makes the empty list out of none, so that JSON has [] and not null.
func present(ids []messages.BrokerID) []messages.BrokerID {
	if ids == nil {
		return []messages.BrokerID{}
	}
	return ids
}
