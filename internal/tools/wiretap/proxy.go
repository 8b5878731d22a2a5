// Package wiretap shows the traffic between clients and a server that speak ZooKeeper's
// protocol. It has a proxy, which forwards bytes unchanged and reports what they mean as
// events, a printer and a recorder of these events, and a function that replays
// recordings.
//
// Proxy.Serve starts the goroutines of a proxy and waits for them before it returns.
package wiretap

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/tools/wire"
)

// MaxFrame is the longest frame, including its length prefix, that the proxy decodes and
// keeps: four times what a server accepts by default. A longer frame is forwarded too,
// but only its first bytes are shown.
const MaxFrame = 4 << 20

const (
	keptOfLong = 1 << 10   // bytes kept of a frame that is too long
	maxText    = 1 << 20   // bytes kept of an answer to a four-letter word
	noFrame    = 256 << 20 // if the length is greater, the bytes are not frames
	bufferSize = 64 << 10  // for each direction of a connection
	dialTime   = 10 * time.Second
)

// Kind is the kind of an Event.
type Kind int

// The kinds of events.
const (
	Opened   Kind = iota + 1 // a client connected
	Framed                   // a frame
	Text                     // a four-letter word, or the whole answer to one
	Raw                      // bytes that are not a frame, or an incomplete frame at the end
	Finished                 // one side sends no more: it has closed the connection, or Err says why
	Failed                   // the server cannot be reached; Err says why
)

// Event is something that happened on a connection. The slices in it are valid until
// the handler returns.
type Event struct {
	Time       time.Time
	Conn       int // counted from 1
	FromClient bool
	Kind       Kind
	Frame      *wire.Frame // of Framed; if the frame is too long, its Err is set
	Bytes      []byte      // as on the wire; only the first ones of a frame that is too long
	Size       int         // of the frame or text on the wire, even if Bytes is cut
	Err        error
}

// Proxy forwards connections to a server, unchanged.
type Proxy struct {
	// To is the server's address, and Dial connects to it. If Dial is nil, TCP is used.
	To   string
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)

	// Handle is called with every event, one at a time, before the bytes of the event
	// are forwarded. So an event always comes before its consequences. While Handle
	// runs, nothing is forwarded.
	Handle func(Event)

	// InTurn makes the connections take turns: a request is held back while one of
	// another connection has no reply yet. Then the order of the events is the order in
	// which the server handled the requests. A request that has waited for TurnTime is
	// forwarded anyway and counts as late.
	InTurn   bool
	TurnTime time.Duration // 0 means two seconds

	mu      sync.Mutex // guards the fields below, and is held while Handle runs
	conns   map[*conn]bool
	last    int        // number of the latest connection
	holder  *conn      // whose turn it is
	waiting []*conn    // for their turn
	changed *sync.Cond // of holder
	late    int
}

// Late returns how many requests were forwarded before it was their turn.
func (p *Proxy) Late() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.late
}

