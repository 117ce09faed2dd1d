package sim

import (
	"fmt"

	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/messages"
)

// thePartition is the only one of an exploration.
var thePartition = messages.PartitionID{Topic: messages.TopicID{1}}

// newScene sets the stage: a journal in which c1 has claimed, three brokers are registered and the partition is led by b1,
// and processes that know all of it.
func newScene(e Exploration) *model {
	w := &model{e: e, log: journal.NewMemory(), acked: map[messages.Offset]string{}, ledBy: map[messages.LeaderEpoch]string{}}
	stub := &world{cfg: Config{Faults: e.Faults}}
	stub.store = &store{w: stub, log: w.log}
	w.check = newChecker(stub)
	stub.check = w.check
	ids := []messages.BrokerID{"b1", "b2", "b3"}
	p := &messages.Partition{ID: thePartition, Replicas: ids, ISR: ids, Leader: "b1", MinISR: 1, LeaderProven: true}
	entries := [][]messages.Record{{&messages.ControllerClaimed{Controller: "c1", Epoch: 1}, &messages.Cluster{Name: "sim", ID: "sim-1", Settings: settings}},
		nil, nil}
	for i, id := range ids {
		b := &explored{w: w, id: id, up: true, life: 1, epoch: messages.BrokerEpoch(i + 1), seen: 1, disk: &diskLog{}, told: map[messages.BrokerID]messages.Offset{}}
		w.brokers = append(w.brokers, b)
		rec := &messages.Broker{ID: id, Incarnation: messages.IncarnationID(b.incarnation()), Storage: messages.StorageID("disk-" + id), Epoch: b.epoch,
			Fsyncs: true, Weight: 100}
		if (e.Scene == Joining || e.Scene == Contested) && id == "b3" {
			rec.Fenced, rec.FencedReason, p.ISR = true, "registered, not ready yet", ids[:2]
		}
		entries[i] = append(entries[i], rec) // its epoch is the entry's sequence
	}
	entries[2] = append(entries[2], &messages.Topic{ID: thePartition.Topic, Name: "t", Partitions: 1, ReplicationFactor: 3, MinISR: 1}, p)
	var at journal.Position
	for _, records := range entries {
		payload, chain, err := journal.EncodeEntry(at, journal.Writer{Controller: "c1", Epoch: 1}, journal.Stamp{}, records)
		if err == nil {
			at.Last, err = w.log.Append(ctxNone, at.Last, payload)
		}
		if err != nil {
			panic(err)
		}
		at.Chain = chain
	}
	w.check.follow()
	for i := range 2 {
		c := &contender{w: w, name: fmt.Sprintf("c%d", i+1)}
		c.stand()
		w.controllers = append(w.controllers, c)
	}
	w.begin(p)
	return w
}

// begin makes c1 active and the brokers replicate, with nothing on its way but what cannot wait.
func (w *model) begin(p *messages.Partition) {
	c := w.controllers[0]
	c.follow()
	c.committer = journal.NewCommitter(c.at, journal.Writer{Controller: c.name, Epoch: 1}, journal.Limits{})
	c.reign()
	c.run()
	for _, b := range w.brokers {
		b.open(false)
		b.run(b.r.Assign(0, messages.AssignmentOf("t", p), b.epoch))
	}
	w.wire = nil
	for range 8 { // until the followers wait for the leader
		w.settle()
		for i := 0; i < len(w.wire); i++ {
			if m := w.wire[i]; m.to != "c1" && m.to != "c2" && m.to != "store" {
				w.deliver(i)
				i--
			}
		}
	}
	switch w.e.Scene {
	case Handover:
		w.brokers[0].crash()
		c.silent(w.brokers[0])
	case Contested:
		other := w.controllers[1]
		other.claim()
		w.deliverAllOf(other)
		other.heartbeat(w.brokers[2], true)
		w.deliverAllOf(other)
	}
}

// deliverAllOf lets a controller write what it has to write.
func (w *model) deliverAllOf(c *contender) {
	for i := 0; i < len(w.wire); i++ {
		if m := w.wire[i]; m.to == "store" || m.to == c.name && m.life == c.life {
			w.deliver(i)
			i = -1
		}
	}
}
