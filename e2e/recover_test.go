//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/highwater-io/highwater/messages"
)

// recoveryReport is what cluster recover prints.
type recoveryReport struct {
	MissingCount int `json:"missing_replicas_count"`
	Brokers      []struct {
		ID       messages.BrokerID `json:"id"`
		Heard    bool              `json:"heard"`
		Revision messages.Sequence `json:"seen_revision"`
		Ahead    bool              `json:"ahead"`
		Replicas int               `json:"replicas"`
	} `json:"brokers"`
	Unknown []struct {
		Name string `json:"name"`
	} `json:"unknown_topics"`
	Recovered *struct {
		Archive string `json:"archive"`
	} `json:"recovered"`
}

// offline runs a command line on the controller's folder to its end.
func (c *cluster) offline(args ...string) (stdout, stderr string, code int) {
	c.t.Helper()
	return c.command(append(args, "--cluster", clusterName, "--data-dir", c.folder("controller"))...)
}

// command runs a command line to its end.
func (c *cluster) command(args ...string) (stdout, stderr string, code int) {
	c.t.Helper()
	cmd := exec.Command(binary, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		c.t.Fatalf("%v: %v", args, err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// recover runs cluster recover in the place of the controller.
func (c *cluster) recover(args ...string) (recoveryReport, string, int) {
	c.t.Helper()
	out, errs, code := c.offline(append([]string{"cluster", "recover", "-o", "json", "--listen", c.address}, args...)...)
	var r recoveryReport
	if out != "" {
		must(c.t, json.Unmarshal([]byte(out), &r))
	}
	return r, errs, code
}

func (c *cluster) killAll() {
	c.controller.kill()
	for _, b := range c.brokers {
		b.kill()
	}
}

func (c *cluster) startAll() {
	c.startController()
	c.controllerReady()
	for _, b := range []messages.BrokerID{"b1", "b2", "b3"} {
		c.startBroker(b)
	}
}

// The journal's folder is copied; leaders move, a topic is made and records are acknowledged; everything is killed and the copy
// is put back. Nothing is decided; cluster recover says why; after it every acknowledged record of the topics that the journal
// knows is served, above the epochs of before, and the other topic is kept aside.
func TestB119TheStoreGoesBackAndIsRecovered(t *testing.T) {
	c := newClusterWith(t, 3, quick...)
	c.brokerArgs = []string{"-v"}
	c.createOn("t", 1, 2, "b1", "b2", "b3")
	c.write("t", 0, 50)
	c.fullISR("t")
	c.killAll()
	journal, old := c.folder("controller"), filepath.Join(c.dir, "old")
	must(t, os.CopyFS(old, os.DirFS(journal)))
	c.startAll()
	c.fullISR("t")
	for range 2 { // leaders and ISRs of which the copy knows nothing
		leader := c.someLeader("t")
		c.brokers[leader].kill()
		c.until("t", "another leads", func(p messages.PartitionView) bool { return p.Leader != "" && p.Leader != leader && p.LeaderProven })
		n := len(c.consumed("t"))
		c.write("t", n, n+50)
		c.startBroker(leader)
		c.fullISR("t")
	}
	c.createOn("later", 1, 2, "b1", "b2", "b3")
	c.write("later", 0, 10)
	c.fullISR("later")
	before := c.partition("t", 0)
	seen := c.keptSeen()
	c.killAll()
	must(t, os.Rename(journal, filepath.Join(c.dir, "newest")))
	must(t, os.Rename(old, journal))

	c.startAll()
	c.decidesNothing()
	c.controller.term()

	c.reportsAndRecovers(seen)
	c.startController()
	c.controllerReady()
	c.until("t", "it is led", func(p messages.PartitionView) bool { return p.Leader != "" && p.LeaderProven })
	c.fullISR("t")
	after := c.partition("t", 0)
	if after.LeaderEpoch <= before.LeaderEpoch || after.Epoch <= before.Epoch {
		t.Errorf("epochs %d/%d, they were %d/%d", after.LeaderEpoch, after.Epoch, before.LeaderEpoch, before.Epoch)
	}
	c.holds("t", 150)
	c.write("t", 150, 160)
	c.holds("t", 160)
	c.nothingDeleted()
	if h, err := c.health(); err != nil || slices.ContainsFunc(h.Reasons, func(r messages.HealthReason) bool { return r.Code == "STORE_WENT_BACK" }) {
		t.Errorf("health afterwards: %+v, %v", h.Reasons, err)
	}
}

// decidesNothing waits until it is said that the store went back, and checks that nothing is decided then.
func (c *cluster) decidesNothing() {
	c.t.Helper()
	eventually(c.t, 30*time.Second, "health says that the store went back", func() error {
		h, err := c.health()
		if err != nil {
			return err
		}
		for _, r := range h.Reasons {
			if r.Code == "STORE_WENT_BACK" && r.Detail != "" && h.Status == "UNHEALTHY" {
				return nil
			}
		}
		return fmt.Errorf("%+v", h)
	})
	if _, errs, code := c.run(nil, "topic", "create", "x", "--partitions", "1", "--replication-factor", "1"); code == 0 || !strings.Contains(errs, "STORE_WENT_BACK") {
		c.t.Errorf("a topic is created: %d, %s", code, errs)
	}
}

// reportsAndRecovers asks what there is, and then for the recovery.
func (c *cluster) reportsAndRecovers(seen messages.Sequence) {
	t := c.t
	r, errs, code := c.recover("--wait", "20s")
	if code != 0 || r.Recovered != nil || r.MissingCount != 0 || len(r.Unknown) != 1 || r.Unknown[0].Name != "later" || len(r.Brokers) != 3 {
		t.Fatalf("the report: %d %s %+v", code, errs, r)
	}
	for _, b := range r.Brokers {
		if !b.Ahead || !b.Heard || b.Replicas != 2 || b.Revision < seen {
			t.Errorf("the report of %+v", b)
		}
	}
	if _, errs, code = c.recover("--accept-lost-decisions"); code == 0 {
		t.Fatalf("it is not confirmed, and done: %s", errs)
	}
	r, errs, code = c.recover("--accept-lost-decisions", "--confirm", clusterName, "--wait", "20s")
	if code != 0 || r.Recovered == nil {
		t.Fatalf("not recovered: %d %s", code, errs)
	}
	if i, err := os.Stat(r.Recovered.Archive); err != nil || i.Size() == 0 {
		t.Errorf("the old entries are not kept: %v", err)
	}
}

// nothingDeleted checks that no broker has deleted a replica.
func (c *cluster) nothingDeleted() {
	c.t.Helper()
	for _, b := range c.brokers {
		if b.said("replica is removed") {
			c.t.Errorf("%s has deleted something", b.name)
		}
	}
}

// keptSeen waits until the brokers have kept that they have seen the journal up to its present end, which it returns. They have to
// run with -v to say so.
func (c *cluster) keptSeen() messages.Sequence {
	c.t.Helper()
	_, v, err := c.client.Health(c.t.Context())
	must(c.t, err)
	for _, b := range c.brokers {
		eventually(c.t, 20*time.Second, fmt.Sprintf("%s has kept revision %d", b.name, v.Revision), func() error {
			var last struct {
				Revision messages.Sequence `json:"revision"`
			}
			if kept := b.logged("position kept"); len(kept) > 0 {
				must(c.t, json.Unmarshal([]byte(kept[len(kept)-1]), &last))
			}
			if last.Revision < v.Revision {
				return fmt.Errorf("it has kept %d", last.Revision)
			}
			return nil
		})
	}
	return v.Revision
}

// The controllers' folder is wiped while brokers hold topics: nothing rules them, nothing is deleted. A backup brings it back.
func TestB120AWipedStoreDeletesNothing(t *testing.T) {
	c := newClusterWith(t, 3, quick...)
	for i := range 3 {
		c.createOn(fmt.Sprintf("t%d", i), 1, 2, "b1", "b2", "b3")
		c.write(fmt.Sprintf("t%d", i), 0, 20)
		c.fullISR(fmt.Sprintf("t%d", i))
	}
	backup := filepath.Join(c.dir, "backup.hw")
	if _, errs, code := c.run(nil, "cluster", "snapshot", "save", backup); code != 0 {
		t.Fatal(errs)
	}
	c.killAll()
	must(t, os.RemoveAll(c.folder("controller")))
	c.startAll()
	for _, b := range c.brokers {
		eventually(t, 30*time.Second, b.name+" is refused", func() error {
			if b.running() {
				return errors.New("it is running")
			}
			return nil
		})
		if !b.said("CLUSTER_MISMATCH") && !b.said("belongs to cluster") {
			t.Errorf("%s does not say why", b.name)
		}
	}
	c.controller.term()
	if r, _, code := c.recover("--wait", "1s", "--accept-lost-decisions", "--confirm", clusterName); code == 0 || r.Recovered != nil {
		t.Errorf("an empty journal is recovered: %+v", r)
	}
	must(t, os.RemoveAll(c.folder("controller")))
	if _, errs, code := c.offline("cluster", "snapshot", "restore", backup); code != 0 {
		t.Fatal(errs)
	}
	c.startAll()
	for i := range 3 {
		c.fullISR(fmt.Sprintf("t%d", i))
		c.holds(fmt.Sprintf("t%d", i), 20)
	}
	c.nothingDeleted()
}
