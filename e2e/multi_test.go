//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/highwater-io/highwater/client"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// several is a cluster with three controller processes, whose servers form a NATS cluster.
type several struct {
	*cluster
	names   []string
	listen  map[string]string
	routes  []string
	serving map[string]*process
}

func newSeveral(t testing.TB, brokers int) *several {
	t.Helper()
	s := &several{cluster: &cluster{t: t, dir: t.TempDir(), brokers: map[messages.BrokerID]*process{}}, names: []string{"c1", "c2", "c3"},
		listen: map[string]string{}, serving: map[string]*process{}}
	var all []string
	for _, name := range s.names {
		s.listen[name] = freeAddress(t)
		s.routes = append(s.routes, freeAddress(t))
		all = append(all, s.listen[name])
	}
	s.address = strings.Join(all, ",nats://") // as a list of servers
	for _, name := range s.names {
		s.serve(name)
	}
	nc, err := nats.Connect(s.url(), append(client.ConnectOptions("e2e"), nats.RetryOnFailedConnect(true))...)
	must(t, err)
	s.nc = nc
	t.Cleanup(nc.Close)
	s.client, err = client.New(nc, clusterName, client.WithTimeout(time.Second))
	must(t, err)
	eventually(t, 60*time.Second, "a controller is active and two stand by", func() error { _, err := s.active(2); return err })
	for i := range brokers {
		s.startBroker(messages.BrokerID(fmt.Sprintf("b%d", i+1)))
	}
	s.allActive(brokers)
	return s
}

func (s *several) serve(name string) {
	s.t.Helper()
	i := int(name[1] - '1')
	s.serving[name] = startProgram(s.t, s.dir, name, s.program(name), "serve", "--cluster", clusterName, "--name", name, "--data-dir", filepath.Join(s.dir, name),
		"--listen", s.listen[name], "--cluster-listen", s.routes[i], "--routes", strings.Join(s.routes, ","))
}

// active returns the one active controller, if there are enough standbys beside it.
func (s *several) active(standbys int) (string, error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Second)
	defer cancel()
	list, err := s.client.Controllers(ctx)
	if err != nil {
		return "", err
	}
	name, others := "", 0
	for _, c := range list {
		switch {
		case c.AgeMs > 600: // gone
		case c.Role == "standby":
			others++
		case name != "":
			return "", fmt.Errorf("two are active: %+v", list)
		default:
			name = c.Name
		}
	}
	if name == "" || others < standbys {
		return "", fmt.Errorf("%+v", list)
	}
	return name, nil
}

// streamLeader returns the process whose server leads the stream of the journal.
func (s *several) streamLeader() string {
	s.t.Helper()
	var at struct {
		Cluster struct {
			Leader string `json:"leader"`
		} `json:"cluster"`
	}
	eventually(s.t, 20*time.Second, "the journal's stream has a leader", func() error {
		m, err := s.nc.Request("$JS.API.STREAM.INFO."+messages.JournalStream(clusterName), nil, time.Second)
		if err == nil {
			err = json.Unmarshal(m.Data, &at)
		}
		if err == nil && at.Cluster.Leader == "" {
			err = fmt.Errorf("none: %s", m.Data)
		}
		return err
	})
	return at.Cluster.Leader
}

// steady waits until the journal's stream is led by another process than the active controller.
func (s *several) steady() (active string) {
	s.t.Helper()
	eventually(s.t, 60*time.Second, "the stream's leader is apart from the active controller", func() (err error) {
		if active, err = s.active(2); err == nil && s.streamLeader() == active {
			err = fmt.Errorf("both are %s", active)
		}
		return err
	})
	return active
}

// accepted waits until a request that changes something is accepted, and returns how long that took since a fault.
func (s *several) accepted(topic string, began time.Time, within time.Duration) time.Duration {
	s.t.Helper()
	eventually(s.t, within, "a request is accepted", func() error {
		ctx, cancel := context.WithTimeout(s.t.Context(), 300*time.Millisecond)
		defer cancel()
		_, err := s.client.CreateTopic(ctx, &pb.CreateTopicRequest{Name: topic, Partitions: 1})
		if messages.CodeOf(err) == messages.CodeTopicExists {
			return nil // of an earlier try that was not answered in time
		}
		return err
	})
	return time.Since(began)
}

// unchanged checks that no partition of a topic has another leader, epoch or ISR than before.
func (s *several) unchanged(topic string, before []messages.PartitionView) {
	s.t.Helper()
	sameLeaders(s.t, before, s.partitions(topic))
}

