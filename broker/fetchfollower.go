package broker

import (
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/broker/replica"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// fetcher is the follower's end of a session: all partitions that this broker follows of one leader. One request waits
// at the leader. What an answer brings is written before the next request, which so states durable positions; a
// partition that joins, or ends a pause, meanwhile sends the next request ahead, which ends the wait of the one before.
type fetcher struct {
	srv    *Server
	leader messages.BrokerID
	signal chan struct{}
	lost   atomic.Bool // the connection was: what was in flight will not be answered

	mu      sync.Mutex
	parts   map[*partition]bool
	ready   []*partition        // positions to state
	listed  map[*partition]bool // those on ready
	writing map[*partition]bool // the storage is busy with their last answer
	forget  []*pb.PartitionRef

	// of the goroutine
	session  uint64
	round    uint64
	number   uint64 // of the newest request, over all sessions
	awaited  uint64 // of the request that the next answer belongs to: every request is answered, in order
	inFlight bool
	opening  bool // the request in flight opens a session
	asked    map[messages.PartitionID]statedPosition
	paused   []*partition // had no position to state
	pauses   backoff
	notUntil time.Time // after a failure of the session
	deadline time.Time // of the request in flight
}

// statedPosition is the last position that a partition has stated, and in which request. An answer to an earlier request
// is about an earlier position.
type statedPosition struct {
	pos    *pb.FetchPosition
	number uint64
}

// Waits of a follower's end of a session.
const (
	fetchWait      = 500 * time.Millisecond // at the leader
	fetchGrace     = 2 * time.Second        // beyond which an answer is lost
	positionPause  = 50 * time.Millisecond  // before asking again who had no position to state
	fetchPositions = 8000                   // in one request
)

// fetcherOf returns the fetcher of a leader.
func (s *Server) fetcherOf(leader messages.BrokerID) *fetcher {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.fetchers[leader]
	if f == nil {
		f = &fetcher{srv: s, leader: leader, signal: make(chan struct{}, 1), parts: map[*partition]bool{}, listed: map[*partition]bool{},
			writing: map[*partition]bool{}, asked: map[messages.PartitionID]statedPosition{},
			pauses: backoff{first: 50 * time.Millisecond, limit: time.Second}}
		s.fetchers[leader] = f
		s.goDo(f.run)
	}
	return f
}

// add begins to follow. The caller holds the partition's lock.
func (f *fetcher) add(p *partition) {
	f.mu.Lock()
	f.parts[p] = true
	f.list(p)
	f.mu.Unlock()
	notify(f.signal)
}

// drop ends it. The caller holds the partition's lock.
func (f *fetcher) drop(p *partition) {
	f.mu.Lock()
	delete(f.parts, p)
	delete(f.writing, p)
	f.forget = append(f.forget, &pb.PartitionRef{TopicId: p.id.Topic.Bytes(), Partition: p.id.Index})
	f.mu.Unlock()
	notify(f.signal)
}

// list puts a partition on the ready list. The caller holds mu.
func (f *fetcher) list(p *partition) {
	if !f.listed[p] && f.parts[p] {
		f.listed[p] = true
		f.ready = append(f.ready, p)
	}
}

// settled says that the storage has done what the last answer asked for.
func (f *fetcher) settled(p *partition) {
	f.mu.Lock()
	last := false
	if f.writing[p] {
		delete(f.writing, p)
		f.list(p)
		last = len(f.writing) == 0
	}
	f.mu.Unlock()
	if last {
		notify(f.signal)
	}
}

func (f *fetcher) run() {
	inbox := f.srv.nc.NewInbox()
	answers := make(chan *nats.Msg, 16)
	sub, err := f.srv.nc.ChanSubscribe(inbox+".*", answers)
	if err != nil {
		f.srv.log.Error().Err(err).Str("leader", string(f.leader)).Msg("cannot subscribe to answers of a leader")
		return
	}
	defer func() { _ = sub.Unsubscribe() }()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-f.srv.ctx.Done():
			return
		case <-f.signal:
		case <-timer.C:
		case m := <-answers:
			if n, err := strconv.ParseUint(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:], 10, 64); err == nil {
				f.onAnswer(m, n)
			}
		}
		f.look(inbox)
		timer.Reset(f.next())
	}
}

// look gives up what will not be answered any more, and sends what is due.
func (f *fetcher) look(inbox string) {
	if lost := f.lost.Swap(false); f.inFlight && (lost || !time.Now().Before(f.deadline)) {
		f.reset("no answer")
	}
	f.resume()
	if f.due() {
		f.send(inbox)
	}
}

// reconnected tells the fetchers that what they have asked before a reconnect will not be answered.
func (s *Server) reconnected() {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, f := range s.fetchers {
		f.lost.Store(true)
		notify(f.signal)
	}
}

// next returns after what time to look again if nothing happens.
func (f *fetcher) next() time.Duration {
	switch {
	case len(f.paused) > 0:
		return positionPause
	case f.inFlight:
		return max(time.Until(f.deadline), time.Millisecond)
	case time.Now().Before(f.notUntil):
		return max(time.Until(f.notUntil), time.Millisecond)
	}
	return time.Minute
}

