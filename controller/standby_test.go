package controller

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/highwater-io/highwater/controller/activation"
	"github.com/highwater-io/highwater/messages"
)

// pair starts processes that share a journal on one server, which belongs to none of them.
func pair(t testing.TB, n int, change func(i int, c *Config)) []*Controller {
	t.Helper()
	host := start(t, t.TempDir(), func(c *Config) { c.Cluster, c.Name = "host", "host" })
	var all []*Controller
	for i := range n {
		all = append(all, start(t, "", func(c *Config) {
			c.Name, c.Standby = fmt.Sprintf("c%d", i+1), true
			c.NATSURL = "nats://hw:" + host.server.user + "@" + strings.TrimPrefix(host.URL(), "nats://")
			c.SystemURL = "nats://sys:" + host.server.system + "@" + strings.TrimPrefix(host.URL(), "nats://")
			c.Beat, c.Suspicion, c.IdleTick = 50*time.Millisecond, time.Second, 200*time.Millisecond
			if change != nil {
				change(i, c)
			}
		}))
		if i == 0 {
			eventually(t, "the first process to be active", all[0].Active)
		}
	}
	return all
}

func activeOf(all []*Controller) *Controller {
	var out *Controller
	for _, c := range all {
		if c.Active() {
			if out != nil {
				return nil
			}
			out = c
		}
	}
	return out
}

func TestAStandbyTakesOverWhenTheActiveOneDies(t *testing.T) {
	all := pair(t, 2, nil)
	nc := connect(t, all[0].URL())
	brokers := []*rawBroker{join(t, all[0].URL(), "b1"), join(t, all[0].URL(), "b2"), join(t, all[0].URL(), "b3")}
	for _, b := range brokers {
		eventually(t, string(b.id)+" to be unfenced", b.serving)
	}
	create(t, nc, "orders", 6)
	before := leaders(t, all[0])
	first := all[0].Epoch()
	eventually(t, "the standby to have heard the active one", func() bool { return len(all[1].members.list()) == 2 })
	all[0].conns.edge.Close() // as the end of the process would; what is left of it cannot speak any more
	eventually(t, "the other one to be active", all[1].Active)
	eventually(t, "people to be told that one is missing", func() bool {
		list, _ := look[[]messages.ControllerView](t, nc, "controllers")
		health, _ := look[messages.HealthView](t, nc, "health")
		return list[0].Silent && !list[1].Silent && slices.ContainsFunc(health.Reasons, func(r messages.HealthReason) bool {
			return r.Code == "CONTROLLER_SILENT" && r.Count == 1 && strings.HasPrefix(r.Detail, "c1:")
		})
	})
	if all[1].Epoch() <= first {
		t.Errorf("the epoch went from %d to %d", first, all[1].Epoch())
	}
	create(t, nc, "payments", 3)
	after := leaders(t, all[1])
	for id, p := range before {
		if q := after[id]; q == nil || q.Leader != p.Leader || q.LeaderEpoch != p.LeaderEpoch || q.Epoch != p.Epoch {
			t.Errorf("partition %v changed from %+v to %+v", id, p, q)
		}
	}
	for _, b := range brokers {
		eventually(t, string(b.id)+" to have a lease of the new one", b.serving)
	}
}

func leaders(t testing.TB, c *Controller) map[messages.PartitionID]*messages.Partition {
	t.Helper()
	out := map[messages.PartitionID]*messages.Partition{}
	c.current().catalog.Partitions(func(topic *messages.Topic, p *messages.Partition) bool {
		if topic.Name == "orders" {
			out[p.ID] = p
		}
		return true
	})
	if len(out) == 0 {
		t.Fatal("no partitions")
	}
	return out
}

func TestB104AStandbyAnswersMonitorsAndNobodyElse(t *testing.T) {
	all := pair(t, 2, nil)
	nc := connect(t, all[0].URL())
	_, v := look[messages.HealthView](t, nc, "at.c2.health")
	if v.Role != "standby" || v.Stale || v.ControllerEpoch != all[0].Epoch() || v.ServedBy != "c2" {
		t.Errorf("a standby says %+v", v)
	}
	for range 20 { // nobody is sent to one that may lag
		if _, v := look[messages.HealthView](t, nc, "health"); v.Role != "active" {
			t.Errorf("asked without a name, %+v answers", v)
		}
	}
	eventually(t, "each to know the other", func() bool {
		list, _ := look[[]messages.ControllerView](t, nc, "controllers")
		return len(list) == 2 && list[0].Role == "active" && list[1].Role == "standby" && list[1].Applied >= list[0].Applied-2
	})
	if err := all[1].Ready(); messages.CodeOf(err) != messages.CodeNotActiveController {
		t.Errorf("a standby says that it is ready: %v", err)
	}
}

func TestStepDownHandsOverAndStandsByAgain(t *testing.T) {
	all := pair(t, 3, nil)
	nc := connect(t, all[0].URL())
	eventually(t, "a successor", func() bool { return all[0].members.successor() != "" })
	m, err := nc.Request(subjects.Control("op", "controller", "step-down"), nil, 10*time.Second)
	if err != nil || !strings.Contains(string(m.Data), `"to":"c`) {
		t.Fatalf("%s %v", m.Data, err)
	}
	eventually(t, "another to be active", func() bool { a := activeOf(all); return a != nil && a != all[0] })
	eventually(t, "the first to stand by", func() bool { t := all[0].current(); return !t.active && t.edge != nil })
	if err := all[0].Err(); err != nil {
		t.Error(err)
	}
	a := activeOf(all)
	if !a.current().handed {
		t.Errorf("%s took over without the last word of the first one", a.cfg.Name)
	}
	stop(t, a) // in order: hands over as well
	var rest []*Controller
	for _, c := range all {
		if c != a {
			rest = append(rest, c)
		}
	}
	eventually(t, "one of the rest to be active", func() bool { return activeOf(rest) != nil })
}

// One that became active because another one was not heard cannot know whether that one still grants leases; its successor must
// not take a hand-over for the word that nobody does.
func TestAShortTermIsNotHandedOver(t *testing.T) {
	all := pair(t, 2, nil)
	eventually(t, "the standby to be active", func() bool {
		if !all[1].Active() { // until the next beat of the active one
			all[1].members.note(func(w *activation.Watch, _ time.Duration) { w.Lose("c1") })
			all[1].members.wake()
		}
		return all[1].Active()
	})
	eventually(t, "the deposed one to stand by", func() bool { return all[1].members.successor() == "c1" })
	all[1].order(orderStepDown)
	eventually(t, "the first to be active again", all[0].Active)
	if all[0].current().handed {
		t.Error("the second one has handed over before it had waited out the first one's grants")
	}
}

func TestADeposedControllerStandsByOnACatalogOfItsOwn(t *testing.T) {
	all := pair(t, 2, nil)
	old := all[0].current()
	// The standby is made to believe that the active one is gone while it is well.
	eventually(t, "the standby to be active", func() bool {
		if !all[1].Active() { // until the next beat of the active one
			all[1].members.note(func(w *activation.Watch, _ time.Duration) { w.Lose("c1") })
			all[1].members.wake()
		}
		return all[1].Active()
	})
	eventually(t, "the deposed one to stand by", func() bool { t := all[0].current(); return !t.active && t.edge != nil })
	if all[0].current().catalog == old.catalog {
		t.Error("the deposed one goes on with the catalog of its term")
	}
	if err := all[0].Err(); err != nil {
		t.Error(err)
	}
}
