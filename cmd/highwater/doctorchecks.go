package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"

	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/journal/jetstream"
	"github.com/highwater-io/highwater/messages"
)

// checkServer looks at the version of the server that is connected to.
func (d *doctor) checkServer(context.Context) {
	version := d.nc.ConnectedServerVersion()
	rtt, err := d.nc.RTT()
	seen := fmt.Sprintf("%s, version %s, round trip %s", withoutSecret(d.nc.ConnectedUrlRedacted()), version, rtt.Round(10*time.Microsecond))
	var major, minor int
	_, scan := fmt.Sscanf(version, "%d.%d.", &major, &minor)
	switch {
	case err != nil:
		d.say("reachable", checkFail, err.Error(), "look at the server and the network")
	case scan != nil || major < 2 || major == 2 && minor < 15:
		d.say("reachable", checkFail, seen, "upgrade all servers to 2.15 or later")
	case rtt > 100*time.Millisecond:
		d.say("reachable", checkWarn, seen, "every decision takes several round trips: run controllers nearer to NATS")
	default:
		d.say("reachable", checkOK, seen, "")
	}
}

func (d *doctor) checkJetStream(ctx context.Context) {
	info, err := d.client.AccountInfo(ctx)
	if err != nil {
		d.jetstreamOff = true
		d.say("JetStream", checkFail, err.Error(), "switch JetStream on, for the servers and for the account (`jetstream: enabled`)")
		return
	}
	d.say("JetStream", checkOK, fmt.Sprintf("on for the account: %d streams, %d bytes stored", info.Streams, info.Store), "")
}

// skipped says that a check needs JetStream.
func (d *doctor) skipped(check string) bool {
	if d.jetstreamOff {
		d.say(check, checkWarn, "not looked at", "mend JetStream first")
	}
	return d.jetstreamOff
}

// checkReplicas makes the doctor's stream with as many replicas as the journal is to have.
func (d *doctor) checkReplicas(ctx context.Context) {
	if d.skipped("replicas") {
		return
	}
	clustered := d.nc.ConnectedClusterName() != ""
	if d.replicas == 0 {
		d.replicas = 1
		if clustered {
			d.replicas = 3
		}
	}
	_, err := d.client.CreateStream(ctx, js.StreamConfig{Name: d.name, Subjects: []string{d.subject()}, Storage: js.FileStorage, Replicas: d.replicas,
		MaxBytes: 1 << 20, MaxMsgs: 1000, Discard: js.DiscardNew, Description: "made by `highwater cluster doctor`; it may be deleted"})
	switch {
	case err != nil:
		d.say("replicas", checkFail, fmt.Sprintf("a stream with %d cannot be made: %v", d.replicas, err),
			fmt.Sprintf("%d servers with JetStream and room are needed, and the right to make streams; or fewer --journal-replicas", d.replicas))
		return
	case d.replicas == 1:
		d.say("replicas", checkWarn, "a stream with 1 can be made", "the journal is lost with that server's disk: three servers are better")
	default:
		d.say("replicas", checkOK, fmt.Sprintf("a stream with %d can be made", d.replicas), "")
	}
	d.streamMade = true
}

func (d *doctor) subject() string { return "hw." + string(d.cluster) + ".doctor." + d.name }

// checkSync reads when the servers sync to disk, which only the system account tells.
func (d *doctor) checkSync(context.Context) {
	const do = "set `jetstream { sync_interval: always }` on every server: without it a power loss takes what was acknowledged"
	if d.system == nil {
		d.say("sync policy", checkWarn, "cannot be seen from this account", "give --system-url, or ask who runs the servers; "+do)
		return
	}
	var lazy, all []string
	err := d.askServers("VARZ", func(server string, data json.RawMessage) {
		var v struct {
			JetStream struct {
				Config *struct {
					Always bool `json:"sync_always"`
				} `json:"config"`
			} `json:"jetstream"`
		}
		if json.Unmarshal(data, &v) != nil || v.JetStream.Config == nil {
			return // without JetStream
		}
		all = append(all, server)
		if !v.JetStream.Config.Always {
			lazy = append(lazy, server)
		}
	})
	slices.Sort(lazy)
	switch {
	case err != nil || len(all) == 0:
		d.say("sync policy", checkWarn, fmt.Sprintf("no server tells: %v", err), "is --system-url the system account? "+do)
	case len(lazy) > 0:
		d.say("sync policy", checkFail, "not always on "+strings.Join(lazy, ", "), do)
	default:
		d.say("sync policy", checkOK, fmt.Sprintf("always, on %d servers", len(all)), "")
	}
}

// What a cluster needs of an account.
const (
	needStreams = 3        // journal, snapshots, leadership
	needStore   = 64 << 20 // bytes, for each replica
	needPayload = 1 << 20  // pieces of snapshots have half of it
)

