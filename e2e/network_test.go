//go:build e2e && linux

package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// network is a network of hosts, each a network namespace of its own, around one router that is a namespace too. Whatever
// goes from one host to another passes the router, which can be told to swallow it: in one direction or in both, without a word
// to anybody, as a broken cable or a bad firewall does. Established connections are cut as well.
type network struct {
	t      testing.TB
	prefix string
	index  map[string]int
	cuts   map[string]bool // the rules that are there
}

// networks makes the names of networks of this process different.
var networks atomic.Int64

const namespacePrefix = "hwe2e"

// newNetwork makes the hosts and takes everything away at the end of the test, behind the processes that run in it.
func newNetwork(t testing.TB, hosts ...string) *network {
	t.Helper()
	needTools(t, "make network namespaces", "iproute2 and util-linux", "ip", "nsenter")
	removeLeftovers(t)
	n := &network{t: t, prefix: fmt.Sprintf("%s-%d-%d-", namespacePrefix, os.Getpid(), networks.Add(1)), index: map[string]int{}, cuts: map[string]bool{}}
	t.Cleanup(n.remove)
	router := n.namespace("router")
	ip(t, "netns", "add", router)
	must(t, in(router, func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0) }))
	for i, host := range hosts {
		n.index[host] = i + 1
		ns, port := n.namespace(host), fmt.Sprintf("to-%s", host)
		gateway := fmt.Sprintf("10.77.%d.1", i+1)
		ip(t, "netns", "add", ns)
		ip(t, "link", "add", port, "netns", router, "type", "veth", "peer", "name", "eth0", "netns", ns)
		ip(t, "-n", router, "addr", "add", gateway+"/24", "dev", port)
		ip(t, "-n", router, "link", "set", port, "up")
		ip(t, "-n", ns, "addr", "add", n.address(host)+"/24", "dev", "eth0")
		ip(t, "-n", ns, "link", "set", "lo", "up")
		ip(t, "-n", ns, "link", "set", "eth0", "up")
		ip(t, "-n", ns, "route", "add", "default", "via", gateway)
	}
	return n
}

// needTools says what a test needs when it is not there. Such a test fails: passing would claim what was not tried.
func needTools(t testing.TB, what, packages string, tools ...string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatalf("this test has to %s, which only root may; leave it out with -skip '^Test(B[0-9]+)?Net' or run it as root", what)
	}
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			t.Fatalf("this test has to %s, and %s is missing (packages %s); leave it out with -skip '^Test(B[0-9]+)?Net' or install them", what, tool, packages)
		}
	}
}

// removeLeftovers removes the namespaces of earlier runs that were ended before they could clean up.
func removeLeftovers(t testing.TB) {
	t.Helper()
	found, err := filepath.Glob("/run/netns/" + namespacePrefix + "-*")
	must(t, err)
	for _, path := range found {
		pid, err := strconv.Atoi(strings.Split(filepath.Base(path), "-")[1])
		if err == nil && unix.Kill(pid, 0) == unix.ESRCH {
			_ = exec.Command("ip", "netns", "del", filepath.Base(path)).Run() // another run may do it too
		}
	}
}

