package natsbus

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// subjectOf returns a concrete subject of a verb for a principal.
func subjectOf(v *verb, principal string) string {
	return strings.Replace(v.subject, "*", messages.EscapeToken(principal), 1)
}

// wellFormed returns a body that the edge takes, for broker b1.
func wellFormed(v *verb) proto.Message {
	body := v.request()
	if field := body.ProtoReflect().Descriptor().Fields().ByName("broker"); field != nil {
		body.ProtoReflect().Set(field, protoString("b1"))
	}
	if field := body.ProtoReflect().Descriptor().Fields().ByName("broker_epoch"); field != nil {
		body.ProtoReflect().Set(field, protoUint(1))
	}
	return body
}

func TestRequestsReachTheirActorAndAreAnsweredInTheirOwnForm(t *testing.T) {
	r := newRig(t, nil)
	r.catalog.Apply(1, []messages.Record{broker("b1", 1)})
	for _, v := range verbs(r.subjects) {
		for _, form := range []string{"application/protobuf", "application/json", ""} {
			t.Run(subjectOf(v, "b1")+" "+form, func(t *testing.T) {
				body := wellFormed(v)
				data, err := proto.Marshal(body)
				textual := form == "application/json" || form == "" && v.textual
				if textual {
					data, err = jsonOut.Marshal(body)
				}
				if err != nil {
					t.Fatal(err)
				}
				h := nats.Header{}
				if form != "" {
					h.Set("content-type", form)
				}
				m := r.request(subjectOf(v, "b1"), data, h)
				answer := v.failure(nil)
				if err := decode(m.Data, textual, answer); err != nil {
					t.Fatalf("the answer %q is not in the form of the request: %v", m.Data, err)
				}
				if e := answer.(interface{ GetError() *pb.Error }).GetError(); e != nil {
					t.Fatalf("refused: %v", e)
				}
				if textual != (m.Header.Get("Content-Type") == "application/json") {
					t.Errorf("the content type of the answer is %q", m.Header.Get("Content-Type"))
				}
			})
		}
	}
	r.settled()
}

func TestCreateByHandWithJSON(t *testing.T) {
	r := newRig(t, nil)
	m := r.request("hw.dev.ctl.v1.anonymous.topic.create", []byte(`{"name":"orders","partitions":3,"labels":{"team":"a"}}`), nil)
	var answer map[string]any
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		t.Fatal(err)
	}
	if answer["name"] != "orders" || answer["revision"] != "9" {
		t.Errorf("answer: %s", m.Data)
	}
	told := r.tree.messages()
	q := told[0].msg.(actors.Request)
	if told[0].to != actors.Registry || q.Principal != "anonymous" || q.Body.(*pb.CreateTopicRequest).GetPartitions() != 3 {
		t.Errorf("told: %+v", told[0])
	}
}

// garbage makes bodies that nobody can read, and some that are well-formed nonsense.
func garbage(rng *rand.Rand, textual bool) []byte {
	switch rng.IntN(4) {
	case 0:
		b := make([]byte, 1+rng.IntN(200))
		for i := range b {
			b[i] = 0xff // no protobuf and no JSON begins like that
		}
		return b
	case 1:
		return []byte(`{"broker":"b1","broker":"b2"}`)
	case 2:
		return []byte(strings.Repeat(`{"name":`, 1+rng.IntN(20_000)))
	}
	if textual {
		return []byte(`{"partitions":"NaN","replication_factor":-1,"no_such_field":1}`)
	}
	return []byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0x7f} // a string of 34 GB
}

func TestB113GarbageOnEverySubjectIsAnsweredOnceAndBounded(t *testing.T) {
	r := newRig(t, nil)
	all := verbs(r.subjects)
	inbox := nats.NewInbox()
	sub, err := r.client.SubscribeSync(inbox)
	if err != nil {
		t.Fatal(err)
	}
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		t.Fatal(err)
	}
	const requests = 10_000
	before := runtime.NumGoroutine()
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range requests {
		v := all[i%len(all)]
		m := &nats.Msg{Subject: subjectOf(v, "b1"), Reply: inbox, Data: garbage(rng, v.textual), Header: nats.Header{}}
		if v.textual {
			m.Header.Set("Content-Type", "application/json")
		}
		if i%10 == 0 {
			m.Header.Set("Content-Type", "text/plain")
		}
		if err := r.client.PublishMsg(m); err != nil {
			t.Fatal(err)
		}
	}
	for i := range requests {
		m, err := sub.NextMsg(20 * time.Second)
		if err != nil {
			t.Fatalf("answer %d: %v", i, err)
		}
		if got := m.Header.Get("Nats-Service-Error-Code"); got != "INVALID_REQUEST" && got != "INVALID_NAME" {
			t.Fatalf("answer %q with code %q", m.Data, got)
		}
	}
	r.settled()
	if n := len(r.tree.messages()); n != 0 {
		t.Errorf("%d unreadable requests have reached an actor", n)
	}
	if now := runtime.NumGoroutine(); now > before+20 {
		t.Errorf("there were %d goroutines, now there are %d", before, now)
	}
	if n, _, _ := sub.Pending(); n != 0 {
		t.Errorf("%d answers too many", n)
	}
}

