package replica

import (
	"testing"
	"time"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// limp lets c stop for 1.3 of the lag and fetch for 0.5 of it, again and again but for the cycles in which it is well, while a
// leads, b follows well and records are written. It returns how often the ISR changed in which cycle, and how many writes
// were refused.
func limp(t *testing.T, cycles, minISR int, well func(cycle int) bool) (changes map[int]int, refused int) {
	const lag = 10 * time.Second
	a, b, c := trio(t)
	epoch, isr := int64(1), []string{"a", "b", "c"}
	state := func() *pb.Assignment {
		s := assignment("a", 1, epoch, isr...)
		s.MinIsr = uint32(minISR)
		return s
	}
	assignAll(state(), a, b, c)
	changes = map[int]int{}
	for step := range cycles * 18 {
		cycle, at := step/18, step%18
		for _, m := range []*member{a, b, c} {
			m.now += lag / 10
		}
		a.got = nil
		a.produce(Ticket(step), pb.Acks_ACKS_ALL, 1)
		for _, x := range a.got {
			if f, is := x.(Fail); is && f.Err.Code == messages.CodeNotEnoughReplicas {
				refused++
			}
		}
		syncUp(b, a)
		if at >= 13 || well(cycle) {
			syncUp(c, a)
		}
		a.run(a.Tick(a.now))
		for _, p := range take[Propose](a) {
			epoch, isr = epoch+1, members(p)
			changes[cycle]++
			assignAll(state(), b, c)
			a.run(a.ProposalAnswer(a.now, p.ID, &pb.IsrResult{Current: state()}))
		}
	}
	return changes, refused
}

func TestB54ALimpingFollowerComesAndGoesLessAndLess(t *testing.T) {
	changes, refused := limp(t, 20, 2, func(int) bool { return false })
	early, late := 0, 0
	for cycle, n := range changes {
		if cycle < 10 {
			early += n
		} else {
			late += n
		}
	}
	if refused != 0 || early < 4 || early > 10 || late > 4 {
		t.Errorf("changes in 20 cycles: %v, writes refused: %d", changes, refused)
	}
}

// Whoever has been well for long is let in at once after one bad time, and where members are wanted nobody waits.
func TestB54ALimpingFollowerIsForgivenAndIsTakenWhereItIsNeeded(t *testing.T) {
	changes, _ := limp(t, 40, 2, func(cycle int) bool { return cycle >= 4 && cycle != 30 })
	if changes[30]+changes[31] != 2 {
		t.Errorf("after a long time without a fault it limps once: %v", changes)
	}
	changes, _ = limp(t, 12, 3, func(int) bool { return false })
	for cycle := range 11 {
		if changes[cycle] == 0 {
			t.Errorf("below min ISR it waits: %v", changes)
			break
		}
	}
}
