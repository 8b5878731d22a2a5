// Package wiretap stands between a client and a server that speak ZooKeeper's
// protocol: a proxy that passes bytes on as they are and tells what they mean,
// a printer and a recorder of what it tells, and a replayer of recordings.
//
// The goroutines of a proxy belong to its Serve, which waits for them.
package wiretap

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/wire"
)

// MaxFrame is the longest frame, its length included, that is decoded and kept
// whole: four times what a server takes from a client by default. A longer one
// is passed on all the same, and its beginning is shown.
const MaxFrame = 4 << 20

const (
	keptOfLong = 1 << 10   // bytes of a frame that is too long
	maxText    = 1 << 20   // bytes of an answer to a four-letter word
	noFrame    = 256 << 20 // a length above it is taken for something else
	bufferSize = 64 << 10  // for each direction of a connection
	dialTime   = 10 * time.Second
)

// Kind says what happened on a connection.
type Kind int

// The kinds of events.
const (
	Opened   Kind = iota + 1 // a client connected
	Framed                   // a frame
	Text                     // a four-letter word, or the whole answer to one
	Raw                      // bytes that are no frame, or a part of one at the end
	Finished                 // one side sends no more: it closed, or Err says why
	Failed                   // the server cannot be reached; Err says why
)

// Event is what happened on a connection, told before it is passed on. Its
// slices are valid until the handler returns.
type Event struct {
	Time       time.Time
	Conn       int // counted from 1
	FromClient bool
	Kind       Kind
	Frame      *wire.Frame // of Framed; one too long to be kept has Err set
	Bytes      []byte      // as on the wire; of a frame too long its beginning
	Size       int         // of the frame or text on the wire, more than Bytes if that is cut
	Err        error
}

// Proxy passes connections on to a server, unchanged.
type Proxy struct {
	// To is the server's address.
	To string

	// Handle is told all events, one at a time. What it is told has not been
	// passed on yet: whatever follows from an event is told after it. While it
	// waits everything waits.
	Handle func(Event)

	// InTurn lets one connection at a time ask: a request is held back while
	// one of another connection has no answer, so that the order in which
	// events are told is the order in which the server worked.
	// What waits longer than TurnTime goes on all the same, and counts as late.
	InTurn   bool
	TurnTime time.Duration // 0 is two seconds

	mu    sync.Mutex // guards what follows, and is held while Handle runs
	conns map[*conn]bool
	last  int // connection's number
	turn  turns
	late  int
}

// Late is how many requests did not get their turn in time.
func (p *Proxy) Late() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.late
}

// Serve passes on the connections that l accepts, until ctx ends, which is no
// error, or l fails. It closes l and all connections, and returns when Handle
// was called for the last time.
func (p *Proxy) Serve(ctx context.Context, l net.Listener) error {
	p.conns = map[*conn]bool{}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		<-ctx.Done()
		l.Close()
		p.mu.Lock()
		defer p.mu.Unlock()
		for c := range p.conns {
			c.close()
		}
	})
	defer running.Wait()
	defer cancel()
	for {
		nc, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				nc.Close()
			}
			return nil
		case err != nil && !errors.Is(err, net.ErrClosed):
			// Out of descriptors, or a client that was gone at once: others can be served.
			select {
			case <-time.After(10 * time.Millisecond):
			case <-ctx.Done():
			}
			continue
		case err != nil:
			return err
		}
		running.Go(func() { p.carry(ctx, nc) })
	}
}

// conn is one client's connection and the one to the server that belongs to it.
type conn struct {
	p    *Proxy
	id   int
	side [2]net.Conn // the client's and the server's end; the latter nil until dialled
	in   [2]stream   // what each of them sends
	talk wire.Conversation
	text bool // a four-letter word's connection

	asked  int  // frames of the client that wait for an answer
	closed bool // by Serve
	cut    bool // one end was reset, and so was the other
	broken bool // one end takes no more bytes
}

// The two sides of a connection.
const (
	fromClient = 0
	fromServer = 1
)

