//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// A data folder belongs to one broker of one cluster; whoever comes with another's is told so and ends.
func TestK60FoldersOfAnotherClusterOrBrokerAreRefused(t *testing.T) {
	c := newCluster(t, 1)
	other := newCluster(t, 0)
	c.createOn("t", 1, 1, "b1")
	c.write("t", 0, 20)
	run := func(to *cluster, id, folder string) (string, int) {
		_, errs, code := to.run(nil, "broker", "run", "--id", id, "--data-dir", folder)
		return errs, code
	}
	if errs, code := run(c, "b2", c.folder("b1")); code == 0 || !strings.Contains(errs, "another broker") {
		t.Errorf("a folder that is in use: exit code %d, %s", code, errs)
	}
	c.brokers["b1"].term()
	if errs, code := run(c, "b2", c.folder("b1")); code == 0 || !strings.Contains(errs, "CLUSTER_MISMATCH") || !strings.Contains(errs, `"b1"`) {
		t.Errorf("b1's folder as b2: exit code %d, %s", code, errs)
	}
	if errs, code := run(other, "b1", c.folder("b1")); code == 0 || !strings.Contains(errs, "CLUSTER_MISMATCH") {
		t.Errorf("a folder of another cluster: exit code %d, %s", code, errs)
	}
	if h, err := other.health(); err != nil || h.Brokers.Total != 0 {
		t.Errorf("the other cluster has %+v, %v", h.Brokers, err)
	}
	c.startBroker("b1")
	c.fullISR("t")
	c.holds("t", 20)
}

// A broker is let in while topics come and go all the time.
func TestB48ABrokerIsLetInOnABusyCluster(t *testing.T) {
	c := newClusterWith(t, 3, quick...)
	ctx, stop := context.WithCancel(t.Context())
	var churn sync.WaitGroup
	made := make(chan struct{}, 1)
	for i := range 4 {
		churn.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				name := fmt.Sprintf("t%d-%d", i, n)
				if _, err := c.client.CreateTopic(t.Context(), &pb.CreateTopicRequest{Name: name, Partitions: 3, ReplicationFactor: 2}); err != nil {
					t.Errorf("create %s: %v", name, err)
				}
				if _, err := c.client.DeleteTopic(t.Context(), &pb.DeleteTopicRequest{Name: name}); err != nil {
					t.Errorf("delete %s: %v", name, err)
				}
				select {
				case made <- struct{}{}:
				default:
				}
			}
		})
	}
	<-made
	for range 3 {
		before, err := c.client.Broker(t.Context(), "b2")
		must(t, err)
		c.brokers["b2"].kill()
		c.startBroker("b2")
		eventually(t, 15*time.Second, "b2 serves again", func() error {
			now, err := c.client.Broker(t.Context(), "b2")
			if err == nil && (now.Epoch == before.Epoch || now.State != "active") {
				err = fmt.Errorf("%+v", now)
			}
			return err
		})
	}
	stop()
	churn.Wait()
	eventually(t, 10*time.Second, "nothing is left", func() error {
		h, err := c.health()
		if err == nil && (h.Status != "HEALTHY" || h.Partitions.Total != 0) {
			err = fmt.Errorf("%+v", h)
		}
		return err
	})
}

// Brokers that are there before their controller wait for it.
func TestB49BrokersWaitForTheirController(t *testing.T) {
	nats := startNATS(t)
	c := nats.on(t, quick...)
	c.connect()
	ids := []messages.BrokerID{"b1", "b2", "b3", "b4", "b5"}
	for _, b := range ids {
		c.startBroker(b)
	}
	eventually(t, 10*time.Second, "all brokers listen for assignments", func() error {
		list := strings.Join(nats.subscriptions(), " ")
		for _, b := range ids {
			if !strings.Contains(list, messages.NewSubjects(clusterName).Assignments(b)) {
				return fmt.Errorf("%s", list)
			}
		}
		return nil
	})
	throughout(t, time.Second, "brokers wait", func() error {
		for _, b := range ids {
			if !c.brokers[b].running() {
				return fmt.Errorf("%s has ended", b)
			}
		}
		return nil
	})
	c.startController()
	c.controllerReady()
	eventually(t, 15*time.Second, "all are registered and active", func() error {
		h, err := c.health()
		if err == nil && h.Brokers.Active != len(ids) {
			err = fmt.Errorf("%+v", h.Brokers)
		}
		return err
	})
}