func (d *doctor) checkLimits(ctx context.Context) {
	if d.skipped("limits") {
		return
	}
	info, err := d.client.AccountInfo(ctx)
	if err != nil {
		d.say("limits", checkFail, err.Error(), "look at the servers")
		return
	}
	limits := []js.AccountLimits{info.Limits}
	for tier, t := range info.Tiers {
		if tier == fmt.Sprintf("R%d", max(1, d.replicas)) {
			limits = []js.AccountLimits{t.Limits}
		}
	}
	l, used := limits[0], info.Streams
	if d.streamMade {
		used-- // the doctor's own
	}
	have := func(suffix string) bool {
		_, err := d.client.Stream(ctx, suffix)
		return err == nil
	}
	missing := 0
	for _, s := range []string{messages.JournalStream(d.cluster), messages.LeadershipStream(d.cluster), "OBJ_" + messages.SnapshotBucket(d.cluster)} {
		if !have(s) {
			missing++
		}
	}
	var bad []string
	if l.MaxStreams >= 0 && l.MaxStreams-used < missing {
		bad = append(bad, fmt.Sprintf("%d streams are allowed and %d used, %d more are needed", l.MaxStreams, used, missing))
	}
	if l.MaxStore >= 0 && l.MaxStore-int64(info.Store) < needStore {
		bad = append(bad, fmt.Sprintf("%d bytes of file storage are allowed and %d used, %d are needed", l.MaxStore, info.Store, needStore))
	}
	if l.MaxConsumers >= 0 && l.MaxConsumers < 10 {
		bad = append(bad, fmt.Sprintf("%d consumers are allowed, 10 are needed", l.MaxConsumers))
	}
	if l.MaxBytesRequired {
		bad = append(bad, "every stream needs max_bytes, but the journal has none")
	}
	if len(bad) > 0 {
		d.say("limits", checkFail, strings.Join(bad, "; "), "raise the limits of the account")
		return
	}
	d.say("limits", checkOK, fmt.Sprintf("streams %s, storage %s, consumers %s", limit(int64(l.MaxStreams)), limit(l.MaxStore), limit(int64(l.MaxConsumers))), "")
}

func limit(n int64) string {
	if n < 0 {
		return "unlimited"
	}
	return fmt.Sprint(n)
}

func (d *doctor) checkPayload(context.Context) {
	switch n := d.nc.MaxPayload(); {
	case n < needPayload:
		d.say("max payload", checkFail, fmt.Sprintf("%d bytes", n), fmt.Sprintf("set max_payload to %d bytes or more; 8388608 is best", needPayload))
	case n < 8<<20:
		d.say("max payload", checkWarn, fmt.Sprintf("%d bytes", n), "a topic is one entry of the journal, and batches of records are one message: 8388608 gives both room")
	default:
		d.say("max payload", checkOK, fmt.Sprintf("%d bytes", n), "")
	}
}

// impossible is a sequence that no stream has: what is published with it is refused, so that nothing is stored.
const impossible = "18446744073709551615"

// checkPermissions speaks and listens on each family of subjects, in ways that change nothing.
func (d *doctor) checkPermissions(ctx context.Context) {
	root := "hw." + string(d.cluster) + "."
	for _, plane := range []string{"brk.v1.>", "ctl.v1.>", "mon.v1.>", "dat.v1.>", "rep.v1.>", "asg.v1.>", "lead.v1.>", "ctr.v1.>"} {
		if s, err := d.nc.SubscribeSync(root + plane); err == nil {
			defer func() { _ = s.Unsubscribe() }()
		}
	}
	for _, subject := range []string{"jnl.v1.log", "lead.v1.doctor.0", "asg.v1.doctor", "ctr.v1.doctor", "brk.v1.doctor.doctor", "ctl.v1.doctor.doctor.doctor",
		"mon.v1.doctor", "dat.v1.doctor.doctor.0.0.doctor", "rep.v1.doctor.doctor"} {
		m := nats.NewMsg(root + subject)
		m.Header.Set("Nats-Expected-Last-Sequence", impossible)
		_ = d.nc.PublishMsg(m) // refused ones are heard of by the handler of errors
	}
	err := d.nc.FlushWithContext(ctx)
	// A refusal comes before the answer to the flush, but its handler runs beside: one more turn behind it.
	told := make(chan struct{})
	if s, e := d.nc.Subscribe(nats.NewInbox(), func(*nats.Msg) { close(told) }); e == nil {
		_ = d.nc.Publish(s.Subject, nil)
		select {
		case <-told:
		case <-time.After(time.Second): // not even that is allowed
		}
		_ = s.Unsubscribe()
	}
	d.mu.Lock()
	denied := slices.Clone(d.denied)
	d.mu.Unlock()
	switch {
	case err != nil:
		d.say("permissions", checkFail, err.Error(), "look at the servers")
	case d.onlyAsks(denied):
		d.say("permissions", checkWarn, "this account may ask and read, but not decide", "as it should be for brokers and clients, and of Highwater's own embedded "+
			"servers for everybody; else run this with the credentials of the controllers")
	case len(denied) > 0:
		d.say("permissions", checkFail, strings.Join(denied, "; "), fmt.Sprintf("let controllers publish and subscribe to hw.%s.>, $JS.API.>, $O.>, $SRV.> and _INBOX.>", d.cluster))
	default:
		d.say("permissions", checkOK, "publish and subscribe on all families of subjects", "")
	}
}

