package registry

import (
	"strings"
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

// finalize asks for a version, and returns the answer with what was written.
func (w *world) finalize(q *pb.FinalizeUpgradeRequest, controllers ...messages.ControllerView) (*pb.FinalizeUpgradeResponse, []messages.Record) {
	w.requests++
	fx := w.step(actors.FinalizeUpgrade{Request: w.requests, Body: q, Controllers: controllers})
	return answer[*pb.FinalizeUpgradeResponse](fx), fx.Records
}

func TestB124AVersionIsFinalizedOnceEverybodyKnowsIt(t *testing.T) {
	w := newWorld(messages.DefaultSettings())
	w.machine.Known = messages.VersionRange{Min: 1, Max: 3}
	w.step(actors.Activated{})
	w.join("b1")
	old := messages.ControllerView{Name: "c2", Versions: messages.VersionRange{Min: 1, Max: 2}, AgeMs: 300}
	silent := messages.ControllerView{Name: "c3", AgeMs: 60_000}
	for name, c := range map[string]struct {
		q        *pb.FinalizeUpgradeRequest
		code     messages.Code
		blockers int
	}{
		"no version":          {&pb.FinalizeUpgradeRequest{}, messages.CodeInvalidRequest, 0},
		"a dry run of none":   {&pb.FinalizeUpgradeRequest{DryRun: true}, messages.CodeInvalidRequest, 0},
		"what nobody knows":   {&pb.FinalizeUpgradeRequest{Version: 4}, messages.CodeUnsupportedVersion, 0},
		"the one that it has": {&pb.FinalizeUpgradeRequest{Version: 1}, "", 0},
		"one broker too old":  {&pb.FinalizeUpgradeRequest{Version: 2}, messages.CodeUpgradeBlocked, 1},
		"a controller too":    {&pb.FinalizeUpgradeRequest{Version: 3}, messages.CodeUpgradeBlocked, 2},
	} {
		out, records := w.finalize(c.q, old, silent)
		if messages.Code(out.GetError().GetCode()) != c.code || len(out.GetBlockers()) != c.blockers || len(records) != 0 || out.GetFrom() != 1 {
			t.Errorf("%s: %v, %d records", name, out, len(records))
		}
	}
	r := registration("b1", "i-b1", "s-b1")
	r.MaxProtocol = 3
	w.ask("b1", r)
	if out, records := w.finalize(&pb.FinalizeUpgradeRequest{Version: 2, DryRun: true}, old); out.GetError() != nil || len(records) != 0 || out.GetTo() != 2 {
		t.Errorf("a dry run: %v, %d records", out, len(records))
	}
	before := *w.cluster.Identity()
	out, records := w.finalize(&pb.FinalizeUpgradeRequest{Version: 2}, old)
	after := *w.cluster.Identity()
	if out.GetError() != nil || len(records) != 1 || after.FinalizedVersion() != 2 || out.GetRevision() != uint64(w.applied) {
		t.Fatalf("%v, %+v", out, after)
	}
	if before.Version = 2; before != after {
		t.Errorf("more than the version has changed: %+v, %+v", before, after)
	}
	if out, records := w.finalize(&pb.FinalizeUpgradeRequest{Version: 1}, old); messages.Code(out.GetError().GetCode()) != messages.CodeInvalidRequest || len(records) != 0 {
		t.Errorf("lowered: %v", out)
	}
	if out := answer[*pb.RegisterResponse](w.ask("b2", registration("b2", "i2", "s2"))); messages.Code(out.GetError().GetCode()) != messages.CodeUnsupportedVersion {
		t.Errorf("a broker that is too old by now: %v", out)
	}
	if out := answer[*pb.RegisterResponse](w.ask("b1", r)); out.GetError() != nil || out.GetProtocol() != 2 {
		t.Errorf("one that is not: %v", out)
	}
}

func TestB124ManyBlockersAreNamedInPart(t *testing.T) {
	brokers := map[messages.BrokerID]*messages.Broker{}
	for i := range 12 {
		id := messages.BrokerID(rune('a' + i))
		brokers[id] = &messages.Broker{ID: id, Fenced: i == 0, Speaks: messages.VersionRange{Min: 1, Max: 1}}
	}
	all := messages.UpgradeBlockers(2, brokers, nil)
	err := messages.ErrUpgradeBlocked(2, all)
	if len(all) != 12 || !strings.HasSuffix(err.Message, "broker j knows 1, and 2 more") || !strings.Contains(all[0].Detail, "broker forget a") ||
		strings.Contains(all[1].Detail, "forget") {
		t.Errorf("%v, %+v", err, all)
	}
}

func TestB125OnlyBrokersThatAreGoneAndEmptyAreForgotten(t *testing.T) {
	w := newWorld(messages.DefaultSettings())
	w.step(actors.Activated{})
	w.join("b7")
	forget := func(q *pb.ForgetBrokerRequest) (messages.Code, []messages.Record) {
		fx := w.ask("op", q)
		return messages.Code(answer[*pb.ForgetBrokerResponse](fx).GetError().GetCode()), fx.Records
	}
	wants := func(what string, q *pb.ForgetBrokerRequest, want messages.Code) {
		t.Helper()
		if code, records := forget(q); code != want || len(records) != 0 {
			t.Errorf("%s: %q, %d records", what, code, len(records))
		}
	}
	seven := &pb.ForgetBrokerRequest{Name: "b7"}
	wants("alive", seven, messages.CodeBrokerIDInUse)
	wants("no name", &pb.ForgetBrokerRequest{}, messages.CodeInvalidName)
	wants("unknown", &pb.ForgetBrokerRequest{Name: "b8"}, messages.CodeUnknownBroker)
	w.wait(10 * time.Second)
	w.ask("b7", registration("b7", "i2", "s-b7"))
	wants("fenced, but heard just now", seven, messages.CodeBrokerIDInUse)
	w.wait(10 * time.Second)
	w.cluster.apply(&messages.TopicDeletion{ID: messages.TopicID{7}, Name: "t", Partitions: 1, Epochs: []messages.PartitionEpoch{1},
		Pending: []messages.BrokerID{"b7"}})
	w.load()
	w.step(actors.Activated{})
	wants("a dry run", &pb.ForgetBrokerRequest{Name: "b7", DryRun: true}, "")
	if code, records := forget(seven); code != "" || len(records) != 2 || w.cluster.brokers["b7"] != nil {
		t.Errorf("gone and empty: %q, %v", code, records)
	}
	if _, waits := w.cluster.Deletion(messages.TopicID{7}); waits {
		t.Error("a deletion still waits for it")
	}
	wants("once more", seven, messages.CodeUnknownBroker)
	if out := answer[*pb.RegisterResponse](w.ask("b7", registration("b7", "i3", "new"))); out.GetError() != nil {
		t.Errorf("a new broker under the id: %v", out)
	}
}
