package natsbus

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

type view[T any] struct {
	messages.View
	Data T `json:"data"`
}

type errorBody struct {
	Error struct {
		Code      messages.Code `json:"code"`
		Message   string        `json:"message"`
		Hint      string        `json:"hint"`
		Retryable *bool         `json:"retryable"`
	} `json:"error"`
}

// look asks a monitoring endpoint.
func look[T any](r *rig, endpoint string, query any) view[T] {
	r.t.Helper()
	m := r.lookRaw(endpoint, query)
	if code := m.Header.Get("Nats-Service-Error-Code"); code != "" {
		r.t.Fatalf("%s: %s: %s", endpoint, code, m.Data)
	}
	var v view[T]
	if err := json.Unmarshal(m.Data, &v); err != nil {
		r.t.Fatalf("%s answers %q: %v", endpoint, m.Data, err)
	}
	return v
}

func (r *rig) lookRaw(endpoint string, query any) *nats.Msg {
	r.t.Helper()
	var data []byte
	if query != nil {
		var err error
		if data, err = json.Marshal(query); err != nil {
			r.t.Fatal(err)
		}
	}
	return r.request(r.subjects.Monitor(endpoint), data, nil)
}

func (r *rig) refused(endpoint string, query any) messages.Code {
	r.t.Helper()
	m := r.lookRaw(endpoint, query)
	var body errorBody
	if err := json.Unmarshal(m.Data, &body); err != nil {
		r.t.Fatalf("%s answers %q: %v", endpoint, m.Data, err)
	}
	if got := m.Header.Get("Nats-Service-Error-Code"); got != string(body.Error.Code) || m.Header.Get("Nats-Service-Error") == "" {
		r.t.Errorf("%s: header %q, body %+v", endpoint, got, body)
	}
	if body.Error.Code != "" && (body.Error.Message == "" || body.Error.Hint == "" || body.Error.Retryable == nil) {
		r.t.Errorf("%s: an incomplete error: %s", endpoint, m.Data)
	}
	return body.Error.Code
}

// world fills a catalog with something of everything.
func world(r *rig) {
	fenced := broker("b3", 3)
	fenced.Fenced, fenced.FencedReason = true, "silence"
	r.catalog.Apply(1, []messages.Record{&messages.Cluster{Name: "dev", ID: "abc", Settings: messages.DefaultSettings()},
		broker("b1", 1), broker("b2", 2), fenced})
	r.topic(2, 1, "orders", 3, "b1", "b2", "b3")
	r.topic(3, 2, "a.b", 1, "b1")
	degraded := *partition(1, 0, "b1", "b2", "b3")
	degraded.ISR = []messages.BrokerID{"b1", "b2"}
	below := *partition(1, 1, "b2", "b1", "b3")
	below.ISR, below.Leader, below.Eligible = []messages.BrokerID{"b1"}, "b1", []messages.BrokerID{"b2"}
	gone := *partition(1, 2, "b3", "b1", "b2")
	gone.ISR, gone.Leader, gone.LeaderEpoch = nil, "", 4
	r.catalog.Apply(4, []messages.Record{&degraded, &below, &gone})
}

