//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/highwater-io/highwater/messages"
)

// place is what a controller's process and a recovery in its place are given.
func (s *several) place(name string) []string {
	return []string{"--cluster", clusterName, "--name", name, "--data-dir", filepath.Join(s.dir, name), "--listen", s.listen[name],
		"--cluster-listen", s.routes[name[1]-'1'], "--routes", strings.Join(s.routes, ",")}
}

func (s *several) killEverybody() {
	for _, name := range s.names {
		s.serving[name].kill()
	}
	for _, b := range s.brokers {
		b.kill()
	}
}

func (s *several) startEverybody() {
	s.t.Helper()
	for _, name := range s.names {
		s.serve(name)
	}
	eventually(s.t, 60*time.Second, "a controller is active and two stand by", func() error { _, err := s.active(2); return err })
	for _, b := range []messages.BrokerID{"b1", "b2", "b3"} {
		s.startBroker(b)
	}
}

// lend runs the servers of controllers for a recovery in the place of another.
func (s *several) lend(names ...string) (lent []*process) {
	for _, name := range names {
		lent = append(lent, startProgram(s.t, s.dir, "lent-"+name, binary, append([]string{"cluster", "recover", "--lend"}, s.place(name)...)...))
	}
	return lent
}

// All three journals go back together. Nobody decides; cluster recover, with two servers lent to it, goes on above everything that
// the brokers know, and every acknowledged record is served.
func TestB119TheStoresOfThreeControllersGoBackAndAreRecovered(t *testing.T) {
	s := newSeveral(t, 3)
	s.brokerArgs = []string{"-v"}
	s.createOn("t", 1, 2, "b1", "b2", "b3")
	s.write("t", 0, 50)
	s.fullISR("t")
	s.killEverybody()
	for _, name := range s.names {
		must(t, os.CopyFS(filepath.Join(s.dir, "old-"+name), os.DirFS(filepath.Join(s.dir, name))))
	}
	s.startEverybody()
	s.fullISR("t")
	leader := s.someLeader("t")
	s.brokers[leader].kill()
	s.until("t", "another leads", func(p messages.PartitionView) bool { return p.Leader != "" && p.Leader != leader && p.LeaderProven })
	s.write("t", 50, 100)
	s.startBroker(leader)
	s.fullISR("t")
	// Several controllers write an entry each second. What is lost has to be more than that, or it is not noticed.
	for i := range 60 {
		s.createOn(fmt.Sprintf("later%d", i), 1, 1, "b1")
	}
	before := s.partition("t", 0)
	seen := s.keptSeen()
	s.killEverybody()
	for _, name := range s.names {
		must(t, os.Rename(filepath.Join(s.dir, name), filepath.Join(s.dir, "newest-"+name)))
		must(t, os.Rename(filepath.Join(s.dir, "old-"+name), filepath.Join(s.dir, name)))
	}

	s.startEverybody()
	s.decidesNothing()
	for _, name := range s.names {
		s.serving[name].term()
	}

	lent := s.lend(s.names[1:]...)
	look := func(args ...string) (r recoveryReport, errs string, code int) {
		out, errs, code := s.command(append(append([]string{"cluster", "recover", "-o", "json", "--wait", "30s"}, s.place("c1")...), args...)...)
		if out != "" {
			must(t, json.Unmarshal([]byte(out), &r))
		}
		return r, errs, code
	}
	r, errs, code := look()
	if code != 0 || r.Recovered != nil || r.MissingCount != 0 || len(r.Brokers) != 3 || !r.Brokers[0].Ahead || r.Brokers[0].Revision < seen {
		t.Fatalf("the report: %d %s %+v", code, errs, r)
	}
	if r, errs, code = look("--accept-lost-decisions", "--confirm", clusterName); code != 0 || r.Recovered == nil {
		t.Fatalf("not recovered: %d %s", code, errs)
	}
	for _, p := range lent {
		p.term()
	}
	for _, name := range s.names {
		s.serve(name)
	}
	eventually(t, 60*time.Second, "a controller is active and two stand by", func() error { _, err := s.active(2); return err })
	s.until("t", "it is led", func(p messages.PartitionView) bool { return p.Leader != "" && p.LeaderProven })
	s.fullISR("t")
	after := s.partition("t", 0)
	if after.LeaderEpoch <= before.LeaderEpoch || after.Epoch <= before.Epoch {
		t.Errorf("epochs %d/%d, they were %d/%d", after.LeaderEpoch, after.Epoch, before.LeaderEpoch, before.Epoch)
	}
	s.holds("t", 100)
	s.write("t", 100, 110)
	s.holds("t", 110)
	s.nothingDeleted()
}

// One of three controllers loses its disk. Its server gets the streams from the others, and it can take over.
func TestB120OneOfThreeControllersLosesItsDisk(t *testing.T) {
	s := newSeveral(t, 3)
	s.createOn("t", 1, 2, "b1", "b2", "b3")
	s.write("t", 0, 50)
	s.fullISR("t")
	active := s.steady()
	for _, name := range s.names {
		if name == active {
			continue
		}
		s.serving[name].kill()
		must(t, os.RemoveAll(filepath.Join(s.dir, name)))
		s.serve(name)
		eventually(t, 60*time.Second, name+" has all of the journal again", func() error {
			list, err := s.client.Controllers(t.Context())
			if err != nil {
				return err
			}
			var end messages.Sequence
			for _, c := range list {
				end = max(end, c.Applied)
			}
			for _, c := range list {
				if c.Name == name && !c.Silent && c.Applied+1 >= end {
					return s.replicated()
				}
			}
			return fmt.Errorf("%+v", list)
		})
		break
	}
	fault := time.Now()
	s.serving[active].kill() // of the two that are left one has had an empty disk
	t.Logf("first accepted request after %s", s.accepted("after", fault, 60*time.Second))
	s.holds("t", 50)
	s.write("t", 50, 60)
	s.holds("t", 60)
	s.nothingDeleted()
}

// replicated reports whether every replica of all three streams is current, as the docs have operators wait for. What a standby has
// applied says less: it reads through the leader of the stream.
func (s *several) replicated() error {
	for _, stream := range []string{messages.JournalStream(clusterName), messages.LeadershipStream(clusterName), "OBJ_" + messages.SnapshotBucket(clusterName)} {
		m, err := s.nc.Request("$JS.API.STREAM.INFO."+stream, nil, time.Second)
		if err != nil {
			return err
		}
		var at struct {
			Cluster struct {
				Replicas []struct {
					Name    string `json:"name"`
					Current bool   `json:"current"`
					Lag     uint64 `json:"lag"`
				} `json:"replicas"`
			} `json:"cluster"`
		}
		if err := json.Unmarshal(m.Data, &at); err != nil {
			return err
		}
		if len(at.Cluster.Replicas) != 2 {
			return fmt.Errorf("%s", m.Data)
		}
		for _, r := range at.Cluster.Replicas {
			if !r.Current || r.Lag > 0 {
				return fmt.Errorf("%s of %s is not current", r.Name, stream)
			}
		}
	}
	return nil
}