// carry serves one client.
func (p *Proxy) carry(ctx context.Context, client net.Conn) {
	c := &conn{p: p}
	c.side[fromClient] = client
	p.mu.Lock()
	if ctx.Err() != nil {
		p.mu.Unlock()
		client.Close()
		return
	}
	p.last++
	c.id = p.last
	p.conns[c] = true
	c.tell(Event{Kind: Opened, FromClient: true})
	p.mu.Unlock()

	dialer := net.Dialer{Timeout: dialTime}
	server, err := dialer.DialContext(ctx, "tcp", p.To)
	p.mu.Lock()
	if err != nil {
		kind := Failed
		if errors.Is(err, syscall.ECONNRESET) {
			kind = Finished // it accepted and hung up, which a slow connect sees itself
		}
		if !c.closed {
			c.tell(Event{Kind: kind, Err: err})
		}
	} else if c.side[fromServer] = server; c.closed {
		server.Close()
	}
	p.mu.Unlock()
	if err == nil {
		var down sync.WaitGroup
		down.Go(func() { c.pump(fromServer) })
		c.pump(fromClient)
		down.Wait()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.broken || err != nil {
		reset(c.side[:]...)
	}
	c.close()
	delete(p.conns, c)
	p.turn.release(c)
}

// close closes both ends, which ends the pumps. The lock is held.
func (c *conn) close() {
	c.closed = true
	for _, nc := range c.side {
		if nc != nil {
			nc.Close()
		}
	}
}

// reset makes the far end see a reset when the connection is closed, or now.
func reset(conns ...net.Conn) {
	for _, nc := range conns {
		if tcp, ok := nc.(*net.TCPConn); ok {
			tcp.SetLinger(0)
			tcp.Close()
		}
	}
}

// pump passes on what one side sends, until it ends.
func (c *conn) pump(from int) {
	src, dst := c.side[from], c.side[1-from]
	buf := make([]byte, bufferSize)
	for {
		n, err := src.Read(buf)
		if n > 0 {
			c.took(from, buf[:n])
			if _, werr := dst.Write(buf[:n]); werr != nil {
				// The far end is gone. What it said before that is still on its
				// way, and the other pump will see the end.
				c.p.mu.Lock()
				c.broken = true
				c.p.mu.Unlock()
				return
			}
		}
		if err == nil {
			continue
		}
		if err == io.EOF {
			err = nil
		}
		c.ended(from, err)
		if tcp, ok := dst.(*net.TCPConn); ok && err == nil {
			tcp.CloseWrite()
		} else {
			reset(src, dst)
		}
		return
	}
}

// tell passes an event to the handler. The lock is held.
func (c *conn) tell(e Event) {
	e.Conn, e.Time = c.id, time.Now()
	if c.p.Handle != nil {
		c.p.Handle(e)
	}
}

// took tells what is in bytes that will be passed on next.
func (c *conn) took(from int, b []byte) {
	p, s := c.p, &c.in[from]
	p.mu.Lock()
	defer p.mu.Unlock()
	if from == fromClient && !c.text && !s.raw && s.total == 0 {
		c.text = isWord(s.held, b)
	}
	if c.text {
		if from == fromClient && p.InTurn && !s.told {
			p.await(c)
		}
		s.text(b)
		if from == fromClient && len(s.held) >= 4 && !s.told {
			s.told = true
			c.asked++
			c.tell(Event{Kind: Text, FromClient: true, Bytes: s.held[:4], Size: 4})
		}
		return
	}
	waited := false
	for len(b) > 0 {
		piece, rest := s.next(b)
		b = rest
		if piece.kind == 0 {
			break // in the middle of a frame
		}
		if from == fromClient && p.InTurn && !waited {
			waited = true
			p.await(c)
		}
		c.piece(from, piece)
	}
	if c.asked <= 0 {
		p.turn.release(c)
	}
}

// piece tells what a stream was cut into.
func (c *conn) piece(from int, piece piece) {
	e := Event{Kind: piece.kind, FromClient: from == fromClient, Bytes: piece.bytes, Size: piece.size}
	if piece.kind == Framed {
		var f wire.Frame
		if e.FromClient {
			f = c.talk.FromClient(piece.bytes[4:])
			c.asked++
		} else {
			f = c.talk.FromServer(piece.bytes[4:])
			if f.Kind != wire.Event && c.asked > 0 {
				c.asked--
			}
		}
		if e.Frame = &f; len(piece.bytes) < piece.size {
			f.Body, f.Err, f.Rest = nil, errTooLong, nil
		}
	}
	c.tell(e)
}

var errTooLong = errors.New("too long to be kept")

// ended tells that one side sends no more.
func (c *conn) ended(from int, err error) {
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	if c.closed {
		return // it was us
	}
	if from == fromServer {
		c.flush(fromClient) // what the server did not wait for
	}
	c.flush(from)
	if !c.cut {
		c.tell(Event{Kind: Finished, FromClient: from == fromClient, Err: err})
	}
	c.cut = c.cut || err != nil
	c.asked = 0
	c.p.turn.release(c)
}

// flush tells what is held back of a stream.
func (c *conn) flush(from int) {
	s := &c.in[from]
	switch {
	case c.text && from == fromServer:
		c.tell(Event{Kind: Text, Bytes: s.held, Size: s.total})
	case !c.text && len(s.held) > 0:
		c.tell(Event{Kind: Raw, FromClient: from == fromClient, Bytes: s.held, Size: s.have})
	}
	s.held, s.have = nil, 0
}

// stream cuts what one side sends into frames.
type stream struct {
	held  []byte // of the frame that has begun, or all of a text
	have  int    // bytes of the frame that have come; more than held if that is cut
	total int    // bytes that were cut off, or all of a text
	raw   bool   // no frames any more
	told  bool   // of a text: the word
}

// piece is what a stream was cut into.
type piece struct {
	kind  Kind // Framed or Raw; 0 is nothing yet
	bytes []byte
	size  int
}

// next takes the next piece off b, and returns what is behind it.
func (s *stream) next(b []byte) (piece, []byte) {
	if s.raw {
		return piece{Raw, b, len(b)}, nil
	}
	if len(s.held) < 4 {
		n := min(4-len(s.held), len(b))
		s.held, b = append(s.held, b[:n]...), b[n:]
		if s.have += n; s.have < 4 {
			return piece{}, nil
		}
	}
	length := binary.BigEndian.Uint32(s.held)
	if length > noFrame {
		s.raw = true
		b = append(s.held, b...)
		s.held, s.have = nil, 0
		return piece{Raw, b, len(b)}, nil
	}
	size := 4 + int(length)
	n := min(size-s.have, len(b))
	keep := size
	if size > MaxFrame {
		keep = keptOfLong
	}
	s.held = append(s.held, b[:min(n, max(0, keep-len(s.held)))]...)
	if s.have += n; s.have < size {
		return piece{}, nil
	}
	whole := piece{Framed, s.held, size}
	s.total += size
	s.held, s.have = nil, 0
	return whole, b[n:]
}

// text holds bytes of a text.
func (s *stream) text(b []byte) {
	s.total += len(b)
	s.held = append(s.held, b[:min(len(b), maxText-len(s.held))]...)
}

// isWord tells whether a connection begins with a four-letter word: as the
// length of a frame that would be above 1.6 GB (NIOServerCnxn.checkFourLetterWord).
func isWord(held, b []byte) bool {
	if len(held)+len(b) < 4 {
		return false
	}
	for _, x := range append(held[:len(held):len(held)], b...)[:4] {
		if x < 'a' || x > 'z' {
			return false
		}
	}
	return true
}

// turns says who may ask.
type turns struct {
	holder  *conn
	waiting []waiter
}

type waiter struct {
	c     *conn
	ready chan struct{}
}

// await waits until it is c's turn. The lock is held, and given up meanwhile.
func (p *Proxy) await(c *conn) {
	t := &p.turn
	if t.holder == nil || t.holder == c && len(t.waiting) == 0 {
		t.holder = c
		return
	}
	if t.holder == c && c.asked <= 0 {
		t.release(c)
	}
	w := waiter{c, make(chan struct{})}
	t.waiting = append(t.waiting, w)
	patience := p.TurnTime
	if patience == 0 {
		patience = 2 * time.Second
	}
	p.mu.Unlock()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-w.ready:
	case <-timer.C:
	}
	p.mu.Lock()
	for i := range t.waiting {
		if t.waiting[i] == w { // it did not come
			t.waiting = append(t.waiting[:i], t.waiting[i+1:]...)
			p.late++
			return
		}
	}
}

// release passes the turn on if c has it. The lock is held.
func (t *turns) release(c *conn) {
	if t.holder != c {
		return
	}
	t.holder = nil
	if len(t.waiting) > 0 {
		w := t.waiting[0]
		t.waiting = t.waiting[1:]
		t.holder = w.c
		close(w.ready)
	}
}
