package messages

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func anyString() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.String(),
		rapid.SampledFrom([]string{"", ".", "..", "a..b", ".a", "a.", "*", ">", "a.>", "a b", "a\tb", "a/b", `a\b`, "../x", "$JS.API.x",
			"_INBOX.x", "__meta", "\x00", "\xff\xfe", "日本", "A", "a", "=", "=2E", "t-0", "CON", "a=b"}),
	)
}

func TestEscapedTokensRoundTripAndAreOneToken(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := anyString().Draw(t, "s")
		token := EscapeToken(s)
		if token == "" || strings.ContainsAny(token, ".*> \t\r\n\x00") {
			t.Fatalf("%q is escaped as %q, which is not one literal token", s, token)
		}
		back, ok := UnescapeToken(token)
		if !ok || back != s {
			t.Fatalf("%q is escaped as %q and read back as %q, %v", s, token, back, ok)
		}
	})
}

func TestDistinctNamesGiveDistinctTokens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := anyString().Draw(t, "a"), anyString().Draw(t, "b")
		if a != b && EscapeToken(a) == EscapeToken(b) {
			t.Fatalf("%q and %q share the token %q", a, b, EscapeToken(a))
		}
	})
}

func TestOnlyOneSpellingOfATokenIsRead(t *testing.T) {
	for _, token := range []string{"", "=4", "=4g", "=2e", "=61", "a.b", "*", ">", "a=", "==", "a b"} {
		if s, ok := UnescapeToken(token); ok {
			t.Errorf("token %q is read as %q; it must be refused", token, s)
		}
	}
}

func TestSubjectsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := NewSubjects(ClusterName(anyString().Draw(t, "cluster")))
		topic := TopicName(anyString().Draw(t, "topic"))
		principal := anyString().Draw(t, "principal")
		other := anyString().Draw(t, "other")
		index := rapid.Int32Range(0, 1<<30).Draw(t, "index")
		epoch := LeaderEpoch(rapid.Int64Range(0, 1<<60).Draw(t, "epoch"))

		if p, v, ok := s.ParseBroker(s.Broker(principal, VerbISR)); !ok || p != principal || v != VerbISR {
			t.Fatalf("broker: %q %q %v", p, v, ok)
		}
		if n, i, ok := s.ParseLeadership(s.Leadership(topic, index)); !ok || n != topic || i != index {
			t.Fatalf("leadership: %q %d %v", n, i, ok)
		}
		if p, n, v, ok := s.ParseControl(s.Control(principal, "topic", "create")); !ok || p != principal || n != "topic" || v != "create" {
			t.Fatalf("control: %q %q %q %v", p, n, v, ok)
		}
		if l, f, ok := s.ParseReplication(s.Replication(BrokerID(principal), BrokerID(other))); !ok || string(l) != principal || string(f) != other {
			t.Fatalf("replication: %q %q %v", l, f, ok)
		}
		// A client named "*" is refused before it gets a subject; the wildcard is only for subscribing.
		if principal == "*" {
			return
		}
		want := Data{Principal: principal, Topic: topic, Partition: index, LeaderEpoch: epoch, Verb: VerbFetch}
		if got, ok := s.ParseData(s.Data(want)); !ok || got != want {
			t.Fatalf("data: got %+v %v, want %+v", got, ok, want)
		}
	})
}

func TestSubjectsOfAnotherClusterAreNotParsed(t *testing.T) {
	a, b := NewSubjects("a"), NewSubjects("b")
	if _, _, ok := a.ParseBroker(b.Broker("p", VerbISR)); ok {
		t.Error("a subject of cluster b is parsed by cluster a")
	}
	if _, ok := a.ParseData(b.Data(Data{Principal: "p", Topic: "t", Verb: VerbFetch})); ok {
		t.Error("a data subject of cluster b is parsed by cluster a")
	}
}

// B111: names that differ only in '.', '_' or '-' stay apart in every subject.
func TestB111LookAlikeNamesHaveTheirOwnSubjects(t *testing.T) {
	s := NewSubjects("c")
	seen := map[string]TopicName{}
	for _, n := range []TopicName{"a.b", "a_b", "a-b", "A.B", "ab", "a=2Eb"} {
		subject := s.Leadership(n, 0)
		if other, taken := seen[subject]; taken {
			t.Errorf("%q and %q share %s", n, other, subject)
		}
		seen[subject] = n
	}
	if s.Leadership("t.1", 0) == s.Leadership("t", 1) {
		t.Error("topic t.1 and partition 1 of topic t share a subject")
	}
}

func FuzzUnescapeToken(f *testing.F) {
	for _, seed := range []string{"", "=", "a", "=2E", "=2e", "a=", "==", "=FF=FE"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, token string) {
		s, ok := UnescapeToken(token)
		if ok && EscapeToken(s) != token {
			t.Fatalf("token %q is read as %q, whose token is %q", token, s, EscapeToken(s))
		}
	})
}

func FuzzParseSubjects(f *testing.F) {
	s := NewSubjects("c")
	f.Add(s.Data(Data{Principal: "p", Topic: "t.1", Partition: 3, LeaderEpoch: 7, Verb: VerbProduce}))
	f.Add(s.Broker("b1", VerbHeartbeat))
	f.Add("hw.c.dat.v1.p.t.00.1.fetch")
	f.Fuzz(func(t *testing.T, subject string) {
		if d, ok := s.ParseData(subject); ok && d.Principal != "*" && s.Data(d) != subject {
			t.Fatalf("%q is parsed as %+v, whose subject is %q", subject, d, s.Data(d))
		}
		if p, v, ok := s.ParseBroker(subject); ok && s.Broker(p, v) != subject {
			t.Fatalf("%q is parsed as %q %q", subject, p, v)
		}
		if n, i, ok := s.ParseLeadership(subject); ok && s.Leadership(n, i) != subject {
			t.Fatalf("%q is parsed as %q %d", subject, n, i)
		}
	})
}
