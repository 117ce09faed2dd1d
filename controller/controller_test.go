package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

func TestBrokersJoinAndTopicsComeAndGo(t *testing.T) {
	c := start(t, t.TempDir(), nil)
	brokers := cluster(t, c, 3)
	nc := connect(t, c.URL())
	lead, err := nc.SubscribeSync(subjects.LeadershipTopic("orders"))
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	created := create(t, nc, "orders", 4)
	if created.Revision == 0 || len(created.TopicId) != 16 || len(created.Partitions) != 4 {
		t.Errorf("created: %v", created)
	}
	seen := map[int32]*pb.Leadership{}
	for len(seen) < 4 {
		m, err := lead.NextMsg(20 * time.Second)
		if err != nil {
			t.Fatalf("leaderships: %v; have %v", err, seen)
		}
		l := &pb.Leadership{}
		if err := proto.Unmarshal(m.Data, l); err != nil {
			t.Fatal(err)
		}
		if l.Seen.Sequence < created.Revision {
			t.Errorf("leadership was published at %d, before the commit at %d", l.Seen.Sequence, created.Revision)
		}
		seen[l.Partition] = l
	}
	for _, b := range brokers {
		eventually(t, "assignments of "+string(b.id), func() bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			return len(b.assigned) == 4
		})
	}
	eventually(t, "every leader to have proven itself", func() bool {
		h, _ := look[messages.HealthView](t, nc, "health")
		return h.Status == "HEALTHY" && h.Partitions.Total == 4 && h.Partitions.Unproven == 0
	})
	deleted := &pb.DeleteTopicResponse{}
	if err := call(nc, subjects.Control("op", "topic", "delete"), &pb.DeleteTopicRequest{Name: "orders"}, deleted); err != nil {
		t.Fatal(err)
	}
	for {
		m, err := lead.NextMsg(20 * time.Second)
		if err != nil {
			t.Fatalf("the word that the topic is gone: %v", err)
		}
		l := &pb.Leadership{}
		if err := proto.Unmarshal(m.Data, l); err == nil && l.Deleted {
			break
		}
	}
	if list, _ := look[[]messages.TopicView](t, nc, "topics"); len(list) != 0 {
		t.Errorf("topics: %v", list)
	}
}

func TestB113MalformedRequestsOnEverySubjectChangeNothing(t *testing.T) {
	c := start(t, t.TempDir(), nil)
	nc := connect(t, c.URL())
	_, before := look[messages.HealthView](t, nc, "health")
	var list []string
	for _, v := range []messages.BrokerVerb{messages.VerbRegister, messages.VerbHeartbeat, messages.VerbISR, messages.VerbOffsets,
		messages.VerbReady, messages.VerbSnapshot, messages.VerbRemoved} {
		list = append(list, subjects.Broker("b1", v))
	}
	list = append(list, subjects.Control("op", "topic", "create"), subjects.Control("op", "topic", "delete"))
	inbox := nats.NewInbox()
	answers, err := nc.SubscribeSync(inbox)
	if err != nil {
		t.Fatal(err)
	}
	bodies := [][]byte{nil, []byte("\xff\xfe"), []byte("{"), []byte(`{"name":1}`), {0x08}, []byte(strings.Repeat("a", 10_000)), {0x0a, 0x02, 'b', '2'}}
	n := 0
	for _, subject := range list {
		for _, body := range bodies {
			for _, kind := range []string{"", "application/json", "application/protobuf"} {
				m := &nats.Msg{Subject: subject, Reply: inbox, Data: body, Header: nats.Header{}}
				if kind != "" {
					m.Header.Set("Content-Type", kind)
				}
				if err := nc.PublishMsg(m); err != nil {
					t.Fatal(err)
				}
				n++
			}
		}
	}
	for i := range n {
		m, err := answers.NextMsg(20 * time.Second)
		if err != nil {
			t.Fatalf("answer %d of %d: %v", i, n, err)
		}
		got := messages.Code(m.Header.Get("Nats-Service-Error-Code"))
		if _, known := got.Info(); !known || got == messages.CodeInternal {
			t.Errorf("answer %q with code %q", m.Data, got)
		}
	}
	if _, after := look[messages.HealthView](t, nc, "health"); after.Revision != before.Revision {
		t.Errorf("the journal went from %d to %d", before.Revision, after.Revision)
	}
}

