//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// The topic of these tests has the longest name, and one that NATS would take for many tokens.
var dotted = strings.Repeat("a.", 124) + "z"

// door is a kind of subject on which a controller or a broker listens to others. Every subscription of a running cluster has
// to be behind one of these doors: who opens another one says here what strangers get from it.
type door struct {
	pattern string // "*" is one token, ">" the rest
	// open says what a stranger may do: "ask" for answers, "read" where an empty question is a good one, "tell" where
	// nothing is ever answered, "" where NATS denies it.
	open string
	// nonsense makes requests of the right form with impossible content; subject is one that is subscribed to.
	nonsense func(h *hostile, subject string) proto.Message
}

var doors = []door{
	{"hw.e2e.brk.v1.*.register", "ask", (*hostile).register},
	{"hw.e2e.brk.v1.*.heartbeat", "ask", (*hostile).heartbeat},
	{"hw.e2e.brk.v1.*.isr", "ask", (*hostile).isr},
	{"hw.e2e.brk.v1.*.offsets", "ask", (*hostile).offsets},
	{"hw.e2e.brk.v1.*.ready", "ask", (*hostile).ready},
	{"hw.e2e.brk.v1.*.snapshot", "ask", (*hostile).snapshot},
	{"hw.e2e.brk.v1.*.removed", "ask", (*hostile).removed},
	{"hw.e2e.ctl.v1.*.topic.create", "ask", (*hostile).create},
	{"hw.e2e.ctl.v1.*.topic.delete", "ask", (*hostile).remove},
	{"hw.e2e.ctl.v1.*.broker.forget", "ask", (*hostile).forget},
	{"hw.e2e.ctl.v1.*.upgrade.finalize", "ask", (*hostile).finalize},
	{"hw.e2e.ctl.v1.*.snapshot.read", "read", (*hostile).snapshotRead}, // the first question begins an export
	{"hw.e2e.mon.v1.controllers", "read", nil},
	{"hw.e2e.mon.v1.health", "read", nil},
	{"hw.e2e.mon.v1.overview", "read", nil},
	{"hw.e2e.mon.v1.brokers", "read", nil},
	{"hw.e2e.mon.v1.broker.*", "read", nil},
	{"hw.e2e.mon.v1.topics", "read", nil},
	{"hw.e2e.mon.v1.topic.*", "read", nil},
	{"hw.e2e.mon.v1.partitions", "read", nil},
	{"hw.e2e.mon.v1.partition.*.*", "read", nil},
	{"hw.e2e.mon.v1.upgrade", "read", nil},
	{"hw.e2e.mon.v1.leadership", "read", nil},
	{"hw.e2e.dat.v1.*.*.*.*.*", "ask", (*hostile).data},
	{"hw.e2e.rep.v1.*.*", "ask", (*hostile).replicaFetch},
	{"hw.e2e.asg.v1.*", "", nil},
	{"hw.e2e.lead.v1.>", "", nil},
	{"hw.e2e.jnl.v1.log", "", nil},
}

func (d door) matches(subject string) bool {
	want, have := strings.Split(d.pattern, "."), strings.Split(subject, ".")
	for i, t := range want {
		switch {
		case t == ">":
			return true
		case i >= len(have) || t != "*" && t != have[i]:
			return false
		}
	}
	return len(want) == len(have)
}

// hostile is somebody without any right who sends what nobody should.
type hostile struct {
	t       testing.TB
	c       *cluster
	nc      *nats.Conn
	rng     *rand.Rand
	topic   messages.TopicID
	brokers map[messages.BrokerID]messages.BrokerView
	inbox   string
	answers *nats.Subscription
	out     map[string]string // reply subject → subject of the requests that wait for their answer
	sent    int
}