// onlyAsks reports whether exactly what only a controller says is denied.
func (d *doctor) onlyAsks(denied []string) bool {
	planes := []string{".jnl.", ".lead.", ".asg.", ".ctr."}
	return len(denied) == len(planes) && !slices.ContainsFunc(planes, func(plane string) bool {
		return !slices.ContainsFunc(denied, func(s string) bool { return strings.Contains(s, "Publish to \"hw."+string(d.cluster)+plane) })
	})
}

// checkEvents listens to the end of connections, by which a dead broker is noticed within a tenth of a second.
func (d *doctor) checkEvents(context.Context) {
	const do = "give controllers --system-url: without it a broker that dies is noticed by its silence (session, 3 s) and not by its connection"
	if d.system == nil {
		d.say("events of connections", checkWarn, "no system account is given", do)
		return
	}
	s, err := d.system.SubscribeSync("$SYS.ACCOUNT.*.DISCONNECT")
	if err == nil {
		err = errors.Join(d.system.FlushTimeout(2*time.Second), d.system.LastError(), s.Unsubscribe())
	}
	if err != nil {
		d.say("events of connections", checkWarn, err.Error(), do)
		return
	}
	d.say("events of connections", checkOK, "the system account hears them", "")
}

// appendTries is how many messages the time of an append is measured with.
const appendTries = 20

func (d *doctor) checkAppend(ctx context.Context) {
	if !d.streamMade {
		d.say("time to append", checkWarn, "not looked at", "mend JetStream and replicas first")
		return
	}
	var took []time.Duration
	for range appendTries {
		began := time.Now()
		if _, err := d.client.Publish(ctx, d.subject(), make([]byte, 1024), js.WithRetryAttempts(0)); err != nil {
			d.say("time to append", checkFail, err.Error(), "look at the disks and the permissions of hw."+string(d.cluster)+".>")
			return
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	median, worst := took[len(took)/2], took[len(took)-1]
	seen := fmt.Sprintf("median %s, worst of %d %s (with the sync of the disk only if the sync policy is always)", median.Round(10*time.Microsecond),
		appendTries, worst.Round(10*time.Microsecond))
	if worst > time.Second {
		d.say("time to append", checkWarn, seen, "every decision waits for an append: use faster disks, or nearer ones")
		return
	}
	d.say("time to append", checkOK, seen, "")
}

func (d *doctor) checkClock(context.Context) {
	d.say("clocks", checkOK, "not needed: leases are measured from one process's own clock, order comes from the journal", "")
}

// checkJournal reads the journal as a controller would, if there is one, and changes nothing.
func (d *doctor) checkJournal(ctx context.Context) {
	if d.skipped("journal") {
		return
	}
	stream, err := d.client.Stream(ctx, messages.JournalStream(d.cluster))
	if errors.Is(err, js.ErrStreamNotFound) {
		d.say("journal", checkOK, "there is none: the first controller makes it", "")
		return
	}
	if err != nil {
		d.say("journal", checkFail, err.Error(), "look at the stream "+messages.JournalStream(d.cluster))
		return
	}
	r, err := d.readJournal(ctx, stream.CachedInfo().Config.Replicas)
	switch {
	case err != nil:
		d.say("journal", checkFail, err.Error(), "do not delete anything; make a copy, and see docs/operations.md, \"Snapshots and backups\"")
	case len(r.Unusable) > 0:
		d.say("journal", checkWarn, fmt.Sprintf("revision %d, but %d snapshots cannot be used, first %s", r.At.Last, len(r.Unusable), r.Unusable[0]),
			"the one before is used; take a backup with `highwater cluster snapshot save`")
	default:
		d.say("journal", checkOK, fmt.Sprintf("revision %d, chain whole, snapshot of %d and %d entries behind it", r.At.Last, r.From.At.Last, r.Replayed), "")
	}
}

func (d *doctor) readJournal(ctx context.Context, replicas int) (journal.Recovery, error) {
	log, err := jetstream.Ensure(ctx, d.client, d.cluster, replicas)
	if err != nil {
		return journal.Recovery{}, err
	}
	catalog := journal.NewCatalog()
	if _, err := d.client.ObjectStore(ctx, messages.SnapshotBucket(d.cluster)); errors.Is(err, js.ErrBucketNotFound) {
		at, _, err := journal.Recover(ctx, log, catalog)
		return journal.Recovery{At: at, Replayed: uint64(at.Last)}, err
	}
	kept, err := jetstream.EnsureSnapshots(ctx, d.client, d.cluster, replicas)
	if err != nil {
		return journal.Recovery{}, err
	}
	return journal.RecoverFrom(ctx, log, kept, catalog)
}
