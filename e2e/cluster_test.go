//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/highwater-io/highwater/client"
	"github.com/highwater-io/highwater/internal/freeport"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

var binary string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "highwater-e2e-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		binary = filepath.Join(dir, "highwater")
		build := exec.Command("go", "build", "-o", binary, "github.com/highwater-io/highwater/cmd/highwater")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

const clusterName = "e2e"

// cluster is one controller process and its brokers, each a process of its own.
type cluster struct {
	t          testing.TB
	dir        string
	address    string            // where everybody connects
	flags      []string          // of the controller
	brokerArgs []string          // of every broker
	programs   map[string]string // of the processes that run another build, by name
	controller *process
	brokers    map[messages.BrokerID]*process
	nc         *nats.Conn
	client     *client.Client
	wentBack   atomic.Bool // an older store is in place: what it says at its start is old
}

// process is a running program whose log is shown when the test fails.
type process struct {
	t    testing.TB
	name string
	cmd  *exec.Cmd
	log  string
	done chan struct{}
	err  error
}

// start starts the binary under test.
func start(t testing.TB, dir, name string, args ...string) *process {
	t.Helper()
	return startProgram(t, dir, name, binary, args...)
}

func startProgram(t testing.TB, dir, name, program string, args ...string) *process {
	t.Helper()
	p := &process{t: t, name: name, cmd: exec.Command(program, args...), log: filepath.Join(dir, name+".log"), done: make(chan struct{})}
	f, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(t, err)
	defer f.Close()
	p.cmd.Stdout, p.cmd.Stderr = f, f
	must(t, p.cmd.Start())
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("log of %s:\n%s", name, tail(p.log))
		}
	})
	return p
}

func tail(path string) string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(raw[max(0, len(raw)-8000):])
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Fatalf("signal %s to %s: %v", s, p.name, err)
	}
}

// kill ends the process with -9 and waits for its end.
func (p *process) kill() {
	p.t.Helper()
	p.signal(syscall.SIGKILL)
	<-p.done
}

// term ends the process in order and fails the test if it does not end well.
func (p *process) term() {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	select {
	case <-p.done:
		if p.err != nil {
			p.t.Fatalf("%s after SIGTERM: %v", p.name, p.err)
		}
	case <-time.After(30 * time.Second):
		p.t.Fatalf("%s does not end after SIGTERM", p.name)
	}
}

func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits for a condition and says what it was waiting for if it does not come true.
func eventually(t testing.TB, within time.Duration, what string, f func() error) {
	t.Helper()
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for {
		err := f()
		if err == nil {
			return
		}
		select {
		case <-deadline.C:
			t.Fatalf("%s: not within %s: %v", what, within, err)
		case <-poll.C:
		}
	}
}

func freeAddress(t testing.TB) string {
	t.Helper()
	address, err := freeport.Address()
	must(t, err)
	return address
}

// newCluster starts a controller and brokers b1.. in racks r1.., one a rack, and waits until all are active.
func newCluster(t testing.TB, brokers int) *cluster {
	t.Helper()
	return newClusterWith(t, brokers)
}

// quick are settings with which silence is noticed soon and marks are known soon.
var quick = []string{"--session", "1500ms", "--heartbeat", "200ms", "--checkpoint", "300ms"}

// newClusterWith starts a cluster whose controller has further flags.
func newClusterWith(t testing.TB, brokers int, flags ...string) *cluster {
	t.Helper()
	c := emptyCluster(t, flags...)
	c.startController()
	c.connect()
	c.controllerReady()
	for i := range brokers {
		c.startBroker(messages.BrokerID(fmt.Sprintf("b%d", i+1)))
	}
	c.allActive(brokers)
	return c
}

// emptyCluster has a folder and an address; nothing runs yet.
func emptyCluster(t testing.TB, flags ...string) *cluster {
	t.Helper()
	return &cluster{t: t, dir: t.TempDir(), address: freeAddress(t), flags: flags, brokers: map[messages.BrokerID]*process{}}
}

// connect makes the client and watches everything that is said about leaders from now on.
func (c *cluster) connect() {
	c.t.Helper()
	nc, err := nats.Connect(c.url(), append(client.ConnectOptions("e2e"), nats.RetryOnFailedConnect(true))...)
	must(c.t, err)
	c.nc = nc
	c.t.Cleanup(nc.Close)
	c.client, err = client.New(nc, clusterName)
	must(c.t, err)
	c.watchLeaders()
}

// program is what a process runs.
func (c *cluster) program(name string) string {
	if p := c.programs[name]; p != "" {
		return p
	}
	return binary
}