func newHostile(t testing.TB, c *cluster) *hostile {
	t.Helper()
	h := &hostile{t: t, c: c, rng: rand.New(rand.NewPCG(7, 11)), topic: c.partition(dotted, 0).TopicID, brokers: map[messages.BrokerID]messages.BrokerView{}}
	var err error
	h.nc, err = nats.Connect(c.url(), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	must(t, err)
	t.Cleanup(h.nc.Close)
	h.inbox, h.out = nats.NewInbox(), map[string]string{}
	h.answers, err = h.nc.SubscribeSync(h.inbox + ".*")
	must(t, err)
	must(t, h.answers.SetPendingLimits(-1, -1))
	list, err := c.client.Brokers(t.Context(), messages.ListQuery{})
	must(t, err)
	for _, b := range list {
		h.brokers[b.ID] = b
	}
	return h
}

// send sends one request and lets at most a few hundred be out at once; of a follower just one, because a leader takes no more
// from one that does not wait.
func (h *hostile) send(subject string, body []byte, kind string) {
	h.t.Helper()
	h.sent++
	m := &nats.Msg{Subject: subject, Reply: fmt.Sprintf("%s.%d", h.inbox, h.sent), Data: body, Header: nats.Header{}}
	if kind != "" {
		m.Header.Set("Content-Type", kind)
	}
	most := 300
	if strings.Contains(subject, ".rep.") {
		most = 0
		h.hearAll(most)
	}
	must(h.t, h.nc.PublishMsg(m))
	h.out[m.Reply] = subject
	h.hearAll(most)
}

// hearAll hears answers until at most some requests are out.
func (h *hostile) hearAll(most int) {
	h.t.Helper()
	for len(h.out) > most {
		m, err := h.answers.NextMsg(20 * time.Second)
		if err != nil {
			h.t.Fatalf("%d of %d requests have no answer: %v: %v", len(h.out), h.sent, err, h.out)
		}
		subject, waits := h.out[m.Subject]
		if !waits {
			h.t.Errorf("a second answer: %.200q", m.Data)
		}
		delete(h.out, m.Subject)
		if err := coded(m); err != nil {
			h.t.Errorf("%s: %v: %.200q", subject, err, m.Data)
		}
	}
}

// coded says what is wrong with an answer to nonsense: it has to be an error with a known code that is no fault of ours.
func coded(m *nats.Msg) error {
	if m.Header.Get("Status") == "503" {
		return errors.New("nobody listens there")
	}
	code := messages.Code(m.Header.Get("Nats-Service-Error-Code"))
	if code == "" { // all answers in protobuf have their error in the first field
		if num, typ, n := protowire.ConsumeTag(m.Data); num == 1 && typ == protowire.BytesType {
			raw, _ := protowire.ConsumeBytes(m.Data[n:])
			e := &pb.Error{}
			if proto.Unmarshal(raw, e) == nil {
				code = messages.Code(e.GetCode())
			}
		}
	}
	if _, known := code.Info(); !known || code == messages.CodeInternal {
		return fmt.Errorf("no coded error (%q)", code)
	}
	return nil
}

// garbage makes a body that is no message.
func (h *hostile) garbage() []byte {
	switch h.rng.IntN(5) {
	case 0:
		b := make([]byte, 1+h.rng.IntN(300))
		for i := range b {
			b[i] = byte(h.rng.Uint32()) | 0x07 // a wire type that does not exist
		}
		return b
	case 1:
		return []byte(strings.Repeat(`{"name":`, 1+h.rng.IntN(500)))
	case 2:
		return []byte(`{"broker":"b1","partitions":NaN,"topic_id":"!!","limit":-1}`)
	case 3:
		return []byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0x7f} // a text of 34 GB
	}
	return []byte("\xff\xfe\x00\x00GET / HTTP/1.1\r\n\r\n")
}

// who is a principal: nobody that is known, or an odd one.
func (h *hostile) who() string {
	list := []string{"nobody", "b9", "=", "=2A", "=3E", "a=00b", strings.Repeat("x", 500), "B1", "b1=20"}
	return list[h.rng.IntN(len(list))]
}

// subject fills the wildcards of a subscription.
func (h *hostile) subject(pattern string) string {
	tokens := strings.Split(pattern, ".")
	for i, t := range tokens {
		if t == "*" {
			tokens[i] = h.who()
		}
	}
	return strings.Join(tokens, ".")
}