func TestB82APrincipalSpeaksForItselfOnly(t *testing.T) {
	r := newRig(t, nil)
	for _, v := range verbs(r.subjects) {
		if v.principal(r.subjects, subjectOf(v, "x")); v.textual {
			continue
		}
		answer := v.failure(nil)
		r.ask(subjectOf(v, "app"), wellFormed(v), answer)
		if got := code(answer.(interface{ GetError() *pb.Error }).GetError()); got != messages.CodeDenied {
			t.Errorf("%s for broker b1 as app: %q", v.subject, got)
		}
	}
	if n := len(r.tree.messages()); n != 0 {
		t.Errorf("%d of them have reached an actor", n)
	}
}

func TestB109And110UnusableNamesAndSizesAreRefusedAtTheDoor(t *testing.T) {
	r := newRig(t, func(c *Config) { c.MaxRequestBytes = 64 << 10 })
	register := func(principal, name string) messages.Code {
		answer := &pb.RegisterResponse{}
		r.ask(r.subjects.Broker(principal, messages.VerbRegister), &pb.RegisterRequest{Broker: name}, answer)
		return code(answer.Error)
	}
	for _, name := range []string{"", ".", "a.b", "a b", "*", ">", "a/b", "日本", "$JS", strings.Repeat("a", 65)} {
		if got := register("b1", name); got != messages.CodeInvalidName {
			t.Errorf("broker %q: %q", name, got)
		}
		if name == "" {
			continue
		}
		if got := register(name, name); got != messages.CodeInvalidName {
			t.Errorf("broker %q as itself: %q", name, got)
		}
	}
	m := r.request("hw.dev.brk.v1.a=zz.register", nil, nil)
	if got := m.Header.Get("Nats-Service-Error-Code"); got != "INVALID_REQUEST" {
		t.Errorf("a principal with a bad escape: %q", got)
	}
	m = r.request("hw.dev.ctl.v1.=.topic.create", nil, nil)
	if got := m.Header.Get("Nats-Service-Error-Code"); got != "INVALID_REQUEST" {
		t.Errorf("an empty principal: %q", got)
	}
	m = r.request("hw.dev.ctl.v1.x.topic.create", make([]byte, 64<<10+1), nil)
	if got := m.Header.Get("Nats-Service-Error-Code"); got != "TOO_LARGE" {
		t.Errorf("an oversized body: %q", got)
	}
	if n := len(r.tree.messages()); n != 0 {
		t.Errorf("%d of them have reached an actor", n)
	}
}

func TestOverloadIsAnsweredBusyAndHeartbeatsStillPass(t *testing.T) {
	r := newRig(t, func(c *Config) { c.MaxOutstanding = 5 })
	var mu sync.Mutex
	var held []actors.RequestID
	r.tree.respond(func(to actors.Address, msg actors.Message) error {
		q := msg.(actors.Request)
		if _, ok := q.Body.(*pb.HeartbeatRequest); ok {
			return r.tree.agree(to, msg)
		}
		mu.Lock()
		defer mu.Unlock()
		held = append(held, q.ID)
		return nil
	})
	inbox := nats.NewInbox()
	sub, err := r.client.SubscribeSync(inbox)
	if err != nil {
		t.Fatal(err)
	}
	for range 8 {
		if err := r.client.PublishRequest("hw.dev.ctl.v1.op.topic.create", inbox, []byte(`{}`)); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		m, err := sub.NextMsg(10 * time.Second)
		if err != nil {
			t.Fatal(err)
		}
		answer := &pb.CreateTopicResponse{}
		if err := decode(m.Data, true, answer); err != nil {
			t.Fatal(err)
		}
		if code(answer.Error) != messages.CodeBusy || !answer.Error.Retryable || answer.Error.RetryAfterMs == 0 {
			t.Errorf("answer: %v", answer.Error)
		}
	}
	beat := &pb.HeartbeatResponse{}
	r.ask(r.subjects.Broker("b1", messages.VerbHeartbeat), &pb.HeartbeatRequest{Broker: "b1"}, beat)
	if beat.Error != nil {
		t.Errorf("the heartbeat was refused: %v", beat.Error)
	}
	mu.Lock()
	for _, id := range held {
		r.edge.Reply(actors.Reply{To: id, Body: &pb.CreateTopicResponse{}})
		r.edge.Reply(actors.Reply{To: id, Body: &pb.CreateTopicResponse{}}) // a second answer must not count
	}
	mu.Unlock()
	for range 5 {
		if _, err := sub.NextMsg(10 * time.Second); err != nil {
			t.Fatal(err)
		}
	}
	r.settled()
	r.tree.respond(r.tree.agree)
	answer := &pb.CreateTopicResponse{}
	r.ask("hw.dev.ctl.v1.op.topic.create", &pb.CreateTopicRequest{}, answer)
	if answer.Error != nil {
		t.Errorf("after the overload: %v", answer.Error)
	}
	if n, _, _ := sub.Pending(); n != 0 {
		t.Errorf("%d answers too many", n)
	}
}