func (c *cluster) url() string { return "nats://" + c.address }

func (c *cluster) startController() {
	c.t.Helper()
	args := append([]string{"serve", "--cluster", clusterName, "--data-dir", c.folder("controller")}, c.flags...)
	if !slices.Contains(c.flags, "--nats-url") {
		args = append(args, "--listen", c.address)
	}
	c.controller = startProgram(c.t, c.dir, "controller", c.program("controller"), args...)
}

func (c *cluster) controllerReady() {
	c.t.Helper()
	eventually(c.t, 20*time.Second, "the controller answers", func() error {
		ctx, cancel := context.WithTimeout(c.t.Context(), time.Second)
		defer cancel()
		_, _, err := c.client.Health(ctx)
		return err
	})
}

func (c *cluster) folder(b messages.BrokerID) string { return filepath.Join(c.dir, string(b)) }

// startBroker starts a broker on its own folder; b2 is in rack r2.
func (c *cluster) startBroker(b messages.BrokerID, flags ...string) {
	c.t.Helper()
	args := append([]string{"broker", "run", "--server", c.url(), "--cluster", clusterName, "--id", string(b),
		"--rack", "r" + strings.TrimPrefix(string(b), "b"), "--data-dir", c.folder(b)}, append(c.brokerArgs, flags...)...)
	c.brokers[b] = startProgram(c.t, c.dir, string(b), c.program(string(b)), args...)
}

func (c *cluster) allActive(n int) {
	c.t.Helper()
	eventually(c.t, 20*time.Second, fmt.Sprintf("%d brokers are active", n), func() error {
		h, err := c.health()
		if err == nil && h.Brokers.Active != n {
			err = fmt.Errorf("%+v", h.Brokers)
		}
		return err
	})
}

func (c *cluster) health() (messages.HealthView, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	h, _, err := c.client.Health(ctx)
	return h, err
}

func (c *cluster) createTopic(name string, partitions uint32) {
	c.t.Helper()
	_, err := c.client.CreateTopic(c.t.Context(), &pb.CreateTopicRequest{Name: name, Partitions: partitions})
	must(c.t, err)
}

// createOn makes a topic whose partitions all have the same replicas, in this order.
func (c *cluster) createOn(name string, partitions int, minISR uint32, replicas ...string) {
	c.t.Helper()
	q := &pb.CreateTopicRequest{Name: name, MinIsr: minISR}
	for range partitions {
		q.Assignment = append(q.Assignment, &pb.ReplicaList{Brokers: replicas})
	}
	_, err := c.client.CreateTopic(c.t.Context(), q)
	must(c.t, err)
}

func (c *cluster) deleteTopic(name string) {
	c.t.Helper()
	_, err := c.client.DeleteTopic(c.t.Context(), &pb.DeleteTopicRequest{Name: name})
	must(c.t, err)
}

func (c *cluster) partitions(topic string) []messages.PartitionView {
	c.t.Helper()
	list, err := c.client.Partitions(c.t.Context(), messages.ListQuery{Filter: map[string]string{"topic": topic}})
	must(c.t, err)
	return list
}

// fullISR waits until every partition of a topic has a proven leader and every replica in its ISR.
func (c *cluster) fullISR(topic string) {
	c.t.Helper()
	eventually(c.t, 40*time.Second, "every replica of "+topic+" is in sync", func() error {
		for _, p := range c.partitions(topic) {
			if p.Leader == "" || len(p.ISR) != len(p.Replicas) || !p.LeaderProven {
				return fmt.Errorf("%+v", p)
			}
		}
		return nil
	})
}

func (c *cluster) leaderOf(topic string, partition int32) messages.BrokerID {
	c.t.Helper()
	p, err := c.client.Partition(c.t.Context(), messages.TopicName(topic), partition)
	must(c.t, err)
	return p.Leader
}

// someLeader returns a broker that leads a partition of the topic and is running.
func (c *cluster) someLeader(topic string) messages.BrokerID {
	c.t.Helper()
	for _, p := range c.partitions(topic) {
		if b := c.brokers[p.Leader]; b != nil && b.running() {
			return p.Leader
		}
	}
	c.t.Fatal("no running broker leads a partition")
	return ""
}

// run runs a command line of the binary to its end and returns what it printed and its exit code.
func (c *cluster) run(in io.Reader, args ...string) (stdout, stderr string, code int) {
	c.t.Helper()
	cmd := exec.Command(c.program("command line"), append(args, "--server", c.url(), "--cluster", clusterName)...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		c.t.Fatalf("%v: %v", args, err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}
