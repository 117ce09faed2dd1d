package main

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
)

// elsewhereAt is the configuration of a server that may be started several times, and its URL.
func elsewhereAt(t *testing.T) (config, url string) {
	t.Helper()
	listen, _, err := devPorts(devFlags{controllers: 1})
	must(t, err)
	_, port, _ := strings.Cut(listen[0], ":")
	return fmt.Sprintf("port: %s\njetstream: { store_dir: %q, sync_interval: always }\n", port, t.TempDir()), "nats://" + listen[0]
}

func TestServeWaitsForNATSThatIsNotThereYet(t *testing.T) {
	config, url := elsewhereAt(t)
	serve := startDaemon(t, "serve", "--nats-url", url)
	stopped := startDaemon(t, "serve", "--nats-url", url, "--cluster", "other")
	for _, d := range []*daemon{serve, stopped} {
		d.says(`"level":"warn".*connection refused.*"message":"waiting for NATS"`)
	}
	stopped.signal(syscall.SIGTERM)
	if code := stopped.ends(); code != 0 || !strings.Contains(stopped.stderr(), "stopped before it was ready") {
		t.Errorf("a process that waits ends with %d", code)
	}
	natsElsewhere(t, config)
	serve.says("controller is ready")
	on(t, devCluster{NATS: url}, "", "cluster", "describe")
	if n := strings.Count(serve.stderr(), "waiting for NATS"); n > 20 {
		t.Errorf("it says %d times that it waits", n)
	}
}

func TestServeOutlivesNATSThatGoesAway(t *testing.T) {
	config, url := elsewhereAt(t)
	s := natsElsewhere(t, config)
	serve := startDaemon(t, "serve", "--nats-url", url, "--standby", "--append-limit", "5s")
	serve.says("controller is active")
	startDaemon(t, "broker", "run", "--id", "b1", "--data-dir", t.TempDir(), "-s", url)
	registered(t, url)
	s.Shutdown()
	s.WaitForShutdown()
	serve.says("disconnected from NATS")
	serve.says("the active term ends") // the broker could not be fenced, and nothing was stored for --append-limit
	natsElsewhere(t, config)
	serve.says("reconnected to NATS")
	serve.says(`"controller_epoch":[2-9],.*"message":"controller is active"`) // until then what is left of the first term may answer
	registered(t, url)
	on(t, devCluster{NATS: url}, "", "topic", "create", "t", "-p", "1", "--replication-factor", "1", "--min-isr", "1")
	serve.signal(syscall.SIGTERM)
	if code := serve.ends(); code != 0 {
		t.Errorf("it ends with %d", code)
	}
}

func TestAControllerAloneThatLostNATSEndsAndTheNextOneWaits(t *testing.T) {
	config, url := elsewhereAt(t)
	s := natsElsewhere(t, config)
	args := []string{"serve", "--nats-url", url, "--append-limit", "5s"}
	serve := startDaemon(t, args...)
	serve.says("controller is ready")
	startDaemon(t, "broker", "run", "--id", "b1", "--data-dir", t.TempDir(), "-s", url)
	registered(t, url)
	s.Shutdown()
	s.WaitForShutdown()
	if code := serve.ends(); code != exitFailed {
		t.Errorf("it ends with %d", code)
	}
	next := startDaemon(t, args...)
	next.says("waiting for NATS")
	natsElsewhere(t, config)
	next.says("controller is ready")
	registered(t, url)
}