func (h *hostile) broker() messages.BrokerView {
	return h.brokers[messages.BrokerID(fmt.Sprintf("b%d", 1+h.rng.IntN(3)))]
}

func (h *hostile) number() int64 {
	list := []int64{-1, -1 << 63, 1<<63 - 1, 1 << 62, 1 << 31, -2, 1 << 40}
	return list[h.rng.IntN(len(list))]
}

func (h *hostile) id() []byte {
	list := [][]byte{nil, {1}, make([]byte, 16), []byte("sixteen bytes id"), make([]byte, 1000)}
	return list[h.rng.IntN(len(list))]
}

func (h *hostile) register(string) proto.Message {
	b := h.broker()
	list := []*pb.RegisterRequest{
		{Broker: "b9", ClusterId: "another cluster", Incarnation: "i", Storage: "s", MinProtocol: 1, MaxProtocol: 1},
		{Broker: string(b.ID), Incarnation: "another", Storage: string(b.Storage), MinProtocol: 1, MaxProtocol: 1}, // in use
		{Broker: "b9", Incarnation: "i", Storage: string(b.Storage), MinProtocol: 1, MaxProtocol: 1},
		{Broker: "b9", Incarnation: "i", Storage: "s", MinProtocol: 7, MaxProtocol: 9},
		{Broker: "b9", Incarnation: "i", Storage: "s", Rack: "a//b", MinProtocol: 1, MaxProtocol: 1},
		{Broker: "b9", Incarnation: "i", Storage: "s", Weight: 1 << 31, MinProtocol: 1, MaxProtocol: 1},
		{Broker: "b9", Incarnation: "i", Storage: "s", Pid: -4, MinProtocol: 1, MaxProtocol: 1},
		{Broker: "b9", Incarnation: "i", Storage: "s", MinProtocol: 1, MaxProtocol: 1, Seen: &pb.Seen{ControllerEpoch: 1 << 60, Sequence: 1 << 60}},
		{Broker: "b9", Incarnation: strings.Repeat("i", 100_000), Storage: "s", MinProtocol: 1, MaxProtocol: 1},
	}
	return list[h.rng.IntN(len(list))]
}

func (h *hostile) heartbeat(string) proto.Message {
	b := h.broker()
	list := []*pb.HeartbeatRequest{
		{Broker: string(b.ID), Incarnation: "another", BrokerEpoch: uint64(b.Epoch), WantsStop: true},
		{Broker: string(b.ID), Incarnation: string(b.Incarnation), BrokerEpoch: uint64(b.Epoch) - 1, StorageFailed: true},
		{Broker: "b9", Incarnation: "i", BrokerEpoch: 1 << 60, Ready: true, Seen: &pb.Seen{ControllerEpoch: 1 << 60, Sequence: 1 << 60}},
	}
	return list[h.rng.IntN(len(list))]
}

// The members of batches are refused one by one, so these speak for a broker that is none, or under an epoch that was.
func (h *hostile) isr(string) proto.Message {
	return &pb.IsrRequest{Broker: h.strangeBroker(), Proposals: []*pb.IsrProposal{{TopicId: h.id(), LeaderEpoch: h.number(), PartitionEpoch: h.number()}}}
}

func (h *hostile) strangeBroker() string {
	list := []string{"b1", "", "b.1", "*", strings.Repeat("b", 65), "b2"}
	return list[h.rng.IntN(len(list))]
}

func (h *hostile) offsets(string) proto.Message {
	return &pb.OffsetsRequest{Broker: h.strangeBroker(), Reports: []*pb.OffsetReport{{TopicId: h.topic.Bytes(), HighWatermark: h.number()}}}
}

func (h *hostile) ready(string) proto.Message {
	return &pb.ReadyRequest{Broker: h.strangeBroker(), Reports: []*pb.LeaderReport{{TopicId: h.topic.Bytes(), Declined: true, LogEnd: h.number()}}}
}