// Serve forwards the connections that l accepts until ctx ends or l fails. Then it
// closes l and all connections. Handle is not called after Serve returns. The end of ctx
// is not an error.
func (p *Proxy) Serve(ctx context.Context, l net.Listener) error {
	p.conns, p.changed = map[*conn]bool{}, sync.NewCond(&p.mu)
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
			// Out of file descriptors, or the client has already gone: accept others.
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

// conn is a client's connection together with the connection to the server for it.
type conn struct {
	p    *Proxy
	id   int
	side [2]net.Conn // to the client and to the server; the latter is nil until dialled
	in   [2]stream   // from the client and from the server
	talk wire.Conversation
	text bool // the client has sent a four-letter word

	asked  int  // frames of the client that have no answer yet
	closed bool // the proxy has closed both connections
	cut    bool // one side was reset, and therefore the other, too
	broken bool // a write to one side failed
}

// The two sides of a connection.
const (
	fromClient = 0
	fromServer = 1
)

// carry forwards one client's connection until it ends.
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

	dial := p.Dial
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	dialing, cancel := context.WithTimeout(ctx, dialTime)
	server, err := dial(dialing, "tcp", p.To)
	cancel()
	p.mu.Lock()
	if err != nil {
		kind := Failed
		if errors.Is(err, syscall.ECONNRESET) {
			kind = Finished // the server accepted and reset the connection before connect returned
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
	p.release(c)
}

// close closes both connections, which ends the pumps. The caller holds the lock.
func (c *conn) close() {
	c.closed = true
	for _, nc := range c.side {
		if nc != nil {
			nc.Close()
		}
	}
}

func reset(conns ...net.Conn) {
	for _, nc := range conns {
		for {
			below, ok := nc.(interface{ NetConn() net.Conn })
			if !ok {
				break
			}
			nc = below.NetConn()
		}
		if tcp, ok := nc.(*net.TCPConn); ok {
			tcp.SetLinger(0)
			tcp.Close()
		}
	}
}

// pump forwards what one side sends until that side ends.
func (c *conn) pump(from int) {
	src, dst := c.side[from], c.side[1-from]
	buf := make([]byte, bufferSize)
	for {
		n, err := src.Read(buf)
		if n > 0 {
			c.took(from, buf[:n])
			if _, werr := dst.Write(buf[:n]); werr != nil {
				// The receiver is gone. The other pump forwards what it sent before that, and
				// reports its end.
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
		if half, ok := dst.(interface{ CloseWrite() error }); ok && err == nil {
			half.CloseWrite()
		} else {
			reset(src, dst)
		}
		return
	}
}

// tell passes an event to the handler. The caller holds the lock.
func (c *conn) tell(e Event) {
	e.Conn, e.Time = c.id, time.Now()
	if c.p.Handle != nil {
		c.p.Handle(e)
	}
}

// took reports the events in bytes that are about to be forwarded.
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
		s.total += len(b)
		s.held = append(s.held, b[:min(len(b), maxText-len(s.held))]...)
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
		p.release(c)
	}
}

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

// ended reports that one side sends no more.
func (c *conn) ended(from int, err error) {
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	if c.closed {
		return // the proxy closed it
	}
	if from == fromServer {
		c.flush(fromClient) // an incomplete frame that the server did not wait for
	}
	c.flush(from)
	if !c.cut {
		c.tell(Event{Kind: Finished, FromClient: from == fromClient, Err: err})
	}
	c.cut = c.cut || err != nil
	c.asked = 0
	c.p.release(c)
}

// flush reports the bytes of a stream that are not reported yet.
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
	held  []byte // of the current frame, or of a text
	have  int    // bytes received of the current frame; more than held if it is too long
	total int    // bytes of complete frames, or of a text
	raw   bool   // the bytes are not frames
	told  bool   // the four-letter word has been reported
}

// piece is a part of a stream that makes one event.
type piece struct {
	kind  Kind // Framed or Raw; 0 if no piece is complete
	bytes []byte
	size  int
}

// next removes the next piece from the start of b. It returns the piece and the rest of b.
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

// isWord reports whether a connection starts with a four-letter word. As the length of
// a frame, these bytes would mean more than 1.6 GB (NIOServerCnxn.checkFourLetterWord).
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

// await waits until it is c's turn, in the order of those who wait. The caller holds the lock; await releases it while it waits.
func (p *Proxy) await(c *conn) {
	if p.holder == c && len(p.waiting) == 0 {
		return
	}
	if c.asked <= 0 {
		p.release(c)
	}
	p.waiting = append(p.waiting, c)
	late := false
	timer := time.AfterFunc(cmp.Or(p.TurnTime, 2*time.Second), func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		late = true
		p.changed.Broadcast()
	})
	defer timer.Stop()
	for p.holder != nil || p.waiting[0] != c {
		if late {
			p.late++
			break
		}
		p.changed.Wait()
	}
	if p.holder == nil && p.waiting[0] == c {
		p.holder = c
	}
	p.waiting = slices.DeleteFunc(p.waiting, func(w *conn) bool { return w == c })
}

// release ends c's turn, if it has one. The caller holds the lock.
func (p *Proxy) release(c *conn) {
	if p.holder == c {
		p.holder = nil
		p.changed.Broadcast()
	}
}
