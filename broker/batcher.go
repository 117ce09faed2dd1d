package broker

import (
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// batcher sends items of many partitions in few messages: one request is in flight, and what is submitted meanwhile goes
// into the next. Of one partition only the newest item waits. An item whose answer does not come is either given back
// (done with nil) or, if it retries, sent again.
type batcher struct {
	s    *session
	verb messages.BrokerVerb
	pack func(b *pb.IsrRequest, items []*item) (req proto.Message, resp isrAnswer)
	// retry: items are sent until they are answered or replaced.
	retry bool

	mu      sync.Mutex
	queue   []*item
	waiting map[messages.PartitionID]*item
	running bool
}

// item is one partition's part of a batched request.
type item struct {
	key  messages.PartitionID
	body proto.Message
	// done gets the answer once; nil if there was none. It must not block.
	done func(*pb.IsrResult)
}

type isrAnswer interface {
	answer
	GetResults() []*pb.IsrResult
}

func newBatcher(s *session, verb messages.BrokerVerb, pack func(*pb.IsrRequest, []*item) (proto.Message, isrAnswer)) *batcher {
	return &batcher{s: s, verb: verb, pack: pack, retry: verb == messages.VerbReady, waiting: map[messages.PartitionID]*item{}}
}

func packProposals(head *pb.IsrRequest, items []*item) (proto.Message, isrAnswer) {
	for _, i := range items {
		head.Proposals = append(head.Proposals, i.body.(*pb.IsrProposal))
	}
	return head, &pb.IsrResponse{}
}

func packReports(head *pb.IsrRequest, items []*item) (proto.Message, isrAnswer) {
	req := &pb.ReadyRequest{Broker: head.GetBroker(), BrokerEpoch: head.GetBrokerEpoch()}
	for _, i := range items {
		req.Reports = append(req.Reports, i.body.(*pb.LeaderReport))
	}
	return req, &pb.ReadyResponse{}
}

// submit never blocks.
func (b *batcher) submit(i *item) {
	b.mu.Lock()
	old := b.waiting[i.key]
	b.add(i, old)
	if !b.running {
		b.running = true
		go b.run()
	}
	b.mu.Unlock()
	if old != nil {
		old.done(nil)
	}
}

// add queues an item, in the place of an older one of its partition if that waits. The caller holds mu.
func (b *batcher) add(i, old *item) {
	b.waiting[i.key] = i
	if old == nil {
		b.queue = append(b.queue, i)
		return
	}
	for n, q := range b.queue {
		if q == old {
			b.queue[n] = i
		}
	}
}

// clear gives back all that waits: the registration is over.
func (b *batcher) clear() {
	b.mu.Lock()
	queue := b.queue
	b.queue, b.waiting = nil, map[messages.PartitionID]*item{}
	b.mu.Unlock()
	for _, i := range queue {
		i.done(nil)
	}
}

func (b *batcher) next() []*item {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := min(len(b.queue), messages.MaxBatchItems)
	if n == 0 {
		b.running = false
		return nil
	}
	items := b.queue[:n:n]
	b.queue = b.queue[n:]
	for _, i := range items {
		delete(b.waiting, i.key)
	}
	return items
}

func (b *batcher) run() {
	pauses := backoff{first: 50 * time.Millisecond, limit: time.Second}
	for {
		items := b.next()
		if items == nil {
			return
		}
		if unanswered := b.send(items); len(unanswered) > 0 {
			again := b.giveBack(unanswered)
			if again && !pauses.wait(b.s.ctx) {
				b.clear()
			}
			continue
		}
		pauses.reset()
	}
}

// send asks once and returns the items that the answer leaves out.
func (b *batcher) send(items []*item) []*item {
	epoch := b.s.registration().epoch
	req, resp := b.pack(&pb.IsrRequest{Broker: string(b.s.id), BrokerEpoch: uint64(epoch)}, items)
	if err := b.s.ask(b.s.ctx, registerTimeout, b.verb, req, resp); err != nil {
		if messages.CodeOf(err) == messages.CodeStaleBrokerEpoch {
			b.s.kick()
		}
		b.s.log.Debug().Err(err).Str("verb", string(b.verb)).Msg("no answer")
		return items
	}
	results := make(map[messages.PartitionID]*pb.IsrResult, len(items))
	for _, r := range resp.GetResults() {
		if topic, err := messages.ParseTopicID(r.GetTopicId()); err == nil {
			results[messages.PartitionID{Topic: topic, Index: r.GetPartition()}] = r
		}
	}
	var left []*item
	for _, i := range items {
		r := results[i.key]
		if e := messages.ErrorFromProto(r.GetError()); r == nil || b.retry && e != nil && e.Retryable() && e.Code != messages.CodeNotLeader {
			left = append(left, i)
			continue
		}
		i.done(r)
	}
	return left
}

// giveBack returns items without an answer to who submitted them, or to the queue; then it reports true.
func (b *batcher) giveBack(items []*item) bool {
	if !b.retry || b.s.ctx.Err() != nil {
		for _, i := range items {
			i.done(nil)
		}
		return false
	}
	b.mu.Lock()
	var replaced []*item
	for _, i := range items {
		if b.waiting[i.key] != nil {
			replaced = append(replaced, i)
			continue
		}
		b.add(i, nil)
	}
	b.mu.Unlock()
	for _, i := range replaced {
		i.done(nil)
	}
	return true
}

// remover confirms removals until the controller has taken them.
type remover struct {
	s       *session
	mu      sync.Mutex
	topics  map[messages.TopicID]bool
	running bool
}

func newRemover(s *session) *remover { return &remover{s: s, topics: map[messages.TopicID]bool{}} }

// confirmRemoved says that nothing of a topic id is left here.
func (s *session) confirmRemoved(t messages.TopicID) {
	r := s.removals
	r.mu.Lock()
	defer r.mu.Unlock()
	r.topics[t] = true
	if !r.running {
		r.running = true
		go r.run()
	}
}

func (r *remover) next() []messages.TopicID {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []messages.TopicID
	for t := range r.topics {
		if len(out) == messages.MaxRemovedTopics {
			break
		}
		out = append(out, t)
	}
	r.running = len(out) > 0
	return out
}

func (r *remover) run() {
	pauses := backoff{first: 50 * time.Millisecond, limit: time.Second}
	for {
		topics := r.next()
		if len(topics) == 0 {
			return
		}
		req := &pb.RemovedRequest{Broker: string(r.s.id), BrokerEpoch: uint64(r.s.registration().epoch)}
		for _, t := range topics {
			req.TopicIds = append(req.TopicIds, t.Bytes())
		}
		if err := r.s.ask(r.s.ctx, registerTimeout, messages.VerbRemoved, req, &pb.RemovedResponse{}); err != nil {
			if !pauses.wait(r.s.ctx) {
				r.mu.Lock()
				r.running = false
				r.mu.Unlock()
				return
			}
			continue
		}
		pauses.reset()
		r.mu.Lock()
		for _, t := range topics {
			delete(r.topics, t)
		}
		r.mu.Unlock()
	}
}
