package broker

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// fetchSession is the leader's end of a session: all partitions of one follower broker. It remembers the positions that
// the follower has stated. A request is held back until there is something to say about any of them; the next request of
// the follower ends the wait of the one before. A position that was answered with records, an error or a divergence is
// used up: the follower states the next one.
type fetchSession struct {
	srv      *Server
	follower messages.BrokerID
	requests chan *nats.Msg
	signal   chan struct{}

	mu    sync.Mutex
	dirty []*watch // in the order in which they became so

	// of the goroutine
	id      uint64
	round   uint64
	epoch   messages.BrokerEpoch
	watches map[messages.PartitionID]*watch
	parked  *parkedFetch
}

// watch is one position of a follower.
type watch struct {
	session *fetchSession
	p       *partition
	pos     *pb.FetchPosition
	mark    messages.Offset // last told
	dirty   bool            // on the session's list, guarded by its mu
	urgent  bool            // there may be records, not only a moved mark
}

// parkedFetch is a request that waits.
type parkedFetch struct {
	reply    string
	maxBytes int
	until    time.Time
}

// Waits of a leader's end of a session.
const (
	longestPark  = 5 * time.Second
	markDelay    = 20 * time.Millisecond // before a follower is told of a moved mark that no records carry
	sessionIdle  = 10 * time.Minute
	fetchBacklog = 16
)

// onReplicaFetch gives a follower's request to its session.
func (s *Server) onReplicaFetch(m *nats.Msg) {
	_, follower, ok := s.s.subjects.ParseReplication(m.Subject)
	if !ok || m.Reply == "" || follower.Validate() != nil {
		return
	}
	s.mu.Lock()
	f := s.sessions[follower]
	if f == nil && !s.peers[follower] {
		s.mu.Unlock()
		s.respond(m.Reply, &pb.ReplicaFetchResponse{Error: messages.Errorf(messages.CodeUnknownLeaderEpoch,
			"%s is not known as a replica of anything here yet", follower).Proto()})
		return
	}
	if f == nil {
		f = &fetchSession{srv: s, follower: follower, requests: make(chan *nats.Msg, fetchBacklog), signal: make(chan struct{}, 1),
			watches: map[messages.PartitionID]*watch{}}
		s.sessions[follower] = f
		s.goDo(f.run)
	}
	s.mu.Unlock()
	select {
	case f.requests <- m:
	default: // a follower that sends this many without waiting gets no answer to some
	}
}

func (f *fetchSession) run() {
	timer := time.NewTimer(sessionIdle)
	defer timer.Stop()
	for {
		select {
		case <-f.srv.ctx.Done():
			return
		case m := <-f.requests:
			f.take(m)
		case <-f.signal:
		case <-timer.C:
		}
		timer.Reset(f.answer())
	}
}

// take reads a request and parks it.
func (f *fetchSession) take(m *nats.Msg) {
	req := &pb.ReplicaFetchRequest{}
	if err := proto.Unmarshal(m.Data, req); err != nil || req.GetFollower() != string(f.follower) {
		f.srv.respond(m.Reply, &pb.ReplicaFetchResponse{Error: unreadable("replica fetch").Proto()})
		return
	}
	switch {
	case req.GetSession() == 0:
		f.begin(req)
	case req.GetSession() != f.id || req.GetRound() != f.round+1 || req.GetBrokerEpoch() != uint64(f.epoch):
		f.srv.respond(m.Reply, &pb.ReplicaFetchResponse{Error: messages.Errorf(messages.CodeUnknownSession,
			"session %d round %d is not the next", req.GetSession(), req.GetRound()).Proto()})
		return
	}
	f.release()
	f.round = req.GetRound()
	wait := min(time.Duration(req.GetMaxWaitMs())*time.Millisecond, longestPark)
	if req.GetSession() == 0 {
		wait = 0 // the follower needs the session's id
	}
	f.parked = &parkedFetch{reply: m.Reply, maxBytes: min(max(int(req.GetMaxBytes()), 1), f.srv.payload), until: time.Now().Add(wait)}
	for _, r := range req.GetForget() {
		if t, err := messages.ParseTopicID(r.GetTopicId()); err == nil {
			f.unwatch(messages.PartitionID{Topic: t, Index: r.GetPartition()})
		}
	}
	for _, pos := range req.GetPositions() {
		f.watch(pos)
	}
}

