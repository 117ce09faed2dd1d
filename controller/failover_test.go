package controller

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/highwater-io/highwater/broker/replica"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// wired starts controllers that share a journal, each connected through wires of its own, and brokers' sessions of six
// seconds. It returns where brokers and clients connect besides.
func wired(t testing.TB, n int) (all []*Controller, wires []*wire, host string) {
	t.Helper()
	all = pair(t, n, func(_ int, c *Config) {
		c.Settings.Session = 6 * time.Second
		host = c.NATSURL
		w := newWire(t, c.NATSURL)
		wires = append(wires, w)
		for _, u := range []*string{&c.NATSURL, &c.SystemURL} {
			through, err := url.Parse(*u)
			if err != nil {
				t.Fatal(err)
			}
			through.Host = w.address()
			*u = through.String()
		}
	})
	at, err := url.Parse(host)
	if err != nil {
		t.Fatal(err)
	}
	return all, wires, "nats://" + at.Host
}

// another waits until another than these is active, and says which.
func another(t testing.TB, all []*Controller, than ...*Controller) *Controller {
	t.Helper()
	var now *Controller
	eventually(t, "another to be active", func() bool {
		for _, c := range all {
			if c.Active() && !slices.Contains(than, c) {
				now = c
				return true
			}
		}
		return false
	})
	return now
}

// accepted waits until a topic is made, by whoever is active.
func accepted(t testing.TB, nc *nats.Conn, topic string) {
	t.Helper()
	eventually(t, topic+" to be made", func() bool {
		err := call(nc, subjects.Control("op", "topic", "create"), &pb.CreateTopicRequest{Name: topic, Partitions: 1}, &pb.CreateTopicResponse{})
		return err == nil || messages.CodeOf(err) == messages.CodeTopicExists
	})
}

// unfenced checks that brokers were not fenced at any time, under one registration.
func unfenced(t testing.TB, all []*rawBroker) {
	t.Helper()
	for _, b := range all {
		b.mu.Lock()
		if b.fences != 0 || b.refused != nil && messages.CodeOf(b.refused) == messages.CodeStaleBrokerEpoch {
			t.Errorf("%s was fenced %d times; the last answer: %v", b.id, b.fences, b.refused)
		}
		b.mu.Unlock()
	}
}

// The active controller and a broker die in the same moment. That broker is fenced, and nobody else.
func TestB116K76WhoDiesDuringAFailoverIsFencedAndNobodyElse(t *testing.T) {
	t.Parallel()
	all, wires, host := wired(t, 2)
	nc := connect(t, host)
	var brokers []*rawBroker
	for i := range 10 {
		brokers = append(brokers, join(t, host, messages.BrokerID(fmt.Sprintf("b%02d", i))))
	}
	for _, b := range brokers {
		eventually(t, string(b.id)+" to be unfenced", b.serving)
	}
	create(t, nc, "t", 40)
	wires[0].cut()
	brokers[4].die()
	another(t, all, all[0])
	eventually(t, "the dead broker to be fenced, and to lead nothing", func() bool {
		v, _, _ := inquire[messages.BrokerView](nc, "broker.b04", time.Second)
		return v.State == "fenced" && v.Leaders == 0 && v.InSync == 0
	})
	living := slices.Delete(slices.Clone(brokers), 4, 5)
	for _, b := range living {
		eventually(t, string(b.id)+" to have a lease of the new controller", b.serving)
	}
	unfenced(t, living)
	h, _ := look[messages.HealthView](t, nc, "health")
	if h.Brokers.Fenced != 1 || h.Partitions.Offline != 0 {
		t.Errorf("health: %+v", h)
	}
}

