package controller

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

var (
	older = messages.VersionRange{Min: 1, Max: 1}
	newer = messages.VersionRange{Min: 1, Max: 2}
)

func finalize(nc *nats.Conn, q *pb.FinalizeUpgradeRequest) (*pb.FinalizeUpgradeResponse, error) {
	out := &pb.FinalizeUpgradeResponse{}
	return out, call(nc, subjects.Control("op", "upgrade", "finalize"), q, out)
}

func registerAs(nc *nats.Conn, b string, versions messages.VersionRange) error {
	return call(nc, subjects.Broker(b, messages.VerbRegister), &pb.RegisterRequest{Broker: b, Incarnation: "i-" + b, Storage: "s-" + b,
		MinProtocol: uint32(versions.Min), MaxProtocol: uint32(versions.Max)}, &pb.RegisterResponse{})
}

// alike starts a process with the same journal as another, under a name and with the versions of some build.
func alike(t testing.TB, c *Controller, name string, versions messages.VersionRange) *Controller {
	t.Helper()
	return start(t, "", func(cfg *Config) {
		*cfg = c.cfg
		cfg.Name, cfg.versions = name, versions
	})
}

func listed(t testing.TB, nc *nats.Conn, name string) messages.ControllerView {
	t.Helper()
	list, _ := look[[]messages.ControllerView](t, nc, "controllers")
	for _, c := range list {
		if c.Name == name {
			return c
		}
	}
	return messages.ControllerView{}
}

func TestB124AnUpgradeIsFinalizedWhenEverybodyKnowsTheVersion(t *testing.T) {
	all := pair(t, 2, func(i int, c *Config) { c.versions = []messages.VersionRange{older, newer}[i] })
	nc := connect(t, all[0].URL())
	if _, err := finalize(nc, &pb.FinalizeUpgradeRequest{}); messages.CodeOf(err) != messages.CodeInvalidRequest {
		t.Errorf("without a version: %v", err)
	}
	out, err := finalize(nc, &pb.FinalizeUpgradeRequest{Version: 1})
	if err != nil || out.From != 1 || out.To != 1 {
		t.Errorf("an older active one finalizes %v, %v", out, err)
	}
	if _, err := finalize(nc, &pb.FinalizeUpgradeRequest{Version: 2}); messages.CodeOf(err) != messages.CodeUnsupportedVersion {
		t.Errorf("an older active one, asked for what it does not know: %v", err)
	}
	if err := registerAs(nc, "b1", older); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a successor", func() bool { return all[0].members.successor() == "c2" })
	all[0].order(orderStepDown)
	eventually(t, "the newer one to be active", all[1].Active)
	eventually(t, "the older one to stand by", func() bool { return listed(t, nc, "c1").Role == "standby" })

	for _, q := range []*pb.FinalizeUpgradeRequest{{Version: 2}, {Version: 2, DryRun: true}} {
		out, err = finalize(nc, q)
		if messages.CodeOf(err) != messages.CodeUpgradeBlocked || len(out.Blockers) != 2 || !strings.Contains(err.Error(), "controller c1 knows 1, broker b1 knows 1") {
			t.Fatalf("with an older controller and broker: %v, %v", out, err)
		}
	}
	if v, _ := look[messages.UpgradeView](t, nc, "upgrade"); v.Version != 1 || v.Target != 2 || v.State != "BLOCKED" || len(v.Blockers) != 2 || v.Brokers[1] != 1 {
		t.Errorf("%+v", v)
	}
	stop(t, all[0])
	alike(t, all[1], "c1", newer)
	if err := registerAs(nc, "b1", newer); err != nil {
		t.Fatal(err)
	}
	eventually(t, "nothing to be in the way", func() bool {
		v, _ := look[messages.UpgradeView](t, nc, "upgrade")
		return v.State == "READY" && len(v.Blockers) == 0
	})
	if out, err = finalize(nc, &pb.FinalizeUpgradeRequest{Version: 2, DryRun: true}); err != nil || out.From != 1 || out.To != 2 {
		t.Errorf("a dry run: %v, %v", out, err)
	}
	if v := all[1].current().catalog.Identity().FinalizedVersion(); v != 1 {
		t.Fatalf("a dry run has finalized version %d", v)
	}
	if out, err = finalize(nc, &pb.FinalizeUpgradeRequest{Version: 2}); err != nil || out.From != 1 || out.To != 2 {
		t.Fatalf("%v, %v", out, err)
	}
	if v, _ := look[messages.UpgradeView](t, nc, "upgrade"); v.Version != 2 || v.State != "FINALIZED" {
		t.Errorf("%+v", v)
	}
	if _, err := finalize(nc, &pb.FinalizeUpgradeRequest{Version: 1}); messages.CodeOf(err) != messages.CodeInvalidRequest {
		t.Errorf("lowering: %v", err)
	}
	err = registerAs(nc, "b2", older)
	if messages.CodeOf(err) != messages.CodeUnsupportedVersion || !strings.Contains(err.Error(), "versions 1 to 1, the cluster is at version 2, and this controller knows versions 1 to 2") {
		t.Errorf("an older broker: %v", err)
	}
}

