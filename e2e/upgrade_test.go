//go:build e2e

package e2e

import (
	"bytes"
	"context"
	wire "encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// nextBuild builds the program that stands for the next release: it knows one version more, and writes forms that this
// release does not know.
func nextBuild(t testing.TB) string {
	t.Helper()
	path, err := buildNext()
	must(t, err)
	return path
}

var buildNext = sync.OnceValues(func() (string, error) {
	path := filepath.Join(filepath.Dir(binary), "highwater-next")
	build := exec.Command("go", "build", "-tags", "highwater_next", "-o", path, "github.com/highwater-io/highwater/cmd/highwater")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return path, nil
})

// mixed is a cluster whose processes run two builds.
type mixed struct {
	*several
	next string
}

// roll runs a controller with a build, "" for this release, on the folder that it has, and waits until it stands by.
func (m *mixed) roll(name, program string) {
	m.t.Helper()
	if m.serving[name].running() {
		m.serving[name].term()
	}
	m.programs[name] = program
	m.serve(name)
	most := messages.FirstVersion
	if program == m.next {
		most++
	}
	eventually(m.t, 60*time.Second, name+" stands by with its new build", func() error {
		c, err := m.controller(name)
		if err == nil && (c.Role != "standby" || c.Versions.Max != most || c.AgeMs > 600) {
			err = fmt.Errorf("%+v", c)
		}
		return err
	})
}

func (m *mixed) controller(name string) (messages.ControllerView, error) {
	ctx, cancel := context.WithTimeout(m.t.Context(), time.Second)
	defer cancel()
	list, err := m.client.Controllers(ctx)
	for _, c := range list {
		if c.Name == name {
			return c, nil
		}
	}
	return messages.ControllerView{}, fmt.Errorf("%s is not in %+v, %v", name, list, err)
}

// activate has one of some controllers become the active one.
func (m *mixed) activate(names ...string) string {
	m.t.Helper()
	var now string
	eventually(m.t, 90*time.Second, fmt.Sprint("one of ", names, " is active"), func() (err error) {
		if now, err = m.active(1); err != nil {
			return err
		}
		for _, name := range names {
			if now == name {
				return nil
			}
		}
		_, errs, code := m.run(nil, "controller", "step-down")
		m.leaves(now)
		return fmt.Errorf("%s was; stepping down ended with %d %s", now, code, errs)
	})
	return now
}

// leaves waits a while for another than one to be active.
func (m *mixed) leaves(name string) {
	m.t.Helper()
	patience := time.NewTimer(8 * time.Second)
	defer patience.Stop()
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for {
		if now, err := m.active(1); err == nil && now != name {
			return
		}
		select {
		case <-look.C:
		case <-patience.C:
			return
		}
	}
}

// kept checks in a backup that what only the next release knows of a topic is still there.
func (c *cluster) kept(when, topic string, partitions int) (file string) {
	c.t.Helper()
	file = filepath.Join(c.dir, "backup.hw")
	eventually(c.t, 30*time.Second, "a backup", func() error {
		if _, errs, code := c.run(nil, "cluster", "snapshot", "save", file); code != 0 {
			return fmt.Errorf("%s", errs)
		}
		return nil
	})
	raw, err := os.ReadFile(file)
	must(c.t, err)
	var id []byte
	fields, records := 0, 0
	for raw = raw[8:]; len(raw) > 0; { // behind the magic: pieces behind their lengths
		size := wire.BigEndian.Uint32(raw)
		var piece pb.SnapshotPiece
		var body pb.SnapshotBody
		must(c.t, proto.Unmarshal(raw[4:4+size], &piece))
		must(c.t, proto.Unmarshal(piece.GetBody(), &body))
		raw = raw[4+size:]
		for _, r := range body.GetChunk().GetRecords() {
			unknown := r.ProtoReflect().GetUnknown()
			switch {
			case r.GetTopic().GetName() == topic:
				id = r.GetTopic().GetTopicId()
				if !bytes.Contains(r.GetTopic().ProtoReflect().GetUnknown(), []byte("topic")) {
					c.t.Errorf("%s: the further field of the topic is gone", when)
				}
			case r.GetPartition() != nil && id != nil && bytes.Equal(r.GetPartition().GetTopicId(), id) && bytes.Contains(r.GetPartition().ProtoReflect().GetUnknown(), []byte("partition")):
				fields++
			case r.GetKind() == nil && r.GetEnds() == 0 && bytes.Contains(unknown, []byte(topic)):
				records++
			}
		}
	}
	if id == nil || fields != partitions || records != 1 {
		c.t.Errorf("%s: of %d partitions %d have their further field, and there are %d records of the further kind", when, partitions, fields, records)
	}
	return file
}

// upgrade runs `cluster upgrade` with arguments until it ends with a code, and returns what it says.
func (m *mixed) upgrade(code int, args ...string) string {
	m.t.Helper()
	var said string
	eventually(m.t, 30*time.Second, fmt.Sprintf("cluster upgrade %v ends with %d", args, code), func() error {
		out, errs, got := m.run(nil, append([]string{"cluster", "upgrade"}, args...)...)
		if said = out + errs; got != code {
			return fmt.Errorf("%d: %s", got, said)
		}
		return nil
	})
	return said
}

func (m *mixed) says(text string, words ...string) {
	m.t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			m.t.Errorf("%q is not in %q", w, text)
		}
	}
}

