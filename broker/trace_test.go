package broker

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

func TestEveryChangeOfTheLeaseIsSaidAndNothingElse(t *testing.T) {
	var l lease
	var said []bool // whether it ran afterwards
	l.said = func(until time.Time) { said = append(said, !until.IsZero()) }
	now := time.Now()
	g := l.begin()
	l.grant(g, now, time.Second)
	l.grant(g, now, time.Millisecond) // shorter than what it has
	l.grant(g, now, 2*time.Second)
	l.end()
	l.grant(g, now, time.Hour) // of before
	if want := []bool{true, true, false}; !slices.Equal(said, want) {
		t.Errorf("said %v, want %v", said, want)
	}
}

func TestLeaseAndRolesAreTracedForDebugging(t *testing.T) {
	var out bytes.Buffer
	s := &session{log: zerolog.New(&out).Level(zerolog.DebugLevel)}
	before := machineClock()
	s.traceLease(time.Now().Add(time.Minute))
	s.traceLease(time.Time{})
	s.traceRole(traceLeads, Partition{Topic: "orders"}, 7)
	if machineClock() < before {
		t.Error("the clock goes back")
	}
	for _, want := range []string{`"until_ns":`, `"message":"leased"`, `"message":"lease ended"`, `"leader_epoch":7,"message":"leads"`, `"topic":"orders"`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s is missing in %s", want, out.String())
		}
	}
	out.Reset()
	s.log = s.log.Level(zerolog.InfoLevel)
	s.traceLease(time.Now())
	s.traceRole(traceLeadsNoMore, Partition{}, 7)
	if out.Len() > 0 {
		t.Errorf("said without being asked: %s", out.String())
	}
}
