package replica

import (
	"slices"
	"testing"
	"time"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

const lag = 10 * time.Second

func (m *member) tick(d time.Duration) {
	m.now += d
	m.run(m.Tick(m.now))
}

// answer gives the controller's answer to the last proposal.
func (m *member) answer(p Propose, current *pb.Assignment, code messages.Code) {
	res := &pb.IsrResult{Current: current}
	if code != "" {
		res.Error = messages.Errorf(code, "refused").Proto()
	}
	m.run(m.ProposalAnswer(m.now, p.ID, res))
}

// proposed returns the one proposal that gathered.
func (m *member) proposed(want ...string) Propose {
	m.t.Helper()
	p := take[Propose](m)
	if len(p) != 1 || !slices.Equal(members(p[0]), want) {
		m.t.Fatalf("%s proposes %v, want one of %v", m.cfg.Self, p, want)
	}
	return p[0]
}

func TestK88FrozenMarkMovesOnlyWhenTheAdditionIsCommitted(t *testing.T) {
	a, b, _ := trio(t)
	assignAll(assignment("a", 1, 1, "a"), a, b)
	a.produce(1, pb.Acks_ACKS_LEADER, 5)
	a.produce(2, pb.Acks_ACKS_ALL, 5)
	if f := take[Fail](a); len(f) != 1 || f[0].Err.Code != messages.CodeNotEnoughReplicas || a.end != 5 {
		t.Fatalf("below min ISR: %+v, end %d", f, a.end)
	}
	syncUp(b, a)
	a.wantMark(0)
	a.answer(a.proposed("a", "b"), assignment("a", 1, 2, "a", "b"), "")
	a.wantMark(5)
}

func TestK89RefusedFollowerHoldsNoMarkAndIsNotProposedAtOnce(t *testing.T) {
	a, b, c := trio(t)
	assignAll(assignment("a", 1, 1, "a", "b"), a, b, c)
	a.produce(1, pb.Acks_ACKS_ALL, 5)
	syncUp(c, a)
	fetch(b, a)
	a.answer(a.proposed("a", "b", "c"), nil, messages.CodeIneligibleReplica)
	fetch(b, a)
	a.answer(a.proposed("a", "b"), assignment("a", 1, 2, "a", "b"), "")
	a.wantMark(5)
	a.produce(2, pb.Acks_ACKS_ALL, 5)
	fetch(b, a)
	fetch(b, a)
	a.wantMark(10)
	if len(take[Propose](a)) != 0 {
		t.Fatal("proposed again at once")
	}
	syncUp(c, a)
	a.tick(refusedPause)
	a.proposed("a", "b", "c")
}

func TestK90FollowerBelowTheEpochStartDoesNotJoin(t *testing.T) {
	a := newMember(t, "a")
	a.fill(1, 5)
	a.fill(2, 5)
	a.log.mark = 5
	a.open("a")
	a.assign(assignment("a", 3, 3, "a"))
	at := func(epoch, offset int64) []Action {
		_, acts := a.Fetched(a.now, "b", 10, &pb.FetchPosition{LeaderEpoch: 3, LastEpoch: epoch, Offset: offset})
		return a.run(acts)
	}
	at(1, 5)
	if len(take[Propose](a)) != 0 {
		t.Fatal("a follower at the mark but below the epoch's start is to join")
	}
	at(2, 10)
	a.proposed("a", "b")
}

func TestK91FetchOfAnOlderRegistrationChangesNothing(t *testing.T) {
	a, _, _ := trio(t)
	a.assign(assignment("a", 1, 1, "a", "b"))
	a.produce(1, pb.Acks_ACKS_ALL, 5)
	at := func(epoch messages.BrokerEpoch, offset int64) *pb.PartitionFetch {
		ans, acts := a.Fetched(a.now, "b", epoch, &pb.FetchPosition{LeaderEpoch: 1, LastEpoch: 1, Offset: offset})
		a.run(acts)
		return ans.Partition
	}
	at(20, 2)
	a.wantMark(2)
	wantCode(t, at(19, 5).Error, messages.CodeStaleBrokerEpoch)
	a.wantMark(2)
	// A later registration starts anew: what the earlier one held counts no more.
	a.produce(2, pb.Acks_ACKS_ALL, 5)
	if at(21, 2); a.leading.followers["b"].end != 2 {
		t.Fatal("the earlier life's position is kept")
	}
	wantCode(t, at(20, 10).Error, messages.CodeStaleBrokerEpoch)
	a.wantMark(2)
}

func TestK92AnswersToProposals(t *testing.T) {
	start := func(t *testing.T) (*member, Propose) {
		a, b, c := trio(t)
		assignAll(assignment("a", 1, 1, "a", "b"), a, b, c)
		syncUp(c, a)
		if len(take[Propose](a)) != 0 {
			t.Fatal("b is proposed under a registration that is not known")
		}
		syncUp(b, a)
		return a, a.proposed("a", "b", "c")
	}
	t.Run("K92 INELIGIBLE_REPLICA reverts, with a new partition epoch", func(t *testing.T) {
		a, p := start(t)
		a.answer(p, nil, messages.CodeIneligibleReplica)
		renewal := a.proposed("a", "b")
		if !renewal.Proposal.Renew || len(a.Status().Proposed) != 3 {
			t.Fatalf("%v, pending %v", renewal, a.Status().Proposed)
		}
		a.answer(renewal, nil, messages.CodeIneligibleReplica) // of a controller that is about to take b out
		if a.tick(proposalRetryMin); !a.proposed("a", "b").Proposal.Renew {
			t.Fatal("the refused members are proposed again at the same partition epoch")
		}
		a.answer(renewal, assignment("a", 1, 2, "a", "b"), "")
		if a.Status().Proposed != nil {
			t.Fatal("still pending")
		}
	})
	t.Run("K92 a stale epoch without the state stays pending", func(t *testing.T) {
		a, p := start(t)
		a.answer(p, nil, messages.CodeStalePartitionEpoch)
		if len(a.Status().Proposed) != 3 || len(take[RequestSnapshot](a)) != 1 {
			t.Fatalf("%+v", a.Status())
		}
	})
	t.Run("K92 no answer is retried with the same content", func(t *testing.T) {
		a, p := start(t)
		a.run(a.ProposalAnswer(a.now, p.ID, nil))
		a.tick(proposalRetryMin)
		again := a.proposed("a", "b", "c")
		if again.ID != p.ID || again.Proposal.PartitionEpoch != p.Proposal.PartitionEpoch {
			t.Fatalf("%v after %v", again, p)
		}
	})
}

// A refusal is the word of one controller about one copy.
func TestK92ARefusalIsNotTheLastWord(t *testing.T) {
	start := func(t *testing.T) (*member, Propose) {
		a, b, c := trio(t)
		assignAll(assignment("a", 1, 1, "a", "b"), a, b, c)
		syncUp(c, a)
		syncUp(b, a)
		return a, a.proposed("a", "b", "c")
	}
	t.Run("K92 one controller refuses what its successor has accepted", func(t *testing.T) {
		a, p := start(t)
		a.produce(1, pb.Acks_ACKS_ALL, 5)
		a.answer(p, nil, messages.CodeIneligibleReplica)
		_, acts := a.Fetched(a.now, "b", 20, &pb.FetchPosition{LeaderEpoch: 1, LastEpoch: 1, Offset: 5})
		a.run(acts)
		a.wantMark(0) // c is in the committed ISR and has nothing of it
		a.answer(a.proposed("a", "b"), assignment("a", 1, 2, "a", "b", "c"), messages.CodeStalePartitionEpoch)
		a.wantMark(0)
	})
	t.Run("K92 a refusal does not take back a copy that may still arrive", func(t *testing.T) {
		a, p := start(t)
		a.run(a.ProposalAnswer(a.now, p.ID, nil))
		a.tick(proposalRetryMin)
		a.answer(a.proposed("a", "b", "c"), nil, messages.CodeIneligibleReplica)
		a.produce(1, pb.Acks_ACKS_ALL, 5)
		_, acts := a.Fetched(a.now, "b", 10, &pb.FetchPosition{LeaderEpoch: 1, LastEpoch: 1, Offset: 5})
		a.run(acts)
		a.wantMark(0) // c counts
		a.tick(time.Second)
		again := a.proposed("a", "b")
		if !again.Proposal.Renew {
			t.Fatalf("%v", again)
		}
		a.wantMark(0)
		a.answer(again, assignment("a", 1, 2, "a", "b"), "")
		a.wantMark(5) // with a later epoch no copy can be accepted
	})
}

func TestK93OlderAssignmentsAreIgnoredAndTheSameEpochResetsNothing(t *testing.T) {
	a, b, _ := trio(t)
	assignAll(assignment("a", 2, 5, "a", "b"), a, b)
	a.produce(1, pb.Acks_ACKS_ALL, 5)
	fetch(b, a)
	for _, old := range []*pb.Assignment{assignment("b", 1, 6, "b"), assignment("a", 2, 4, "a"), assignment("b", 3, 4, "b")} {
		a.assign(old)
		if s := a.Status(); s.Role != RoleLeader || s.LeaderEpoch != 2 || s.PartitionEpoch != 5 || len(s.ISR) != 2 {
			t.Fatalf("after %v: %+v", old, s)
		}
	}
	f := *a.leading.followers["b"]
	a.now += time.Second
	a.assign(assignment("a", 2, 5, "a", "b"))
	a.assign(assignment("a", 2, 6, "a", "b"))
	if g := *a.leading.followers["b"]; g != f || a.leading.epochStart != 0 {
		t.Fatalf("tracking was reset: %+v, before %+v", g, f)
	}
}

func TestK94OneProposalAtATimeAndAMissingAnswerIsResent(t *testing.T) {
	a, b, c := trio(t)
	assignAll(assignment("a", 1, 1, "a"), a, b, c)
	syncUp(b, a)
	p := a.proposed("a", "b")
	syncUp(c, a)
	a.tick(time.Second)
	if len(take[Propose](a)) != 0 {
		t.Fatal("a second proposal while one is under way")
	}
	a.run(a.ProposalAnswer(a.now, p.ID, nil))
	a.tick(proposalRetryMin)
	a.answer(a.proposed("a", "b"), assignment("a", 1, 2, "a", "b"), "")
	a.proposed("a", "b", "c")
}

func TestB19AcceptedGrowthWithALostAnswerCounts(t *testing.T) {
	a, b, _ := trio(t)
	one := func(pe int64, isr ...string) *pb.Assignment {
		x := assignment("a", 1, pe, isr...)
		x.MinIsr = 1
		return x
	}
	assignAll(one(1, "a"), a, b)
	syncUp(b, a)
	p := a.proposed("a", "b")
	for i := range 10 {
		a.produce(Ticket(i), pb.Acks_ACKS_ALL, 1)
	}
	for range 20 { // no answer for long
		a.run(a.ProposalAnswer(a.now, p.ID, nil))
		a.tick(time.Second)
	}
	if acks := take[Ack](a); len(acks) != 0 || a.mark != 0 {
		t.Fatalf("acknowledged without b: %v, mark %d", acks, a.mark)
	}
	a.answer(p, one(2, "a", "b"), messages.CodeStalePartitionEpoch)
	syncUp(b, a)
	if acks := take[Ack](a); len(acks) != 10 {
		t.Fatalf("%d acknowledged", len(acks))
	}
}

func TestB20MarkWaitsForTheAnswerToAShrink(t *testing.T) {
	a, b, c := trio(t)
	assignAll(assignment("a", 1, 1, "a", "b", "c"), a, b, c)
	syncUp(c, a)
	a.produce(1, pb.Acks_ACKS_ALL, 20)
	fetch(b, a)
	a.tick(lag / 2)
	fetch(b, a)
	a.tick(lag/2 + time.Second)
	p := a.proposed("a", "b")
	a.tick(8 * time.Second)
	a.wantMark(0)
	a.answer(p, nil, messages.CodeStalePartitionEpoch)
	a.wantMark(0)
	a.tick(time.Second)
	a.answer(a.proposed("a", "b"), assignment("a", 1, 2, "a", "b"), "")
	a.wantMark(20)
	if acks := take[Ack](a); len(acks) != 1 || !acks[0].Protected {
		t.Fatalf("%v", acks)
	}
}

func TestB50FollowersHaveTheFullLagFromTheStartOfTheEpoch(t *testing.T) {
	a, b, c := trio(t)
	a.now = time.Hour
	assignAll(assignment("a", 1, 1, "a", "b", "c"), a, b, c)
	a.produce(1, pb.Acks_ACKS_ALL, 5)
	for range 3 {
		a.tick(lag / 4)
		a.assign(assignment("a", 1, 1, "a", "b", "c"))
	}
	if len(take[Propose](a)) != 0 {
		t.Fatal("followers are to leave within the lag")
	}
	fetch(b, a)
	fetch(b, a)
	a.tick(lag/4 + time.Millisecond)
	a.proposed("a", "b")
}

// A follower that was caught up while nothing was written has the whole lag from the next write on.
func TestB50IdlePartitionDoesNotShrinkAtItsFirstWrite(t *testing.T) {
	a, b, c := trio(t)
	assignAll(assignment("a", 1, 1, "a", "b", "c"), a, b, c)
	fetch(b, a)
	fetch(c, a)
	a.tick(time.Hour)
	a.produce(1, pb.Acks_ACKS_ALL, 5)
	a.tick(lag)
	if len(take[Propose](a)) != 0 {
		t.Fatal("an idle follower is to leave at once")
	}
}

func TestB51FollowerAtAFrozenMarkJoinsOnce(t *testing.T) {
	a, b, _ := trio(t)
	assignAll(assignment("a", 1, 1, "a"), a, b)
	for range 50 {
		a.produce(0, pb.Acks_ACKS_LEADER, 10)
	}
	for at := int64(120); at <= 480; at += 20 {
		a.tick(time.Second)
		_, acts := a.Fetched(a.now, "b", 10, &pb.FetchPosition{LeaderEpoch: 1, LastEpoch: 1, Offset: at})
		a.run(acts)
	}
	if len(take[Propose](a)) != 0 {
		t.Fatal("a follower far behind the leader's end is to join")
	}
	_, acts := a.Fetched(a.now, "b", 10, &pb.FetchPosition{LeaderEpoch: 1, LastEpoch: 1, Offset: 500})
	a.run(acts)
	a.answer(a.proposed("a", "b"), assignment("a", 1, 2, "a", "b"), "")
	a.wantMark(500)
}

func TestB53RefusalBringsTheCurrentStateAndTheNextTrySucceeds(t *testing.T) {
	a, b, c := trio(t)
	assignAll(assignment("a", 1, 26, "a", "b", "c"), a, b, c)
	for range 3 {
		fetch(b, a)
		fetch(c, a)
	}
	a.assign(assignment("a", 1, 26, "a", "b", "c"))
	a.assign(assignment("a", 1, 27, "a", "b"))
	syncUp(c, a)
	p := a.proposed("a", "b", "c")
	// Meanwhile the controller went on to 28 and its notice was lost.
	a.answer(p, assignment("a", 1, 28, "a"), messages.CodeStalePartitionEpoch)
	again := a.proposed("a", "b", "c")
	if again.Proposal.PartitionEpoch != 28 {
		t.Fatalf("%v", again)
	}
	// And if it does not lead any more, it stops.
	a.answer(again, assignment("b", 2, 29, "b"), messages.CodeFencedLeaderEpoch)
	if a.Role() != RoleFollower {
		t.Fatalf("%+v", a.Status())
	}
}

// A follower that has died with everything there was looks like one that may join, and the controller refuses it.
func TestARefusedMemberDoesNotKeepOutAnother(t *testing.T) {
	a, b, c := trio(t)
	assignAll(assignment("a", 1, 1, "a", "b", "c"), a, b, c)
	fetch(b, a)
	fetch(c, a)
	a.assign(assignment("a", 1, 2, "a"))
	fetch(b, a) // its last word
	fetch(c, a)
	a.answer(a.proposed("a", "b", "c"), nil, messages.CodeIneligibleReplica)
	a.answer(a.proposed("a"), assignment("a", 1, 3, "a"), "")
	a.answer(a.proposed("a", "b"), nil, messages.CodeIneligibleReplica)
	a.answer(a.proposed("a"), assignment("a", 1, 4, "a"), "")
	a.answer(a.proposed("a", "c"), assignment("a", 1, 5, "a", "c"), "")
	a.tick(time.Second)
	a.proposed("a", "b", "c")
}
