package supervisor

import "sync/atomic"

// starting counts what Start still waits for. It is done when nobody holds a token any more; a token for an actor is
// taken from the one of its supervisor, so it cannot be done too early.
type starting struct {
	open  atomic.Int64
	ready chan struct{}
}

// token says that something has not started yet. The zero value is a released one.
type token struct{ of *starting }

func (s *starting) token() token {
	s.open.Add(1)
	return token{s}
}

func (s *starting) done() {
	if s.open.Add(-1) == 0 {
		close(s.ready)
	}
}

// another returns a further token while t is held, and a released one afterwards: what comes later is not waited for.
func (t token) another() token {
	if t.of == nil {
		return token{}
	}
	return t.of.token()
}

func (t *token) release() {
	if t.of != nil {
		t.of.done()
		t.of = nil
	}
}

// expectFrom makes Start wait for an actor, if it still waits for the actor's supervisor.
func (h *host) expectFrom(t token) { h.starting.Store(t.another().of != nil) }
