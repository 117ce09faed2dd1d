//go:build e2e

package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/highwater-io/highwater/messages"
)

// place is where a record was acknowledged.
type place struct {
	Partition int32
	Offset    messages.Offset
}

// production is a running `highwater produce --report`: what it was given and what was acknowledged.
type production struct {
	t     testing.TB
	cmd   *exec.Cmd
	stdin io.WriteCloser
	err   strings.Builder
	read  chan struct{}

	mu      sync.Mutex
	values  map[place]string
	gap     time.Duration // longest pause between two acknowledgements
	last    time.Time
	changed chan struct{}
}

func (c *cluster) produce(topic string, flags ...string) *production {
	c.t.Helper()
	p := &production{t: c.t, values: map[place]string{}, read: make(chan struct{}), changed: make(chan struct{}, 1)}
	p.cmd = exec.Command(binary, append([]string{"produce", topic, "--report", "--server", c.url(), "--cluster", clusterName}, flags...)...)
	var err error
	p.stdin, err = p.cmd.StdinPipe()
	must(c.t, err)
	out, err := p.cmd.StdoutPipe()
	must(c.t, err)
	p.cmd.Stderr = &p.err
	must(c.t, p.cmd.Start())
	c.t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	go p.collect(out)
	return p
}

func (p *production) collect(out io.Reader) {
	defer close(p.read)
	s := bufio.NewScanner(out)
	for s.Scan() {
		var line struct {
			Partition int32           `json:"partition"`
			Offset    messages.Offset `json:"offset"`
			Value     string          `json:"value"`
		}
		if err := json.Unmarshal(s.Bytes(), &line); err != nil {
			p.t.Errorf("report line %q: %v", s.Text(), err)
			continue
		}
		p.add(place{line.Partition, line.Offset}, line.Value)
	}
}

func (p *production) add(at place, value string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if !p.last.IsZero() {
		p.gap = max(p.gap, now.Sub(p.last))
	}
	p.last = now
	if other, taken := p.values[at]; taken {
		p.t.Errorf("%v was acknowledged for %q and for %q", at, other, value)
	}
	p.values[at] = value
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

func (p *production) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.values)
}

// reach waits until n records are acknowledged.
func (p *production) reach(n int) {
	p.t.Helper()
	limit := time.NewTimer(60 * time.Second)
	defer limit.Stop()
	for p.count() < n {
		select {
		case <-p.changed:
		case <-p.read:
			if p.count() < n {
				p.t.Fatalf("produce ended after %d of %d acknowledgements: %s", p.count(), n, p.err.String())
			}
		case <-limit.C:
			p.t.Fatalf("only %d of %d records were acknowledged within a minute", p.count(), n)
		}
	}
}

// end closes standard input and waits for the end, which must be a success.
func (p *production) end() {
	p.t.Helper()
	must(p.t, p.stdin.Close())
	<-p.read
	if err := p.cmd.Wait(); err != nil {
		p.t.Fatalf("produce: %v: %s", err, p.err.String())
	}
	p.t.Logf("%d records acknowledged, longest gap between two acknowledgements %s", p.count(), p.gap)
}

// consumed reads a topic from its beginning to its end.
func (c *cluster) consumed(topic string) map[place]string {
	c.t.Helper()
	out, errs, code := c.run(nil, "consume", topic, "--from-beginning", "--exit-at-end", "-o", "json")
	if code != 0 {
		c.t.Fatalf("consume exits with %d: %s", code, errs)
	}
	got := map[place]string{}
	next := map[int32]messages.Offset{}
	for _, line := range strings.Split(strings.TrimSpace(out), "\n") {
		if line == "" {
			continue
		}
		var r struct {
			Partition int32           `json:"partition"`
			Offset    messages.Offset `json:"offset"`
			Value     string          `json:"value"`
		}
		must(c.t, json.Unmarshal([]byte(line), &r))
		if r.Offset != next[r.Partition] {
			c.t.Fatalf("partition %d: offset %d where %d was expected", r.Partition, r.Offset, next[r.Partition])
		}
		next[r.Partition]++
		got[place{r.Partition, r.Offset}] = r.Value
	}
	return got
}

// check reads the topic back: each acknowledged record is where it was acknowledged, no value is stored twice.
func (c *cluster) check(topic string, p *production, want int) {
	c.t.Helper()
	got := c.consumed(topic)
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.values) != want {
		c.t.Errorf("%d records acknowledged, want %d", len(p.values), want)
	}
	lost := 0
	for at, value := range p.values {
		if got[at] != value {
			if lost++; lost < 5 {
				c.t.Errorf("%v was acknowledged as %q and is read as %q", at, value, got[at])
			}
		}
	}
	seen := map[string]place{}
	for at, value := range got {
		if other, twice := seen[value]; twice {
			c.t.Errorf("%q is stored at %v and at %v", value, at, other)
		}
		seen[value] = at
	}
	if len(got) != want || lost > 0 {
		c.t.Errorf("%d records read, %d acknowledged, %d of them lost", len(got), len(p.values), lost)
	}
}

func value(i int) string { return fmt.Sprintf("record-%06d", i) }