// begin opens a new session. An older one of this follower has ended.
func (f *fetchSession) begin(req *pb.ReplicaFetchRequest) {
	for id := range f.watches {
		f.unwatch(id)
	}
	f.mu.Lock()
	f.dirty = nil
	f.mu.Unlock()
	f.id = rand.Uint64() | 1 // 0 asks for a new one
	f.epoch = messages.BrokerEpoch(req.GetBrokerEpoch())
}

// release answers the request that waits, if any, with nothing.
func (f *fetchSession) release() {
	if f.parked != nil {
		f.srv.respond(f.parked.reply, &pb.ReplicaFetchResponse{Session: f.id})
		f.parked = nil
	}
}

func (f *fetchSession) watch(pos *pb.FetchPosition) {
	topic, err := messages.ParseTopicID(pos.GetTopicId())
	if err != nil {
		return
	}
	id := messages.PartitionID{Topic: topic, Index: pos.GetPartition()}
	f.unwatch(id)
	w := &watch{session: f, p: f.srv.partition(id), pos: pos, mark: -1}
	f.watches[id] = w
	if w.p != nil {
		w.p.mu.Lock()
		w.p.watches = append(w.p.watches, w)
		w.p.mu.Unlock()
	}
	f.mark(w, true)
}

func (f *fetchSession) unwatch(id messages.PartitionID) {
	w := f.watches[id]
	if w == nil {
		return
	}
	delete(f.watches, id)
	if w.p == nil {
		return
	}
	w.p.mu.Lock()
	for i, x := range w.p.watches {
		if x == w {
			n := len(w.p.watches) - 1
			w.p.watches[i] = w.p.watches[n]
			w.p.watches[n] = nil
			w.p.watches = w.p.watches[:n]
			break
		}
	}
	w.p.mu.Unlock()
	f.mu.Lock()
	w.dirty = true // never put on the list again
	f.mu.Unlock()
}

// wakeFollowers tells the sessions of the followers that there may be something to say. The caller holds mu.
func (p *partition) wakeFollowers(urgent bool) {
	for _, w := range p.watches {
		w.session.mark(w, urgent)
	}
}

// wakeOutsiders looks again at followers outside of the ISR. One that waits for records that nobody writes says nothing new,
// and yet must go on counting as caught up until it is let in. The caller holds mu.
func (p *partition) wakeOutsiders() {
	if p.serving == nil {
		return
	}
	for _, w := range p.watches {
		if !p.machine.InSync(w.session.follower) {
			w.session.mark(w, true)
		}
	}
}

// mark puts a watch on the list of its session.
func (f *fetchSession) mark(w *watch, urgent bool) {
	f.mu.Lock()
	news := !w.dirty || urgent && !w.urgent
	if !w.dirty {
		w.dirty = true
		f.dirty = append(f.dirty, w)
	}
	w.urgent = w.urgent || urgent
	f.mu.Unlock()
	if news {
		notify(f.signal)
	}
}

// answer says to the parked request what there is to say, and returns after what time to look again. A moved mark alone
// waits for markDelay: most often records come by then, and carry it.
func (f *fetchSession) answer() time.Duration {
	if f.parked == nil {
		return sessionIdle
	}
	wait := time.Until(f.parked.until)
	if wait > 0 {
		if urgent, any := f.news(); !urgent {
			return f.linger(wait, any)
		}
	}
	resp := f.collect(f.parked.maxBytes, wait <= 0)
	if len(resp.Partitions) == 0 && wait > 0 {
		_, any := f.news()
		return f.linger(wait, any)
	}
	f.srv.respond(f.parked.reply, resp)
	f.parked = nil
	return sessionIdle
}

// news reports whether there may be records, and whether there is anything to say.
func (f *fetchSession) news() (urgent, any bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.dirty {
		urgent = urgent || w.urgent
	}
	return urgent, len(f.dirty) > 0
}

// linger lets the parked request wait on, not longer than markDelay if there is something to say.
func (f *fetchSession) linger(wait time.Duration, any bool) time.Duration {
	if any {
		wait = min(wait, markDelay)
		f.parked.until = time.Now().Add(wait)
	}
	return wait
}

