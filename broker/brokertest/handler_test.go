package brokertest_test

import (
	"context"
	"testing"
	"time"

	"github.com/highwater-io/highwater/broker"
	"github.com/highwater-io/highwater/broker/brokertest"
)

// counter is a broker that keeps nothing but the number of its replicas.
type counter struct{ replicas chan int }

func (c counter) add(n int) error {
	c.replicas <- <-c.replicas + n
	return nil
}

func (c counter) AddReplica(context.Context, broker.Assignment) error { return c.add(1) }

func (c counter) BecomeLeader(_ context.Context, l *broker.Leadership) error {
	l.Report(broker.Progress{})
	return nil
}

func (c counter) BecomeFollower(context.Context, broker.Assignment) error { return nil }

func (c counter) RemoveReplica(context.Context, broker.Partition) error { return c.add(-1) }

func TestHandlerSuite(t *testing.T) {
	brokertest.TestHandler(t, 10*time.Second, func(*testing.T) broker.Handler {
		c := counter{make(chan int, 1)}
		c.replicas <- 0
		return c
	})
}