func TestWhatTheTreeDoesNotTakeIsAnsweredAtOnce(t *testing.T) {
	r := newRig(t, nil)
	for _, c := range []messages.Code{messages.CodeUnavailable, messages.CodeNotActiveController, messages.CodeBusy} {
		r.tree.respond(func(actors.Address, actors.Message) error { return messages.Errorf(c, "no") })
		answer := &pb.RegisterResponse{}
		r.ask(r.subjects.Broker("b1", messages.VerbRegister), &pb.RegisterRequest{Broker: "b1"}, answer)
		if code(answer.Error) != c || c == messages.CodeBusy && answer.Error.RetryAfterMs == 0 {
			t.Errorf("%s: %v", c, answer.Error)
		}
	}
	r.tree.respond(func(actors.Address, actors.Message) error { return errors.New("odd") })
	answer := &pb.RegisterResponse{}
	r.ask(r.subjects.Broker("b1", messages.VerbRegister), &pb.RegisterRequest{Broker: "b1"}, answer)
	if code(answer.Error) != messages.CodeInternal {
		t.Errorf("an error without a code: %v", answer.Error)
	}
	r.settled()
}

func TestAPanicWhileARequestIsTakenInHurtsOnlyThatRequest(t *testing.T) {
	r := newRig(t, nil)
	r.tree.respond(func(actors.Address, actors.Message) error { panic("broken") })
	answer := &pb.RegisterResponse{}
	r.ask(r.subjects.Broker("b1", messages.VerbRegister), &pb.RegisterRequest{Broker: "b1"}, answer)
	if code(answer.Error) != messages.CodeInternal {
		t.Errorf("answer: %v", answer.Error)
	}
	r.tree.respond(r.tree.agree)
	answer = &pb.RegisterResponse{}
	r.ask(r.subjects.Broker("b1", messages.VerbRegister), &pb.RegisterRequest{Broker: "b1"}, answer)
	if answer.Error != nil {
		t.Errorf("afterwards: %v", answer.Error)
	}
}

func TestARequestWithoutReplySubjectIsServedAndItsCreditsComeBack(t *testing.T) {
	r := newRig(t, nil)
	for i := range 50 {
		subject := "hw.dev.ctl.v1.op.topic.create"
		data := []byte(fmt.Sprintf(`{"name":"t%d"}`, i))
		if i%2 == 1 {
			data = []byte("garbage")
		}
		if err := r.client.Publish(subject, data); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "25 requests to be told", func() bool { return len(r.tree.messages()) == 25 })
	r.settled()
}

func TestARequestThatNoActorAnswersTimesOut(t *testing.T) {
	r := newRig(t, func(c *Config) { c.RequestTimeout = 50 * time.Millisecond })
	asked := make(chan actors.RequestID, 1)
	r.tree.respond(func(_ actors.Address, msg actors.Message) error {
		asked <- msg.(actors.Request).ID
		return nil
	})
	answer := &pb.CreateTopicResponse{}
	r.ask("hw.dev.ctl.v1.op.topic.create", &pb.CreateTopicRequest{}, answer)
	if code(answer.Error) != messages.CodeUnavailable || !answer.Error.Retryable {
		t.Errorf("answer: %v", answer.Error)
	}
	r.edge.Reply(actors.Reply{To: <-asked, Body: &pb.CreateTopicResponse{}}) // nobody waits any more
	r.settled()
}