// collect builds an answer from the watches on the list, as far as it has room. Those without room stay on the list, and so
// do those of which only the mark has moved, unless marks are asked for.
func (f *fetchSession) collect(room int, marks bool) *pb.ReplicaFetchResponse {
	resp := &pb.ReplicaFetchResponse{Session: f.id}
	f.mu.Lock()
	list := f.dirty
	f.dirty = nil
	for _, w := range list {
		w.dirty, w.urgent = false, false
	}
	f.mu.Unlock()
	for n, w := range list {
		if f.watches[watchID(w)] != w {
			continue
		}
		if room <= 0 {
			f.putBack(list[n:])
			break
		}
		part, used := f.ask(w, room, len(resp.Partitions) == 0)
		if part == nil {
			continue
		}
		if !marks && part.GetError() == nil && !part.GetDiverging() && len(part.GetBatches()) == 0 {
			f.mark(w, false)
			continue
		}
		w.mark = messages.Offset(part.GetHighWatermark())
		room -= used
		resp.Partitions = append(resp.Partitions, part)
	}
	return resp
}

func watchID(w *watch) messages.PartitionID {
	var id messages.PartitionID
	copy(id.Topic[:], w.pos.GetTopicId())
	id.Index = w.pos.GetPartition()
	return id
}

func (f *fetchSession) putBack(list []*watch) {
	for _, w := range list {
		if f.watches[watchID(w)] == w {
			f.mark(w, true)
		}
	}
}

// partOverhead is about what an answer for one partition takes besides its batches, in bytes.
const partOverhead = 96

// ask asks the machine about one position and reads what it allows. nil if there is nothing to say.
func (f *fetchSession) ask(w *watch, room int, first bool) (*pb.PartitionFetch, int) {
	if w.p == nil {
		f.unwatch(watchID(w))
		return &pb.PartitionFetch{TopicId: w.pos.GetTopicId(), Partition: w.pos.GetPartition(), Error: messages.Errorf(
			messages.CodeUnknownLeaderEpoch, "the partition is not known here yet").Proto()}, partOverhead
	}
	part, from, limit, batches := w.p.fetchedBy(f, w, room)
	if part.GetError() != nil || part.GetDiverging() {
		f.unwatch(watchID(w))
		return part, partOverhead
	}
	if limit > from && batches == nil {
		var err error
		if batches, err = w.p.readForFollower(part, limit, from, room); err != nil {
			f.unwatch(watchID(w))
			part.Error = messages.AsError(err).Proto()
			return part, partOverhead
		}
	}
	size := partOverhead
	for _, b := range batches {
		size += batchSize(b)
	}
	if len(batches) > 0 && size > room && !first {
		f.mark(w, true)
		return nil, 0 // the next answer begins with it
	}
	if len(batches) == 0 && part.GetHighWatermark() == int64(w.mark) {
		return nil, 0
	}
	part.Batches = batches
	if len(batches) > 0 {
		f.unwatch(watchID(w))
	}
	return part, size
}

// fetchedBy asks the machine, and reads from the tail if that reaches back far enough; else batches is nil.
func (p *partition) fetchedBy(f *fetchSession, w *watch, room int) (part *pb.PartitionFetch, from, limit messages.Offset, batches []*pb.StoredBatch) {
	var fx effects
	p.mu.Lock()
	switch {
	case p.machine == nil || p.serving == nil && messages.LeaderEpoch(w.pos.GetLeaderEpoch()) >= p.assignedEpoch():
		part = &pb.PartitionFetch{TopicId: w.pos.GetTopicId(), Partition: w.pos.GetPartition(), Error: messages.Errorf(
			messages.CodeUnknownLeaderEpoch, "the leader does not serve yet").Proto()}
	default:
		ans, actions := p.machine.Fetched(p.srv.now(), f.follower, f.epoch, w.pos)
		part, from, limit = ans.Partition, ans.From, ans.Limit
		p.apply(actions, &fx)
		if limit > from {
			batches, _ = p.tail.read(from, limit, room)
		}
	}
	p.mu.Unlock()
	p.srv.carryOut(&fx)
	return part, from, limit, batches
}

// readForFollower reads from the storage for a follower that is behind.
func (p *partition) readForFollower(part *pb.PartitionFetch, limit, from messages.Offset, room int) ([]*pb.StoredBatch, error) {
	batches, err := p.readStorage(from, room)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.serving == nil || int64(p.leaderEpoch) != part.GetLeaderEpoch() {
		return nil, notLeading(p)
	}
	return below(batches, limit), nil
}
