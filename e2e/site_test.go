//go:build e2e && linux

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/client"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// site is a cluster whose three controllers and three brokers have a host each, in a network that can be cut. The tests
// speak from a host of their own.
type site struct {
	*several
	net    *network
	runs   []*run // of brokers
	logDir string // see logs
}

// run is one life of a broker's process.
type run struct {
	*process
	ended atomic.Int64 // when, on the machine's monotonic clock; 0 before
}

const customer = "client"

var brokerHosts = []string{"b1", "b2", "b3"}

// newSite starts controllers with their data folders below dir, and waits until one is active and two stand by. Brokers
// are started by the test.
func newSite(t testing.TB, dir string) *site {
	t.Helper()
	names := []string{"c1", "c2", "c3"}
	s := &site{several: &several{cluster: &cluster{t: t, dir: dir, brokers: map[messages.BrokerID]*process{}}, names: names,
		listen: map[string]string{}, serving: map[string]*process{}}}
	s.net = newNetwork(t, append(append([]string{customer}, names...), brokerHosts...)...)
	for _, name := range names {
		s.listen[name] = s.net.address(name) + ":4222"
		s.routes = append(s.routes, s.net.address(name)+":6222")
	}
	for _, name := range names {
		s.serve(name)
	}
	s.attach(names...)
	eventually(t, 90*time.Second, "a controller is active and two stand by", func() error { _, err := s.active(2); return err })
	return s
}

// serve starts a controller on its host.
func (s *site) serve(name string) {
	s.t.Helper()
	i := slices.Index(s.names, name)
	line := s.net.on(name, binary, "serve", "--cluster", clusterName, "--name", name, "--data-dir", filepath.Join(s.dir, name),
		"--listen", s.listen[name], "--insecure-no-auth", "--cluster-listen", s.routes[i], "--routes", strings.Join(s.routes, ","))
	s.serving[name] = startProgram(s.t, s.logs(), name, line[0], line[1:]...)
}

// logs is the folder of the processes' logs, which is never on a disk that a test breaks. With -artifacts it is kept.
func (s *site) logs() string {
	s.t.Helper()
	if s.logDir == "" {
		s.logDir = s.t.ArtifactDir()
	}
	return s.logDir
}

// startBroker starts a broker on its host. It connects to any of the given servers first, and hears of the others there.
func (s *site) startBroker(b messages.BrokerID, servers ...string) {
	s.t.Helper()
	line := s.net.on(string(b), binary, "broker", "run", "-v", "--server", strings.Join(s.urls(servers), ","), "--cluster", clusterName,
		"--id", string(b), "--rack", "r"+strings.TrimPrefix(string(b), "b"), "--data-dir", filepath.Join(s.dir, string(b)))
	r := &run{process: startProgram(s.t, s.logs(), fmt.Sprintf("%s-%d", b, len(s.runs)), line[0], line[1:]...)}
	go func() {
		<-r.done
		r.ended.CompareAndSwap(0, machineClock())
	}()
	s.runs = append(s.runs, r)
	s.brokers[b] = r.process
}

// startBrokers starts each broker at a server of its own and waits until all are active.
func (s *site) startBrokers() {
	s.t.Helper()
	for i, b := range brokerHosts {
		s.startBroker(messages.BrokerID(b), s.names[i])
	}
	s.allActive(len(brokerHosts))
}

func (s *site) urls(servers []string) []string {
	var all []string
	for _, name := range servers {
		all = append(all, "nats://"+s.listen[name])
	}
	return all
}

// connection connects the customer's host to some of the servers and to no other.
func (s *site) connection(servers ...string) *nats.Conn {
	s.t.Helper()
	nc, err := nats.Connect(strings.Join(s.urls(servers), ","), append(client.ConnectOptions("e2e"), nats.RetryOnFailedConnect(true),
		nats.IgnoreDiscoveredServers(), nats.SetCustomDialer(s.net.dialer(customer)), nats.PingInterval(500*time.Millisecond))...)
	must(s.t, err)
	s.t.Cleanup(nc.Close)
	return nc
}

// attach has the test ask some of the servers and no other from now on.
func (s *site) attach(servers ...string) {
	s.t.Helper()
	c, err := client.New(s.connection(servers...), clusterName, client.WithTimeout(time.Second))
	must(s.t, err)
	s.client = c
	s.nc = s.connection(servers...)
}

// createTopic makes a topic, in as many tries as a loaded machine needs.
func (s *site) createTopic(name string, partitions uint32) {
	s.t.Helper()
	eventually(s.t, 30*time.Second, "the topic "+name, func() error {
		_, err := s.client.CreateTopic(s.t.Context(), &pb.CreateTopicRequest{Name: name, Partitions: partitions})
		if messages.CodeOf(err) == messages.CodeTopicExists {
			return nil // of an earlier try
		}
		return err
	})
}

// afterCuts is the patience after a network is whole again: a connection that was cut sends again what was lost after a pause
// that grows with the cut, if its ends do not give it up before.
const afterCuts = 90 * time.Second

// allActive waits until so many brokers are active.
func (s *site) allActive(n int) {
	s.t.Helper()
	eventually(s.t, afterCuts, fmt.Sprintf("%d brokers are active", n), func() error {
		h, err := s.health()
		if err == nil && h.Brokers.Active != n {
			err = fmt.Errorf("%+v", h.Brokers)
		}
		return err
	})
}