func TestTopicsAreMadeByHandInJSON(t *testing.T) {
	c := start(t, t.TempDir(), nil)
	cluster(t, c, 3)
	nc := connect(t, c.URL())
	ask := func(verb, body string) map[string]any {
		m, err := nc.Request(subjects.Control("op", "topic", verb), []byte(body), 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		var out map[string]any
		if err := json.Unmarshal(m.Data, &out); err != nil {
			t.Fatalf("%s: %s", verb, m.Data)
		}
		return out
	}
	if out := ask("create", `{"name":"by.hand","partitions":2,"replication_factor":2}`); out["error"] != nil || out["name"] != "by.hand" {
		t.Errorf("created: %v", out)
	}
	if out := ask("create", `{"name":"by.hand","partitions":2}`); out["error"].(map[string]any)["code"] != "TOPIC_ALREADY_EXISTS" {
		t.Errorf("again: %v", out)
	}
	if v, _ := look[messages.TopicView](t, nc, "topic.by=2Ehand"); v.Partitions != 2 || v.ReplicationFactor != 2 {
		t.Errorf("described: %+v", v)
	}
	if out := ask("delete", `{"name":"by.hand"}`); out["error"] != nil {
		t.Errorf("deleted: %v", out)
	}
	if out := ask("delete", `{"name":"by.hand"}`); out["error"].(map[string]any)["code"] != "UNKNOWN_TOPIC" {
		t.Errorf("deleted again: %v", out)
	}
}

func TestAClosedConnectionFencesWithinTheGraceAndLeadersMove(t *testing.T) {
	c := start(t, t.TempDir(), nil) // the session is two minutes: only the closed connection can be the reason
	brokers := cluster(t, c, 3)
	nc := connect(t, c.URL())
	create(t, nc, "t", 6)
	brokers[1].die()
	eventually(t, "b2 to be fenced and to lead nothing", func() bool {
		b, _ := look[messages.BrokerView](t, nc, "broker.b2")
		return b.State == "fenced" && b.Leaders == 0 && b.InSync == 0
	})
	b, _ := look[messages.BrokerView](t, nc, "broker.b2")
	if !strings.Contains(b.FencedReason, "connection closed") {
		t.Errorf("fenced because: %s", b.FencedReason)
	}
	h, _ := look[messages.HealthView](t, nc, "health")
	if h.Status != "DEGRADED" || h.Partitions.Offline != 0 || h.Partitions.UnderReplicated != 6 {
		t.Errorf("health: %+v", h)
	}
	for _, other := range []string{"b1", "b3"} {
		if b, _ := look[messages.BrokerView](t, nc, "broker."+other); b.State != "active" {
			t.Errorf("%s is %s", other, b.State)
		}
	}
}

// epochs are the leader epoch and partition epoch of every partition, with the leader.
func epochs(t testing.TB, nc *nats.Conn) map[string]string {
	t.Helper()
	list, _ := look[[]messages.PartitionView](t, nc, "partitions")
	out := map[string]string{}
	for _, p := range list {
		out[fmt.Sprintf("%s/%d", p.Topic, p.Partition)] = fmt.Sprintf("%s led by %s in %d/%d", p.TopicID, p.Leader, p.LeaderEpoch, p.Epoch)
	}
	return out
}

func TestARestartKeepsTopicsLeadersAndEpochs(t *testing.T) {
	dir := t.TempDir()
	first := start(t, dir, nil)
	brokers := cluster(t, first, 3)
	nc := connect(t, first.URL())
	create(t, nc, "a", 5)
	create(t, nc, "b.c", 3)
	eventually(t, "every leader to have proven itself", func() bool {
		h, _ := look[messages.HealthView](t, nc, "health")
		return h.Partitions.Total == 8 && h.Partitions.Unproven == 0
	})
	before := epochs(t, nc)
	listen := strings.TrimPrefix(first.URL(), "nats://")
	stop(t, first)
	select {
	case <-first.Done():
	default:
		t.Error("a stopped controller is not done")
	}
	if first.Err() != nil {
		t.Errorf("after an ordinary stop: %v", first.Err())
	}
	second := start(t, dir, func(c *Config) { c.Listen = listen })
	if second.Epoch() != first.Epoch()+1 {
		t.Errorf("controller epochs %d and %d", first.Epoch(), second.Epoch())
	}
	for _, b := range brokers {
		eventually(t, string(b.id)+" to be heard again", b.serving)
	}
	nc = connect(t, second.URL())
	after := epochs(t, nc)
	if len(after) != 8 {
		t.Errorf("%d partitions after the restart", len(after))
	}
	for p, was := range before {
		if after[p] != was {
			t.Errorf("%s: %s, before the restart %s", p, after[p], was)
		}
	}
	stream := leadershipStream(t, nc)
	eventually(t, "the last leaderships to be published anew", func() bool {
		m, err := stream.GetLastMsgForSubject(t.Context(), subjects.Leadership("b.c", 2))
		if err != nil {
			return false
		}
		l := &pb.Leadership{}
		return proto.Unmarshal(m.Data, l) == nil && l.Seen.ControllerEpoch == uint64(second.Epoch()) && l.LeaderEpoch == 0 && l.Leader != ""
	})
	snapshot := &pb.SnapshotResponse{}
	b := brokers[0]
	if err := call(nc, subjects.Broker("b1", messages.VerbSnapshot), &pb.SnapshotRequest{Broker: "b1", BrokerEpoch: b.epoch}, snapshot); err != nil {
		t.Fatal(err)
	}
	if len(snapshot.Assignments) != 8 || snapshot.Feed.GetFeed() == 0 {
		t.Errorf("snapshot: %d assignments, feed %v", len(snapshot.Assignments), snapshot.Feed)
	}
}

func leadershipStream(t testing.TB, nc *nats.Conn) js.Stream {
	t.Helper()
	client, err := js.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	s, err := client.Stream(t.Context(), messages.LeadershipStream("dev"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// faultyLog fails appends while it is told to.
type faultyLog struct {
	journal.Log
	broken atomic.Bool
}

func (f *faultyLog) Append(ctx context.Context, expected messages.Sequence, payload []byte) (messages.Sequence, error) {
	if f.broken.Load() {
		return 0, errors.New("the disk does not answer")
	}
	return f.Log.Append(ctx, expected, payload)
}

func TestB121WithoutItsStoreTheControllerAnswersUnavailableAndHeals(t *testing.T) {
	f := &faultyLog{}
	c := start(t, t.TempDir(), func(c *Config) {
		c.RequestTimeout = 300 * time.Millisecond
		c.AppendTimeout = 100 * time.Millisecond
		c.AppendLimit = time.Minute
		c.wrapLog = func(l journal.Log) journal.Log {
			f.Log = l
			return f
		}
	})
	brokers := cluster(t, c, 3)
	nc := connect(t, c.URL())
	create(t, nc, "before", 1)
	before := epochs(t, nc)
	f.broken.Store(true)
	answer := &pb.CreateTopicResponse{}
	err := call(nc, subjects.Control("op", "topic", "create"), &pb.CreateTopicRequest{Name: "during", Partitions: 1}, answer)
	if messages.CodeOf(err) != messages.CodeUnavailable || !messages.AsError(err).Retryable() {
		t.Errorf("without a store: %v", err)
	}
	if c.Ready() == nil {
		t.Error("the controller says that it is ready")
	}
	h, _ := look[messages.HealthView](t, nc, "health")
	if h.Status != "UNHEALTHY" || len(h.Reasons) == 0 || h.Reasons[0].Code != "STORE_UNAVAILABLE" {
		t.Errorf("health: %+v", h)
	}
	f.broken.Store(false)
	eventually(t, "topics to be made again", func() bool {
		err := call(nc, subjects.Control("op", "topic", "create"), &pb.CreateTopicRequest{Name: "after", Partitions: 1}, answer)
		return err == nil || messages.CodeOf(err) == messages.CodeTopicExists
	})
	eventually(t, "the controller to be ready", func() bool { return c.Ready() == nil })
	for _, b := range brokers {
		eventually(t, string(b.id)+" to be served", b.serving)
	}
	if after := epochs(t, nc); after["before/0"] != before["before/0"] {
		t.Errorf("%s, before the fault %s", after["before/0"], before["before/0"])
	}
}

func TestAStoreThatStaysAwayEndsTheController(t *testing.T) {
	f := &faultyLog{}
	c := start(t, t.TempDir(), func(c *Config) {
		c.AppendTimeout, c.AppendLimit = 50*time.Millisecond, 200*time.Millisecond
		c.wrapLog = func(l journal.Log) journal.Log {
			f.Log = l
			return f
		}
	})
	nc := connect(t, c.URL())
	f.broken.Store(true)
	_ = call(nc, subjects.Broker("b1", messages.VerbRegister), &pb.RegisterRequest{Broker: "b1", Incarnation: "i", Storage: "s",
		MinProtocol: 1, MaxProtocol: 1}, &pb.RegisterResponse{})
	select {
	case <-c.Done():
	case <-time.After(30 * time.Second):
		t.Fatal("the controller goes on")
	}
	if c.Err() == nil || c.Ready() == nil {
		t.Error("the end has no reason")
	}
}

func TestASecondProcessOnTheSameFolderIsRefused(t *testing.T) {
	dir := t.TempDir()
	c := start(t, dir, func(c *Config) { c.Name = "first" })
	_, err := Start(t.Context(), Config{DataDir: dir, Listen: "127.0.0.1:0", Name: "second"})
	if messages.CodeOf(err) != messages.CodeUnavailable || !strings.Contains(err.Error(), "in use") || !strings.Contains(err.Error(), "first") {
		t.Errorf("a second process: %v", err)
	}
	stop(t, c)
	start(t, dir, nil)
}

func TestATakenPortIsSaid(t *testing.T) {
	c := start(t, t.TempDir(), nil)
	_, err := Start(t.Context(), Config{DataDir: t.TempDir(), Listen: strings.TrimPrefix(c.URL(), "nats://")})
	if messages.CodeOf(err) != messages.CodeUnavailable || !strings.Contains(err.Error(), "does not start on") {
		t.Errorf("a taken port: %v", err)
	}
}

func TestB120ALostJournalIsNoNewCluster(t *testing.T) {
	dir := t.TempDir()
	stop(t, start(t, dir, nil))
	if err := os.RemoveAll(filepath.Join(dir, storeFolder)); err != nil {
		t.Fatal(err)
	}
	_, err := Start(t.Context(), Config{DataDir: dir, Listen: "127.0.0.1:0"})
	if messages.CodeOf(err) != messages.CodeClusterMismatch || !strings.Contains(err.Error(), "metadata is lost") {
		t.Errorf("an empty journal in a known folder: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, markFile)); err != nil {
		t.Fatal(err)
	}
	start(t, dir, nil) // told to begin anew
}

func TestAnotherClaimEndsTheController(t *testing.T) {
	var log journal.Log
	c := start(t, t.TempDir(), func(c *Config) {
		c.wrapLog = func(l journal.Log) journal.Log {
			log = l
			return l
		}
	})
	nc := connect(t, c.URL())
	catalog := journal.NewCatalog()
	at, _, err := journal.Recover(t.Context(), log, catalog)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := journal.Claim(t.Context(), log, catalog, at, "other"); err != nil {
		t.Fatal(err)
	}
	_ = call(nc, subjects.Broker("b1", messages.VerbRegister), &pb.RegisterRequest{Broker: "b1", Incarnation: "i", Storage: "s",
		MinProtocol: 1, MaxProtocol: 1}, &pb.RegisterResponse{})
	select {
	case <-c.Done():
	case <-time.After(30 * time.Second):
		t.Fatal("the deposed controller goes on")
	}
	var deposed *journal.Deposed
	if !errors.As(c.Err(), &deposed) {
		t.Errorf("it ended because of %v", c.Err())
	}
}

func TestB88StrangersMayNotSpeakForTheController(t *testing.T) {
	c := start(t, t.TempDir(), nil)
	var mu sync.Mutex
	denied := map[string]bool{}
	nc, err := nats.Connect(c.URL(), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		mu.Lock()
		defer mu.Unlock()
		for _, s := range []string{"jnl", "lead", "asg"} {
			if errors.Is(err, nats.ErrPermissionViolation) && strings.Contains(err.Error(), "hw.dev."+s) {
				denied[s] = true
			}
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	for _, s := range []string{subjects.Journal(), subjects.Leadership("t", 0), subjects.Assignments("b1")} {
		if err := nc.Publish(s, []byte("forged")); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "three refusals", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(denied) == 3
	})
	client, err := js.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := client.DeleteStream(ctx, messages.JournalStream("dev")); err == nil {
		t.Error("a stranger has deleted the journal")
	}
	cluster(t, c, 1) // and the controller still commits
}

func TestAnExternalServerWillDo(t *testing.T) {
	host := start(t, t.TempDir(), nil) // its server serves as one that is somewhere else
	c := start(t, "", func(c *Config) {
		c.Cluster, c.Name = "other", "c2"
		c.NATSURL = "nats://hw:" + host.server.user + "@" + strings.TrimPrefix(host.URL(), "nats://")
		c.SystemURL = "nats://sys:" + host.server.system + "@" + strings.TrimPrefix(host.URL(), "nats://")
	})
	nc := connect(t, host.URL())
	m, err := nc.Request(messages.NewSubjects("other").Monitor("health"), nil, 10*time.Second)
	if err != nil || !strings.Contains(string(m.Data), `"HEALTHY"`) {
		t.Errorf("health of the second cluster: %v %v", m, err)
	}
	stop(t, c)
	short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := Start(short, Config{NATSURL: "nats://127.0.0.1:1"}); messages.CodeOf(err) != messages.CodeUnavailable {
		t.Errorf("nobody there: %v", err)
	}
}

func TestTheConfigurationIsCheckedAsAWhole(t *testing.T) {
	for name, c := range map[string]struct {
		cfg  Config
		says []string
	}{
		"defaults":          {Config{DataDir: "d"}, nil},
		"loopback":          {Config{DataDir: "d", Listen: "[::1]:0"}, nil},
		"localhost":         {Config{DataDir: "d", Listen: "localhost:1"}, nil},
		"open":              {Config{DataDir: "d", Listen: "0.0.0.0:4222"}, []string{"not a loopback address"}},
		"open to all":       {Config{DataDir: "d", Listen: ":4222"}, []string{"not a loopback address"}},
		"open, and meant":   {Config{DataDir: "d", Listen: "0.0.0.0:4222", InsecureNoAuth: true}, nil},
		"no port":           {Config{DataDir: "d", Listen: "127.0.0.1"}, []string{"host:port"}},
		"no folder":         {Config{}, []string{"data folder"}},
		"elsewhere":         {Config{NATSURL: "nats://x"}, nil},
		"replicas":          {Config{DataDir: "d", JournalReplicas: 3}, []string{"one replica"}},
		"system URL":        {Config{DataDir: "d", SystemURL: "nats://x"}, []string{"no NATS URL"}},
		"several":           {Config{Cluster: "a b", Name: "c.1", MaxOutstanding: -1}, []string{"cluster", "controller", "data folder", "outstanding"}},
		"timeouts":          {Config{DataDir: "d", AppendTimeout: time.Minute}, []string{"append timeout"}},
		"session too short": {Config{DataDir: "d", Settings: with(func(s *messages.Settings) { s.Session = time.Second })}, []string{"three heartbeats"}},
		"min ISR":           {Config{DataDir: "d", Settings: with(func(s *messages.Settings) { s.DefaultMinISR = 4 })}, []string{"min ISR"}},
		"no heartbeat":      {Config{DataDir: "d", Settings: with(func(s *messages.Settings) { s.Heartbeat = 0 })}, []string{"heartbeat"}},
	} {
		err := c.cfg.Validate()
		if (err == nil) != (c.says == nil) {
			t.Errorf("%s: %v", name, err)
		}
		for _, s := range c.says {
			if err != nil && !strings.Contains(err.Error(), s) {
				t.Errorf("%s: %q is not in %v", name, s, err)
			}
		}
	}
}

func with(change func(*messages.Settings)) messages.Settings {
	s := messages.DefaultSettings()
	change(&s)
	return s
}