func (h *hostile) snapshot(string) proto.Message {
	list := []*pb.SnapshotRequest{{Broker: "b9"}, {Broker: "b1"}, {Broker: "b9", Cursor: "a:zz:-1", Held: []*pb.HeldTopic{{TopicId: h.id()}}}}
	return list[h.rng.IntN(len(list))]
}

func (h *hostile) removed(string) proto.Message {
	return &pb.RemovedRequest{Broker: h.strangeBroker(), TopicIds: [][]byte{h.topic.Bytes(), h.id()}}
}

func (h *hostile) create(string) proto.Message {
	list := []*pb.CreateTopicRequest{
		{}, {Name: dotted, Partitions: 1}, {Name: "t"}, {Name: "t", Partitions: 1 << 31}, {Name: "t", Partitions: 1, ReplicationFactor: 4},
		{Name: "t", Partitions: 1, MinIsr: 9}, {Name: strings.Repeat("t", 250), Partitions: 1}, {Name: "../t", Partitions: 1},
		{Name: "t", Assignment: []*pb.ReplicaList{{Brokers: []string{"b1", "b1"}}}}, {Name: "t", Assignment: []*pb.ReplicaList{{Brokers: []string{"b9"}}}},
		{Name: "t", Partitions: 100_000},
	}
	return list[h.rng.IntN(len(list))]
}

func (h *hostile) remove(string) proto.Message {
	list := []*pb.DeleteTopicRequest{{}, {Name: "nope"}, {Name: "*"}, {Name: dotted, TopicId: []byte("sixteen bytes id")}, {Name: dotted, TopicId: []byte{1}}}
	return list[h.rng.IntN(len(list))]
}

func (h *hostile) forget(string) proto.Message {
	list := []*pb.ForgetBrokerRequest{{}, {Name: "b1"}, {Name: "*"}, {Name: "nope"}, {Name: strings.Repeat("b", 65)}, {Name: "b2", DryRun: true}}
	return list[h.rng.IntN(len(list))]
}

func (h *hostile) finalize(string) proto.Message {
	list := []*pb.FinalizeUpgradeRequest{{}, {DryRun: true}, {Version: 1 << 31}, {Version: 2}, {Version: 1<<32 - 1, DryRun: true}}
	return list[h.rng.IntN(len(list))]
}

// data makes requests to a leader. Its subject says which of them it reads.
func (h *hostile) data(subject string) proto.Message {
	if strings.HasSuffix(subject, ".produce") {
		record := &pb.LogRecord{Value: []byte("forged")}
		list := []*pb.ProduceRequest{
			{TopicId: h.id(), Batch: &pb.RecordBatch{Records: []*pb.LogRecord{record}}},
			{TopicId: h.topic.Bytes()},
			{TopicId: h.topic.Bytes(), Batch: &pb.RecordBatch{}},
			{TopicId: h.topic.Bytes(), Batch: &pb.RecordBatch{ProducerId: 77, BaseSequence: h.number(), Records: []*pb.LogRecord{record}}},
			{TopicId: h.topic.Bytes(), Batch: &pb.RecordBatch{ProducerId: 77, BaseSequence: 5, Records: []*pb.LogRecord{record}}},
		}
		return list[h.rng.IntN(len(list))]
	}
	list := []*pb.FetchRequest{
		{TopicId: h.id()}, {TopicId: h.topic.Bytes(), Offset: 1 << 62, MaxWaitMs: 1 << 31}, {TopicId: h.topic.Bytes(), Offset: -7, MaxBytes: 1 << 31},
		{TopicId: h.topic.Bytes(), Offset: -1 << 63}, {},
	}
	return list[h.rng.IntN(len(list))]
}

// replicaFetch makes requests of a follower that nobody knows.
func (h *hostile) snapshotRead(string) proto.Message {
	return &pb.SnapshotReadRequest{Export: "nonsense", Page: h.rng.Uint64()}
}

