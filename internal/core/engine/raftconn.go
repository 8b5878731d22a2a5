package engine

import (
	"bufio"
	"encoding/binary"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/internal/core/peer"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/internal/core/wake"
)

// Raft's transport gives a message and its answer a fixed time. A long message over a slow
// link never arrives in it, and one that waits for a stuck disk is sent again each time. So
// its deadlines are off, and each of its connections is watched instead: by watchConns.
// Neither side may be silent for the election timeout while the other waits for it. While
// the answering side receives a message, or handles it, it gives a sign of life four times
// in that time. A sign is a frame without content: what the answering side sends, and only
// that, is divided into frames, each of them a length in four bytes and as many bytes.

// raftConn is a connection for Raft's messages.
type raftConn struct {
	net.Conn
	all     *raftConns
	answers bool   // this side answers; the other one sends the messages
	to      string // if not answers: the other side's address

	quiet   atomic.Int32 // looks of watchConns since bytes moved, or since a read or write began
	still   atomic.Bool  // nothing has moved since raftConns.watch was called
	piped   atomic.Bool  // messages are sent while answers are awaited
	reading atomic.Bool
	writing atomic.Bool
	late    atomic.Bool // closed because the other side was silent

	asking    // if not answers
	answering // if answers
}

// asking is the state of the side of a raftConn that sends messages.
type asking struct {
	heard   atomic.Bool   // the other side has lived since watchConns last looked
	asked   atomic.Bool   // something was written since the last answer was read
	unasked atomic.Bool   // no answer is awaited, although this side reads
	long    atomic.Bool   // the message under way is a snapshot
	in      *bufio.Reader // the frames
	frame   int           // bytes of the current frame in in
}

// answering is the state of the side of a raftConn that answers messages.
type answering struct {
	begun atomic.Bool  // bytes of a message have come since the last answer
	came  atomic.Bool  // bytes have come since the last sign
	owed  atomic.Int32 // messages of a stream that have come and are not answered
	turn  wake.Turn    // held while a frame is written
	out   []byte       // the last frame
}

// installSnapshot is the first byte of a snapshot's message, in Raft's network transport.
const installSnapshot = 2

// raftConns are the open ones. Raft closes connections while it holds locks of its own, so
// mu is not held for long. The goroutines are watchConns, and those that it and others start to close
// connections. The methods are safe for concurrent use.
type raftConns struct {
	silence   time.Duration // the election timeout
	peers     *peer.Port
	seenAlive func(id uint64) // called several times in an election timeout while a member answers, or receives a long message
	wg        *sync.WaitGroup // of the transport's goroutines

	mu   sync.Mutex
	open map[*raftConn]struct{}

	accepted chan net.Conn            // from the peer port; see take
	idOf     func(addr string) uint64 // the member that should be at an address; 0 if unknown
}

// take hands a connection that another member has opened over to Raft.
func (s *raftConns) take(c net.Conn) {
	select {
	case s.accepted <- c:
	case <-s.peers.Ctx.Done():
		c.Close()
	}
}

// newConn returns a connection that was dialed to the address to, or accepted if to is empty.
func (s *raftConns) newConn(c net.Conn, to string) *raftConn {
	r := &raftConn{Conn: c, all: s, answers: to == "", to: to, answering: answering{turn: wake.NewTurn()}}
	if !r.answers {
		r.in = bufio.NewReader(c)
	}
	s.mu.Lock()
	s.open[r] = struct{}{}
	s.mu.Unlock()
	return r
}

func (c *raftConn) Close() error {
	c.all.mu.Lock()
	delete(c.all.open, c)
	c.all.mu.Unlock()
	return c.Conn.Close()
}

// Read implements net.Conn. Only one goroutine at a time may call it, as Raft does.
func (c *raftConn) Read(p []byte) (n int, err error) {
	c.moves()
	c.reading.Store(true)
	if c.answers {
		n, err = c.Conn.Read(p)
		if n > 0 {
			c.begun.Store(true)
			c.came.Store(true)
		}
	} else if n, err = c.readFrame(p); n > 0 {
		c.asked.Store(false)
	}
	c.moves()
	c.reading.Store(false)
	return n, c.cause(err)
}

