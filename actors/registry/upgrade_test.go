package registry

import (
	"testing"
	"time"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

func TestB124WhatALaterVersionWroteOfABrokerOrADeletionStays(t *testing.T) {
	w := newWorld(messages.DefaultSettings())
	w.step(actors.Activated{})
	w.join("b1")
	w.join("b2")
	later := &messages.Unknown{}
	b := *w.cluster.brokers["b1"]
	b.Unknown = later
	w.cluster.apply(&b)
	kept := func(what string, change func()) {
		t.Helper()
		before := w.cluster.brokers["b1"]
		change()
		if now := w.cluster.brokers["b1"]; now == before || now.Unknown != later {
			t.Errorf("%s: from %+v to %+v", what, before, now)
		}
	}
	kept("amended", func() {
		r := registration("b1", "i-b1", "s-b1")
		r.Rack = "r9"
		w.ask("b1", r)
	})
	kept("fenced", func() { w.wait(10 * time.Second) })
	kept("registered anew", func() { w.ask("b1", registration("b1", "i2", "s-b1")) })
	kept("unfenced", func() { w.ask("b1", w.beat("b1")) })
	kept("stopping", func() {
		r := w.beat("b1")
		r.WantsStop = true
		w.ask("b1", r)
	})
	kept("with another storage", func() {
		w.wait(10 * time.Second)
		w.ask("b1", registration("b1", "i3", "another"))
	})

	id := messages.TopicID{7}
	w.cluster.apply(&messages.TopicDeletion{ID: id, Name: "t", Partitions: 1, Epochs: []messages.PartitionEpoch{1},
		Pending: []messages.BrokerID{"b1", "b2"}, Unknown: later})
	w.load()
	w.ask("b1", &pb.RemovedRequest{Broker: "b1", BrokerEpoch: uint64(w.cluster.brokers["b1"].Epoch), TopicIds: [][]byte{id.Bytes()}})
	if d, _ := w.cluster.Deletion(id); d == nil || len(d.Pending) != 1 || d.Unknown != later {
		t.Errorf("the deletion is %+v", d)
	}
}