func TestHealthCountsWhatIsWrong(t *testing.T) {
	r := newRig(t, func(c *Config) {
		c.Racks = func(map[messages.BrokerID]*messages.Broker) func([]messages.BrokerID) bool {
			return func(replicas []messages.BrokerID) bool { return len(replicas) == 1 }
		}
	})
	v := look[messages.HealthView](r, "health", nil)
	if v.Data.Status != "HEALTHY" || len(v.Data.Reasons) != 0 || v.Data.Failed == nil {
		t.Errorf("an empty cluster: %+v", v.Data)
	}
	world(r)
	r.tree.mu.Lock()
	r.tree.failed = []actors.Address{actors.Partition(messages.PartitionID{Topic: topicID(1), Index: 2})}
	r.tree.mu.Unlock()
	v = look[messages.HealthView](r, "health", nil)
	want := messages.PartitionCount{Total: 4, Offline: 1, UnderMinISR: 2, AtMinISR: 2, UnderReplicated: 3, NonPreferred: 1, RackViolation: 1}
	if v.Data.Partitions != want {
		t.Errorf("partitions: %+v, want %+v", v.Data.Partitions, want)
	}
	if b := v.Data.Brokers; b.Total != 3 || b.Active != 2 || b.Fenced != 1 || !slices.Equal(b.IDs, []messages.BrokerID{"b3"}) {
		t.Errorf("brokers: %+v", b)
	}
	var codes []string
	for _, reason := range v.Data.Reasons {
		codes = append(codes, reason.Code)
	}
	if v.Data.Status != "UNHEALTHY" || !slices.Equal(codes, []string{"OFFLINE", "UNDER_MIN_ISR", "ACTOR_FAILED", "UNDER_REPLICATED", "BROKER_FENCED", "RACK_VIOLATION"}) {
		t.Errorf("%s because of %v", v.Data.Status, codes)
	}
	if v.Type != "highwater.mon.v1.health_response" || v.Revision != 4 || v.ControllerEpoch != 4 || v.ServedBy != "c1" || v.Role != "active" || v.Data.ClusterID != "abc" {
		t.Errorf("envelope: %+v", v.View)
	}
}

func TestB108APartitionWithoutALeaderIsUnderReplicatedToo(t *testing.T) {
	r := newRig(t, nil)
	r.topic(1, 1, "t", 30, "b1", "b2", "b3")
	state := func(isr []messages.BrokerID, leader messages.BrokerID) messages.PartitionCount {
		var records []messages.Record
		for i := range int32(30) {
			p := *partition(1, i, "b1", "b2", "b3")
			p.ISR, p.Leader = isr, leader
			records = append(records, &p)
		}
		r.catalog.Apply(r.catalog.Applied()+1, records)
		return look[messages.HealthView](r, "health", nil).Data.Partitions
	}
	if c := state([]messages.BrokerID{"b1"}, "b1"); c.UnderMinISR != 30 || c.Offline != 0 || c.UnderReplicated != 30 {
		t.Errorf("after two deaths: %+v", c)
	}
	if c := state(nil, ""); c.UnderMinISR != 30 || c.Offline != 30 || c.UnderReplicated != 30 {
		t.Errorf("after three: %+v", c)
	}
}

func TestB103DeletedTopicsCountForNothing(t *testing.T) {
	r := newRig(t, nil)
	world(r)
	r.catalog.Apply(5, []messages.Record{deletion(1, "orders", 3, "b1", "b2", "b3")})
	if c := look[messages.HealthView](r, "health", nil).Data.Partitions; c.Total != 1 || c.Offline != 0 || c.UnderReplicated != 0 {
		t.Errorf("partitions: %+v", c)
	}
}

func TestThingsAreDescribed(t *testing.T) {
	r := newRig(t, nil)
	world(r)
	r.ask(r.subjects.Broker("b1", messages.VerbHeartbeat), &pb.HeartbeatRequest{Broker: "b1"}, &pb.HeartbeatResponse{})
	b := look[messages.BrokerView](r, "broker.b1", nil).Data
	if b.Leaders != 3 || b.Replicas != 4 || b.InSync != 3 || b.State != "active" || len(b.Partitions) != 4 || b.HeartbeatAgeMs == nil || *b.HeartbeatAgeMs < 0 {
		t.Errorf("broker: %+v", b)
	}
	if b := look[messages.BrokerView](r, "broker.b3", nil).Data; b.State != "fenced" || b.FencedReason != "silence" || b.HeartbeatAgeMs != nil || b.InSync != 0 {
		t.Errorf("fenced broker: %+v", b)
	}
	topic := look[messages.TopicView](r, "topic.orders", nil).Data
	if topic.ID != topicID(1) || len(topic.Detail) != 3 || topic.Counts.Offline != 1 || topic.Detail[0].State != "under_replicated" ||
		topic.Detail[1].State != "under_min_isr" || topic.Detail[2].State != "offline" {
		t.Errorf("topic: %+v", topic)
	}
	p := look[messages.PartitionView](r, "partition.orders.1", nil).Data
	if p.Leader != "b1" || !slices.Equal(p.Missing, []messages.BrokerID{"b2", "b3"}) || !slices.Equal(p.Eligible, []messages.BrokerID{"b2"}) {
		t.Errorf("partition: %+v", p)
	}
	if p := look[messages.PartitionView](r, "partition.a=2Eb.0", nil).Data; p.Topic != "a.b" || p.State != "online" {
		t.Errorf("a topic whose name is escaped: %+v", p)
	}
	o := look[messages.OverviewView](r, "overview", nil).Data
	if o.Topics != 2 || len(o.Brokers) != 3 || o.Settings.Session != 3*time.Second || o.Health.Status != "UNHEALTHY" {
		t.Errorf("overview: %+v", o)
	}
}