func (c *raftConn) readFrame(p []byte) (int, error) {
	for c.frame == 0 {
		head, err := c.in.Peek(4)
		if err != nil {
			return 0, err
		}
		// If watchConns has not looked since this side began to read, they may have come long ago.
		if c.quiet.Load() > 0 {
			c.heard.Store(true)
		}
		c.moves()
		c.frame = int(binary.BigEndian.Uint32(head))
		c.in.Discard(4)
	}
	n, err := c.in.Read(p[:min(len(p), c.frame)])
	c.frame -= n
	return n, err
}

// Write implements net.Conn. Only one goroutine at a time may call it, as Raft does.
func (c *raftConn) Write(p []byte) (n int, err error) {
	c.moves()
	if !c.asked.Swap(true) && len(p) > 0 {
		c.long.Store(!c.answers && p[0] == installSnapshot)
	}
	c.writing.Store(true)
	if c.reading.Load() {
		c.piped.Store(true)
	}
	defer c.writing.Store(false)
	if c.answers {
		c.turn.Take()
		defer c.turn.Give()
		if c.owed.Load() == 0 { // otherwise part of the next message may have come
			c.begun.Store(false)
		}
		c.out = append(binary.BigEndian.AppendUint32(c.out[:0], uint32(len(p))), p...)
		if _, err = c.Conn.Write(c.out); err == nil {
			n = len(p)
		}
		return n, c.cause(err)
	}
	for n < len(p) && err == nil {
		var m int
		m, err = c.Conn.Write(p[n:min(len(p), n+timing.MaxWrite)])
		c.moves()
		if m == timing.MaxWrite { // TCP has room again, so the other side receives what came before
			c.heard.Store(true)
		}
		n += m
	}
	return n, c.cause(err)
}

// ask writes a message that is answered.
func (c *raftConn) ask(p []byte) error {
	_, err := c.Write(p)
	return err
}

// tell writes a short message that needs no answer. Writing it does not show that the other side
// lives: if that owes an answer, it is as late as before.
func (c *raftConn) tell(p []byte) error {
	if c.unasked.Load() {
		c.moves()
	}
	c.writing.Store(true)
	defer c.writing.Store(false)
	_, err := c.Conn.Write(p)
	return c.cause(err)
}

// cause returns the reason for an error of this connection.
func (c *raftConn) cause(err error) error {
	if err != nil && c.late.Load() {
		return os.ErrDeadlineExceeded
	}
	return err
}

// moves notes that bytes move, or that a read or write begins.
func (c *raftConn) moves() {
	c.quiet.Store(0)
	c.still.Store(false)
}

// waits reports whether this side waits for the other one.
func (c *raftConn) waits() bool {
	awaits := !c.unasked.Load()
	if c.answers {
		awaits = c.begun.Load()
	}
	return c.writing.Load() || c.reading.Load() && awaits
}

// look is called four times in an election timeout. It gives a sign of life if the other
// side may be waiting for an answer, and reports whether the connection must be closed.
func (c *raftConn) look() bool {
	reading := c.reading.Load()
	waits := c.waits() // before quiet: it is reset before this side begins to wait
	quiet := c.quiet.Add(1)
	most := c.all.idleLooks()
	if c.answers {
		// Who handles the messages reads whenever there is nothing else to do.
		busy := !reading || c.owed.Load() > 0
		if came := c.came.Swap(false); (came || busy) && c.turn.TryTake() {
			c.Conn.SetWriteDeadline(time.Now().Add(c.all.silence / timing.LooksPerTimeout))
			_, err := c.Conn.Write(make([]byte, 4))
			c.Conn.SetWriteDeadline(time.Time{})
			c.turn.Give()
			if err != nil {
				return true
			}
		}
		if most *= 10; busy && !c.writing.Load() { // it waits for Raft
			return false
		}
	}
	// TCP takes megabytes of a snapshot at once, and says only when a third of them has left that
	// there is room again. On a slow link that may take longer than an election timeout. A snapshot
	// that is cut off begins anew, and would be cut off again, so it may stand still for as long as
	// a connection may be unused.
	patience := int32(timing.LooksPerTimeout)
	if c.long.Load() {
		patience = most
	}
	if waits && quiet > patience {
		c.late.Store(true)
		return true
	}
	return quiet > most
}