func TestBatchedItemsAreAnsweredInOneReplyInTheirOrder(t *testing.T) {
	r := newRig(t, nil)
	r.catalog.Apply(1, []messages.Record{broker("b1", 1)})
	r.topic(2, 1, "t", 3, "b1", "b2")
	id, other := topicID(1), topicID(9)
	var mu sync.Mutex
	var waiting []actors.ISRProposal
	r.tree.respond(func(to actors.Address, msg actors.Message) error {
		mu.Lock()
		defer mu.Unlock()
		p := msg.(actors.ISRProposal)
		if to.Partition.Index == 2 {
			return messages.Errorf(messages.CodeBusy, "full")
		}
		waiting = append(waiting, p)
		if len(waiting) == 2 { // answered in the other order
			for i := len(waiting) - 1; i >= 0; i-- {
				r.edge.Reply(actors.Reply{To: waiting[i].Request, Body: &pb.IsrResult{TopicId: waiting[i].Proposal.TopicId,
					Partition: waiting[i].Proposal.Partition, Current: &pb.Assignment{PartitionEpoch: 7}}})
			}
		}
		return nil
	})
	answer := &pb.IsrResponse{}
	r.ask(r.subjects.Broker("b1", messages.VerbISR), &pb.IsrRequest{Broker: "b1", BrokerEpoch: 1, Proposals: []*pb.IsrProposal{
		{TopicId: id.Bytes(), Partition: 0}, {TopicId: other.Bytes()}, {TopicId: id.Bytes(), Partition: 3}, {TopicId: []byte("short")},
		{TopicId: id.Bytes(), Partition: 2}, {TopicId: id.Bytes(), Partition: 1}}}, answer)
	want := []messages.Code{"", messages.CodeUnknownTopicID, messages.CodeUnknownPartition, messages.CodeInvalidRequest, messages.CodeBusy, ""}
	if answer.Error != nil || len(answer.Results) != len(want) {
		t.Fatalf("answer: %v", answer)
	}
	for i, result := range answer.Results {
		if code(result.Error) != want[i] {
			t.Errorf("item %d: %v, want %q", i, result.Error, want[i])
		}
	}
	if answer.Results[5].Partition != 1 || answer.Results[5].Current.GetPartitionEpoch() != 7 {
		t.Errorf("item 5: %v", answer.Results[5])
	}
	if p := waiting[0]; p.Broker != "b1" || p.BrokerEpoch != 1 {
		t.Errorf("the partition was told %+v", p)
	}
	r.settled()
}

func TestABatchIsBoundedAndAnEmptyOneIsAnswered(t *testing.T) {
	r := newRig(t, nil)
	answer := &pb.ReadyResponse{}
	r.ask(r.subjects.Broker("b1", messages.VerbReady), &pb.ReadyRequest{Broker: "b1",
		Reports: make([]*pb.LeaderReport, messages.MaxBatchItems+1)}, answer)
	if code(answer.Error) != messages.CodeTooLarge {
		t.Errorf("one item too many: %v", answer.Error)
	}
	answer = &pb.ReadyResponse{}
	r.ask(r.subjects.Broker("b1", messages.VerbReady), &pb.ReadyRequest{Broker: "b1"}, answer)
	if answer.Error != nil || len(answer.Results) != 0 {
		t.Errorf("no item: %v", answer)
	}
}

func TestMarksGoToTheirPartitions(t *testing.T) {
	r := newRig(t, nil)
	r.topic(2, 1, "t", 2, "b1", "b2")
	answer := &pb.OffsetsResponse{}
	r.ask(r.subjects.Broker("b1", messages.VerbOffsets), &pb.OffsetsRequest{Broker: "b1", BrokerEpoch: 1, Reports: []*pb.OffsetReport{
		{TopicId: topicID(1).Bytes(), Partition: 1, HighWatermark: 12}, {TopicId: topicID(8).Bytes()}}}, answer)
	told := r.tree.messages()
	if answer.Error != nil || len(told) != 1 {
		t.Fatalf("answer %v, told %v", answer, told)
	}
	if m := told[0].msg.(actors.OffsetReport); told[0].to.Partition.Index != 1 || m.Report.HighWatermark != 12 || m.Broker != "b1" {
		t.Errorf("told: %+v", told[0])
	}
}