func TestErrorsHaveHeadersAndABody(t *testing.T) {
	r := newRig(t, nil)
	world(r)
	for endpoint, want := range map[string]messages.Code{
		"broker.b9": messages.CodeUnknownBroker, "topic.nix": messages.CodeUnknownTopic, "partition.nix.0": messages.CodeUnknownTopic,
		"partition.orders.3": messages.CodeUnknownPartition, "partition.orders.x": messages.CodeUnknownPartition,
		"partition.orders.-1": messages.CodeUnknownPartition, "topic.a=zz": messages.CodeInvalidRequest,
	} {
		if got := r.refused(endpoint, nil); got != want {
			t.Errorf("%s: %s, want %s", endpoint, got, want)
		}
	}
	for name, query := range map[string]any{
		"unknown filter": map[string]any{"filter": map[string]string{"colour": "red"}},
		"bad flag":       map[string]any{"filter": map[string]string{"offline": "maybe"}},
		"unknown field":  map[string]any{"limt": 3}, "bad type": map[string]any{"limit": "3"}, "no object": []int{1},
		"limit too high": map[string]any{"limit": 5001}, "limit below 0": map[string]any{"limit": -1},
		"strange cursor": map[string]any{"cursor": "orders"},
	} {
		if got := r.refused("partitions", query); got != messages.CodeInvalidRequest {
			t.Errorf("%s: %s", name, got)
		}
	}
	m := r.request(r.subjects.Monitor("health"), []byte("{} {}"), nil)
	if !strings.Contains(string(m.Data), "INVALID_REQUEST") {
		t.Errorf("two values: %s", m.Data)
	}
	m = r.request(r.subjects.Monitor("health"), nil, nats.Header{"Content-Type": {"application/protobuf"}})
	if !strings.Contains(string(m.Data), "INVALID_REQUEST") {
		t.Errorf("health in protobuf: %s", m.Data)
	}
}

func TestPartitionsCanBeFiltered(t *testing.T) {
	r := newRig(t, nil)
	world(r)
	for _, c := range []struct {
		filter map[string]string
		want   []string
	}{
		{nil, []string{"a.b/0", "orders/0", "orders/1", "orders/2"}},
		{map[string]string{"topic": "orders"}, []string{"orders/0", "orders/1", "orders/2"}},
		{map[string]string{"topic": "nix"}, nil},
		{map[string]string{"broker": "b3"}, []string{"orders/0", "orders/1", "orders/2"}},
		{map[string]string{"rack": "eu/b1"}, []string{"a.b/0", "orders/0", "orders/1", "orders/2"}},
		{map[string]string{"rack": "eu"}, []string{"a.b/0", "orders/0", "orders/1", "orders/2"}},
		{map[string]string{"rack": "e"}, nil},
		{map[string]string{"state": "under_min_isr"}, []string{"orders/1"}},
		{map[string]string{"under_replicated": "true"}, []string{"orders/0", "orders/1", "orders/2"}},
		{map[string]string{"under_replicated": "false"}, []string{"a.b/0"}},
		{map[string]string{"under_min_isr": "true", "offline": "false"}, []string{"orders/1"}},
		{map[string]string{"offline": "true"}, []string{"orders/2"}},
		{map[string]string{"non_preferred": "true"}, []string{"orders/1"}},
	} {
		var got []string
		for _, p := range look[[]messages.PartitionView](r, "partitions", messages.ListQuery{Filter: c.filter}).Data {
			got = append(got, fmt.Sprintf("%s/%d", p.Topic, p.Partition))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%v: %v, want %v", c.filter, got, c.want)
		}
	}
	if got := look[[]messages.BrokerView](r, "brokers", messages.ListQuery{Filter: map[string]string{"state": "fenced"}}).Data; len(got) != 1 || got[0].ID != "b3" {
		t.Errorf("fenced brokers: %v", got)
	}
	if got := look[[]messages.TopicView](r, "topics", messages.ListQuery{Filter: map[string]string{"topic": "a.b"}}).Data; len(got) != 1 || got[0].Name != "a.b" {
		t.Errorf("topics: %v", got)
	}
}

