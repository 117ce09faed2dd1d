package controller

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// The names that other systems stumble over. Empty code: taken.
var oddNames = map[string]messages.Code{
	"": messages.CodeInvalidName, ".": messages.CodeInvalidName, "..": messages.CodeInvalidName, "*": messages.CodeInvalidName,
	">": messages.CodeInvalidName, "a.>": messages.CodeInvalidName, "a.*": messages.CodeInvalidName, "a b": messages.CodeInvalidName,
	"a\tb": messages.CodeInvalidName, "a\nb": messages.CodeInvalidName, "a/b": messages.CodeInvalidName, `a\b`: messages.CodeInvalidName,
	"../x": messages.CodeInvalidName, "$JS.API.x": messages.CodeInvalidName, "a\x00": messages.CodeInvalidName, "日本": messages.CodeInvalidName,
	"a=2Eb": messages.CodeInvalidName, " a": messages.CodeInvalidName, strings.Repeat("a", 250): messages.CodeInvalidName,
	strings.Repeat("a", 255): messages.CodeInvalidName, strings.Repeat("a", 256): messages.CodeInvalidName,
	strings.Repeat("a", 10_000): messages.CodeInvalidName, strings.Repeat("é", 124) + "e": messages.CodeInvalidName,

	"a..b": "", ".a": "", "a.": "", "_INBOX.x": "", "__meta": "", "A": "", "a": "", "t-0": "", "t": "", "t.0": "", "CON": "", "a.b": "",
	"a_b": "", "a-b": "", "A.B": "", "x": "", strings.Repeat("a", 248): "", strings.Repeat("a", 249): "", strings.Repeat(".x", 124) + ".": "",
}

func TestB109B110B111OddNamesAreRefusedOrAreTopicsOfTheirOwn(t *testing.T) {
	dir := t.TempDir()
	c := start(t, dir, nil)
	cluster(t, c, 1)
	nc := connect(t, c.URL())
	taken := map[string]messages.TopicID{}
	for name, want := range oddNames {
		answer := &pb.CreateTopicResponse{}
		err := call(nc, subjects.Control("op", "topic", "create"), &pb.CreateTopicRequest{Name: name, Partitions: 1, ReplicationFactor: 1}, answer)
		if messages.CodeOf(err) != want {
			t.Errorf("%.40q: %v, want %q", name, err, want)
		}
		if err == nil {
			taken[name], _ = messages.ParseTopicID(answer.TopicId)
		}
	}
	described := func() {
		t.Helper()
		list, _ := look[[]messages.TopicView](t, nc, "topics")
		if len(list) != len(taken) {
			t.Errorf("%d topics are listed, %d exist", len(list), len(taken))
		}
		for name, id := range taken {
			v, _ := look[messages.TopicView](t, nc, "topic."+messages.EscapeToken(name))
			if v.ID != id || string(v.Name) != name {
				t.Errorf("%.40q is described as %.40q with the id %s, want %s", name, v.Name, v.ID, id)
			}
		}
	}
	described()
	listen := strings.TrimPrefix(c.URL(), "nats://")
	stop(t, c)
	c = start(t, dir, func(c *Config) { c.Listen = listen })
	nc = connect(t, c.URL())
	described()
	leaderships := leadershipStream(t, nc)
	for name, id := range taken {
		eventually(t, "the leadership of "+name, func() bool {
			m, err := leaderships.GetLastMsgForSubject(t.Context(), subjects.Leadership(messages.TopicName(name), 0))
			if err != nil {
				return false
			}
			l := &pb.Leadership{}
			return proto.Unmarshal(m.Data, l) == nil && l.Topic == name && string(l.TopicId) == string(id[:])
		})
	}
	for len(taken) > 0 { // each goes alone
		for name := range taken {
			if err := remove(nc, name); err != nil {
				t.Fatalf("deleting %.40q: %v", name, err)
			}
			delete(taken, name)
			break
		}
		described()
	}
}

func TestB109B110OddBrokersAndRacksAreRefused(t *testing.T) {
	c := start(t, t.TempDir(), nil)
	nc := connect(t, c.URL())
	n := 0
	register := func(id, rack string) messages.Code {
		n++
		return messages.CodeOf(call(nc, subjects.Broker(id, messages.VerbRegister), &pb.RegisterRequest{Broker: id, Incarnation: "i",
			Storage: fmt.Sprint("s-", n), Rack: rack, MinProtocol: 1, MaxProtocol: 1}, &pb.RegisterResponse{}))
	}
	for name, want := range map[string]messages.Code{".": messages.CodeInvalidName, "a.b": messages.CodeInvalidName, "*": messages.CodeInvalidName,
		">": messages.CodeInvalidName, "a b": messages.CodeInvalidName, "a/b": messages.CodeInvalidName, "../x": messages.CodeInvalidName,
		"a\x00": messages.CodeInvalidName, "日本": messages.CodeInvalidName, strings.Repeat("b", 65): messages.CodeInvalidName,
		"A": "", "a": "", "__meta": "", "CON": "", strings.Repeat("b", 64): ""} {
		if got := register(name, ""); got != want {
			t.Errorf("broker %.40q: %q, want %q", name, got, want)
		}
	}
	for rack, want := range map[string]messages.Code{"*": messages.CodeInvalidRack, "a b": messages.CodeInvalidRack, "a//b": messages.CodeInvalidRack,
		"/": messages.CodeInvalidRack, "a\x00": messages.CodeInvalidRack, "日本": messages.CodeInvalidRack, strings.Repeat("r", 10_000): messages.CodeInvalidRack,
		"eu/z1/rack1": "", " eu / z1 ": "", "   ": ""} {
		if got := register("r"+fmt.Sprint(len(rack)), rack); got != want {
			t.Errorf("rack %.40q: %q, want %q", rack, got, want)
		}
	}
	view, _ := look[messages.BrokerView](t, nc, "broker.r9")
	if view.Rack != "eu/z1" {
		t.Errorf("the rack %q is kept as %q", " eu / z1 ", view.Rack)
	}
}