func TestB124ATooOldControllerStandsByAndNeverClaims(t *testing.T) {
	all := pair(t, 1, func(_ int, c *Config) { c.versions = newer })
	nc := connect(t, all[0].URL())
	old := alike(t, all[0], "c9", older)
	check := func(c *Controller) {
		t.Helper()
		eventually(t, "it to say that it is too old", func() bool { return strings.Contains(listed(t, nc, c.cfg.Name).Unfit, "needs version 2") })
		h, v := look[messages.HealthView](t, nc, "at."+c.cfg.Name+".health")
		if v.Role != "standby" || h.Status == "HEALTHY" {
			t.Errorf("%+v, %+v", v, h)
		}
	}
	check(old)
	h, _ := look[messages.HealthView](t, nc, "health")
	if h.Status != "DEGRADED" || len(h.Reasons) != 1 || h.Reasons[0].Code != "CONTROLLER_UNFIT" || !strings.Contains(h.Reasons[0].Detail, "c9") {
		t.Errorf("%+v", h)
	}
	if s := all[0].members.successor(); s != "" {
		t.Errorf("%s is named as the successor", s)
	}
	// Neither does it claim when nobody is there, and it suspects so.
	epoch := all[0].Epoch()
	stop(t, all[0])
	eventually(t, "it to suspect", func() bool { return old.members.suspicion(old.current().catalog.Claimed()) != "" })
	next := alike(t, old, "c2", newer)
	eventually(t, "a newer one to be active", next.Active)
	if next.Epoch() != epoch+1 || old.Active() || old.Err() != nil {
		t.Errorf("the epoch is %d after %d; the older one has ended with %v", next.Epoch(), epoch, old.Err())
	}
	check(old)
	stop(t, old)
}

