//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/highwater-io/highwater/messages"
)

// natsHost is a NATS server in a process of its own, set up as an operator would for a cluster: the controller may do
// everything, everybody else may ask and read.
type natsHost struct {
	*process
	address string // of clients
	monitor string // of its HTTP monitoring
}

// startNATS builds the server of the version that the module names and starts it.
func startNATS(t testing.TB) *natsHost {
	t.Helper()
	dir := t.TempDir()
	program := filepath.Join(dir, "nats-server")
	if out, err := exec.Command("go", "build", "-o", program, "github.com/nats-io/nats-server/v2").CombinedOutput(); err != nil {
		t.Fatalf("build of the NATS server: %v\n%s", err, out)
	}
	s := &natsHost{address: freeAddress(t), monitor: freeAddress(t)}
	var denied []string
	for _, plane := range []string{"jnl", "lead", "asg", "evt"} {
		denied = append(denied, fmt.Sprintf("%q", "hw."+clusterName+"."+plane+".>"))
	}
	for _, stream := range []string{messages.JournalStream(clusterName), messages.LeadershipStream(clusterName)} {
		for _, verb := range []string{"UPDATE", "DELETE", "PURGE", "MSG.DELETE"} {
			denied = append(denied, fmt.Sprintf("%q", "$JS.API.STREAM."+verb+"."+stream))
		}
	}
	config := filepath.Join(dir, "nats.conf")
	must(t, os.WriteFile(config, fmt.Appendf(nil, `listen: %q
http: %q
max_payload: 8388608
jetstream { store_dir: %q, sync_interval: always }
accounts {
  SYS: { users: [{user: sys, password: sys}] }
  HW: { jetstream: enabled, users: [
    {user: hw, password: hw}
    {user: anonymous, password: anonymous, permissions: {publish: {deny: [%s]}}}
  ] }
}
system_account: SYS
no_auth_user: anonymous
`, s.address, s.monitor, dir, strings.Join(denied, ", ")), 0o600))
	s.process = startProgram(t, dir, "nats", program, "-c", config)
	eventually(t, 20*time.Second, "NATS is ready", func() error {
		answer, err := http.Get("http://" + s.monitor + "/healthz")
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("%s", answer.Status)
		}
		return nil
	})
	return s
}

// subscriptions lists what clients subscribe to in the account of the cluster, but for what NATS listens to ($…) and
// answers (_…).
func (s *natsHost) subscriptions() []string {
	s.t.Helper()
	answer, err := http.Get("http://" + s.monitor + "/subsz?subs=1&limit=100000&acc=HW")
	must(s.t, err)
	defer answer.Body.Close()
	var body struct {
		List []struct{ Subject string } `json:"subscriptions_list"`
	}
	must(s.t, json.NewDecoder(answer.Body).Decode(&body))
	var out []string
	for _, x := range body.List {
		if !strings.HasPrefix(x.Subject, "$") && !strings.HasPrefix(x.Subject, "_") && !slices.Contains(out, x.Subject) {
			out = append(out, x.Subject)
		}
	}
	slices.Sort(out)
	return out
}

// on returns a cluster that will run on the server; nothing runs yet.
func (s *natsHost) on(t testing.TB, flags ...string) *cluster {
	t.Helper()
	c := emptyCluster(t, append(flags, "--nats-url", "nats://hw:hw@"+s.address, "--system-url", "nats://sys:sys@"+s.address)...)
	c.address = s.address
	return c
}
