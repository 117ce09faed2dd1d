package journal

import (
	"context"
	"time"

	"github.com/highwater-io/highwater/messages"
)

// Do carries out an order at once; the caller has waited for Order.Pause.
func Do(ctx context.Context, log Log, o Order) Result {
	r := Result{Number: o.Number}
	if o.At > 0 {
		r.Payload, r.Err = log.Get(ctx, o.At)
	} else {
		r.Sequence, r.Err = log.Append(ctx, o.Expected, o.Payload)
	}
	return r
}

// Drive carries out a committer's orders one by one, with their pauses, until nothing is pending, and hands out what is
// committed as soon as it is. It returns the committer's error, or OUTCOME_UNKNOWN when the context ended first.
func Drive(ctx context.Context, log Log, c *Committer, committed func(Committed)) error {
	for {
		o, ok := c.Next(NewStamp())
		if !ok {
			return c.Err()
		}
		if pause := o.Pause(); pause > 0 {
			wait := time.NewTimer(pause)
			select {
			case <-wait.C:
			case <-ctx.Done():
			}
			wait.Stop()
		}
		c.Done(Do(ctx, log, o))
		for _, done := range c.Committed() {
			committed(done)
		}
		if ctx.Err() != nil && !c.Idle() && c.Err() == nil {
			return messages.Errorf(messages.CodeOutcomeUnknown, "the journal has not answered in time: %v; last: %v",
				ctx.Err(), c.Trouble())
		}
	}
}