func TestB124AFollowingStandbyStopsBeforeWhatItIsTooOldFor(t *testing.T) {
	all := pair(t, 2, func(i int, c *Config) { c.versions = []messages.VersionRange{older, newer}[i] })
	nc := connect(t, all[0].URL())
	eventually(t, "a successor", func() bool { return all[0].members.successor() == "c2" })
	all[0].order(orderStepDown)
	eventually(t, "the newer one to be active", all[1].Active)
	eventually(t, "the older one to follow", func() bool { c := all[0].current(); return !c.active && c.edge != nil })
	followed := all[0].current().catalog
	// As if the older one had not been heard when the version was finalized.
	before := all[1].current().catalog.Applied()
	if err := all[1].current().tree.Tell(actors.Registry, actors.FinalizeUpgrade{Body: &pb.FinalizeUpgradeRequest{Version: 2}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it to say that it is too old", func() bool { return listed(t, nc, "c1").Unfit != "" })
	if all[0].current().catalog != followed || followed.Identity().FinalizedVersion() != 1 || followed.Applied() < before {
		t.Errorf("it has come to %d of %d, version %d", followed.Applied(), before, followed.Identity().FinalizedVersion())
	}
	eventually(t, "its answers to be stale", func() bool { _, v := look[messages.HealthView](t, nc, "at.c1.health"); return v.Stale })
	// The version stays finalized, and the older one stays where it is, whoever is active.
	three := alike(t, all[1], "c3", newer)
	eventually(t, "a successor", func() bool { return all[1].members.successor() == "c3" })
	stop(t, all[1])
	eventually(t, "the other newer one to be active", three.Active)
	if all[0].Active() || all[0].Err() != nil {
		t.Errorf("the older one is active %t, has ended with %v", all[0].Active(), all[0].Err())
	}
}

func TestB124AStandbyThatIsTooNewWaitsForTheVersion(t *testing.T) {
	all := pair(t, 2, func(i int, c *Config) { c.versions = []messages.VersionRange{older, newer}[i] })
	nc := connect(t, all[0].URL())
	eventually(t, "a successor", func() bool { return all[0].members.successor() == "c2" })
	tooNew := alike(t, all[0], "c0", messages.VersionRange{Min: 2, Max: 3})
	eventually(t, "it to say that it is too new", func() bool {
		return strings.Contains(listed(t, nc, "c0").Unfit, "the cluster is at version 1, this build knows versions 2 to 3")
	})
	all[0].order(orderStepDown) // c0 would come first by its name
	eventually(t, "the one in between to be active", all[1].Active)
	stop(t, all[0])
	alike(t, all[1], "c1", newer)
	eventually(t, "nothing to be in the way", func() bool { v, _ := look[messages.UpgradeView](t, nc, "upgrade"); return v.State == "READY" })
	if out, err := finalize(nc, &pb.FinalizeUpgradeRequest{Version: 2}); err != nil {
		t.Fatalf("%v, %v", out, err)
	}
	eventually(t, "it to have caught up", func() bool { c := listed(t, nc, "c0"); return c.Name != "" && c.Unfit == "" })
	eventually(t, "it to be the successor", func() bool { return all[1].members.successor() == "c0" })
	all[1].order(orderStepDown)
	eventually(t, "it to be active", tooNew.Active)
}

func TestB124AloneATooOldBuildRefusesToStart(t *testing.T) {
	dir := t.TempDir()
	c := start(t, dir, func(c *Config) { c.versions = newer })
	stop(t, c)
	_, err := Start(t.Context(), Config{DataDir: dir, Listen: "127.0.0.1:0", versions: older})
	refused := (*journal.TooNew)(nil)
	if !errors.As(err, &refused) || messages.CodeOf(err) != messages.CodeUnsupportedVersion || refused.Needs != 2 {
		t.Fatalf("it starts with %v", err)
	}
	_, err = Start(t.Context(), Config{DataDir: dir, Listen: "127.0.0.1:0", versions: messages.VersionRange{Min: 3, Max: 4}})
	if messages.CodeOf(err) != messages.CodeUnsupportedVersion || !strings.Contains(err.Error(), "the cluster is at version 2, this build knows versions 3 to 4") {
		t.Fatalf("a build that is too new starts with %v", err)
	}
	start(t, dir, func(c *Config) { c.versions = newer })
}

func TestB125GhostsAreForgottenBeforeAnUpgrade(t *testing.T) {
	c := start(t, t.TempDir(), func(c *Config) { c.versions = older; c.Settings.Session = time.Second })
	dir := c.cfg.DataDir
	nc := connect(t, c.URL())
	forget := func(name string) error {
		return call(nc, subjects.Control("op", "broker", "forget"), &pb.ForgetBrokerRequest{Name: name}, &pb.ForgetBrokerResponse{})
	}
	seven := join(t, c.URL(), "b7")
	eventually(t, "b7 to be unfenced", seven.serving)
	answer := &pb.CreateTopicResponse{}
	if err := call(nc, subjects.Control("op", "topic", "create"), &pb.CreateTopicRequest{Name: "t", Assignment: []*pb.ReplicaList{{Brokers: []string{"b7"}}}}, answer); err != nil {
		t.Fatal(err)
	}
	if err := forget("b7"); messages.CodeOf(err) != messages.CodeBrokerIDInUse {
		t.Errorf("alive: %v", err)
	}
	seven.die()
	eventually(t, "b7 to be fenced", func() bool { return c.current().catalog.Brokers()["b7"].Fenced })
	stop(t, c)
	c = start(t, dir, func(c *Config) { c.versions = newer })
	nc = connect(t, c.URL())
	out, err := finalize(nc, &pb.FinalizeUpgradeRequest{Version: 2})
	if messages.CodeOf(err) != messages.CodeUpgradeBlocked || len(out.Blockers) != 1 || out.Blockers[0].Name != "b7" || !strings.Contains(out.Blockers[0].Detail, "broker forget b7") {
		t.Errorf("with a ghost: %v, %v", out, err)
	}
	if err := forget("b7"); messages.CodeOf(err) != messages.CodeBrokerNotEmpty {
		t.Errorf("with a replica: %v", err)
	}
	if err := call(nc, subjects.Control("op", "topic", "delete"), &pb.DeleteTopicRequest{Name: "t"}, &pb.DeleteTopicResponse{}); err != nil {
		t.Fatal(err)
	}
	if err := forget("b7"); err != nil {
		t.Errorf("empty and gone: %v", err)
	}
	if err := forget("b7"); messages.CodeOf(err) != messages.CodeUnknownBroker {
		t.Errorf("once more: %v", err)
	}
	n := 0
	c.current().catalog.Deletions(func(*messages.TopicDeletion) bool { n++; return true })
	if n != 0 {
		t.Errorf("%d deletions still wait for it", n)
	}
	if out, err := finalize(nc, &pb.FinalizeUpgradeRequest{Version: 2}); err != nil || out.To != 2 {
		t.Errorf("without ghosts: %v, %v", out, err)
	}
}