// The same where the server is the controller's own: there is not even a NATS to wait at.
func TestB49BrokersWaitForTheServerOfTheirController(t *testing.T) {
	c := &cluster{t: t, dir: t.TempDir(), address: freeAddress(t), brokers: map[messages.BrokerID]*process{}}
	for _, b := range []messages.BrokerID{"b1", "b2"} {
		c.startBroker(b)
		eventually(t, 10*time.Second, string(b)+" waits", func() error {
			raw, err := os.ReadFile(c.brokers[b].log)
			if err == nil && !strings.Contains(string(raw), "waiting for NATS") {
				err = fmt.Errorf("%s", raw)
			}
			return err
		})
	}
	c.startController()
	c.connect()
	c.controllerReady()
	c.allActive(2)
}

// The controller's store is gone, or older than what brokers have heard of. Nothing is decided from it, nothing is deleted,
// and with the right store everything is as it was.
func TestB119B120AnOlderOrEmptyStoreDecidesNothing(t *testing.T) {
	c := newClusterWith(t, 3, quick...)
	c.createOn("t", 1, 2, "b1", "b2", "b3")
	c.write("t", 0, 100)
	c.fullISR("t")
	c.controller.kill()
	folder := c.folder("controller")
	must(t, os.CopyFS(folder+".old", os.DirFS(folder)))
	c.startController()
	c.controllerReady()
	c.allActive(3)
	for range 2 {
		victim := c.leaderOf("t", 0)
		c.brokers[victim].kill()
		c.until("t", "another leads", func(p messages.PartitionView) bool { return p.Leader != "" && p.Leader != victim && p.LeaderProven })
		c.startBroker(victim)
		c.fullISR("t")
	}
	c.write("t", 100, 150)
	last := c.partition("t", 0)
	c.controller.kill()
	must(t, os.Rename(folder, folder+".right"))

	c.wentBack.Store(true)
	must(t, os.Rename(folder+".old", folder))
	c.startController()
	c.controllerReady()
	older := c.partition("t", 0)
	throughout(t, 4*time.Second, "an older store decides nothing", func() error { // longer than two sessions
		if p := c.partition("t", 0); p.LeaderEpoch != older.LeaderEpoch || p.Epoch != older.Epoch || p.Leader != older.Leader {
			return fmt.Errorf("epochs are given anew: %+v, stored was %+v, the last ones were %+v", p, older, last)
		}
		return nil
	})
	if errs := c.refused("older"); !strings.Contains(errs, "STORE_WENT_BACK") {
		t.Errorf("a topic is made from an older store: %s", errs)
	}
	c.controller.kill()
	must(t, os.RemoveAll(folder))
	c.startController() // an empty folder: a new cluster begins
	c.controllerReady()
	throughout(t, 2*time.Second, "an empty store gets no brokers", func() error {
		h, err := c.health()
		if err == nil && h.Brokers.Total != 0 {
			err = fmt.Errorf("%+v", h.Brokers)
		}
		return err
	})
	c.controller.kill()
	must(t, os.RemoveAll(folder))
	must(t, os.Rename(folder+".right", folder))
	c.startController()
	c.controllerReady()
	for id, b := range c.brokers {
		if !b.running() { // it was told that this is not its cluster
			c.startBroker(id)
		}
	}
	c.fullISR("t")
	c.holds("t", 150)
}

// refused tries to make a topic and returns why that cannot be.
func (c *cluster) refused(name string) string {
	c.t.Helper()
	_, errs, code := c.run(nil, "topic", "create", name, "--timeout", "3s")
	if code == 0 {
		return "it was made"
	}
	return errs
}
