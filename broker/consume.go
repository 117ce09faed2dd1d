package broker

import (
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/broker/replica"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// Bounds of consumers' reads.
const (
	readConcurrency = 4    // reads of the storage at once
	maxReads        = 1024 // reads that wait for their turn; more are refused with BUSY
	maxFetchWait    = 30 * time.Second
	defaultFetch    = 1 << 20 // bytes, if the request does not say
)

// waitingFetch is a consumer that waits for records.
type waitingFetch struct {
	reply    string
	epoch    messages.LeaderEpoch
	offset   messages.Offset
	maxBytes int
	deadline time.Duration
}

// readJob is a fetch that has to go to the storage.
type readJob struct {
	p     *partition
	fetch *waitingFetch
}

// fetch answers a consumer with records below the high-water mark, or lets it wait for some.
func (s *Server) fetch(sub *subscription, m *nats.Msg) {
	req := &pb.FetchRequest{}
	if err := proto.Unmarshal(m.Data, req); err != nil {
		s.respond(m.Reply, &pb.FetchResponse{Error: unreadable("fetch request").Proto()})
		return
	}
	f := &waitingFetch{reply: m.Reply, epoch: sub.epoch, offset: messages.Offset(req.GetOffset()), maxBytes: int(req.GetMaxBytes()),
		deadline: s.now() + min(time.Duration(req.GetMaxWaitMs())*time.Millisecond, maxFetchWait)}
	if f.maxBytes <= 0 {
		f.maxBytes = defaultFetch
	}
	f.maxBytes = min(f.maxBytes, s.payload)
	var fx effects
	p := sub.p
	p.mu.Lock()
	if err := p.mayServe(sub.epoch, req.GetTopicId()); err != nil {
		fx.reply(m.Reply, &pb.FetchResponse{Error: err.Proto()})
	} else if req.GetStrict() && !p.leased() {
		fx.reply(m.Reply, &pb.FetchResponse{Error: noLease().Proto()})
	} else if err := p.reaches(req); err != nil {
		fx.reply(m.Reply, p.fetchError(err))
	} else if f.offset == boundsOnly {
		fx.reply(m.Reply, p.fetched(nil, p.machine.HighWatermark()))
	} else if !p.tryFetch(f, &fx) {
		p.park(f, req.GetMaxWaitMs() == 0, &fx)
	}
	p.mu.Unlock()
	s.carryOut(&fx)
}

// boundsOnly is the offset of a fetch that asks for the log's start and mark only.
const boundsOnly = messages.Offset(-1)

// reaches refuses a strict read while the mark has not reached the log's end at the start of this leader's epoch: below it
// may be records that the leader before has acknowledged. The caller holds mu.
func (p *partition) reaches(req *pb.FetchRequest) *messages.Error {
	if !req.GetStrict() || p.machine.HighWatermark() >= p.machine.Status().EpochStart {
		return nil
	}
	return busy("the mark has not reached the start of the leader's epoch yet")
}

// tryFetch answers a fetch if there is something to answer. The caller holds mu.
func (p *partition) tryFetch(f *waitingFetch, fx *effects) bool {
	limit, err := p.machine.Consume(f.offset)
	switch {
	case err != nil:
		fx.reply(f.reply, p.fetchError(err))
		return true
	case limit <= f.offset:
		return false
	}
	if batches, ok := p.tail.read(f.offset, limit, f.maxBytes); ok {
		fx.reply(f.reply, p.fetched(batches, limit))
		return true
	}
	fx.do(func() { p.srv.readLater(readJob{p, f}) })
	return true
}

func (p *partition) fetched(batches []*pb.StoredBatch, mark messages.Offset) *pb.FetchResponse {
	return &pb.FetchResponse{LogStart: int64(p.machine.Status().LogStart), HighWatermark: int64(mark), Batches: batches}
}

func (p *partition) fetchError(err *messages.Error) *pb.FetchResponse {
	r := p.fetched(nil, p.machine.HighWatermark())
	r.Error = err.Proto()
	return r
}

// park lets a fetch wait for the mark to move, or answers it with nothing.
func (p *partition) park(f *waitingFetch, now bool, fx *effects) {
	switch {
	case now:
		fx.reply(f.reply, p.fetched(nil, p.machine.HighWatermark()))
	case p.srv.fetchesWaiting.Add(1) > int64(p.srv.cfg.limits.Waiting):
		p.srv.fetchesWaiting.Add(-1)
		fx.reply(f.reply, p.fetchError(busy("too many fetches wait for records")))
	default:
		p.waiting = append(p.waiting, f)
	}
}

func busy(why string) *messages.Error {
	e := messages.Errorf(messages.CodeBusy, "%s", why)
	e.RetryAfterMs = 100
	return e
}

// wakeConsumers answers those that wait for offsets below the mark. The caller holds mu.
func (p *partition) wakeConsumers(mark messages.Offset, fx *effects) {
	if len(p.waiting) == 0 {
		return
	}
	kept := p.waiting[:0]
	for _, f := range p.waiting {
		if f.offset < mark && p.tryFetch(f, fx) {
			p.srv.fetchesWaiting.Add(-1)
			continue
		}
		kept = append(kept, f)
	}
	clear(p.waiting[len(kept):])
	p.waiting = kept
}

// expireConsumers answers those whose time is over with nothing. The caller holds mu.
func (p *partition) expireConsumers(fx *effects) {
	now := p.srv.now()
	kept := p.waiting[:0]
	for _, f := range p.waiting {
		if now < f.deadline {
			kept = append(kept, f)
			continue
		}
		p.srv.fetchesWaiting.Add(-1)
		fx.reply(f.reply, p.fetched(nil, p.machine.HighWatermark()))
	}
	clear(p.waiting[len(kept):])
	p.waiting = kept
}

func (s *Server) readLater(j readJob) {
	select {
	case s.reads <- j:
	default:
		s.respond(j.fetch.reply, &pb.FetchResponse{Error: busy("too many reads wait for the storage").Proto()})
	}
}

func (s *Server) readLoop() {
	for {
		select {
		case <-s.ctx.Done():
			return
		case j := <-s.reads:
			s.respond(j.fetch.reply, j.p.readForConsumer(j.fetch))
		}
	}
}

// readForConsumer reads from the storage, below the mark.
func (p *partition) readForConsumer(f *waitingFetch) *pb.FetchResponse {
	batches, err := p.readStorage(f.offset, f.maxBytes)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.serving == nil || p.leaderEpoch != f.epoch {
		// What was read may have been truncated since: only a leader's log is sure to be as it was.
		return &pb.FetchResponse{Error: notLeading(p).Proto()}
	}
	if err != nil {
		return p.fetchError(messages.AsError(err))
	}
	mark := p.machine.HighWatermark()
	return p.fetched(below(batches, mark), mark)
}

// readStorage reads batches and checks each against its checksum.
func (p *partition) readStorage(from messages.Offset, maxBytes int) ([]*pb.StoredBatch, error) {
	batches, err := p.srv.storage.Read(p.id, from, maxBytes)
	for _, b := range batches {
		if err == nil {
			if bad := replica.Verify(b); bad != nil {
				err = bad
			}
		}
	}
	if err != nil {
		var coded *messages.Error
		if !errors.As(err, &coded) {
			p.srv.storageBroke(err)
		}
		p.srv.log.Error().Err(err).Stringer("partition", p.id).Int64("offset", int64(from)).Msg("cannot read")
		return nil, messages.AsError(err)
	}
	return batches, nil
}

// below returns the batches that end at or below a limit.
func below(batches []*pb.StoredBatch, limit messages.Offset) []*pb.StoredBatch {
	for i, b := range batches {
		if batchEnd(b) > limit {
			return batches[:i]
		}
	}
	return batches
}
