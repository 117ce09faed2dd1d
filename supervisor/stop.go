package supervisor

import (
	"context"

	"github.com/highwater-io/highwater/messages"
)

// Stop ends the tree: it admits nothing more, waits until what is on the way to the journal is committed and answered, and
// stops the actors, which answers what was still waiting with UNAVAILABLE. The context bounds the waiting for the
// journal; when it ends first, those requests are answered OUTCOME_UNKNOWN, the actors are stopped all the same, and its
// error is returned. Afterwards no goroutine is left, unless a machine, the edge or the log does not return. A second call
// waits for the first and returns its result.
func (t *Tree) Stop(ctx context.Context) error {
	t.stopping.Do(func() { t.stopErr = t.stop(ctx) })
	return t.stopErr
}

func (t *Tree) stop(ctx context.Context) error {
	t.refused.CompareAndSwap(nil, messages.Errorf(messages.CodeUnavailable, "the controller is stopping").
		WithHint("ask again; another controller, or this one after its restart, will answer"))
	err := t.awaitIdle(ctx)
	t.journal.cancel()
	if ctx.Err() != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
		defer cancel()
	}
	t.system.Root.Stop(t.root)
	rest := make(chan struct{})
	go func() {
		<-t.stopped
		t.pool.stop()
		t.journal.appender.Wait()
		close(rest)
	}()
	select {
	case <-rest:
	case <-ctx.Done():
		err = ctx.Err()
		t.logger.Error().Msg("some actors do not stop; they are left behind")
	}
	t.system.Shutdown()
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case <-t.done:
	default:
		close(t.done)
	}
	return err
}

// awaitIdle waits until no message is worked on and no commit is on the way.
func (t *Tree) awaitIdle(ctx context.Context) error {
	for t.active.Load() > 0 {
		select {
		case <-t.idle:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
