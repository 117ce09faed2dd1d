package supervisor

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/messages"
)

// journalActor drives the committer: it takes in proposals, has one append at a time carried out in a goroutine, applies
// what is committed to the catalog, and only then tells the hosts. It never waits for the log itself.
type journalActor struct {
	tree    *Tree
	mailbox mailbox
	// backlog is how many records wait or are on the way.
	backlog atomic.Int64

	committer *journal.Committer
	tickets   journal.Ticket
	proposals map[journal.Ticket]*proposal
	busy      bool  // an order is out
	over      error // why nothing is committed any more
	patience  *time.Timer
	waits     uint64 // counts the times that patience was set
	troubled  bool   // the log said that there is trouble
	quiet     bool   // nothing was proposed since the last idle tick

	ctx      context.Context // of all appends
	cancel   context.CancelFunc
	appender sync.WaitGroup
}

// Messages to the journal actor.
type (
	// proposal is a step with records, which are asked to be committed; it is answered with an outcome. The journal does not
	// touch its other effects.
	proposal struct {
		host        *host
		incarnation uint64
		effects     actors.Effects
	}
	// impatient says that nothing has been committed for AppendLimit.
	impatient struct{ wait uint64 }
	// idle is the clock of the idle ticks.
	idle struct{}
)

func newJournalActor(t *Tree, at journal.Position, w journal.Writer, l journal.Limits) *journalActor {
	j := &journalActor{tree: t, committer: journal.NewCommitter(at, w, l), proposals: map[journal.Ticket]*proposal{}}
	j.mailbox.dispatch = t.apart
	j.ctx, j.cancel = context.WithCancel(context.Background())
	return j
}

// propose hands a proposal to the actor; anybody may call it. It is never refused here: an actor has at most one on the
// way, so their number is bounded, and the records of a fence must not be turned away.
func (j *journalActor) propose(p *proposal) { j.mailbox.post(laneOrdinary, p, 0) }

// Receive handles one message.
func (j *journalActor) Receive(ctx actor.Context) {
	defer func() {
		if reason := recover(); reason != nil {
			j.finish(j.tree.fault("journal", reason))
		}
	}()
	switch m := ctx.Message().(type) {
	case *proposal:
		j.take(m)
	case journal.Result:
		if j.over != nil {
			return // those who waited have been told that nobody knows, and the catalog may be somebody else's by now
		}
		j.busy = false
		j.committer.Done(m)
		j.report()
	case idle:
		if j.quiet && !j.busy && j.over == nil {
			j.tickets++
			_ = j.enqueue(j.tickets, nil) // it fails only when all is over
		}
		j.quiet = true
	case impatient:
		if m.wait == j.waits && j.patience != nil {
			j.finish(messages.Errorf(messages.CodeUnavailable, "the journal has committed nothing for %s: %v",
				j.tree.limits.AppendLimit, j.committer.Trouble()))
		}
	case *actor.Stopped:
		j.abandon(messages.Errorf(messages.CodeUnavailable, "the controller has stopped"))
		j.mailbox.close()
		return
	default:
		return
	}
	j.next()
}

// take gives a proposal to the committer. What the committer will not write is the host's fault alone.
func (j *journalActor) take(p *proposal) {
	if j.over != nil {
		p.answer(0, j.refusal())
		return
	}
	j.tickets++
	if err := j.enqueue(j.tickets, p.effects.Records); err != nil {
		p.answer(0, messages.AsError(err))
		return
	}
	j.quiet = false
	j.proposals[j.tickets] = p
}

func (j *journalActor) enqueue(t journal.Ticket, records []messages.Record) (err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = messages.Errorf(messages.CodeInternal, "a record cannot be written: %v", reason)
		}
	}()
	return j.committer.ProposeUrgent(t, records)
}

// next has the committer's next order carried out, if there is one.
func (j *journalActor) next() {
	_, records, _ := j.committer.Backlog()
	j.backlog.Store(int64(records))
	if j.busy || j.over != nil {
		return
	}
	order, ok := j.committer.Next(journal.NewStamp())
	if !ok {
		return
	}
	j.busy = true
	if j.patience == nil {
		j.waits++
		wait := impatient{j.waits}
		j.patience = time.AfterFunc(j.tree.limits.AppendLimit, func() { j.mailbox.post(laneUrgent, wait, 0) })
	}
	j.appender.Go(func() { j.carryOut(order) })
}