// Two builds side by side, each of them active for a while, back and forth; then the version is finalized, and the older build
// is refused. Records are written all the while.
func TestB124OldAndNewBuildsSideBySideAndThenFinalized(t *testing.T) {
	const records = 12000
	m := &mixed{several: newSeveral(t, 3), next: nextBuild(t)}
	m.programs = map[string]string{}
	m.createTopic("orders", 6)
	m.fullISR("orders")
	p := m.produce("orders")
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		feed(t, p.stdin, 0, records)
	}()

	old := m.steady()
	var rolled []string
	for _, name := range m.names {
		if name != old {
			m.roll(name, m.next)
			rolled = append(rolled, name)
		}
	}
	m.says(m.upgrade(1, "finalize", "--to", "2", "--yes"), "UNSUPPORTED_VERSION", "this controller knows versions 1 to 1")

	// The next build is active and writes what this release does not know.
	m.activate(rolled...)
	m.accepted("mixed", time.Now(), 30*time.Second)
	m.says(m.upgrade(6, "finalize", "--yes"), "UPGRADE_BLOCKED", "controller "+old+" knows 1", "broker b1 knows 1", "broker b3 knows 1")
	m.says(m.upgrade(0, "status"), "BLOCKED", "FINALIZED     1", "TARGET        2")
	m.kept("written by the next build", "mixed", 1)

	// This release is active, and changes it.
	m.activate(old)
	m.brokers[m.leaderOf("mixed", 0)].kill()
	killed := messages.BrokerID("")
	for b, process := range m.brokers {
		if !process.running() {
			killed = b
		}
	}
	m.until("mixed", "another leads it", func(v messages.PartitionView) bool { return v.Leader != killed && v.Leader != "" && len(v.ISR) == 2 })
	m.startBroker(killed)
	m.until("mixed", "all are in sync", func(v messages.PartitionView) bool { return len(v.ISR) == 3 })
	restored(t, m.kept("changed by this release", "mixed", 1), "mixed", 1)

	// One goes back to this release, and forth again: nothing has been finalized.
	m.roll(rolled[0], "")
	m.roll(rolled[0], m.next)
	m.activate(rolled...)
	m.kept("with the next build again", "mixed", 1)
	m.roll(old, m.next)
	for _, b := range []messages.BrokerID{"b1", "b2", "b3"} {
		m.brokers[b].term()
		m.programs[string(b)] = m.next
		m.startBroker(b)
		m.fullISR("orders")
	}
	m.finalized()
	m.refused()
	<-fed
	p.end()
	m.check("orders", p, records)
	_, errs, code := m.run(nil, "cluster", "snapshot", "save", filepath.Join(m.dir, "older.hw"))
	m.says(errs, "UNSUPPORTED_VERSION", "needs version 2, this build knows up to 1")
	if code != 1 {
		t.Errorf("saving with the older build ends with %d", code)
	}
	m.programs["command line"] = m.next
	m.kept("at the end", "mixed", 1)
	m.kept("at the end", "gated", 1)
}

// restored begins a store of its own with a backup, by this release, and looks for what only the next one knows.
func restored(t *testing.T, file, topic string, partitions int) {
	t.Helper()
	c := emptyCluster(t)
	out, err := exec.Command(binary, "cluster", "snapshot", "restore", file, "--cluster", clusterName, "--data-dir", c.folder("controller")).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	c.startController()
	c.connect()
	c.controllerReady()
	c.kept("restored by this release", topic, partitions)
	c.controller.term()
}

