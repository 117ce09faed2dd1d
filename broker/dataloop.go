package broker

import (
	"runtime"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// dataLoop takes the clients' requests of some of the led partitions. A partition stays with one loop, so that the
// requests of one producer are taken in the order in which they came.
type dataLoop struct {
	ch   chan *nats.Msg
	quit chan struct{}

	mu     sync.RWMutex
	served map[*nats.Subscription]*subscription
}

// subscription is the data subject of one partition in one leader epoch.
type subscription struct {
	loop  *dataLoop
	sub   *nats.Subscription
	p     *partition
	epoch messages.LeaderEpoch
}

// loopBacklog is how many requests may wait at a loop; NATS drops what comes beyond that, and the clients ask again.
const loopBacklog = 4096

func (s *Server) startLoops() {
	for range min(4, runtime.GOMAXPROCS(0)) {
		l := &dataLoop{ch: make(chan *nats.Msg, loopBacklog), quit: make(chan struct{}), served: map[*nats.Subscription]*subscription{}}
		s.loops = append(s.loops, l)
		s.goDo(func() { s.serveLoop(l) })
	}
}

func (s *Server) stopLoops() {
	for _, l := range s.loops {
		close(l.quit)
	}
}

func (s *Server) serveLoop(l *dataLoop) {
	for {
		select {
		case <-l.quit:
			return
		case m := <-l.ch:
			l.mu.RLock()
			sub := l.served[m.Sub]
			l.mu.RUnlock()
			if sub == nil || m.Reply == "" {
				continue // deposed meanwhile; or nobody would hear the answer
			}
			switch {
			case strings.HasSuffix(m.Subject, "."+string(messages.VerbProduce)):
				s.produce(sub, m)
			case strings.HasSuffix(m.Subject, "."+string(messages.VerbFetch)):
				s.fetch(sub, m)
			default:
				s.respond(m.Reply, &pb.ProduceResponse{Error: messages.Errorf(messages.CodeInvalidRequest,
					"a leader knows the verbs %s and %s", messages.VerbProduce, messages.VerbFetch).Proto()})
			}
		}
	}
}

// serve subscribes to the data subject of a partition in a leader epoch.
func (s *Server) serve(p *partition, epoch messages.LeaderEpoch) (*subscription, error) {
	subject := s.s.subjects.Data(messages.Data{Principal: "*", Topic: p.topic, Partition: p.id.Index, LeaderEpoch: epoch, Verb: "*"})
	l := s.loops[int(uint32(p.id.Index)+uint32(p.id.Topic[15]))%len(s.loops)]
	l.mu.Lock()
	defer l.mu.Unlock()
	sub, err := s.nc.ChanSubscribe(subject, l.ch)
	if err != nil {
		return nil, err
	}
	out := &subscription{loop: l, sub: sub, p: p, epoch: epoch}
	l.served[sub] = out
	return out, nil
}

func (s *subscription) close() {
	s.loop.mu.Lock()
	delete(s.loop.served, s.sub)
	s.loop.mu.Unlock()
	_ = s.sub.Unsubscribe()
}
