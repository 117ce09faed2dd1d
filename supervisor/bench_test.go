package supervisor

import (
	"runtime"
	"strconv"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
)

// BenchmarkIdleActor reports the memory of one idle partition actor with a state of 48 bytes, its partition's record in the
// catalog not counted.
func BenchmarkIdleActor(b *testing.B) {
	for _, n := range []int{10_000, 100_000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			for range b.N {
				s := newStage(b, n)
				before := heap()
				s.start()
				b.ReportMetric((heap()-before)/float64(n), "B/actor")
				s.stop()
			}
		})
	}
}

func heap() float64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// counting is an edge that lets so many requests be on the way at a time.
type counting struct {
	credits chan struct{}
	failed  sync.Map
}

func (c *counting) Reply(actors.Reply) { <-c.credits }
func (c *counting) Fail(_ actors.RequestID, err *messages.Error) {
	c.failed.Store(err.Code, err)
	<-c.credits
}
func (c *counting) Publish([]actors.Publication, messages.Seen) {}
func (c *counting) Observe(actors.Address, []actors.Event)      {}

// BenchmarkCommit measures the whole way of a request that commits one record: Tell, Step, group commit to a log in
// memory, catalog, reply.
func BenchmarkCommit(b *testing.B) { benchmarkRequests(b, "write") }

// BenchmarkRead measures the way of a request that commits nothing.
func BenchmarkRead(b *testing.B) { benchmarkRequests(b, "read") }

func benchmarkRequests(b *testing.B, word string) {
	for _, partitions := range []int{1, 1_000} {
		b.Run(strconv.Itoa(partitions), func(b *testing.B) {
			s := newStage(b, partitions)
			edge := &counting{credits: make(chan struct{}, min(512, 64*partitions))}
			s.config.Edge = edge
			s.start()
			var body proto.Message = wrapperspb.String(word)
			appends := s.log.Appends()
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				edge.credits <- struct{}{}
				s.tell(partitionAt(0, i%partitions), actors.Request{ID: actors.RequestID(i + 1), Body: body})
			}
			for range cap(edge.credits) {
				edge.credits <- struct{}{}
			}
			b.StopTimer()
			if n := s.log.Appends() - appends; n > 0 {
				b.ReportMetric(float64(b.N)/float64(n), "commits/append")
			}
			s.stop()
			edge.failed.Range(func(code, err any) bool { b.Errorf("failed: %v", err); return true })
		})
	}
}

// BenchmarkCrash measures a panic with everything that follows, up to the next incarnation.
func BenchmarkCrash(b *testing.B) {
	s := newStage(b, 1_000)
	edge := &counting{credits: make(chan struct{}, 512)}
	s.config.Edge = edge
	s.config.Limits.Restarts = 1 << 30
	s.config.Limits.RestartWindow = 1 // every failure is the first one
	s.partitions((&fragile{}).machine())
	s.start()
	b.ResetTimer()
	for i := range b.N {
		edge.credits <- struct{}{}
		s.tell(partitionAt(0, i%1_000), call(actors.RequestID(i+1), "panic"))
	}
	for range cap(edge.credits) {
		edge.credits <- struct{}{}
	}
	b.StopTimer()
	s.stop()
}