// Ten changes of controllers with 500 partitions, half of them by a sudden end: no leader, no epoch and no ISR changes.
func TestB117K74TenChangesOfControllersChangeNothing(t *testing.T) {
	t.Parallel()
	all, wires, host := wired(t, 3)
	nc := connect(t, host)
	var brokers []*rawBroker
	for i := range 5 {
		brokers = append(brokers, join(t, host, messages.BrokerID(fmt.Sprintf("b%d", i))))
	}
	for _, b := range brokers {
		eventually(t, string(b.id)+" to be unfenced", b.serving)
	}
	create(t, nc, "orders", 500)
	active := activeOf(all)
	before := leaders(t, active)
	for round := range 10 {
		i := slices.Index(all, active)
		if round%2 == 0 {
			wires[i].cut()
		} else if _, err := nc.Request(subjects.Control("op", "controller", "step-down"), nil, 10*time.Second); err != nil {
			t.Fatal(err)
		}
		next := another(t, all, active)
		wires[i].heal()
		accepted(t, nc, fmt.Sprint("after-", round))
		eventually(t, "the others to stand by", func() bool {
			list, _, _ := inquire[[]messages.ControllerView](nc, "controllers", time.Second)
			roles := map[string]int{}
			for _, c := range list {
				if c.AgeMs < 500 {
					roles[c.Role]++
				}
			}
			return roles["active"] == 1 && roles["standby"] == 2
		})
		active = activeOf(all)
		if active == nil {
			active = next
		}
	}
	after := leaders(t, active)
	for id, was := range before {
		if now := after[id]; now == nil || now.Leader != was.Leader || now.LeaderEpoch != was.LeaderEpoch || now.Epoch != was.Epoch ||
			!slices.Equal(now.ISR, was.ISR) {
			t.Fatalf("partition %v changed from %+v to %+v", id, was, now)
		}
	}
	for _, b := range brokers {
		eventually(t, string(b.id)+" to have a lease", b.serving)
	}
	unfenced(t, brokers)
}

// The active controller falls asleep between deciding that a broker is dead and writing it. Another takes over and elects.
// When the first wakes up, what it had begun comes to nothing.
func TestB40APausedControllerDoesNotGoOnRuling(t *testing.T) {
	t.Parallel()
	all, wires, host := wired(t, 2)
	b := realBrokers(t, host, "b1", "b2", "b3")
	nc := connect(t, host)
	id := realTopic(t, nc, "t", 2, "b1", "b2", "b3")
	mustWrite(t, nc, id, "t", values(5)...)
	inSync(t, nc, "t", "b1", "b2", "b3")
	first := all[0].Epoch()
	wires[0].hold(func(m message) bool { return !m.down }) // it hears, and nothing that it says gets out
	b["b1"].kill()
	eventually(t, "it to try to write the fence", func() bool { return wires[0].held() > 0 && slices.Contains(wires[0].subjects(), subjects.Journal()) })
	another(t, all, all[0])
	v := inSync(t, nc, "t", "b2", "b3")
	mustWrite(t, nc, id, "t", "after")
	wires[0].letGo()
	eventually(t, "it to stand by", func() bool { t := all[0].current(); return !t.active && t.edge != nil })
	if err := all[0].Err(); err != nil {
		t.Error(err)
	}
	mustWrite(t, nc, id, "t", "more")
	if now := partitionView(t, nc, "t"); now.Leader != v.Leader || now.LeaderEpoch != v.LeaderEpoch || now.Epoch != v.Epoch || now.LeaderEpoch != 1 {
		t.Errorf("after it woke up: %+v, before %+v", now, v)
	}
	for _, id := range []messages.BrokerID{"b2", "b3"} {
		if seen := b[id].srv.State().Seen.Controller; seen <= first {
			t.Errorf("%s follows the controller of epoch %d, the first had %d", id, seen, first)
		}
	}
	if st := b[v.Leader].replica(id); st.Role != replica.RoleLeader || st.LogEnd != 7 {
		t.Errorf("the leader: %+v", st)
	}
}

