package controller

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/highwater-io/highwater/broker"
	"github.com/highwater-io/highwater/client"
	"github.com/highwater-io/highwater/messages"
)

// nothing is a broker that keeps nothing and does at once what it is told.
type nothing struct{}

func (nothing) AddReplica(context.Context, broker.Assignment) error        { return nil }
func (nothing) BecomeLeader(_ context.Context, _ *broker.Leadership) error { return nil }
func (nothing) BecomeFollower(context.Context, broker.Assignment) error    { return nil }
func (nothing) RemoveReplica(context.Context, broker.Partition) error      { return nil }

// 200 brokers register at once, and come back at once each time that the server they are all connected to is restarted.
// Nobody is taken for dead, everybody keeps the registration, no leadership moves, and nothing is left behind in JetStream.
func TestB64TwoHundredBrokersReconnectAtOnce(t *testing.T) {
	t.Parallel()
	const n = 200
	dir := t.TempDir()
	configure := func(c *Config) {
		c.Settings = messages.DefaultSettings()
		c.Settings.Session, c.Settings.DisconnectGrace = 10*time.Second, 10*time.Second
	}
	c := start(t, dir, configure)
	listen := strings.TrimPrefix(c.URL(), "nats://")
	members := herd(t, c.URL(), n)
	nc := connect(t, c.URL())
	all := func(what string, is func(broker.State) bool) {
		t.Helper()
		eventually(t, what, func() bool {
			for _, m := range members {
				if !is(m.State()) {
					return false
				}
			}
			return true
		})
	}
	all("everybody to have a lease", func(s broker.State) bool { return !s.Fenced && s.Lease > 0 })
	create(t, nc, "t", 200)
	before, was := epochs(t, nc), map[broker.ID]messages.BrokerEpoch{}
	for _, m := range members {
		was[m.State().Broker] = m.State().Epoch
	}
	consumers := consumersOf(t, c)
	for range 3 {
		stop(t, c)
		c = start(t, dir, func(c *Config) {
			configure(c)
			c.Listen = listen
		})
		epoch := c.Epoch()
		all("everybody to have a lease of the next controller", func(s broker.State) bool { return s.Seen.Controller == epoch && s.Lease > 0 })
	}
	for _, m := range members {
		if s := m.State(); s.Epoch != was[s.Broker] || s.Fenced || m.Err() != nil {
			t.Errorf("%+v, registered under epoch %d, %v", s, was[s.Broker], m.Err())
		}
	}
	nc = connect(t, c.URL())
	if after := epochs(t, nc); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("leaderships have moved: %v, before %v", after, before)
	}
	if h, _ := look[messages.HealthView](t, nc, "health"); h.Brokers.Active != n {
		t.Errorf("health: %+v", h)
	}
	eventually(t, "no consumer to be left behind", func() bool { return consumersOf(t, c) <= consumers })
}

func consumersOf(t testing.TB, c *Controller) (n int) {
	t.Helper()
	for _, name := range []string{messages.JournalStream("dev"), messages.LeadershipStream("dev")} {
		s, err := c.client.Stream(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		n += s.CachedInfo().State.Consumers
	}
	return n
}

// herd joins n brokers at once, each over a connection of its own.
func herd(t testing.TB, url string, n int) []*broker.Member {
	t.Helper()
	members := make([]*broker.Member, n)
	var joining sync.WaitGroup
	for i := range n {
		joining.Go(func() {
			id := broker.ID(fmt.Sprintf("b%03d", i))
			nc, err := nats.Connect(url, client.ConnectOptions(string(id))...)
			if err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(nc.Close)
			ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
			defer cancel()
			if members[i], err = broker.Join(ctx, nc, "dev", id, nothing{}, broker.WithStorage(messages.StorageID("s-"+string(id)), "", true, 0)); err != nil {
				t.Errorf("%s: %v", id, err)
				return
			}
			t.Cleanup(members[i].Close)
		})
	}
	joining.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return members
}
