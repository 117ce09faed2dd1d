package controller

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/highwater-io/highwater/messages"
)

func TestAStoppedControllerLeavesNothingBehind(t *testing.T) {
	before := goleak.IgnoreCurrent()
	dir := t.TempDir()
	c := start(t, dir, nil)
	if _, err := Start(t.Context(), Config{DataDir: dir, Listen: "127.0.0.1:0"}); messages.CodeOf(err) != messages.CodeUnavailable {
		t.Errorf("a second one: %v", err)
	}
	if _, err := Start(t.Context(), Config{DataDir: t.TempDir(), Listen: c.URL()[len("nats://"):]}); messages.CodeOf(err) != messages.CodeUnavailable {
		t.Errorf("on a taken port: %v", err)
	}
	stop(t, c)
	goleak.VerifyNone(t, before)
}