func (h *hostile) replicaFetch(string) proto.Message {
	list := []*pb.ReplicaFetchRequest{
		{Follower: "nobody", Session: 99, Round: 3}, {Follower: "b1"}, {}, {Follower: "nobody", Session: 1 << 63, Round: 1 << 63},
	}
	return list[h.rng.IntN(len(list))]
}

// attack sends n malformed requests to the doors that are open, through the subjects that are subscribed to.
func (h *hostile) attack(subscriptions []string, n int) {
	h.t.Helper()
	type target struct {
		subject string
		door
	}
	var targets []target
	for _, s := range subscriptions {
		i := slices.IndexFunc(doors, func(d door) bool { return d.matches(s) })
		if i < 0 {
			h.t.Errorf("somebody listens on %s, of which the table of doors says nothing", s)
		} else if doors[i].open != "" {
			targets = append(targets, target{s, doors[i]})
		}
	}
	for _, d := range doors {
		if !slices.ContainsFunc(subscriptions, d.matches) {
			h.t.Errorf("nobody listens on %s", d.pattern)
		}
	}
	for i := range n {
		to := targets[i%len(targets)]
		subject := h.subject(to.subject)
		if strings.Contains(subject, ".dat.") { // verb and principal are wildcards
			subject = subject[:strings.LastIndex(subject, ".")] + "." + []string{"produce", "fetch"}[h.rng.IntN(2)]
		}
		if strings.Contains(subject, ".rep.") {
			subject = subject[:strings.LastIndex(subject, ".")] + ".nobody"
		}
		switch {
		case to.nonsense != nil && h.rng.IntN(2) == 0:
			m := to.nonsense(h, subject)
			if b, ok := m.(interface{ GetBroker() string }); ok && strings.Contains(subject, ".brk.") && h.rng.IntN(2) == 0 && messages.BrokerID(b.GetBroker()).Validate() == nil && !batched(m) {
				subject = messages.NewSubjects(clusterName).Broker(b.GetBroker(), messages.BrokerVerb(subject[strings.LastIndex(subject, ".")+1:]))
			}
			body, err := proto.Marshal(m)
			must(h.t, err)
			h.send(subject, body, "application/protobuf")
		case to.open == "ask" && h.rng.IntN(5) == 0:
			h.send(subject, nil, "")
		default:
			h.send(subject, h.garbage(), []string{"", "application/json", "application/protobuf", "text/html"}[h.rng.IntN(4)])
		}
	}
	h.hearAll(0)
}

// batched reports whether a request is answered item by item, without an error of its own.
func batched(m proto.Message) bool {
	switch m.(type) {
	case *pb.IsrRequest, *pb.ReadyRequest, *pb.OffsetsRequest:
		return true
	}
	return false
}

// state is what must not change by any of it.
func (c *cluster) state() string {
	c.t.Helper()
	h, err := c.health()
	must(c.t, err)
	brokers, err := c.client.Brokers(c.t.Context(), messages.ListQuery{})
	must(c.t, err)
	for i := range brokers {
		brokers[i].HeartbeatAgeMs = nil
	}
	partitions, err := c.client.Partitions(c.t.Context(), messages.ListQuery{})
	must(c.t, err)
	for i := range partitions {
		partitions[i].HighWatermark = 0
	}
	raw, err := json.MarshalIndent([]any{h, brokers, partitions}, "", " ")
	must(c.t, err)
	return string(raw)
}

// Ten thousand malformed requests on every subject that anybody listens to: each gets a coded error, nothing changes, nobody
// dies, and who works goes on.
func TestB113B109B85NonsenseOnEverySubjectChangesNothing(t *testing.T) {
	const records = 3000
	host := startNATS(t)
	c := host.on(t)
	c.startController()
	c.connect()
	c.controllerReady()
	for _, b := range []messages.BrokerID{"b1", "b2", "b3"} {
		c.startBroker(b)
	}
	c.allActive(3)
	c.createTopic(dotted, 6)
	c.fullISR(dotted)
	h := newHostile(t, c)
	before := c.state()
	p := c.produce(dotted)
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		feed(t, p.stdin, 0, records)
	}()
	p.reach(100)
	h.attack(host.subscriptions(), 10_000)
	h.elsewhere()
	h.asTheController(host)
	<-fed
	p.end()
	if after := c.state(); after != before {
		t.Errorf("the state has changed:\n%s\nbefore:\n%s", after, before)
	}
	c.check(dotted, p, records)
	for name, process := range c.brokers {
		if !process.running() {
			t.Errorf("%s has died", name)
		}
	}
	c.createTopic("after", 3)
	c.fullISR("after")
}

