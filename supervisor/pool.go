package supervisor

import "sync"

// dispatcher finds somebody to process a mailbox that has something to deliver.
type dispatcher interface{ schedule(*mailbox) }

// separately processes each mailbox in a goroutine of its own, which ends when the mailbox is empty. The supervisors and
// the journal use it, so that they are served even if every machine is stuck or busy.
type separately struct{ quantum int }

func (s separately) schedule(m *mailbox) {
	go func() {
		for m.process(s.quantum) {
		}
	}()
}

// pool is a fixed set of workers for all machines. Mailboxes take turns: each is processed for a quantum of messages and
// then goes to the end of the line, so a busy actor delays another one by at most its quantum. There are two lines, which
// are served in turn while both have somebody: express is for the few machines that everything depends on.
type pool struct {
	mu      sync.Mutex
	changed sync.Cond
	lines   [2]fifo // ordinary, express
	quantum int
	stopped bool
	workers sync.WaitGroup
}

// newPool starts the workers.
func newPool(workers, quantum int) *pool {
	p := &pool{quantum: quantum}
	p.changed.L = &p.mu
	for range workers {
		p.workers.Go(p.work)
	}
	return p
}

func (p *pool) schedule(m *mailbox) {
	line := 0
	if m.express {
		line = 1
	}
	p.mu.Lock()
	p.lines[line].push(m)
	p.mu.Unlock()
	p.changed.Signal()
}

// work processes mailboxes until the pool is stopped.
func (p *pool) work() {
	for turn := 1; ; turn = 1 - turn {
		m := p.next(turn)
		if m == nil {
			return
		}
		if m.process(p.quantum) {
			p.schedule(m)
		}
	}
}

// next waits for a mailbox, preferably of the line whose turn it is; nil says that the pool is stopped.
func (p *pool) next(turn int) *mailbox {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		for _, line := range [2]int{turn, 1 - turn} {
			if p.lines[line].size() > 0 {
				return p.lines[line].pop().(*mailbox)
			}
		}
		if p.stopped {
			return nil
		}
		p.changed.Wait()
	}
}

// stop ends the workers after what is scheduled has been processed, and waits for them.
func (p *pool) stop() {
	p.mu.Lock()
	p.stopped = true
	p.mu.Unlock()
	p.changed.Broadcast()
	p.workers.Wait()
}