func TestB113ImpossibleNumbersAreRefusedAndChangeNothing(t *testing.T) {
	c := start(t, t.TempDir(), nil)
	cluster(t, c, 3)
	nc := connect(t, c.URL())
	_, before := look[messages.HealthView](t, nc, "health")
	for body, want := range map[string]messages.Code{
		`{"name":"t","partitions":0}`:                                                    messages.CodeInvalidPartitions,
		`{"name":"t","partitions":-1}`:                                                   messages.CodeInvalidRequest,
		`{"name":"t","partitions":2147483648}`:                                           messages.CodeInvalidPartitions,
		`{"name":"t","partitions":4294967296}`:                                           messages.CodeInvalidRequest,
		`{"name":"t","partitions":1e9}`:                                                  messages.CodeInvalidPartitions,
		`{"name":"t","partitions":100000}`:                                               messages.CodeInvalidPartitions,
		`{"name":"t","partitions":NaN}`:                                                  messages.CodeInvalidRequest,
		`{"name":"t","partitions":1.5}`:                                                  messages.CodeInvalidRequest,
		`{"name":"t","partitions":"three"}`:                                              messages.CodeInvalidRequest,
		`{"name":"t","partitions":1,"replication_factor":-1}`:                            messages.CodeInvalidRequest,
		`{"name":"t","partitions":1,"replication_factor":4}`:                             messages.CodeInvalidReplicationFactor,
		`{"name":"t","partitions":1,"replication_factor":32768}`:                         messages.CodeInvalidReplicationFactor,
		`{"name":"t","partitions":1,"replication_factor":3,"min_isr":4}`:                 messages.CodeInvalidMinISR,
		`{"name":"t","partitions":1,"no_such_field":1}`:                                  messages.CodeInvalidRequest,
		`{"name":"t","partitions":1,"partitions":2}`:                                     messages.CodeInvalidRequest,
		`{"name":"t","partitions":1}{"name":"u","partitions":1}`:                         messages.CodeInvalidRequest,
		"{\"name\":\"\xff\",\"partitions\":1}":                                           messages.CodeInvalidRequest,
		`{"name":"t","partitions":2,"assignment":[{"brokers":["b1"]}]}`:                  messages.CodeInvalidAssignment,
		`{"name":"t","assignment":[{"brokers":["b1","b1"]}]}`:                            messages.CodeInvalidAssignment,
		`{"name":"t","assignment":[{"brokers":["b1","b9"]}]}`:                            messages.CodeInvalidAssignment,
		`{"name":"t","assignment":[{"brokers":["b1"]},{"brokers":["b1","b2"]}]}`:         messages.CodeInvalidAssignment,
		`{"name":"t","assignment":[{"brokers":[]}]}`:                                     messages.CodeInvalidAssignment,
		`{"name":"t","partitions":1,"labels":{"` + strings.Repeat("k", 5000) + `":"v"}}`: messages.CodeInvalidRequest,
	} {
		m, err := nc.Request(subjects.Control("op", "topic", "create"), []byte(body), 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		var answer struct {
			Error struct{ Code, Message string }
		}
		if err := json.Unmarshal(m.Data, &answer); err != nil {
			t.Fatalf("%.80s: %s", body, m.Data)
		}
		if got := messages.Code(answer.Error.Code); got != want || got != messages.Code(m.Header.Get("Nats-Service-Error-Code")) || answer.Error.Message == "" {
			t.Errorf("%.80s: %+v, want %s", body, answer.Error, want)
		}
	}
	if _, after := look[messages.HealthView](t, nc, "health"); after.Revision != before.Revision {
		t.Errorf("the journal went from %d to %d", before.Revision, after.Revision)
	}
}

func TestB109OverlongBodiesAreRefused(t *testing.T) {
	c := start(t, t.TempDir(), nil)
	nc := connect(t, c.URL())
	for _, subject := range []string{subjects.Control("op", "topic", "create"), subjects.Broker("b1", messages.VerbRegister), subjects.Monitor("topics")} {
		m, err := nc.Request(subject, make([]byte, 5<<20), 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if got := m.Header.Get("Nats-Service-Error-Code"); got != string(messages.CodeTooLarge) {
			t.Errorf("5 MiB to %s: %q", subject, got)
		}
	}
	if err := nc.Publish(subjects.Control("op", "topic", "create"), make([]byte, 10<<20)); !errors.Is(err, nats.ErrMaxPayload) {
		t.Errorf("10 MiB: %v", err)
	}
	cluster(t, c, 1)
}