// The active controller has no connection for a moment, too short for another to take over. What happens meanwhile is told to
// nobody: a broker dies, and a topic is wanted.
func TestB114WhatIsMissedInAShortDisconnectIsMadeUpFor(t *testing.T) {
	t.Parallel()
	all, wires, host := wired(t, 1)
	nc := connect(t, host)
	var brokers []*rawBroker
	for i := range 3 {
		brokers = append(brokers, join(t, host, messages.BrokerID(fmt.Sprintf("b%d", i+1))))
		eventually(t, "it to be unfenced", brokers[i].serving)
	}
	createOn(t, nc, "t", 6, "b2", "b1", "b3")
	wires[0].cut()
	eventually(t, "the controller to be without a connection", func() bool { return !all[0].conns.edge.IsConnected() && !all[0].conns.system.IsConnected() })
	brokers[1].die()
	made := make(chan error, 1)
	go func() {
		for deadline := time.Now().Add(20 * time.Second); ; <-time.After(10 * time.Millisecond) {
			err := call(nc, subjects.Control("op", "topic", "create"), &pb.CreateTopicRequest{Name: "meanwhile", Partitions: 1, ReplicationFactor: 2},
				&pb.CreateTopicResponse{})
			if err == nil || messages.CodeOf(err) == messages.CodeTopicExists || time.Now().After(deadline) {
				made <- err
				return
			}
		}
	}()
	wires[0].heal()
	if err := <-made; err != nil && messages.CodeOf(err) != messages.CodeTopicExists {
		t.Errorf("the topic: %v", err)
	}
	eventually(t, "the partitions of the dead broker to be led by others", func() bool {
		v, _ := look[messages.BrokerView](t, nc, "broker.b2")
		h, _ := look[messages.HealthView](t, nc, "health")
		return v.State == "fenced" && v.Leaders == 0 && h.Partitions.Offline == 0 && h.Partitions.Total == 7
	})
	unfenced(t, []*rawBroker{brokers[0], brokers[2]})
}

// Connections of controllers break at any time, operators want others, and each time somebody rules soon: what is written is
// accepted, and who is active by its own word is the one that the others know.
func TestB115SomebodyIsAlwaysAtTheWheel(t *testing.T) {
	t.Parallel()
	all, wires, host := wired(t, 3)
	nc := connect(t, host)
	for i := range 3 {
		b := join(t, host, messages.BrokerID(fmt.Sprintf("b%d", i+1)))
		eventually(t, "it to be unfenced", b.serving)
	}
	r := rand.New(rand.NewPCG(7, uint64(time.Now().UnixNano())))
	for round := range 12 {
		i := r.IntN(len(all))
		pause := time.NewTimer(time.Duration(r.IntN(1500)) * time.Millisecond)
		what := r.IntN(3)
		t.Logf("round %d: %d to %s", round, what, all[i].cfg.Name)
		switch what {
		case 0:
			wires[i].cut()
			<-pause.C
			wires[i].heal()
		case 1: // again before the others have noticed
			wires[i].cut()
			eventually(t, "it to be cut", func() bool { return !all[i].conns.edge.IsConnected() })
			wires[i].heal()
		case 2:
			_, err := nc.Request(subjects.Control("op", "controller", "step-down"), nil, time.Second)
			if err != nil && !errors.Is(err, nats.ErrNoResponders) && !errors.Is(err, nats.ErrTimeout) {
				t.Fatal(err)
			}
		}
		accepted(t, nc, fmt.Sprint("round-", round))
		eventually(t, "the one that is active to be known as such", func() bool {
			a := activeOf(all)
			_, v, err := inquire[messages.HealthView](nc, "health", time.Second)
			return err == nil && a != nil && v.ServedBy == a.cfg.Name && v.ControllerEpoch == a.Epoch()
		})
	}
	for _, c := range all {
		if err := c.Err(); err != nil {
			t.Errorf("%s has ended: %v", c.cfg.Name, err)
		}
	}
}