func TestListsComeInPagesThatNATSTakes(t *testing.T) {
	const payload = 32 << 10
	r := newRigOn(t, startServer(t, payload), newCatalog(), nil)
	for i := range 30 {
		r.topic(messages.Sequence(i+1), byte(i+1), messages.TopicName(fmt.Sprintf("t%02d", i)), 20, "b1", "b2", "b3")
	}
	var brokers []messages.Record
	for i := range 250 {
		brokers = append(brokers, broker(brokerName(i), 1))
	}
	r.catalog.Apply(31, brokers)
	var last string
	for what, want := range map[string]int{"partitions": 600, "topics": 30, "brokers": 250, "leadership": 600} {
		for _, limit := range []int{0, 7} {
			n, pages, cursor := 0, 0, ""
			for {
				m := r.lookRaw(what, messages.ListQuery{Cursor: cursor, Limit: limit})
				if len(m.Data) > payload {
					t.Fatalf("%s: a page of %d bytes", what, len(m.Data))
				}
				var v view[[]json.RawMessage]
				if err := json.Unmarshal(m.Data, &v); err != nil {
					t.Fatalf("%s: %s", what, m.Data)
				}
				if limit > 0 && len(v.Data) > limit {
					t.Errorf("%s: %d items, the limit is %d", what, len(v.Data), limit)
				}
				for _, item := range v.Data {
					if string(item) == last {
						t.Errorf("%s: an item came twice: %s", what, item)
					}
					last = string(item)
				}
				n, pages = n+len(v.Data), pages+1
				if v.Next == nil {
					break
				}
				if cursor = *v.Next; pages > 1000 {
					t.Fatal("the pages do not end")
				}
			}
			if n != want {
				t.Errorf("%s by %d: %d items, want %d", what, limit, n, want)
			}
		}
	}
	r.topic(40, 99, "wide", 2000, "b1", "b2", "b3")
	topic := look[messages.TopicView](r, "topic.wide", nil).Data
	if topic.DetailRemaining == 0 || len(topic.Detail)+topic.DetailRemaining != 2000 {
		t.Errorf("a wide topic: %d described, %d remain", len(topic.Detail), topic.DetailRemaining)
	}
	b := look[messages.BrokerView](r, "broker.b1", nil).Data
	if b.PartitionsRemaining == 0 || len(b.Partitions)+b.PartitionsRemaining != 2600 {
		t.Errorf("a broker with much: %d described, %d remain", len(b.Partitions), b.PartitionsRemaining)
	}
}

func TestClientsTakeALeadershipSnapshotInProtobuf(t *testing.T) {
	r := newRig(t, nil)
	r.topic(1, 1, "t", 1200, "b1", "b2")
	r.topic(2, 2, "u", 2, "b2")
	var got []*pb.Leadership
	q := &pb.LeadershipQuery{}
	for {
		page := &pb.LeadershipPage{}
		r.ask(r.subjects.Monitor("leadership"), q, page)
		if page.Error != nil || page.Seen.GetSequence() != 2 || page.Seen.GetControllerEpoch() != 4 {
			t.Fatalf("page: %v %v", page.Error, page.Seen)
		}
		got = append(got, page.Partitions...)
		if q.Cursor = page.Next; q.Cursor == "" {
			break
		}
	}
	if len(got) != 1202 || got[1201].Topic != "u" || got[1201].Partition != 1 || got[1201].Leader != "b2" {
		t.Errorf("%d leaderships, the last is %v", len(got), got[len(got)-1])
	}
	page := &pb.LeadershipPage{}
	r.ask(r.subjects.Monitor("leadership"), &pb.LeadershipQuery{Topic: "u"}, page)
	if len(page.Partitions) != 2 {
		t.Errorf("of one topic: %v", page)
	}
	page = &pb.LeadershipPage{}
	r.ask(r.subjects.Monitor("leadership"), &pb.LeadershipQuery{Cursor: "x"}, page)
	if code(page.Error) != messages.CodeInvalidRequest {
		t.Errorf("a strange cursor: %v", page)
	}
	if m := r.request(r.subjects.Monitor("leadership"), []byte("\xff"), nats.Header{"Content-Type": {"application/protobuf"}}); true {
		page = &pb.LeadershipPage{}
		if err := proto.Unmarshal(m.Data, page); err != nil || code(page.Error) != messages.CodeInvalidRequest {
			t.Errorf("garbage: %v %v", page, err)
		}
	}
}