// carryOut does one order, in a goroutine of its own, and posts the result.
func (j *journalActor) carryOut(order journal.Order) {
	if pause := order.Pause(); pause > 0 {
		select {
		case <-time.After(pause):
		case <-j.ctx.Done():
			return
		}
	}
	ctx, cancel := context.WithTimeout(j.ctx, j.tree.limits.AppendTimeout)
	defer cancel()
	sent := time.Now()
	r := j.try(ctx, order)
	if r.Err == nil && order.At == 0 {
		j.tree.granted(sent)
	}
	j.mailbox.post(laneUrgent, r, 0)
}

// tickEvery posts idle until the journal actor gives up.
func (j *journalActor) tickEvery(d time.Duration) {
	j.appender.Go(func() {
		t := time.NewTicker(d)
		defer t.Stop()
		for {
			select {
			case <-j.ctx.Done():
				return
			case <-t.C:
				j.mailbox.post(laneOrdinary, idle{}, 0)
			}
		}
	})
}

// try is journal.Do for a log that may panic: then the outcome is not known either.
func (j *journalActor) try(ctx context.Context, order journal.Order) (r journal.Result) {
	defer func() {
		if reason := recover(); reason != nil {
			r = journal.Result{Number: order.Number, Err: fmt.Errorf("the log has panicked: %v", reason)}
		}
	}()
	return journal.Do(ctx, j.tree.log, order)
}

// report applies what the last result has committed, and then tells the hosts. The records of one entry are applied at
// once, so that whoever reads the catalog sees all of an entry or nothing.
func (j *journalActor) report() {
	done := j.committer.Committed()
	for len(done) > 0 {
		at := done[0].Sequence
		reached := done[0].At()
		n := 0
		var records []messages.Record
		for ; n < len(done) && done[n].Sequence == at; n++ {
			records = append(records, done[n].Records...)
		}
		j.tree.catalog.ApplyAt(reached, records)
		for _, c := range done[:n] {
			if c.Ticket != 0 { // not the committer's own, which it may get in while it cannot get in what is proposed
				j.calm()
			}
			if p, known := j.proposals[c.Ticket]; known {
				delete(j.proposals, c.Ticket)
				p.answer(at, nil)
			}
		}
		done = done[n:]
	}
	if err := j.committer.Err(); err != nil {
		j.finish(err)
		return
	}
	j.logTrouble()
}

// calm ends the patience that something has been waited for with.
func (j *journalActor) calm() {
	if j.patience != nil {
		j.patience.Stop()
		j.patience = nil
	}
}

func (j *journalActor) logTrouble() {
	trouble := j.committer.Trouble()
	switch {
	case trouble != nil && !j.troubled:
		j.tree.logger.Warn().Err(trouble).Msg("the journal does not take an entry; trying on")
	case trouble == nil && j.troubled:
		j.tree.logger.Info().Msg("the journal takes entries again")
	}
	j.troubled = trouble != nil
}

// finish ends the tree, and then answers what is still waiting, so that no host takes the answer for a reason to try again.
func (j *journalActor) finish(err error) {
	j.tree.end(err)
	j.abandon(err)
}

// abandon commits nothing more.
func (j *journalActor) abandon(err error) {
	if j.over != nil {
		return
	}
	j.over = err
	j.calm()
	j.cancel()
	for _, p := range j.proposals {
		p.answer(0, j.refusal())
	}
	clear(j.proposals)
}

// refusal is what a proposal hears that is not committed because all is over: after a deposition it certainly is not
// stored, otherwise nobody knows.
func (j *journalActor) refusal() *messages.Error {
	if j.committer.Err() != nil {
		return messages.AsError(j.over)
	}
	return messages.Errorf(messages.CodeOutcomeUnknown, "%v", j.over).
		WithHint("ask again; what was stored stays stored")
}

func (p *proposal) answer(at messages.Sequence, err *messages.Error) {
	p.host.mailbox.post(laneUrgent, outcome{incarnation: p.incarnation, at: at, err: err}, 0)
}
