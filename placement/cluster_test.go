package placement_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/highwater-io/highwater/messages"
	"github.com/highwater-io/highwater/placement"
)

// cluster reads brokers from words: "id@rack", "-" for no rack, then flags: "!fenced", "!stopping", "!draining",
// "*weight".
func cluster(words string) placement.Snapshot {
	var s placement.Snapshot
	for _, word := range strings.Fields(words) {
		word, flag, _ := strings.Cut(word, "!")
		word, weight, _ := strings.Cut(word, "*")
		id, rack, _ := strings.Cut(word, "@")
		b := placement.Broker{
			ID: messages.BrokerID(id), Rack: messages.RackPath(strings.TrimPrefix(rack, "-")),
			Fenced: flag == "fenced", Stopping: flag == "stopping", Draining: flag == "draining",
		}
		if weight != "" {
			fmt.Sscan(weight, &b.Weight)
		}
		s.Brokers = append(s.Brokers, b)
	}
	return s
}

// racksOf makes a cluster of one-level racks r0, r1, … with so many brokers in each.
func racksOf(sizes ...int) placement.Snapshot {
	var s placement.Snapshot
	for r, size := range sizes {
		for range size {
			s.Brokers = append(s.Brokers, placement.Broker{
				ID:   messages.BrokerID(fmt.Sprintf("b%03d", len(s.Brokers))),
				Rack: messages.RackPath(fmt.Sprintf("r%d", r)), Weight: 100,
			})
		}
	}
	return s
}

type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

// place proposes a topic, checks what holds for every proposal, and counts it into the snapshot.
func place(t failer, s *placement.Snapshot, partitions, factor int, seed uint64) *placement.Proposal {
	t.Helper()
	p, err := placement.Place(*s, placement.NewTopic{Partitions: partitions, ReplicationFactor: factor}, [2]uint64{seed, 1})
	if err != nil {
		t.Fatalf("%d partitions × %d replicas on %d brokers: %v", partitions, factor, len(s.Brokers), err)
	}
	checkLists(t, *s, p, partitions, factor)
	count(s, p)
	return p
}

// count adds a proposal to the loads of a snapshot.
func count(s *placement.Snapshot, p *placement.Proposal) {
	brokers := make([]placement.Broker, len(s.Brokers))
	copy(brokers, s.Brokers)
	s.Brokers = brokers
	replicas, leaders := tally(p.Replicas)
	for i := range brokers {
		brokers[i].Replicas += replicas[brokers[i].ID]
		brokers[i].Leaders += leaders[brokers[i].ID]
	}
}

func checkLists(t failer, s placement.Snapshot, p *placement.Proposal, partitions, factor int) {
	t.Helper()
	brokers := map[messages.BrokerID]placement.Broker{}
	for _, b := range s.Brokers {
		brokers[b.ID] = b
	}
	if len(p.Replicas) != partitions {
		t.Fatalf("%d lists for %d partitions", len(p.Replicas), partitions)
	}
	for i, list := range p.Replicas {
		seen := map[messages.BrokerID]bool{}
		for _, id := range list {
			b, ok := brokers[id]
			if !ok || b.Refusal() != "" || seen[id] {
				t.Fatalf("partition %d: %v: broker %q is unknown, refused (%s) or there twice", i, list, id, b.Refusal())
			}
			seen[id] = true
		}
		if len(seen) != factor {
			t.Fatalf("partition %d: %v has not %d replicas", i, list, factor)
		}
	}
}

func tally(lists [][]messages.BrokerID) (replicas, leaders map[messages.BrokerID]int) {
	replicas, leaders = map[messages.BrokerID]int{}, map[messages.BrokerID]int{}
	for _, list := range lists {
		leaders[list[0]]++
		for _, id := range list {
			replicas[id]++
		}
	}
	return replicas, leaders
}

// spanOf returns the difference between the most and the least over the brokers of a snapshot.
func spanOf(s placement.Snapshot, n func(placement.Broker) int) int {
	lo, hi := n(s.Brokers[0]), n(s.Brokers[0])
	for _, b := range s.Brokers {
		lo, hi = min(lo, n(b)), max(hi, n(b))
	}
	return hi - lo
}

func replicasOf(b placement.Broker) int { return b.Replicas }
func leadersOf(b placement.Broker) int  { return b.Leaders }

// racksIn counts the replicas of a list per rack.
func racksIn(s placement.Snapshot, list []messages.BrokerID) map[messages.RackPath]int {
	in := map[messages.RackPath]int{}
	for _, b := range s.Brokers {
		for _, id := range list {
			if id == b.ID {
				in[b.Rack]++
			}
		}
	}
	return in
}

func hasLine(lines []string, parts ...string) bool {
	for _, line := range lines {
		all := true
		for _, part := range parts {
			all = all && strings.Contains(line, part)
		}
		if all {
			return true
		}
	}
	return false
}

func wantLine(t *testing.T, lines []string, parts ...string) {
	t.Helper()
	if !hasLine(lines, parts...) {
		t.Errorf("no line has %q:\n%s", parts, strings.Join(lines, "\n"))
	}
}

func wantCode(t *testing.T, err error, code messages.Code) {
	t.Helper()
	if messages.CodeOf(err) != code {
		t.Errorf("error %v, want %s", err, code)
	}
}