// resume lists those again that had no position to state.
func (f *fetcher) resume() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.paused {
		f.list(p)
	}
	f.paused = f.paused[:0]
}

// due reports whether to send a request now.
func (f *fetcher) due() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case len(f.writing) > 0 || f.inFlight && f.opening || time.Now().Before(f.notUntil):
		return false
	case f.session == 0 || f.inFlight:
		return len(f.ready) > 0
	}
	return len(f.parts) > 0
}

// send states the positions that changed.
func (f *fetcher) send(inbox string) {
	req := &pb.ReplicaFetchRequest{Follower: string(f.srv.id), BrokerEpoch: uint64(f.srv.brokerEpoch()), Session: f.session,
		MaxBytes: uint32(f.srv.payload), MaxWaitMs: uint32(fetchWait / time.Millisecond)}
	f.mu.Lock()
	n := min(len(f.ready), fetchPositions)
	list := f.ready[:n:n]
	f.ready = f.ready[n:]
	for _, p := range list {
		delete(f.listed, p)
	}
	req.Forget, f.forget = f.forget, nil
	f.mu.Unlock()
	for _, p := range list {
		p.mu.Lock()
		pos, ok := p.machine.Position(f.srv.now())
		mine := p.fetcher == f
		p.mu.Unlock()
		switch {
		case ok && mine:
			f.asked[p.id] = statedPosition{pos, f.number + 1}
			req.Positions = append(req.Positions, pos)
		case mine:
			f.paused = append(f.paused, p)
		}
	}
	if len(req.Positions) == 0 && (f.session == 0 || f.inFlight) {
		return
	}
	if f.session == 0 {
		f.opening, f.round = true, 0
	} else {
		f.round++
	}
	req.Round = f.round
	f.number++
	data, err := proto.Marshal(req)
	if err == nil {
		err = f.srv.nc.PublishRequest(f.srv.s.subjects.Replication(f.leader, f.srv.id), inbox+"."+strconv.FormatUint(f.number, 10), data)
	}
	f.inFlight, f.deadline = true, time.Now().Add(fetchWait+fetchGrace)
	if err != nil {
		f.reset(err.Error())
	}
}

// reset ends the session: all positions are stated anew, after a pause.
func (f *fetcher) reset(why string) {
	f.srv.log.Debug().Str("leader", string(f.leader)).Str("why", why).Msg("fetch session has ended")
	f.session, f.inFlight, f.opening = 0, false, false
	f.notUntil = time.Now().Add(f.pauses.pause())
	clear(f.asked)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forget = nil
	for p := range f.parts {
		if !f.writing[p] {
			f.list(p)
		}
	}
}

// onAnswer takes the answer to a request. That to the request before the newest may still bring records.
func (f *fetcher) onAnswer(m *nats.Msg, number uint64) {
	newest := number == f.number
	resp := &pb.ReplicaFetchResponse{}
	switch {
	case len(m.Data) == 0 && m.Header.Get("Status") != "":
		if newest && f.inFlight {
			f.reset("nobody listens")
		}
		return
	case proto.Unmarshal(m.Data, resp) != nil || resp.GetError() != nil:
		if newest && f.inFlight {
			f.reset(resp.GetError().GetMessage())
		}
		return
	case newest && f.opening:
		f.session, f.opening = resp.GetSession(), false
	case resp.GetSession() != f.session:
		return
	case number > f.awaited:
		// The leader takes the positions that it has answered for used up, and waits for others.
		f.reset("an answer was lost")
		return
	}
	f.awaited = max(f.awaited, number+1)
	if newest {
		f.inFlight = false
		f.pauses.reset()
	}
	for _, part := range resp.GetPartitions() {
		topic, err := messages.ParseTopicID(part.GetTopicId())
		if err != nil {
			continue
		}
		id := messages.PartitionID{Topic: topic, Index: part.GetPartition()}
		if stated, ok := f.asked[id]; ok && stated.number <= number {
			f.give(f.srv.partition(id), stated.pos, part)
		}
	}
}

// give hands the machine the leader's answer to a position.
func (f *fetcher) give(p *partition, pos *pb.FetchPosition, part *pb.PartitionFetch) {
	if p == nil {
		return
	}
	again := part.GetError() != nil || part.GetDiverging() || len(part.GetBatches()) > 0
	if again {
		delete(f.asked, p.id)
	}
	var fx effects
	p.mu.Lock()
	if p.fetcher == f {
		actions := p.machine.FetchResult(f.srv.now(), pos, part)
		f.mu.Lock()
		switch {
		case changesLog(actions):
			f.writing[p] = true // before the writer can take it
		case again:
			f.list(p)
		}
		f.mu.Unlock()
		p.apply(actions, &fx)
		p.settle(&fx)
	}
	p.mu.Unlock()
	f.srv.carryOut(&fx)
}

func changesLog(actions []replica.Action) bool {
	for _, a := range actions {
		switch a := a.(type) {
		case replica.Write:
			if len(a.Batches) > 0 {
				return true
			}
		case replica.Truncate:
			return true
		}
	}
	return false
}
