package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"
)

// restartPause is what passes before a child that has died is started again.
const restartPause = time.Second

// child is one process of dev. Its standard input is held open: when it ends, the child leaves in order, also when
// that is because this process has died.
type child struct {
	id, rack, log string
	args          []string
}

// children are the brokers of dev, or its controllers.
type children struct {
	kind     string // "broker" or "controller"
	program  string
	restart  bool
	messages io.Writer
	ended    chan child // those that stay dead
	running  sync.WaitGroup

	mu    sync.Mutex
	known []devBroker
}

func newChildren(kind string, restart bool, messages io.Writer) (*children, error) {
	program, err := os.Executable()
	return &children{kind: kind, program: program, restart: restart, messages: messages, ended: make(chan child, 1)}, err
}

// list returns the children in the order of their start, with their newest process ids.
func (g *children) list() []devBroker {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.known)
}

// wait returns when all have ended.
func (g *children) wait() { g.running.Wait() }

// start starts a child and looks after it until the context ends; then it is told to leave.
func (g *children) start(ctx context.Context, c child) error {
	log, err := os.OpenFile(c.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	p, err := g.launch(c, log)
	if err != nil {
		return errors.Join(err, log.Close())
	}
	g.running.Go(func() {
		defer log.Close()
		g.lookAfter(ctx, c, p, log)
	})
	return nil
}

// process is a running child.
type process struct {
	cmd  *exec.Cmd
	hold io.Closer // its standard input
}

func (g *children) launch(c child, log *os.File) (*process, error) {
	cmd := exec.Command(g.program, c.args...)
	cmd.Args[0] = os.Args[0] // a program may go by several names
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = withoutAccess(os.Environ())
	hold, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	now := devBroker{ID: c.id, Rack: c.rack, PID: cmd.Process.Pid, Log: c.log}
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := slices.IndexFunc(g.known, func(b devBroker) bool { return b.ID == c.id }); i >= 0 {
		g.known[i] = now
	} else {
		g.known = append(g.known, now)
	}
	return &process{cmd, hold}, nil
}

func (g *children) lookAfter(ctx context.Context, c child, p *process, log *os.File) {
	for {
		err := p.attend(ctx)
		if ctx.Err() != nil {
			if errors.Is(err, errNotInOrder) {
				g.say("%s %s: %v", g.kind, c.id, err)
			}
			return
		}
		g.say("%s %s (pid %d) has ended: %v; its log is %s", g.kind, c.id, p.cmd.Process.Pid, outcome(err), c.log)
		if !g.restart {
			select {
			case g.ended <- c:
			default: // one is enough
			}
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(restartPause):
		}
		if p, err = g.launch(c, log); err != nil {
			g.say("%s %s cannot be started again: %v", g.kind, c.id, err)
			return
		}
		g.say("%s %s is started again, pid %d", g.kind, c.id, p.cmd.Process.Pid)
	}
}

func (g *children) say(format string, args ...any) {
	g.mu.Lock()
	defer g.mu.Unlock()
	fmt.Fprintf(g.messages, format+"\n", args...)
}

// errNotInOrder is a child that had to be killed.
var errNotInOrder = errors.New("it did not end in order and was killed")

func outcome(err error) string {
	if err == nil {
		return "exit status 0"
	}
	return err.Error()
}

// attend waits for the end of a process. When the context ends it lets go of the child's standard input, upon which the
// child leaves in order; one that does not is killed.
func (p *process) attend(ctx context.Context) error {
	ended := make(chan error, 1)
	go func() { ended <- p.cmd.Wait() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	_ = p.hold.Close() // closed already if the child has just ended
	select {
	case err := <-ended:
		return err
	case <-time.After(shutdownTime + time.Second):
		return errors.Join(errNotInOrder, p.cmd.Process.Kill(), <-ended)
	}
}

// withoutAccess is an environment without what says how NATS is reached: children are told by flags.
func withoutAccess(environment []string) []string {
	return slices.DeleteFunc(environment, func(kv string) bool {
		return strings.HasPrefix(kv, "NATS_") || strings.HasPrefix(kv, "HIGHWATER_")
	})
}
