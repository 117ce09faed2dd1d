package messages

import (
	"errors"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
)

// B109, B110: one documented rule for names, the same wherever a name comes in.
func TestB110NamesAreCheckedByOneRule(t *testing.T) {
	long := strings.Repeat("a", MaxTopicName)
	for _, name := range []string{"a", "t-0", "a..b", ".a", "a.", "A", "__meta", "CON", "_INBOX.x", long[:248], long} {
		if err := TopicName(name).Validate(); err != nil {
			t.Errorf("topic %q: %v", name, err)
		}
	}
	bad := []string{"", ".", "..", "*", ">", "a.>", "a.*", "a b", "a\tb", "a\nb", "a/b", `a\b`, "../x", "$JS.API.x", "a\x00", "\xff", "日本",
		long + "a", strings.Repeat("a", 10_000), strings.Repeat("é", 125)}
	for _, name := range bad {
		if err := TopicName(name).Validate(); CodeOf(err) != CodeInvalidName {
			t.Errorf("topic %q: got %v, want %s", name, err, CodeInvalidName)
		}
		if err := BrokerID(name).Validate(); CodeOf(err) != CodeInvalidName {
			t.Errorf("broker %q: got %v, want %s", name, err, CodeInvalidName)
		}
	}
	if err := BrokerID("a.b").Validate(); CodeOf(err) != CodeInvalidName {
		t.Errorf("broker a.b: got %v", err)
	}
	if err := BrokerID(strings.Repeat("b", MaxBrokerID+1)).Validate(); CodeOf(err) != CodeInvalidName {
		t.Errorf("a broker id of %d bytes: got %v", MaxBrokerID+1, err)
	}
}

// B4: blanks are trimmed, case is kept, an empty label is no label.
func TestB4RackLabelsThatLookTheSame(t *testing.T) {
	for in, want := range map[string]RackPath{
		"az1": "az1", "az1 ": "az1", " az1": "az1", "AZ2": "AZ2", "": "", "  ": "", "eu/z1/r1": "eu/z1/r1", "eu / z1": "eu/z1",
	} {
		if got, err := ParseRackPath(in); err != nil || got != want {
			t.Errorf("%q: got %q, %v, want %q", in, got, err, want)
		}
	}
	for _, in := range []string{"/", "a/", "/a", "a//b", "a\nb", "a*b", "a>b", strings.Repeat("r", MaxRackPath+1), strings.Repeat("a/", MaxRackDepth) + "a"} {
		if got, err := ParseRackPath(in); CodeOf(err) != CodeInvalidRack {
			t.Errorf("%q: got %q, %v, want %s", in, got, err, CodeInvalidRack)
		}
	}
}

func TestErrorsKeepTheirCodeOverTheWire(t *testing.T) {
	e := Errorf(CodeBusy, "queue of %d", 3)
	back := ErrorFromProto(e.Proto())
	if !errors.Is(back, e) || back.Message != "queue of 3" || back.Hint == "" {
		t.Errorf("got %+v", back)
	}
	if _, err := proto.Marshal(Errorf(CodeInvalidRequest, "cannot read %s", "\xff").WithHint("\xfe").Proto()); err != nil {
		t.Errorf("an error that quotes nonsense cannot be sent: %v", err)
	}
	if ErrorFromProto(nil) != nil || (*Error)(nil).Proto() != nil {
		t.Error("no error must stay no error")
	}
	for _, c := range Codes {
		if c.Meaning == "" || c.Remedy == "" {
			t.Errorf("%s is not explained", c.Code)
		}
	}
}