// idleLooks is after how many looks an unused connection is closed, by the side that would
// send a message over it. The other side waits much longer. What stands between the two may
// have forgotten such a connection by then, or the other side been restarted. A stream
// is never unused for tellAgain.
func (s *raftConns) idleLooks() int32 {
	return int32(2 * max(s.silence, timing.StreamKeepAlive) / (s.silence / timing.LooksPerTimeout))
}

// watchConns watches Raft's connections until the peer port is closed. It counts how often
// it has looked, instead of reading a clock, so that no time counts in which this process
// was paused.
func (s *raftConns) watchConns() {
	each := time.NewTicker(s.silence / timing.LooksPerTimeout)
	defer each.Stop()
	var conns []*raftConn
	for {
		select {
		case <-each.C:
		case <-s.peers.Ctx.Done():
			return
		}
		s.mu.Lock()
		for c := range s.open {
			conns = append(conns, c)
		}
		s.mu.Unlock()
		for _, c := range conns {
			if c.heard.Swap(false) {
				s.seenAlive(s.idOf(c.to))
			}
			if c.look() {
				s.wg.Go(func() { c.Close() }) // with TLS it may block for 5 s
			}
		}
		clear(conns)
		conns = conns[:0]
	}
}

// hangUp closes the connections over which another member sends messages.
func (s *raftConns) hangUp(from uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.open {
		if g, ok := c.Conn.(peer.Incoming); ok && g.From == from {
			s.wg.Go(func() { c.Close() }) // as in watchConns
		}
	}
}

// watch notes that a heartbeat is about to be sent to an address; see redial.
func (s *raftConns) watch(addr string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.open {
		if c.to == addr {
			c.still.Store(true)
		}
	}
}

// redial closes the connections to an address on which this side waits, after a heartbeat has been
// answered late or needed a new connection. After a short cut, TCP may wait for as long again
// before it sends what was lost. It spares a long message if something has moved since the last
// call of watch, before that heartbeat was sent, and a snapshot in any case. In a stream, that
// says nothing: bytes that are written go to TCP's buffer, and answers to earlier messages may
// come late.
//
// If the heartbeat needed a new connection (dead), what has lost the old one may have lost others.
// So those are closed, too, on which nothing is under way.
func (s *raftConns) redial(addr string, dead bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.open {
		if c.to != addr || c.long.Load() {
			continue
		}
		if waits := c.waits(); waits && (c.still.Load() || c.piped.Load()) || dead && !waits && (!c.asked.Load() || c.piped.Load()) {
			c.late.Store(waits)
			s.wg.Go(func() { c.Close() }) // as in watchConns
		}
	}
}

// raftLayer implements [raft.StreamLayer] on the peer port. Its connections are watched.
type raftLayer struct{ conns *raftConns }

func (l raftLayer) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns.accepted:
		return l.conns.newConn(c, ""), nil
	case <-l.conns.peers.Ctx.Done():
		return nil, net.ErrClosed
	}
}

func (l raftLayer) Close() error { return nil } // the peer port is closed by its owner

func (l raftLayer) Addr() net.Addr { return peerAddr(l.conns.peers.Addr) }

func (l raftLayer) Dial(addr raft.ServerAddress, _ time.Duration) (net.Conn, error) {
	p := l.conns.peers
	c, err := p.DialTwice(p.Ctx, string(addr), peer.KindRaft, l.conns.idOf(string(addr)), l.conns.silence)
	if err != nil {
		return nil, err
	}
	return l.conns.newConn(c, string(addr)), nil
}

// peerAddr is an address as the configuration gives it.
type peerAddr string

func (peerAddr) Network() string  { return "tcp" }
func (a peerAddr) String() string { return string(a) }
