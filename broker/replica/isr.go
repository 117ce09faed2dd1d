package replica

import (
	"slices"
	"time"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// Pauses around proposals.
const (
	proposalRetryMin = 50 * time.Millisecond
	proposalRetryMax = 2 * time.Second
	refusedPause     = 500 * time.Millisecond // before a member is proposed again that the controller refused; doubled each time
	refusedPauseMax  = 8 * time.Second
	maxLimpShift     = 3 // a limping follower waits for at most 2^3 times the lag; a stay that long forgives
)

// proposal is the one ISR change that is under way. Until its fate is known its additions count for the mark and its
// removals do not.
type proposal struct {
	id       uint64
	epoch    messages.PartitionEpoch // the committed state it builds on
	members  []messages.BrokerID
	inFlight bool // the newest copy is unanswered
	// renew: it was refused, but another copy may not be: one that comes late, or the same one at another controller, which
	// has succeeded the one that refused. What is sent instead adds nobody and asks for a new partition epoch, after which no
	// copy can be accepted; until then the additions go on counting.
	renew   bool
	retryAt time.Duration
	pause   time.Duration
}

// maximalISR is the committed ISR and all whose addition may have been accepted.
func (r *Replica) maximalISR() []messages.BrokerID {
	p := r.leading.proposal
	if p == nil {
		return r.isr
	}
	out := slices.Clone(r.isr)
	for _, b := range p.members {
		if !slices.Contains(out, b) {
			out = append(out, b)
		}
	}
	return out
}

// considerISR proposes a change if one is due and none is under way, and repeats one that was not answered.
func (r *Replica) considerISR(now time.Duration) {
	if p := r.leading.proposal; p != nil {
		if !p.inFlight && now >= p.retryAt {
			r.send(p)
		}
		return
	}
	members, joins := []messages.BrokerID{r.cfg.Self}, false
	for _, b := range r.replicas {
		f := r.leading.followers[b]
		if f == nil {
			continue
		}
		in := slices.Contains(r.isr, b)
		switch {
		case in && r.lagging(now, f): // leaves
		case in && f.brokerEpoch == 0:
			return // a member is proposed under its registration, which is known with its first fetch; within the lag it comes
		case in:
			members = append(members, b)
		case r.mayJoin(now, f) && !(joins && r.leading.oneByOne):
			members, joins = append(members, b), true
		}
	}
	if sameSet(members, r.isr) {
		return
	}
	r.proposals++
	p := &proposal{id: r.proposals, epoch: r.epoch, members: members, pause: proposalRetryMin}
	r.leading.proposal = p
	r.send(p)
}

// lagging: not caught up for the whole lag. A follower that has everything is not lagging, however long ago it said so.
func (r *Replica) lagging(now time.Duration, f *progress) bool {
	return f.end < r.durable && now-f.caughtUp > r.cfg.ReplicaLag
}

// mayJoin: it holds everything that is committed and everything from before this epoch, and it has lately had all that
// the leader had. The last matters while the mark is frozen: whoever only reached the old mark would soon drop out again.
func (r *Replica) mayJoin(now time.Duration, f *progress) bool {
	return !r.limping(now, f) && f.end >= r.mark && f.end >= r.leading.epochStart && f.everCaughtUp && now-f.caughtUp <= r.cfg.ReplicaLag &&
		now >= f.refusedUntil
}

// limping: it has left the ISR for lagging more than once lately. It waits for longer each time until it joins again, so that a
// disk at the edge of the lag does not move the ISR for ever. Where members are wanted, nobody waits.
func (r *Replica) limping(now time.Duration, f *progress) bool {
	if f.drops < 2 || len(r.isr) < r.minISR {
		return false
	}
	return now-f.droppedAt < r.cfg.ReplicaLag<<min(f.drops-2, maxLimpShift)
}

// dropped notes that a follower has left the ISR for lagging.
func (r *Replica) dropped(now time.Duration, f *progress) {
	if now-f.joinedAt > r.cfg.ReplicaLag<<maxLimpShift {
		f.drops = 0 // it was well for long
	}
	f.drops++
	f.droppedAt = now
}

func (r *Replica) send(p *proposal) {
	p.inFlight, p.retryAt = true, 0
	body := &pb.IsrProposal{TopicId: r.cfg.Partition.Topic.Bytes(), Partition: r.cfg.Partition.Index,
		LeaderEpoch: int64(r.leaderEpoch), PartitionEpoch: int64(p.epoch), HighWatermark: int64(r.mark), Renew: p.renew}
	for _, b := range p.members {
		if p.renew && !slices.Contains(r.isr, b) {
			continue
		}
		epoch := r.brokerEpoch
		if f := r.leading.followers[b]; f != nil {
			epoch = f.brokerEpoch
		}
		body.Isr = append(body.Isr, &pb.IsrMember{Broker: string(b), BrokerEpoch: uint64(epoch)})
	}
	r.do(Propose{ID: p.id, Proposal: body})
}

// ProposalAnswer takes the controller's answer to a Propose: exactly one for each. result nil means that none came, or
// that the answer left this partition out, so that the outcome is not known. The state that comes with an answer is taken
// over like any assignment; a later partition epoch ends the proposal, whatever the answer says.
func (r *Replica) ProposalAnswer(now time.Duration, id uint64, result *pb.IsrResult) []Action {
	r.begin()
	if result.GetCurrent() != nil {
		r.assign(now, result.GetCurrent())
	}
	p := r.leading.proposal
	if !r.serving() || p == nil || p.id != id {
		return r.take()
	}
	p.inFlight = false
	if result == nil {
		r.retry(now, p)
		return r.take()
	}
	switch messages.Code(result.GetError().GetCode()) {
	case messages.CodeIneligibleReplica:
		r.refused(now, p)
	case "", messages.CodeStalePartitionEpoch, messages.CodeFencedLeaderEpoch, messages.CodeNotLeader, messages.CodeInvalidRequest,
		messages.CodeUnknownTopicID, messages.CodeUnknownPartition:
		// What this builds on is not the committed state any more; all stays as it is until the committed one is here.
		r.do(RequestSnapshot{})
		r.retry(now, p)
	default:
		r.retry(now, p)
	}
	r.advance()
	return r.take()
}

// refused takes a proposal back that the controller has refused for one of its members. Of several that were to join it is
// not known which one is to blame: they are proposed one by one then, so that none keeps out the others. That takes a renewal:
// a refusal is the word of one controller about one copy.
func (r *Replica) refused(now time.Duration, p *proposal) {
	if p.renew {
		r.retry(now, p)
		return
	}
	var joining []*progress
	for _, b := range p.members {
		if f := r.leading.followers[b]; f != nil && !slices.Contains(r.isr, b) {
			joining = append(joining, f)
		}
	}
	r.leading.oneByOne = r.leading.oneByOne || len(joining) > 1
	if len(joining) == 1 {
		f := joining[0]
		f.refusedUntil = now + min(refusedPause<<min(f.refusals, 10), refusedPauseMax)
		f.refusals++
	}
	p.renew = true
	r.send(p)
}

func (r *Replica) retry(now time.Duration, p *proposal) {
	p.retryAt = now + p.pause
	p.pause = min(2*p.pause, proposalRetryMax)
}

// isrCommitted follows a later partition epoch in the same leader epoch. Copies of older proposals can not be accepted
// any more, so the committed ISR is all that counts.
func (r *Replica) isrCommitted(now time.Duration, before []messages.BrokerID) {
	proposed := r.leading.proposal
	r.leading.proposal = nil
	if !sameSet(before, r.isr) {
		r.leading.oneByOne = false
	}
	for _, b := range r.replicas {
		f := r.leading.followers[b]
		switch {
		case b == r.cfg.Self:
		case f == nil:
			r.leading.followers[b] = &progress{end: -1, caughtUp: now, joinedAt: now, everCaughtUp: slices.Contains(r.isr, b)}
		case slices.Contains(r.isr, b) && !slices.Contains(before, b):
			f.caughtUp, f.everCaughtUp, f.refusals, f.joinedAt = max(now, f.caughtUp), true, 0, now
		case slices.Contains(before, b) && !slices.Contains(r.isr, b) && proposed != nil && !slices.Contains(proposed.members, b):
			r.dropped(now, f)
		}
	}
	for b := range r.leading.followers {
		if !slices.Contains(r.replicas, b) {
			delete(r.leading.followers, b)
		}
	}
	r.advance()
	r.considerISR(now)
}

// sameSet compares two lists of distinct brokers.
func sameSet(a, b []messages.BrokerID) bool {
	if len(a) != len(b) {
		return false
	}
	for _, x := range a {
		if !slices.Contains(b, x) {
			return false
		}
	}
	return true
}