// elsewhere sends where nobody listens, more than anybody takes, and what only the controller may say.
func (h *hostile) elsewhere() {
	h.t.Helper()
	p := h.c.partition(dotted, 0)
	s, other := messages.NewSubjects(clusterName), messages.NewSubjects("other")
	at := func(s messages.Subjects, epoch messages.LeaderEpoch) string {
		return s.Data(messages.Data{Principal: "x", Topic: messages.TopicName(dotted), LeaderEpoch: epoch, Verb: messages.VerbProduce})
	}
	body, err := proto.Marshal(&pb.CreateTopicRequest{Name: "t", Partitions: 1})
	must(h.t, err)
	for _, subject := range []string{other.Control("op", "topic", "create"), other.Broker("b1", messages.VerbHeartbeat), at(other, p.LeaderEpoch),
		s.Control("op", "topic", "explode"), s.Control("op", "broker", "create"), s.Broker("b1", "explode"), at(s, p.LeaderEpoch+1), s.Monitor("explode"),
		s.Monitor("topic.a.b"), s.Replication("b9", "b1")} {
		_, err := h.nc.Request(subject, body, 5*time.Second)
		if !errors.Is(err, nats.ErrNoResponders) {
			h.t.Errorf("somebody answers on %s: %v", subject, err)
		}
	}
	large := make([]byte, 8<<20-4000)
	for _, subject := range []string{s.Control("op", "topic", "create"), s.Broker("b1", messages.VerbRegister), s.Monitor("topics"), at(s, p.LeaderEpoch)} {
		h.send(subject, large, "")
	}
	h.hearAll(0)
	for _, subject := range []string{s.Journal(), s.Leadership("t", 0), s.Assignments("b1")} { // denied: nobody gets it
		must(h.t, h.nc.Publish(subject, body))
	}
	must(h.t, h.nc.Flush())
}

// asTheController sends brokers assignments that cannot be, under the controller's own name: they change nothing.
func (h *hostile) asTheController(host *natsHost) {
	h.t.Helper()
	nc, err := nats.Connect("nats://hw:hw@" + host.address)
	must(h.t, err)
	defer nc.Close()
	for id, b := range h.brokers {
		for _, batch := range []*pb.AssignmentBatch{
			{}, {Broker: "another", BrokerEpoch: uint64(b.Epoch)}, {Broker: string(id), BrokerEpoch: uint64(b.Epoch) - 1},
			{Broker: string(id), BrokerEpoch: uint64(b.Epoch), Feed: &pb.FeedPosition{Feed: 1 << 63, Position: 1 << 63},
				Assignments: []*pb.Assignment{{}, {TopicId: h.topic.Bytes(), Partition: -1, Leader: string(id), LeaderEpoch: -5}},
				Removals:    []*pb.Removal{{}, {TopicId: []byte{1}}, {TopicId: h.topic.Bytes(), PartitionEpochs: []int64{-1}}}},
		} {
			body, err := proto.Marshal(batch)
			must(h.t, err)
			must(h.t, nc.Publish(messages.NewSubjects(clusterName).Assignments(id), body))
		}
		for range 20 {
			must(h.t, nc.Publish(messages.NewSubjects(clusterName).Assignments(id), h.garbage()))
		}
	}
	ctx, cancel := context.WithTimeout(h.t.Context(), 5*time.Second)
	defer cancel()
	must(h.t, nc.FlushWithContext(ctx))
}
