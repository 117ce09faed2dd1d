//go:build e2e

package e2e

import (
	"slices"
	"sync"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// watchLeaders holds everything that is published about leaders against what every test relies on: per topic id and
// partition neither epoch goes down, one leader epoch has one leader, and a leader is in an ISR that is part of the replicas.
func (c *cluster) watchLeaders() {
	c.t.Helper()
	type key struct {
		topic     string
		partition int32
	}
	var mu sync.Mutex
	over := false
	last := map[key]*pb.Leadership{}
	sub, err := c.nc.Subscribe(messages.NewSubjects(clusterName).LeadershipAll(), func(m *nats.Msg) {
		l := &pb.Leadership{}
		err := proto.Unmarshal(m.Data, l)
		mu.Lock()
		defer mu.Unlock()
		if over {
			return
		}
		if err != nil {
			c.t.Errorf("on %s: %v", m.Subject, err)
			return
		}
		k := key{string(l.GetTopicId()), l.GetPartition()}
		was := last[k]
		last[k] = l
		switch {
		case l.GetDeleted():
			return
		case l.GetLeader() != "" && !slices.Contains(l.GetIsr(), l.GetLeader()):
			c.t.Errorf("led from outside the ISR: %v", l)
		case slices.ContainsFunc(l.GetIsr(), func(b string) bool { return !slices.Contains(l.GetReplicas(), b) }):
			c.t.Errorf("in sync without being a replica: %v", l)
		case was == nil || c.wentBack.Load():
		case l.GetLeaderEpoch() < was.GetLeaderEpoch() || l.GetPartitionEpoch() < was.GetPartitionEpoch():
			c.t.Errorf("epochs went down: %v after %v", l, was)
		case l.GetLeaderEpoch() == was.GetLeaderEpoch() && l.GetLeader() != was.GetLeader():
			c.t.Errorf("two leaders in one epoch: %v after %v", l, was)
		}
	})
	must(c.t, err)
	c.t.Cleanup(func() {
		mu.Lock()
		defer mu.Unlock()
		over = true
		_ = sub.Unsubscribe()
	})
}