// sameLeaders checks that no partition has another leader, epoch or ISR than before.
func sameLeaders(t testing.TB, before, after []messages.PartitionView) {
	t.Helper()
	was := byPartition(before)
	if len(before) != len(after) {
		t.Errorf("%d partitions, before %d", len(after), len(before))
	}
	for i, now := range byPartition(after) {
		w := was[i]
		if now.Leader != w.Leader || now.LeaderEpoch != w.LeaderEpoch || fmt.Sprint(now.ISR) != fmt.Sprint(w.ISR) {
			t.Errorf("partition %d: %+v, before %+v", i, now, w)
		}
	}
}

// away waits until this test's connection is to another server than that of a process that will be hurt.
func (s *several) away(name string) *nats.Conn {
	s.t.Helper()
	var urls []string
	for _, other := range s.names {
		if other != name {
			urls = append(urls, "nats://"+s.listen[other])
		}
	}
	nc, err := nats.Connect(strings.Join(urls, ","), append(client.ConnectOptions("e2e-away"), nats.IgnoreDiscoveredServers())...)
	must(s.t, err)
	s.t.Cleanup(nc.Close)
	s.nc = nc
	s.client, err = client.New(nc, clusterName, client.WithTimeout(time.Second))
	must(s.t, err)
	return nc
}

func TestAnotherControllerTakesOverWhenTheActiveOneIsKilled(t *testing.T) {
	const records = 6000
	s := newSeveral(t, 3)
	s.createTopic("orders", 12)
	s.fullISR("orders")
	victim := s.steady()
	s.away(victim)
	p := s.produce("orders")
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		feed(t, p.stdin, 0, records)
	}()
	p.reach(500)
	before := s.partitions("orders")
	fault := time.Now()
	s.serving[victim].kill()
	t.Logf("active controller killed, stream leader elsewhere: first accepted request after %s", s.accepted("after-1", fault, 30*time.Second))
	s.unchanged("orders", before)
	s.serve(victim)
	victim = s.steady()
	p.reach(1500)
	s.away(victim)
	fault = time.Now()
	s.serving[victim].signal(syscall.SIGSTOP)
	t.Logf("active controller stopped: first accepted request after %s", s.accepted("after-2", fault, 30*time.Second))
	eventually(t, 10*time.Second, "another one is active", func() error {
		now, err := s.active(1)
		if err == nil && now == victim {
			err = fmt.Errorf("%s still", now)
		}
		if err == nil {
			t.Logf("%s was stopped, %s is active", victim, now)
		}
		return err
	})
	s.serving[victim].signal(syscall.SIGCONT)
	if now := s.steady(); now == victim {
		t.Errorf("%s was stopped and is active again", victim)
	}
	if !s.serving[victim].running() {
		t.Errorf("%s has ended instead of standing by", victim)
	}
	fault = time.Now()
	_, errs, code := s.run(nil, "controller", "step-down")
	if code != 0 {
		t.Fatalf("step-down: %s", errs)
	}
	t.Logf("step-down: first accepted request after %s", s.accepted("after-3", fault, 30*time.Second))
	<-fed
	p.end()
	s.check("orders", p, records)
}

// The death of the process that holds the journal's stream leader stops every decision until the servers have elected, but
// neither producing nor leadership. Without two of the three servers nothing is decided at all, and it is said at once.
func TestTheStreamLeaderDiesAndThenTwoOfThree(t *testing.T) {
	const records = 6000
	s := newSeveral(t, 3)
	s.createTopic("orders", 12)
	s.fullISR("orders")
	active := s.steady()
	victim := s.streamLeader()
	s.away(victim)
	p := s.produce("orders")
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		feed(t, p.stdin, 0, records)
	}()
	p.reach(500)
	before := s.partitions("orders")
	fault := time.Now()
	s.serving[victim].kill()
	t.Logf("stream leader killed, active controller %s elsewhere: first accepted request after %s", active, s.accepted("after-1", fault, 40*time.Second))
	s.unchanged("orders", before)
	<-fed
	p.end()
	s.check("orders", p, records)
	left := ""
	for _, name := range s.names {
		if name != victim && left == "" {
			left = name
		} else if name != victim {
			s.serving[name].kill()
		}
	}
	eventually(t, 20*time.Second, "a refusal within a second", func() error {
		asked := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := s.client.CreateTopic(ctx, &pb.CreateTopicRequest{Name: "never", Partitions: 1})
		if code := messages.CodeOf(err); code == "" || code == messages.CodeInternal || time.Since(asked) > time.Second {
			return fmt.Errorf("after %s: %v", time.Since(asked), err)
		}
		return nil
	})
	for _, name := range s.names {
		if name != left {
			s.serve(name)
		}
	}
	fault = time.Now()
	t.Logf("two of three back: first accepted request after %s", s.accepted("after-2", fault, 60*time.Second))
	s.check("orders", p, records)
}
