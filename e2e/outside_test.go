//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// (g) A client without any SDK sees leadership changes and reads health with plain NATS requests.
func TestAPlainNATSClientSeesLeadershipAndHealth(t *testing.T) {
	c := newCluster(t, 3)
	nc, err := nats.Connect(c.url())
	must(t, err)
	defer nc.Close()
	sub, err := nc.SubscribeSync("hw.e2e.lead.v1.>")
	must(t, err)
	must(t, nc.Flush())
	c.createTopic("a.b", 3)
	seen := map[int32]*pb.Leadership{}
	for len(seen) < 3 {
		m, err := sub.NextMsg(10 * time.Second)
		must(t, err)
		l := leadership(t, m)
		if !strings.HasPrefix(m.Subject, "hw.e2e.lead.v1.a=2Eb.") || l.GetTopic() != "a.b" {
			t.Fatalf("on %s: %v", m.Subject, l)
		}
		seen[l.GetPartition()] = l
	}
	victim := messages.BrokerID(seen[0].GetLeader())
	c.brokers[victim].kill()
	for {
		m, err := sub.NextMsg(10 * time.Second)
		must(t, err)
		l := leadership(t, m)
		if l.GetPartition() == 0 && l.GetLeader() != "" && l.GetLeader() != string(victim) {
			if l.GetLeaderEpoch() <= seen[0].GetLeaderEpoch() {
				t.Errorf("a new leader under an old epoch: %v, before %v", l, seen[0])
			}
			break
		}
	}
	eventually(t, 5*time.Second, "health tells of the dead broker", func() error {
		m, err := nc.Request("hw.e2e.mon.v1.health", nil, time.Second)
		if err != nil {
			return err
		}
		var v struct {
			Data messages.HealthView `json:"data"`
		}
		if err := json.Unmarshal(m.Data, &v); err != nil {
			return err
		}
		if v.Data.Status != "DEGRADED" || v.Data.Brokers.Fenced != 1 || v.Data.Partitions.UnderReplicated != 3 {
			return fmt.Errorf("%s", m.Data)
		}
		return nil
	})
	// The last value is kept: whoever comes later finds it in the stream.
	js, err := nc.JetStream()
	must(t, err)
	m, err := js.GetLastMsg(messages.LeadershipStream(clusterName), "hw.e2e.lead.v1.a=2Eb.0")
	must(t, err)
	var last pb.Leadership
	must(t, proto.Unmarshal(m.Data, &last))
	if last.GetLeader() == string(victim) || last.GetLeader() == "" {
		t.Errorf("the last value is %v", &last)
	}
}

func leadership(t testing.TB, m *nats.Msg) *pb.Leadership {
	t.Helper()
	l := &pb.Leadership{}
	must(t, proto.Unmarshal(m.Data, l))
	return l
}

// Exit codes and coded errors of the command line, against a real cluster.
func TestCommandLineAnswersBadInputWithCodes(t *testing.T) {
	c := newCluster(t, 1)
	for _, x := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"topic", "create", "bad name"}, 2, "INVALID_NAME"},
		{[]string{"topic", "create", "t", "--partitions", "0"}, 1, "INVALID_PARTITIONS"},
		{[]string{"topic", "create", "t", "--replication-factor", "3"}, 1, "INVALID_REPLICATION_FACTOR"},
		{[]string{"topic", "create", "t", "--replication-factor", "1", "--min-isr", "2"}, 1, "INVALID_MIN_ISR"},
		{[]string{"topic", "create", "t", "--replication-factor", "1", "--min-isr", "1"}, 0, ""},
		{[]string{"topic", "create", "t", "--replication-factor", "1"}, 6, "TOPIC_ALREADY_EXISTS"},
		{[]string{"topic", "describe", "nope"}, 5, "UNKNOWN_TOPIC"},
		{[]string{"topic", "delete", "nope", "--yes"}, 5, "UNKNOWN_TOPIC"},
		{[]string{"topic", "delete", "t"}, 2, "--yes"},
		{[]string{"partition", "describe", "t", "7"}, 5, "UNKNOWN_PARTITION"},
		{[]string{"broker", "describe", "b9"}, 5, "UNKNOWN_BROKER"},
		{[]string{"produce", "nope"}, 5, "UNKNOWN_TOPIC"},
		{[]string{"consume", "nope"}, 5, "UNKNOWN_TOPIC"},
		{[]string{"nonsense"}, 2, "unknown command"},
		{[]string{"cluster", "health"}, 0, ""},
	} {
		_, errs, code := c.run(strings.NewReader(""), x.args...)
		if code != x.code || !strings.Contains(errs, x.says) {
			t.Errorf("%v: exit code %d, want %d; says %q, want %q", x.args, code, x.code, errs, x.says)
		}
		if code != 0 {
			_, errs, _ = c.run(strings.NewReader(""), append(x.args, "-o", "json")...)
			var e struct {
				Error struct{ Code, Message string }
			}
			if err := json.Unmarshal([]byte(errs), &e); err != nil || e.Error.Code == "" || e.Error.Message == "" {
				t.Errorf("%v -o json: %q: %v", x.args, errs, err)
			}
		}
	}
}