func TestAnAnswerThatNATSDoesNotTakeIsAbridged(t *testing.T) {
	s := startServer(t, 64<<10)
	r := newRigOn(t, s, newCatalog(), nil)
	r.tree.respond(func(_ actors.Address, msg actors.Message) error {
		q := msg.(actors.Request)
		switch q.Body.(type) {
		case *pb.CreateTopicRequest:
			r.edge.Reply(actors.Reply{To: q.ID, Body: &pb.CreateTopicResponse{Name: "t", Revision: 3, Explanation: []string{strings.Repeat("x", 1<<17)}}})
		case *pb.DeleteTopicRequest:
			r.edge.Reply(actors.Reply{To: q.ID, Body: &pb.DeleteTopicResponse{TopicId: make([]byte, 1<<17)}})
		}
		return nil
	})
	created := &pb.CreateTopicResponse{}
	r.ask("hw.dev.ctl.v1.op.topic.create", &pb.CreateTopicRequest{}, created)
	if created.Error != nil || created.Revision != 3 || len(created.Warnings) == 0 {
		t.Errorf("created: %v", created)
	}
	deleted := &pb.DeleteTopicResponse{}
	r.ask("hw.dev.ctl.v1.op.topic.delete", &pb.DeleteTopicRequest{}, deleted)
	if code(deleted.Error) != messages.CodeTooLarge {
		t.Errorf("deleted: %v", deleted.Error)
	}
	r.settled()
}

func TestStoppingTheIntakeWaitsForWhatWasAdmitted(t *testing.T) {
	r := newRig(t, nil)
	asked := make(chan actors.RequestID, 1)
	r.tree.respond(func(_ actors.Address, msg actors.Message) error {
		asked <- msg.(actors.Request).ID
		return nil
	})
	answers := make(chan *nats.Msg, 1)
	go func() {
		m, err := r.client.Request("hw.dev.ctl.v1.op.topic.create", []byte(`{}`), 10*time.Second)
		if err != nil {
			m = &nats.Msg{Data: []byte(err.Error())}
		}
		answers <- m
	}()
	id := <-asked
	short, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if err := r.edge.StopIntake(short); err == nil {
		t.Error("the intake stopped although a request is open")
	}
	r.edge.Reply(actors.Reply{To: id, Body: &pb.CreateTopicResponse{Revision: 11}})
	if err := r.edge.StopIntake(t.Context()); err != nil {
		t.Error(err)
	}
	if m := <-answers; !strings.Contains(string(m.Data), `"11"`) {
		t.Errorf("answer: %s", m.Data)
	}
	_, err := r.client.Request("hw.dev.ctl.v1.op.topic.create", nil, 5*time.Second)
	if !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("a request after the stop: %v", err)
	}
}

func TestClosingAnswersWhatIsOpen(t *testing.T) {
	r := newRig(t, nil)
	asked := make(chan struct{})
	r.tree.respond(func(actors.Address, actors.Message) error {
		close(asked)
		return nil
	})
	answers := make(chan string, 1)
	go func() {
		m, err := r.client.Request("hw.dev.ctl.v1.op.topic.create", []byte(`{}`), 10*time.Second)
		if err != nil {
			answers <- err.Error()
			return
		}
		answers <- m.Header.Get("Nats-Service-Error-Code")
	}()
	<-asked
	short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_ = r.edge.Close(short) // the open request ends the wait by the context
	if got := <-answers; got != "UNAVAILABLE" {
		t.Errorf("answer: %s", got)
	}
}

type happened struct{ N int }

func (happened) EventName() string { return "thing.happened" }

func TestEventsAreLoggedWithTheirActor(t *testing.T) {
	var logs syncBuffer
	r := newRig(t, func(c *Config) { c.Logger = zerolog.New(&logs) })
	r.edge.Observe(actors.Outbox("b1"), []actors.Event{happened{N: 7}})
	eventually(t, "the event in the logs", func() bool {
		return strings.Contains(logs.String(), `"event":"thing.happened","actor":"outbox b1","detail":{"N":7}`)
	})
}

func TestManyEventsOfAKindAreCounted(t *testing.T) {
	var logs syncBuffer
	r := newRig(t, func(c *Config) { c.Logger = zerolog.New(&logs).Level(zerolog.InfoLevel) })
	const n = 5000
	for i := range n {
		r.edge.Observe(actors.Outbox("b1"), []actors.Event{happened{N: i}})
	}
	counted := regexp.MustCompile(`"event":"thing.happened","count":(\d+),"with_lines":20`)
	eventually(t, "every event in a line or in a count", func() bool {
		text, total := logs.String(), 0
		total = strings.Count(text, `"actor":"outbox b1"`)
		for _, m := range counted.FindAllStringSubmatch(text, -1) {
			n, err := strconv.Atoi(m[1])
			if err != nil {
				t.Fatal(err)
			}
			total += n - eventLines
		}
		return total == n
	})
	if lines := strings.Count(logs.String(), `"actor":"outbox b1"`); lines > n/2 {
		t.Errorf("%d of %d events have a line of their own", lines, n)
	}
}

type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