func ip(t testing.TB, args ...string) {
	t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

func (n *network) remove() {
	for _, host := range append([]string{"router"}, n.hosts()...) {
		if out, err := exec.Command("ip", "netns", "del", n.namespace(host)).CombinedOutput(); err != nil {
			n.t.Logf("the namespace of %s cannot be removed: %v: %s", host, err, out)
		}
	}
}

func (n *network) hosts() []string {
	var all []string
	for host := range n.index {
		all = append(all, host)
	}
	return all
}

func (n *network) namespace(host string) string { return n.prefix + host }

func (n *network) address(host string) string { return fmt.Sprintf("10.77.%d.2", n.index[host]) }

// on is the command line that runs a program on a host. It replaces itself, so that its process id is the program's.
func (n *network) on(host, program string, args ...string) []string {
	return append([]string{"nsenter", "--net=/run/netns/" + n.namespace(host), program}, args...)
}

// rule is the priority of the router's rule about what goes from one host to another.
func (n *network) rule(from, to string) string {
	return strconv.Itoa(1000 + 100*n.index[from] + n.index[to])
}

// cut makes the router swallow whatever goes from one host to some others. The other direction stays.
func (n *network) cut(from string, to ...string) {
	n.t.Helper()
	for _, other := range to {
		rule := n.rule(from, other)
		if n.cuts[rule] {
			continue
		}
		n.cuts[rule] = true
		ip(n.t, "-n", n.namespace("router"), "rule", "add", "pref", rule, "from", n.address(from), "to", n.address(other), "blackhole")
	}
}

// deafen makes the router swallow whatever goes from some hosts to one.
func (n *network) deafen(to string, from ...string) {
	n.t.Helper()
	for _, other := range from {
		n.cut(other, to)
	}
}

// sever cuts a host off from some others, in both directions.
func (n *network) sever(host string, others ...string) {
	n.t.Helper()
	n.cut(host, others...)
	n.deafen(host, others...)
}

// heal ends every cut.
func (n *network) heal() {
	n.t.Helper()
	for rule := range n.cuts {
		ip(n.t, "-n", n.namespace("router"), "rule", "del", "pref", rule)
	}
	clear(n.cuts)
}

// in runs a function on a thread that is in a network namespace. Sockets that it makes stay there.
func in(namespace string, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		fd, err := unix.Open("/run/netns/"+namespace, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Setns(fd, unix.CLONE_NEWNET)
			_ = unix.Close(fd)
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// dialer dials from a host.
type dialer struct{ namespace string }

func (n *network) dialer(host string) dialer { return dialer{n.namespace(host)} }

// Dial implements nats.CustomDialer.
func (d dialer) Dial(network, address string) (conn net.Conn, err error) {
	err = in(d.namespace, func() error {
		conn, err = net.DialTimeout(network, address, 2*time.Second)
		return err
	})
	return conn, err
}

// Packets are swallowed in the direction that was cut and in no other, also on connections that stand.
func TestNetCutsAreInTheDirectionThatWasAskedFor(t *testing.T) {
	n := newNetwork(t, "a", "b")
	var l net.PacketConn
	must(t, in(n.namespace("b"), func() (err error) { l, err = net.ListenPacket("udp", n.address("b")+":7000"); return err }))
	defer l.Close()
	a, err := n.dialer("a").Dial("udp", n.address("b")+":7000")
	must(t, err)
	defer a.Close()
	arrives := func(to net.Conn, send func() error) bool {
		must(t, send())
		must(t, to.SetReadDeadline(time.Now().Add(200*time.Millisecond)))
		_, err := to.Read(make([]byte, 10))
		return err == nil
	}
	back := packetConn{l, a.LocalAddr()}
	check := func(what string, there, here bool) {
		t.Helper()
		if got := arrives(back, func() error { _, err := a.Write([]byte("x")); return err }); got != there {
			t.Errorf("%s: from a to b %v, want %v", what, got, there)
		}
		if got := arrives(a, func() error { _, err := back.Write([]byte("x")); return err }); got != here {
			t.Errorf("%s: from b to a %v, want %v", what, got, here)
		}
	}
	check("whole", true, true)
	n.cut("a", "b")
	check("a is not heard by b", false, true)
	n.heal()
	check("healed", true, true)
	n.deafen("a", "b")
	check("a does not hear b", true, false)
	n.heal()
	n.sever("b", "a")
	check("cut both ways", false, false)
	n.heal()
	check("healed again", true, true)
}

// packetConn is a socket that has one partner.
type packetConn struct {
	net.PacketConn
	to net.Addr
}

func (c packetConn) Read(b []byte) (int, error)  { n, _, err := c.ReadFrom(b); return n, err }
func (c packetConn) Write(b []byte) (int, error) { return c.WriteTo(b, c.to) }
func (c packetConn) RemoteAddr() net.Addr        { return c.to }