// finalized finalizes version 2, which everybody knows by now.
func (m *mixed) finalized() {
	m.t.Helper()
	eventually(m.t, 30*time.Second, "nothing is in the way", func() error {
		if out := m.upgrade(0, "status", "-o", "name"); out != "READY\n" {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
	m.upgrade(0, "finalize", "--dry-run")
	m.says(m.upgrade(0, "status", "-o", "name"), "READY")
	m.upgrade(2, "finalize")
	m.upgrade(0, "finalize", "--yes")
	m.says(m.upgrade(0, "status"), "STATE         FINALIZED", "FINALIZED     2")
	m.accepted("gated", time.Now(), 30*time.Second)
}

// refused starts processes of this release where the next one's version is finalized.
func (m *mixed) refused() {
	m.t.Helper()
	active := m.steady()
	old := ""
	for _, name := range m.names {
		if name != active {
			old = name
		}
	}
	m.roll(old, "")
	eventually(m.t, 30*time.Second, "it says that it is too old", func() error {
		c, err := m.controller(old)
		if err == nil && !strings.Contains(c.Unfit, "needs version 2, this build knows up to 1") {
			err = fmt.Errorf("%+v", c)
		}
		return err
	})
	out, _, _ := m.run(nil, "controller", "list")
	m.says(out, "UNFIT: ")
	out, _, code := m.run(nil, "cluster", "health")
	m.says(out, "DEGRADED", "CONTROLLER_UNFIT 1")
	if code != 10 {
		m.t.Errorf("health ends with %d", code)
	}
	if now := m.steady(); now != active {
		m.t.Fatalf("%s was active, and now %s is", active, now)
	}
	before, err := m.controller(active)
	must(m.t, err)
	fault := time.Now()
	m.away(active)
	m.serving[active].kill()
	m.t.Logf("the active one killed, one of two standbys too old: first accepted request after %s", m.accepted("after", fault, 40*time.Second))
	eventually(m.t, 10*time.Second, "the one that knows the version has taken over", func() error {
		now, err := m.active(0)
		if err != nil {
			return err
		}
		if c, err := m.controller(now); err != nil || now == old || now == active || c.ControllerEpoch != before.ControllerEpoch+1 {
			return fmt.Errorf("%s has, with epoch %d after %d, %v", now, c.ControllerEpoch, before.ControllerEpoch, err)
		}
		return nil
	})
	if !m.serving[old].running() {
		m.t.Error("the older build has ended instead of standing by")
	}
	m.serve(active) // with the next build
	m.brokers["b3"].term()
	delete(m.programs, "b3")
	m.startBroker("b3")
	eventually(m.t, 30*time.Second, "the older broker is refused with both ranges", func() error {
		if !m.brokers["b3"].said("UNSUPPORTED_VERSION", "the broker speaks protocol versions 1 to 1, the cluster is at version 2, and this controller knows versions 1 to 2") {
			return fmt.Errorf("%s", tail(m.brokers["b3"].log))
		}
		return nil
	})
	m.programs["b3"] = m.next
	if m.brokers["b3"].running() {
		m.brokers["b3"].kill()
	}
	m.startBroker("b3")
	m.fullISR("orders")
	m.roll(old, m.next)
}

func TestB124AloneAnOlderBuildDoesNotStartOnANewerJournal(t *testing.T) {
	c := emptyCluster(t)
	c.programs = map[string]string{"controller": nextBuild(t)}
	c.startController()
	c.connect()
	c.controllerReady()
	c.controller.term()
	delete(c.programs, "controller")
	c.startController()
	select {
	case <-c.controller.done:
	case <-time.After(30 * time.Second):
		t.Fatal("it runs")
	}
	if c.controller.cmd.ProcessState.ExitCode() == 0 ||
		!c.controller.said("UNSUPPORTED_VERSION", "this build is too old: entry 1 of the journal needs version 2, this build knows up to 1") {
		t.Errorf("it ends with %v: %s", c.controller.err, tail(c.controller.log))
	}
	c.programs["controller"] = nextBuild(t)
	c.startController()
	c.controllerReady()
}