func TestOneCanReadOnesOwnWrite(t *testing.T) {
	r := newRig(t, func(c *Config) { c.RevisionWait = 100 * time.Millisecond })
	world(r)
	answers := make(chan *nats.Msg, 1)
	go func() {
		m, err := r.client.Request(r.subjects.Monitor("topics"), []byte(`{"min_revision":5}`), 10*time.Second)
		if err != nil {
			m = &nats.Msg{Data: []byte(err.Error())}
		}
		answers <- m
	}()
	r.topic(5, 9, "new", 1, "b1")
	if m := <-answers; !strings.Contains(string(m.Data), `"new"`) {
		t.Errorf("answer: %s", m.Data)
	}
	if got := r.refused("health", messages.ListQuery{MinRevision: 99}); got != messages.CodeUnavailable {
		t.Errorf("a revision that does not come: %s", got)
	}
	page := &pb.LeadershipPage{}
	r.ask(r.subjects.Monitor("leadership"), &pb.LeadershipQuery{MinRevision: 99}, page)
	if code(page.Error) != messages.CodeUnavailable {
		t.Errorf("the same in protobuf: %v", page)
	}
}

func TestToolsFindTheService(t *testing.T) {
	r := newRig(t, nil)
	m := r.request("$SRV.INFO."+ServiceName, nil, nil)
	var info micro.Info
	if err := json.Unmarshal(m.Data, &info); err != nil {
		t.Fatal(err)
	}
	if info.Version != Version || len(info.Endpoints) != len(endpoints()) || info.Metadata["cluster"] != "dev" {
		t.Errorf("info: %+v", info)
	}
	look[messages.HealthView](r, "health", nil)
	r.refused("topic.nix", nil)
	eventually(t, "the questions to be counted", func() bool { // the library counts after it has answered
		var stats micro.Stats
		if err := json.Unmarshal(r.request("$SRV.STATS."+ServiceName, nil, nil).Data, &stats); err != nil {
			t.Fatal(err)
		}
		counted := 0
		for _, e := range stats.Endpoints {
			if e.Name == "health" && e.NumRequests == 1 && e.NumErrors == 0 || e.Name == "topic" && e.NumRequests == 1 && e.NumErrors == 1 {
				counted++
			}
		}
		return counted == 2
	})
}

func TestTheProcessCanAskItself(t *testing.T) {
	r := newRig(t, nil)
	world(r)
	for what, part := range map[string]string{"health": `"OFFLINE"`, "topic.a=2Eb": `"a.b"`, "partition.orders.2": `"offline"`} {
		data, err := r.edge.Inquire(what, messages.ListQuery{})
		if err != nil || !strings.Contains(string(data), part) {
			t.Errorf("%s: %s, %v", what, data, err)
		}
	}
	if _, err := r.edge.Inquire("broker.nix", messages.ListQuery{}); messages.CodeOf(err) != messages.CodeUnknownBroker {
		t.Errorf("a broker that is not there: %v", err)
	}
	if _, err := r.edge.Inquire("nonsense", messages.ListQuery{}); messages.CodeOf(err) != messages.CodeInvalidRequest {
		t.Errorf("nonsense: %v", err)
	}
}
