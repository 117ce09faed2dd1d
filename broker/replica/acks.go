package replica

import (
	"slices"
	"time"

	"github.com/highwater-io/highwater/messages"
)

// waiter is a producer request whose batch is in the log but not yet as safe as it asked for.
type waiter struct {
	end       messages.Offset // what has to be reached
	base      messages.Offset
	epoch     messages.LeaderEpoch
	ticket    Ticket
	deadline  time.Duration // 0: none
	duplicate bool
}

// MaxWaiting bounds the requests that wait at one leader; more are refused with BUSY.
const MaxWaiting = 10_000

// waiters are the waiting requests of a leader, each list in the order of end.
type waiters struct {
	commit []waiter // acks=all: for the mark
	stored []waiter // acks=leader: for the local storage
}

func insert(list []waiter, w waiter) []waiter {
	i := len(list)
	for i > 0 && list[i-1].end > w.end {
		i-- // only a repeated batch goes before others
	}
	return slices.Insert(list, i, w)
}

func (r *Replica) ackCommitted() {
	r.leading.waiting.commit = r.ack(r.leading.waiting.commit, r.mark, true)
}
func (r *Replica) ackStored() {
	r.leading.waiting.stored = r.ack(r.leading.waiting.stored, r.durable, false)
}

func (r *Replica) ack(list []waiter, reached messages.Offset, protected bool) []waiter {
	n := 0
	for n < len(list) && list[n].end <= reached {
		w := list[n]
		r.do(Ack{Ticket: w.ticket, BaseOffset: w.base, LeaderEpoch: w.epoch, Duplicate: w.duplicate,
			Protected: protected || w.end <= r.mark})
		n++
	}
	if n == len(list) {
		return list[:0]
	}
	return list[n:]
}

// dropWaiting fails all that wait: their batches are stored here and may yet be committed by another leader.
func (r *Replica) dropWaiting(why string) {
	for _, list := range [][]waiter{r.leading.waiting.commit, r.leading.waiting.stored} {
		for _, w := range list {
			r.do(Fail{Ticket: w.ticket, Err: outcomeUnknown(why)})
		}
	}
	r.leading.waiting = waiters{}
}

// expireWaiting fails those whose time is over.
func (r *Replica) expireWaiting(now time.Duration) {
	expire := func(list []waiter) []waiter {
		return slices.DeleteFunc(list, func(w waiter) bool {
			over := w.deadline > 0 && now >= w.deadline
			if over {
				r.do(Fail{Ticket: w.ticket, Err: outcomeUnknown("the commit was not seen in time")})
			}
			return over
		})
	}
	r.leading.waiting.commit = expire(r.leading.waiting.commit)
	r.leading.waiting.stored = expire(r.leading.waiting.stored)
}

func outcomeUnknown(why string) *messages.Error {
	return messages.Errorf(messages.CodeOutcomeUnknown, "%s; the batch is stored and may or may not be committed", why)
}
