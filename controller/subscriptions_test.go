package controller

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/highwater-io/highwater/messages"
)

// doors is every subject on which a controller listens to others, with a body that no door may take: a request of the
// right shape that speaks for nobody, about nothing. A subject that is not here fails the test: whoever opens a new one
// says first what a stranger gets from it.
var doors = []struct {
	subject string
	body    string // JSON
	gets    messages.Code
}{
	{"hw.dev.brk.v1.*.register", `{}`, messages.CodeInvalidName},
	{"hw.dev.brk.v1.*.heartbeat", `{"broker":"b1"}`, messages.CodeDenied},
	{"hw.dev.brk.v1.*.isr", `{"broker":"b1"}`, messages.CodeDenied},
	{"hw.dev.brk.v1.*.offsets", `{"broker":"b1"}`, messages.CodeDenied},
	{"hw.dev.brk.v1.*.ready", `{"broker":"b1"}`, messages.CodeDenied},
	{"hw.dev.brk.v1.*.snapshot", `{"broker":"b1"}`, messages.CodeDenied},
	{"hw.dev.brk.v1.*.removed", `{"broker":"b1"}`, messages.CodeDenied},
	{"hw.dev.ctl.v1.*.topic.create", `{}`, messages.CodeInvalidName},
	{"hw.dev.ctl.v1.*.topic.delete", `{"name":"nope"}`, messages.CodeUnknownTopic},
	{"hw.dev.ctl.v1.*.broker.forget", `{"name":"nope"}`, messages.CodeUnknownBroker},
	{"hw.dev.ctl.v1.*.upgrade.finalize", ``, messages.CodeInvalidRequest},
	{"hw.dev.ctl.v1.*.snapshot.read", `{"page":3}`, messages.CodeInvalidRequest},
	{"hw.dev.mon.v1.health", `{"limit":-1}`, messages.CodeInvalidRequest},
	{"hw.dev.mon.v1.overview", `{"limit":-1}`, messages.CodeInvalidRequest},
	{"hw.dev.mon.v1.brokers", `{"limit":-1}`, messages.CodeInvalidRequest},
	{"hw.dev.mon.v1.broker.*", ``, messages.CodeUnknownBroker},
	{"hw.dev.mon.v1.topics", `{"limit":-1}`, messages.CodeInvalidRequest},
	{"hw.dev.mon.v1.topic.*", ``, messages.CodeUnknownTopic},
	{"hw.dev.mon.v1.partitions", `{"limit":-1}`, messages.CodeInvalidRequest},
	{"hw.dev.mon.v1.partition.*.*", ``, messages.CodeUnknownTopic},
	{"hw.dev.mon.v1.controllers", `{"limit":-1}`, messages.CodeInvalidRequest},
	{"hw.dev.mon.v1.upgrade", `{"limit":-1}`, messages.CodeInvalidRequest},
	{"hw.dev.mon.v1.leadership", `{"limit":-1}`, messages.CodeInvalidRequest},
}

// subscribed lists what is subscribed to in the account of the cluster, but for what NATS itself listens to ($…) and answers (_…).
func subscribed(t *testing.T, c *Controller) []string {
	t.Helper()
	z, err := c.server.server.Subsz(&server.SubszOptions{Subscriptions: true, Limit: 10_000, Account: "HW"})
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, s := range z.Subs {
		if !strings.HasPrefix(s.Subject, "$") && !strings.HasPrefix(s.Subject, "_") && !slices.Contains(out, s.Subject) {
			out = append(out, s.Subject)
		}
	}
	return out
}

func TestB85EveryDoorOfTheControllerIsKnownAndRefusesNonsense(t *testing.T) {
	c := start(t, t.TempDir(), nil)
	list := subscribed(t, c)
	for _, s := range list {
		known := s == subjects.Journal() || s == subjects.LeadershipAll() // the streams' own; strangers may not publish there
		for _, d := range doors {
			known = known || d.subject == s
		}
		if !known {
			t.Errorf("the controller listens on %s, of which the table says nothing", s)
		}
	}
	nc := connect(t, c.URL())
	_, before := look[messages.HealthView](t, nc, "health")
	for _, d := range doors {
		if !slices.Contains(list, d.subject) {
			t.Errorf("nobody listens on %s", d.subject)
			continue
		}
		if m := request(t, nc, strings.ReplaceAll(d.subject, "*", "nobody"), d.body); m.Header.Get("Nats-Service-Error-Code") != string(d.gets) {
			t.Errorf("%s: %q, want %s", d.subject, m.Data, d.gets)
		}
	}
	if _, after := look[messages.HealthView](t, nc, "health"); after.Revision != before.Revision {
		t.Errorf("the journal went from %d to %d", before.Revision, after.Revision)
	}
}

func request(t *testing.T, nc *nats.Conn, subject, body string) *nats.Msg {
	t.Helper()
	m := &nats.Msg{Subject: subject, Data: []byte(body), Header: nats.Header{"Content-Type": {"application/json"}}}
	answer, err := nc.RequestMsg(m, 10*time.Second)
	if err != nil {
		t.Fatalf("%s: %v", subject, err)
	}
	return answer
}