// partitions lists a topic, in as many tries as it takes.
func (s *site) partitions(topic string) (list []messages.PartitionView) {
	s.t.Helper()
	eventually(s.t, afterCuts, "the partitions of "+topic, func() (err error) {
		list, err = s.client.Partitions(s.t.Context(), messages.ListQuery{Filter: map[string]string{"topic": topic}})
		return err
	})
	return list
}

// unchanged checks that no partition of a topic has another leader, epoch or ISR than before.
func (s *site) unchanged(topic string, before []messages.PartitionView) {
	s.t.Helper()
	sameLeaders(s.t, before, s.partitions(topic))
}

// fullISR waits until every partition of a topic has a proven leader and every replica in its ISR.
func (s *site) fullISR(topic string) {
	s.t.Helper()
	eventually(s.t, afterCuts, "every replica of "+topic+" is in sync", func() error {
		for _, p := range s.partitions(topic) {
			if p.Leader == "" || len(p.ISR) != len(p.Replicas) || !p.LeaderProven {
				return fmt.Errorf("%+v", p)
			}
		}
		return nil
	})
}

// others are the controllers besides some.
func (s *site) others(but ...string) []string {
	return slices.DeleteFunc(slices.Clone(s.names), func(n string) bool { return slices.Contains(but, n) })
}

// entry is what the journal says about one of its entries.
type entry struct {
	at         uint64
	controller string
	epoch      uint64
}

// journal reads who has written what is left of the journal.
func (s *site) journal() (all []entry) {
	s.t.Helper()
	js, err := s.nc.JetStream(nats.MaxWait(2 * time.Second))
	must(s.t, err)
	stream := messages.JournalStream(clusterName)
	eventually(s.t, 40*time.Second, "the journal can be read", func() error {
		info, err := js.StreamInfo(stream)
		if err != nil {
			return err
		}
		at := info.State.FirstSeq
		if n := len(all); n > 0 {
			at = all[n-1].at + 1
		}
		for ; at <= info.State.LastSeq; at++ {
			m, err := js.GetMsg(stream, at)
			if err != nil {
				return err
			}
			var e pb.Entry
			var body pb.EntryBody
			must(s.t, proto.Unmarshal(m.Data, &e))
			must(s.t, proto.Unmarshal(e.GetBody(), &body))
			all = append(all, entry{at, body.GetController(), body.GetControllerEpoch()})
		}
		return nil
	})
	return all
}

// checkJournal checks that no entry of an earlier controller epoch is behind one of a later, and that one epoch has one writer.
func (s *site) checkJournal() {
	s.t.Helper()
	all := s.journal()
	writer := map[uint64]string{}
	for i, e := range all {
		if i > 0 && e.epoch < all[i-1].epoch {
			s.t.Errorf("entry %d of the journal is of controller epoch %d (%s), behind one of epoch %d", e.at, e.epoch, e.controller, all[i-1].epoch)
		}
		if w, known := writer[e.epoch]; known && w != e.controller {
			s.t.Errorf("controller epoch %d has two writers in the journal: %s and %s", e.epoch, w, e.controller)
		}
		writer[e.epoch] = e.controller
	}
	s.t.Logf("journal: %d entries of %d controller epochs, none behind a later one", len(all), len(writer))
}

// caughtUp waits until every server has all of the journal: one that has just come back cannot be half of a majority yet.
func (s *site) caughtUp() {
	s.t.Helper()
	eventually(s.t, afterCuts, "all servers have all of the journal", func() error {
		js, err := s.nc.JetStream(nats.MaxWait(2 * time.Second))
		if err != nil {
			return err
		}
		info, err := js.StreamInfo(messages.JournalStream(clusterName))
		if err != nil {
			return err
		}
		current := 0
		if info.Cluster != nil {
			for _, p := range info.Cluster.Replicas {
				if p.Current && !p.Offline {
					current++
				}
			}
		}
		if current != len(s.names)-1 {
			return fmt.Errorf("%+v", info.Cluster)
		}
		return nil
	})
}

// claimant returns who has claimed the journal last, and under which epoch.
func (s *site) claimant() (string, uint64) {
	s.t.Helper()
	all := s.journal()
	last := all[len(all)-1]
	return last.controller, last.epoch
}

// machineClock is the monotonic clock of the machine, which brokers put into their logs too.
func machineClock() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // Linux has it
	}
	return ts.Nano()
}

// kill notes when it was killed, at the latest.
func (r *run) kill() {
	r.ended.CompareAndSwap(0, machineClock())
	r.process.kill()
}

// broker returns the present life of a broker.
func (s *site) broker(b messages.BrokerID) *run {
	s.t.Helper()
	for _, r := range slices.Backward(s.runs) {
		if strings.HasPrefix(r.name, string(b)+"-") {
			return r
		}
	}
	s.t.Fatalf("%s has never been started", b)
	return nil
}

// killAll kills processes at the same moment and waits for their ends.
func killAll(all ...interface{ kill() }) {
	var ends sync.WaitGroup
	for _, p := range all {
		ends.Go(p.kill)
	}
	ends.Wait()
}

// logged returns the lines of a process's log that have a text.
func (p *process) logged(text string) []string {
	p.t.Helper()
	raw, err := os.ReadFile(p.log)
	must(p.t, err)
	var found []string
	for _, line := range strings.Split(string(raw), "\n") {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

// refusal asks for a change, and returns the code of the refusal and what it took.
func (s *site) refusal(topic string, patience time.Duration) (messages.Code, time.Duration) {
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	asked := time.Now()
	_, err := s.client.CreateTopic(ctx, &pb.CreateTopicRequest{Name: topic, Partitions: 1})
	return messages.CodeOf(err), time.Since(asked)
}
