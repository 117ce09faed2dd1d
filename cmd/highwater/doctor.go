package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"github.com/highwater-io/highwater/messages"
)

// Results of a check.
const (
	checkOK   = "ok"
	checkWarn = "warn"
	checkFail = "fail"
)

// finding is one check of the doctor.
type finding struct {
	Number int    `json:"number"`
	Check  string `json:"check"`
	Result string `json:"result"` // ok, warn or fail
	Seen   string `json:"seen"`
	Do     string `json:"do,omitempty"`
}

// doctor looks at NATS as an account sees it. It writes only to a stream of its own, which it removes.
type doctor struct {
	cluster      messages.ClusterName
	nc           *nats.Conn
	client       js.JetStream
	system       *nats.Conn // nil where none is given
	replicas     int
	name         string // of the stream, with a random part
	findings     []finding
	jetstreamOff bool
	streamMade   bool

	mu     sync.Mutex
	denied []string // what the servers have refused
}

// say adds a finding.
func (d *doctor) say(check, result, seen, do string) {
	d.findings = append(d.findings, finding{len(d.findings) + 1, check, result, seen, do})
}

func (a *app) doctorCommand() *cobra.Command {
	var replicas int
	var systemURL, systemCreds string
	c := &cobra.Command{
		Use: "doctor", Short: "Check whether a NATS can carry a cluster: what is seen, and what to do", Args: cobra.NoArgs,
		Long: `Check the NATS that --server or a context names, in the account of the credentials: version, JetStream, replicas, sync
policy, limits, max payload, permissions, time to append, clocks, and the journal if there is one. Nothing is changed: it writes
to one stream of its own, HW_DOCTOR_ and a random name, and removes it.

Exits 0 when no check has failed, 10 when one has, 3 when NATS is not reached.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if replicas != 0 && replicas != 1 && replicas != 3 && replicas != 5 {
				return usage("--journal-replicas is %d; it must be 1, 3 or 5, or 0 to choose", replicas)
			}
			return a.doctor(cmd.Context(), &doctor{replicas: replicas}, systemURL, systemCreds)
		},
	}
	f := c.Flags()
	f.IntVar(&replicas, "journal-replicas", 0, "servers that are to keep the journal: 1, 3 or 5; 0 is 3 on a cluster of servers, else 1")
	f.StringVar(&systemURL, "system-url", "", "the same servers' system account, to see their sync policy and the events of connections")
	f.StringVar(&systemCreds, "system-creds", "", "credentials file for --system-url")
	return c
}

func (a *app) doctor(ctx context.Context, d *doctor, systemURL, systemCreds string) error {
	d.cluster = messages.ClusterName(a.cluster)
	if err := d.cluster.Validate(); err != nil {
		return err
	}
	nc, err := a.connect("highwater-doctor")
	if err != nil {
		d.say("reachable", checkFail, messages.AsError(err).Message, "start NATS, or name it with --server or --context and how to sign in")
		return errors.Join(err, a.printFindings(d.findings))
	}
	defer nc.Close()
	d.nc = nc
	if systemURL != "" {
		if d.system, err = a.systemConnection(systemURL, systemCreds); err != nil {
			return err
		}
		defer d.system.Close()
	}
	nc.SetErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		if errors.Is(err, nats.ErrPermissionViolation) {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.denied = append(d.denied, err.Error())
		}
	})
	if d.client, err = js.New(nc); err != nil {
		return messages.Errorf(messages.CodeInternal, "JetStream context: %v", err)
	}
	raw := make([]byte, 8)
	_, _ = rand.Read(raw) // it never fails: without randomness the program ends
	d.name = "HW_DOCTOR_" + hex.EncodeToString(raw)
	d.examine(ctx)
	if err := a.printFindings(d.findings); err != nil {
		return err
	}
	for _, f := range d.findings {
		if f.Result == checkFail {
			return errUnhealthy
		}
	}
	return ctx.Err()
}

// systemConnection connects to the system account, with the certificates of the ordinary connection.
func (a *app) systemConnection(url, creds string) (*nats.Conn, error) {
	if _, err := checkURLs(url); err != nil {
		return nil, err
	}
	x, err := a.access()
	if err != nil {
		return nil, err
	}
	opts := append([]nats.Option{nats.Name("highwater-doctor-system"), nats.Timeout(2 * time.Second)}, x.tls...)
	if creds != "" {
		if err := readable("credentials file of the system account", creds); err != nil {
			return nil, err
		}
		opts = append(opts, nats.UserCredentials(creds))
	}
	nc, err := nats.Connect(url, opts...)
	if err != nil {
		return nil, messages.Errorf(messages.CodeUnavailable, "the system account cannot be reached at %s: %v", withoutSecret(url), err)
	}
	return nc, nil
}

// doctorLimit bounds one check that asks NATS.
const doctorLimit = 10 * time.Second

// examine does all checks in order. The stream of the doctor's own is gone at its end.
func (d *doctor) examine(ctx context.Context) {
	for _, check := range []func(context.Context){d.checkServer, d.checkJetStream, d.checkReplicas, d.checkSync, d.checkLimits, d.checkPayload,
		d.checkPermissions, d.checkEvents, d.checkAppend, d.checkClock, d.checkJournal} {
		bounded, cancel := context.WithTimeout(ctx, doctorLimit)
		check(bounded)
		cancel()
	}
	if d.streamMade {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), doctorLimit)
		defer cancel()
		if err := d.client.DeleteStream(bounded, d.name); err != nil {
			d.say("cleaning up", checkWarn, err.Error(), "remove the stream "+d.name)
		}
	}
}

func (a *app) printFindings(all []finding) error {
	t := rows{header: []string{"no", "check", "result", "seen", "what to do"}}
	for _, f := range all {
		t.cells = append(t.cells, []any{f.Number, f.Check, f.Result, f.Seen, orDash(f.Do)})
		t.names = append(t.names, f.Check+" "+f.Result)
	}
	return a.print(all, t)
}

// askServers asks all servers a question of their monitoring over the system account; each answer goes to f.
func (d *doctor) askServers(what string, f func(server string, data json.RawMessage)) error {
	inbox, err := d.system.SubscribeSync(nats.NewInbox())
	if err != nil {
		return err
	}
	defer func() { _ = inbox.Unsubscribe() }()
	if err := d.system.PublishRequest("$SYS.REQ.SERVER.PING."+what, inbox.Subject, nil); err != nil {
		return err
	}
	answers := 0
	for wait := 2 * time.Second; ; wait = 300 * time.Millisecond { // how many there are is not known
		m, err := inbox.NextMsg(wait)
		if err != nil {
			if answers == 0 {
				return fmt.Errorf("no server answers on the system account: %w", err)
			}
			return nil
		}
		var answer struct {
			Server struct {
				Name string `json:"name"`
			} `json:"server"`
			Data json.RawMessage `json:"data"`
		}
		if json.Unmarshal(m.Data, &answer) == nil && len(answer.Data) > 0 {
			answers++
			f(answer.Server.Name, answer.Data)
		}
	}
}
