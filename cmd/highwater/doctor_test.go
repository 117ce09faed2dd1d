package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"

	"github.com/highwater-io/highwater/journal/jetstream"
)

// examined runs the doctor and returns its findings by the name of the check.
func examined(t *testing.T, want int, args ...string) map[string]finding {
	t.Helper()
	out, errs, code := highwater(t, "", append([]string{"cluster", "doctor", "-o", "json"}, args...)...)
	if code != want {
		t.Fatalf("it ends with %d, want %d: %s%s", code, want, out, errs)
	}
	var all []finding
	must(t, json.Unmarshal([]byte(out), &all))
	by := map[string]finding{}
	for i, f := range all {
		if f.Number != i+1 || f.Seen == "" || f.Result != checkOK && f.Do == "" {
			t.Errorf("finding %d is %+v", i, f)
		}
		by[f.Check] = f
	}
	return by
}

// streamsOf lists the streams of a server, as a user of the account sees them.
func streamsOf(t *testing.T, url string) []string {
	t.Helper()
	nc, err := nats.Connect(url)
	must(t, err)
	defer nc.Close()
	client, err := js.New(nc)
	must(t, err)
	var out []string
	for name := range client.StreamNames(t.Context()).Name() {
		out = append(out, name)
	}
	return out
}

const accounts = `accounts { SYS: { users: [{user: sys, password: sys}] }, HW: { jetstream: %s, users: [{user: hw, password: hw%s}] } }
system_account: SYS
`

func withUser(s *server.Server, user string) string {
	return "nats://" + user + ":" + user + "@" + address(s)
}

func TestTheDoctorFindsNothingWhereNothingIsWrong(t *testing.T) {
	s := natsElsewhere(t, "max_payload: 8388608\njetstream: { sync_interval: always }\n"+fmt.Sprintf(accounts, "enabled", ""))
	found := examined(t, exitOK, "-s", withUser(s, "hw"), "--system-url", withUser(s, "sys"))
	for _, check := range []string{"reachable", "JetStream", "sync policy", "limits", "max payload", "permissions", "events of connections", "time to append", "clocks", "journal"} {
		if found[check].Result != checkOK {
			t.Errorf("%s: %+v", check, found[check])
		}
	}
	if r := found["replicas"]; r.Result != checkWarn {
		t.Errorf("one replica: %+v", r)
	}
	if left := streamsOf(t, withUser(s, "hw")); len(left) != 0 {
		t.Errorf("it leaves %v", left)
	}
	out, _, _ := highwater(t, "", "cluster", "doctor", "-s", withUser(s, "hw"))
	if !strings.Contains(out, "NO   CHECK") || !strings.Contains(out, "cannot be seen from this account") || strings.Contains(out, "hw:hw") {
		t.Errorf("for people it says:\n%s", out)
	}
}

func TestTheDoctorNamesEachDefect(t *testing.T) {
	plain := "jetstream: enabled\n"
	for _, c := range []struct {
		name, config, check, result, seen string
		args                              []string
	}{
		{"no JetStream", "max_payload: 8388608", "JetStream", checkFail, "jetstream not enabled", nil},
		{"three replicas on one server", plain, "replicas", checkFail, "a stream with 3 cannot be made", []string{"--journal-replicas", "3"}},
		{"synced at an interval", plain + fmt.Sprintf(accounts, "enabled", ""), "sync policy", checkFail, "not always on", []string{"--system-url"}},
		{"too few streams", plain + fmt.Sprintf(accounts, "{max_streams: 2}", ""), "limits", checkFail, "2 streams are allowed and 0 used, 3 more are needed", nil},
		{"too little room", plain + fmt.Sprintf(accounts, "{max_store: 10MB}", ""), "limits", checkFail, "bytes of file storage are allowed", nil},
		{"small messages", plain + "max_payload: 100000\n", "max payload", checkFail, "100000 bytes", nil},
		{"usual messages", plain, "max payload", checkWarn, "1048576 bytes", nil},
		{"the journal is denied", plain + fmt.Sprintf(accounts, "enabled", `, permissions: {publish: {deny: ["hw.dev.jnl.>"]}}`), "permissions", checkFail, `Publish to "hw.dev.jnl.v1.log"`, nil},
		{"brokers are not heard", plain + fmt.Sprintf(accounts, "enabled", `, permissions: {subscribe: {deny: ["hw.dev.brk.>"]}}`), "permissions", checkFail, `Subscription to "hw.dev.brk.v1.>"`, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := natsElsewhere(t, c.config)
			args := append(c.args, "-s", "nats://"+address(s))
			if strings.Contains(c.config, "HW") {
				args[len(args)-1] = withUser(s, "hw")
			}
			if len(c.args) == 1 {
				args = append([]string{"--system-url", withUser(s, "sys")}, args[1:]...)
			}
			want := exitUnhealthy
			if c.result == checkWarn {
				want = exitOK
			}
			if f := examined(t, want, args...)[c.check]; f.Result != c.result || !strings.Contains(f.Seen, c.seen) {
				t.Errorf("%+v", f)
			}
		})
	}
}

func TestTheDoctorReadsTheJournal(t *testing.T) {
	s := natsElsewhere(t, "jetstream: enabled")
	url := "nats://" + address(s)
	serve := startDaemon(t, "serve", "--nats-url", url)
	serve.says("controller is ready")
	on(t, devCluster{NATS: url}, "", "cluster", "describe")
	if f := examined(t, exitOK, "-s", url)["journal"]; f.Result != checkOK || !strings.Contains(f.Seen, "chain whole") {
		t.Errorf("%+v", f)
	}
	if left := streamsOf(t, url); len(left) != 3 {
		t.Errorf("the streams are %v", left)
	}
	nc, err := nats.Connect(url)
	must(t, err)
	defer nc.Close()
	client, err := js.New(nc)
	must(t, err)
	_, err = client.CreateStream(t.Context(), jetstream.Config("broken", 1))
	must(t, err)
	_, err = client.Publish(t.Context(), "hw.broken.jnl.v1.log", []byte("no entry"))
	must(t, err)
	if f := examined(t, exitUnhealthy, "-s", url, "-c", "broken")["journal"]; f.Result != checkFail {
		t.Errorf("%+v", f)
	}
}

func TestTheDoctorSaysWhenNobodyAnswers(t *testing.T) {
	if f := examined(t, exitUnreachable, "-s", "nats://127.0.0.1:1")["reachable"]; f.Result != checkFail {
		t.Errorf("%+v", f)
	}
	if _, errs, code := highwater(t, "", "cluster", "doctor", "--journal-replicas", "2"); code != exitUsage {
		t.Errorf("ends with %d: %s", code, errs)
	}
}

func TestTheDoctorKnowsEmbeddedServers(t *testing.T) {
	serve := startDaemon(t, "serve", "--data-dir", t.TempDir(), "--listen", "127.0.0.1:0")
	url := serve.says(`"url":"([^"]+)"`)
	found := examined(t, exitOK, "-s", url)
	if f := found["permissions"]; f.Result != checkWarn || !strings.Contains(f.Seen, "may ask and read, but not decide") {
		t.Errorf("%+v", f)
	}
	if f := found["journal"]; f.Result != checkOK {
		t.Errorf("%+v", f)
	}
}
