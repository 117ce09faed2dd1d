package controller

import (
	"bufio"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// wire is a door between clients and a NATS server in which a test can stand: it passes the protocol on message by message,
// and keeps back, loses or repeats what the test says. Cut, it closes every connection and takes no new one.
type wire struct {
	t      testing.TB
	server string // host:port
	l      net.Listener
	work   sync.WaitGroup

	mu     sync.Mutex
	pairs  map[*wirePair]bool
	cutoff bool
	ended  bool
	asked  map[string]string // reply subject → subject of the request
	keep   func(message) bool
	kept   []keptMessage
	seen   func(message)
}

// message is one publication or delivery.
type message struct {
	down    bool   // from the server to the client
	subject string // of an answer: the subject of the request
	data    []byte // without headers
}

type keptMessage struct {
	message
	pair *wirePair
	raw  []byte
}

type wirePair struct {
	client, server net.Conn
	mu             sync.Mutex // of writing
}

func newWire(t testing.TB, url string) *wire {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if i := strings.LastIndexByte(url, '@'); i >= 0 {
		url = url[i+1:]
	}
	w := &wire{t: t, server: strings.TrimPrefix(url, "nats://"), l: l, pairs: map[*wirePair]bool{}, asked: map[string]string{}}
	w.work.Go(w.accept)
	t.Cleanup(w.close)
	return w
}

func (w *wire) url() string { return "nats://" + w.address() }

func (w *wire) address() string { return w.l.Addr().String() }

func (w *wire) close() {
	w.mu.Lock()
	w.ended = true
	w.mu.Unlock()
	_ = w.l.Close()
	w.cut()
	w.work.Wait()
}

// cut closes everything until heal.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cutoff = true
	for p := range w.pairs {
		p.close()
	}
}

func (w *wire) heal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cutoff = false
}

// hold keeps messages back for which f is true, until let go or lost. With nil nothing new is kept.
func (w *wire) hold(f func(message) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.keep = f
}

// watch shows every message that passes or is kept; f must not wait.
func (w *wire) watch(f func(message)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = f
}

// held returns how many messages are kept back.
func (w *wire) held() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.kept)
}

// subjects returns the subjects of what is kept back.
func (w *wire) subjects() (out []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, k := range w.kept {
		out = append(out, k.subject)
	}
	return out
}

// lose drops what is kept back.
func (w *wire) lose() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.kept = nil
}

// letGo sends what is kept back, in its order, and keeps nothing any more.
func (w *wire) letGo() {
	w.mu.Lock()
	kept := w.kept
	w.kept, w.keep = nil, nil
	w.mu.Unlock()
	for _, k := range kept {
		k.pair.write(k.down, k.raw)
	}
}

func (w *wire) accept() {
	for {
		c, err := w.l.Accept()
		if err != nil {
			return
		}
		w.mu.Lock()
		refuse := w.cutoff || w.ended
		w.mu.Unlock()
		if refuse {
			_ = c.Close()
			continue
		}
		s, err := net.Dial("tcp", w.server)
		if err != nil {
			_ = c.Close()
			continue
		}
		p := &wirePair{client: c, server: s}
		w.mu.Lock()
		w.pairs[p] = true
		if w.cutoff {
			p.close()
		}
		w.mu.Unlock()
		w.work.Go(func() { w.pass(p, c, false) })
		w.work.Go(func() { w.pass(p, s, true) })
	}
}

func (p *wirePair) close() {
	_ = p.client.Close()
	_ = p.server.Close()
}

func (p *wirePair) write(down bool, raw []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	to := p.server
	if down {
		to = p.client
	}
	_, _ = to.Write(raw) // the reader sees the end of a connection
}

// pass reads one direction of a pair until it ends.
func (w *wire) pass(p *wirePair, from io.Reader, down bool) {
	defer func() {
		p.close()
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.pairs, p)
	}()
	in := bufio.NewReaderSize(from, 1<<16)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		words := strings.Fields(string(line))
		size, head, is := payload(words)
		if !is {
			p.write(down, line)
			continue
		}
		raw := append(line, make([]byte, size+2)...)
		if _, err := io.ReadFull(in, raw[len(line):]); err != nil {
			return
		}
		if !w.stop(p, down, words, raw, raw[len(line)+head:len(raw)-2]) {
			p.write(down, raw)
		}
	}
}

// payload returns the size of what follows a line of the protocol, and how much of it are headers.
func payload(words []string) (size, head int, is bool) {
	if len(words) < 3 {
		return 0, 0, false
	}
	switch strings.ToUpper(words[0]) {
	case "HPUB", "HMSG":
		head, _ = strconv.Atoi(words[len(words)-2])
	case "PUB", "MSG":
	default:
		return 0, 0, false
	}
	size, err := strconv.Atoi(words[len(words)-1])
	return size, head, err == nil
}

// stop shows a message to the test and reports whether it is kept back.
func (w *wire) stop(p *wirePair, down bool, words []string, raw, data []byte) bool {
	m := message{down: down, subject: words[1], data: data}
	w.mu.Lock()
	defer w.mu.Unlock()
	rest := len(words) - 3 // PUB subject [reply] size
	if strings.HasPrefix(strings.ToUpper(words[0]), "H") {
		rest-- // the size of the headers
	}
	if down {
		if asked, ok := w.asked[m.subject]; ok {
			m.subject = asked
		}
	} else if rest > 0 {
		w.asked[words[2]] = m.subject
	}
	if w.seen != nil {
		w.seen(m)
	}
	if w.keep == nil || !w.keep(m) {
		return false
	}
	w.kept = append(w.kept, keptMessage{m, p, raw})
	return true
}
