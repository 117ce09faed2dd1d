package broker_test

import (
	"testing"

	"github.com/highwater-io/highwater/messages"
)

func TestB119WhatABrokerHasSeenOfTheJournalOutlivesIt(t *testing.T) {
	c := newCluster(t, "b1")
	_, _ = c.topic(1, "b1")
	kept := func() messages.Seen { return c.disks["b1"].Identity().Seen }
	want := c.servers["b1"].State().Seen
	eventually(t, "the position is kept", func() bool { return want != messages.Seen{} && !kept().Before(want) })
	before := kept()
	c.crash("b1")
	c.ctl.Lose("b1")
	s := c.start("b1")
	if got := s.State().Seen; got.Before(before) {
		t.Errorf("the broker goes on with %+v, it had kept %+v", got, before)
	}
	first := c.ctl.Requests(messages.VerbRegister, "b1")
	if len(first) < 2 {
		t.Fatalf("%d registrations", len(first))
	}
}
