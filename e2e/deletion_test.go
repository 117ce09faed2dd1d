//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// writeSized writes n records of a size to partition 0 and waits until all are acknowledged.
func (c *cluster) writeSized(topic string, n, size int) {
	c.t.Helper()
	p := c.produce(topic, "--partition", "0")
	for i := range n {
		_, err := fmt.Fprintf(p.stdin, "%0*d\n", size, i)
		must(c.t, err)
	}
	p.end()
}

// sized checks that partition 0 of a topic holds n records, all of one size.
func (c *cluster) sized(topic string, n, size int) {
	c.t.Helper()
	got := c.consumed(topic)
	for i := range n {
		if v := got[place{0, messages.Offset(i)}]; v != fmt.Sprintf("%0*d", size, i) {
			c.t.Errorf("%s: offset %d is %q", topic, i, v)
		}
	}
	if len(got) != n {
		c.t.Errorf("%s: %d records, want %d", topic, len(got), n)
	}
}

// says waits until the log of a process has a line with all of some words.
func (p *process) says(words ...string) {
	p.t.Helper()
	eventually(p.t, 20*time.Second, fmt.Sprintf("%s says %q", p.name, words), func() error {
		if !p.said(words...) {
			return fmt.Errorf("not in its log")
		}
		return nil
	})
}

func (p *process) said(words ...string) bool {
	p.t.Helper()
	raw, err := os.ReadFile(p.log)
	must(p.t, err)
	for line := range strings.Lines(string(raw)) {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			return true
		}
	}
	return false
}

// A topic is deleted and made again under its name while a broker is away. The broker returns with the old records: they are
// deleted, it copies the new ones, and when it leads it serves those. In the other topic it has no part any more: what it
// still holds of it is deleted.
func TestB75ADeletedTopicDoesNotRiseFromABrokerThatWasAway(t *testing.T) {
	for _, orderly := range []bool{true, false} {
		t.Run(fmt.Sprintf("B75 stopped in order %t", orderly), func(t *testing.T) {
			c := newClusterWith(t, 3, quick...)
			for _, topic := range []string{"again", "elsewhere"} {
				c.createOn(topic, 1, 2, "b1", "b2", "b3")
				c.writeSized(topic, 50, 64)
				c.fullISR(topic)
			}
			old := map[string]string{}
			for _, topic := range []string{"again", "elsewhere"} {
				old[topic] = c.partition(topic, 0).TopicID.String()
			}
			if orderly {
				c.brokers["b3"].term()
			} else {
				c.brokers["b3"].kill()
			}
			for topic, replicas := range map[string][]string{"again": {"b1", "b2", "b3"}, "elsewhere": {"b1", "b2"}} {
				c.deleteTopic(topic)
				c.createOn(topic, 1, 2, replicas...)
				c.writeSized(topic, 10, 128)
			}
			c.startBroker("b3")
			c.fullISR("again")
			b3 := c.brokers["b3"]
			for _, id := range old {
				b3.says("replica is removed", id)
				if b3.said("kept aside", id) {
					t.Errorf("b3 keeps what it was ordered to delete of %s", id)
				}
			}
			view, err := c.client.Broker(t.Context(), "b3")
			must(t, err)
			if len(view.Partitions) != 1 || view.Partitions[0].Topic != "again" {
				t.Errorf("b3 holds %+v", view.Partitions)
			}
			c.sized("elsewhere", 10, 128)
			c.brokers["b1"].kill()
			c.brokers["b2"].kill()
			c.until("again", "b3 leads", func(p messages.PartitionView) bool { return p.Leader == "b3" && p.LeaderProven })
			c.sized("again", 10, 128)
			// What is gone stays gone: another start finds nothing of it on the disk.
			b3.term()
			c.startBroker("b3")
			c.active("b3")
			if _, errs, code := c.run(nil, "topic", "describe", "again"); code != 0 {
				t.Errorf("%s", errs)
			}
			for _, id := range old {
				if c.brokers["b3"].said("kept aside", id) {
					t.Errorf("after another start b3 still has something of %s", id)
				}
			}
		})
	}
}

// The controller dies while it deletes a topic of a hundred partitions: the topic is there or it is gone, never half of it,
// and its name can be used again.
func TestB77ADeletionOutlivesTheController(t *testing.T) {
	c := newClusterWith(t, 3, quick...)
	for round := range 3 {
		c.createTopic("big", 100)
		c.write("big", 0, 500) // some to every partition, and each on all brokers
		id := c.partition("big", 0).TopicID
		deleted := make(chan struct{})
		go func() {
			defer close(deleted)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, _ = c.client.DeleteTopic(ctx, &pb.DeleteTopicRequest{Name: "big"}) // its answer may be lost
		}()
		if round > 0 {
			<-deleted // committed; the brokers are being told
		}
		c.controller.kill()
		c.startController()
		c.controllerReady()
		<-deleted
		if n := len(c.partitions("big")); n == 100 && round == 0 {
			c.deleteTopic("big")
		} else if n != 0 {
			t.Fatalf("round %d: %d of 100 partitions are there", round, n)
		}
		c.controller.says("topic.deletion_finished", id.String())
		for _, b := range c.brokers {
			b.says("replica is removed", fmt.Sprintf("%s/99", id))
		}
	}
	for name := range c.brokers { // what is still on a disk would be found now, and nobody would know it
		c.brokers[name].term()
		c.startBroker(name)
		c.active(name)
		if c.brokers[name].said("kept aside") {
			t.Errorf("%s keeps some of a deleted topic", name)
		}
	}
	c.createTopic("big", 3)
	c.fullISR("big")
	if h, err := c.health(); err != nil || h.Status != "HEALTHY" || h.Partitions.Total != 3 {
		t.Errorf("%+v, %v", h, err)
	}
}
