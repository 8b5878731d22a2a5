package peer

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/internal/core/wake"
)

// A fixed time for a message and its answer would be wrong: a long message over a slow
// link would never arrive in it, and one that waits for a stuck disk would be sent again each time (decision 21).
// So each connection is watched instead, by Conns.Run.
// Neither side may be silent for the election timeout while the other waits for it. While
// the answering side receives a message, or handles it, it gives a sign of life four times
// in that time. A sign is a frame without content: what the answering side sends, and only
// that, is divided into frames, each of them a length in four bytes and as many bytes.

// Conn is a connection for Raft's messages.
type Conn struct {
	net.Conn
	all     *Conns
	answers bool   // this side answers; the other one sends the messages
	to      string // if not answers: the other side's address

	Quiet   atomic.Int32 // looks of Run since bytes moved, or since a read or write began
	looks   atomic.Int32 // all looks of Run
	still   atomic.Bool  // nothing has moved since Conns.BeatSent was called
	Reading atomic.Bool
	writing atomic.Bool
	late    atomic.Bool // closed because the other side was silent
	closed  atomic.Bool

	asking    // if not answers
	answering // if answers
}

// asking is the state of the side of a Conn that sends messages.
type asking struct {
	heard         atomic.Bool   // the other side has lived since Run last looked
	unanswered    atomic.Bool   // something was written since the last answer was read
	Pipelined     atomic.Bool   // messages are sent while answers to others are awaited
	AwaitsNothing atomic.Bool   // no answer is awaited, although this side reads
	Long          atomic.Bool   // this side sends a snapshot over it
	in            *bufio.Reader // the frames
	frame         int           // bytes of the current frame in in
}

// answering is the state of the side of a Conn that answers messages.
type answering struct {
	MidMessage atomic.Bool  // this side waits for the rest of a message, or has not answered a snapshot
	came       atomic.Bool  // bytes have come since the last sign
	Owed       atomic.Int32 // messages that have come and are not answered
	turn       wake.Turn    // held while a frame is written
	out        []byte       // the last frame
}

// Conns are the open connections for Raft's messages, which Run watches. Raft closes connections while it holds locks of its own,
// so mu is not held for long. The goroutines are Run, and those that it and others start to close
// connections. The methods are safe for concurrent use.
type Conns struct {
	silence   time.Duration // the election timeout
	peers     *Port
	seenAlive func(id uint64) // called several times in an election timeout while a member answers, or receives a long message
	wg        *sync.WaitGroup // of the transport's goroutines

	mu   sync.Mutex
	open map[*Conn]struct{}

	idOf func(addr string) uint64 // the member that should be at an address; 0 if unknown
}

// NewConns returns Conns without a connection. silence is for how long one may be silent; wg waits for the goroutines that close
// connections. Run must be started.
func NewConns(port *Port, silence time.Duration, seenAlive func(id uint64), idOf func(addr string) uint64, wg *sync.WaitGroup) *Conns {
	return &Conns{silence: silence, peers: port, seenAlive: seenAlive, idOf: idOf, wg: wg, open: map[*Conn]struct{}{}}
}

// Count returns how many connections are open.
func (s *Conns) Count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

// NewConn returns a connection that was dialed to the address to, or accepted if to is empty.
func (s *Conns) NewConn(c net.Conn, to string) *Conn {
	r := &Conn{Conn: c, all: s, answers: to == "", to: to, answering: answering{turn: wake.NewTurn()}}
	if !r.answers {
		r.in = bufio.NewReader(c)
	}
	s.mu.Lock()
	s.open[r] = struct{}{}
	s.mu.Unlock()
	return r
}

// Closed reports whether this side has closed the connection.
func (c *Conn) Closed() bool { return c.closed.Load() }

func (c *Conn) Close() error {
	c.closed.Store(true)
	c.all.mu.Lock()
	delete(c.all.open, c)
	c.all.mu.Unlock()
	return c.Conn.Close()
}

// Read implements net.Conn. Only one goroutine at a time may call it.
func (c *Conn) Read(p []byte) (n int, err error) {
	c.Moves()
	c.Reading.Store(true)
	if c.answers {
		n, err = c.Conn.Read(p)
		if n > 0 {
			c.MidMessage.Store(true)
			c.came.Store(true)
		}
	} else if n, err = c.readFrame(p, c.looks.Load()); n > 0 {
		c.unanswered.Store(false)
	}
	c.Moves()
	c.Reading.Store(false)
	return n, c.cause(err)
}

// readFrame reads from the next frame with content. began is the number of looks when this side began to read.
func (c *Conn) readFrame(p []byte, began int32) (int, error) {
	for c.frame == 0 {
		head, err := c.in.Peek(4)
		if err != nil {
			return 0, err
		}
		// If Run has not looked since this side began to read, they may have come long ago.
		if c.looks.Load() != began {
			c.heard.Store(true)
		}
		c.Moves()
		c.frame = int(binary.BigEndian.Uint32(head))
		c.in.Discard(4)
	}
	n, err := c.in.Read(p[:min(len(p), c.frame)])
	c.frame -= n
	return n, err
}

// Write implements net.Conn. Only one goroutine at a time may call it. Who writes a long message must read meanwhile, to learn that
// the other side receives it: see Exchange.
func (c *Conn) Write(p []byte) (n int, err error) {
	c.Moves()
	c.writing.Store(true)
	defer c.writing.Store(false)
	if !c.answers {
		c.unanswered.Store(true)
		n, err = c.Conn.Write(p)
		return n, c.cause(err)
	}
	c.turn.Take()
	defer c.turn.Give()
	if c.Owed.Load() == 0 { // otherwise part of the next message may have come
		c.MidMessage.Store(false)
	}
	c.out = append(binary.BigEndian.AppendUint32(c.out[:0], uint32(len(p))), p...)
	if _, err = c.Conn.Write(c.out); err == nil {
		n = len(p)
	}
	return n, c.cause(err)
}

// Exchange sends a message, and calls read beside that, which reads the answer: the other side gives signs of life while it receives
// the message. If it cannot be sent, the connection is closed.
func (c *Conn) Exchange(message io.Reader, read func() error) error {
	answered := make(chan error, 1)
	go func() { answered <- read() }() // it ends with the connection, at the latest
	_, err := io.Copy(c, message)
	if err != nil {
		c.Close()
	}
	return cmp.Or(err, <-answered)
}

// Tell writes a short message that needs no answer. Writing it does not show that the other side
// lives: if that owes an answer, it is as late as before.
func (c *Conn) Tell(p []byte) (int, error) {
	if c.AwaitsNothing.Load() {
		c.Moves()
	}
	c.writing.Store(true)
	defer c.writing.Store(false)
	n, err := c.Conn.Write(p)
	return n, c.cause(err)
}

// cause returns the reason for an error of this connection.
func (c *Conn) cause(err error) error {
	if err != nil && c.late.Load() {
		return os.ErrDeadlineExceeded
	}
	return err
}

// Moves notes that bytes move, or that a read or write begins.
func (c *Conn) Moves() {
	c.Quiet.Store(0)
	c.still.Store(false)
}

// waits reports whether this side waits for the other one.
func (c *Conn) waits() bool {
	awaits := !c.AwaitsNothing.Load()
	if c.answers {
		awaits = c.MidMessage.Load()
	}
	return c.writing.Load() || c.Reading.Load() && awaits
}

// Check is called four times in an election timeout. It gives a sign of life if the other
// side may be waiting for an answer, and reports whether the connection must be closed.
func (c *Conn) Check() bool {
	reading := c.Reading.Load()
	waits := c.waits() // before quiet: it is reset before this side begins to wait
	quiet := c.Quiet.Add(1)
	c.looks.Add(1)
	most := c.all.idleLooks()
	if c.answers {
		// Who handles the messages reads whenever there is nothing else to do.
		busy := !reading || c.Owed.Load() > 0
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
	if waits && quiet > timing.LooksPerTimeout {
		c.late.Store(true)
		return true
	}
	return quiet > most
}

// idleLooks is after how many looks an unused connection is closed, by the side that would
// send a message over it. The other side waits much longer. What stands between the two may
// have forgotten such a connection by then, or the other side been restarted. A stream
// is never unused for timing.StreamKeepAlive.
func (s *Conns) idleLooks() int32 {
	return int32(2 * max(s.silence, timing.StreamKeepAlive) / (s.silence / timing.LooksPerTimeout))
}

// Run watches Raft's connections until the peer port is closed. It counts how often
// it has looked, instead of reading a clock, so that no time counts in which this process
// was paused.
func (s *Conns) Run() {
	each := time.NewTicker(s.silence / timing.LooksPerTimeout)
	defer each.Stop()
	for {
		select {
		case <-each.C:
		case <-s.peers.Ctx.Done():
			return
		}
		s.mu.Lock()
		conns := slices.Collect(maps.Keys(s.open))
		s.mu.Unlock()
		for _, c := range conns {
			if c.heard.Swap(false) {
				s.seenAlive(s.idOf(c.to))
			}
			if c.Check() {
				s.wg.Go(func() { c.Close() }) // with TLS it may block for 5 s
			}
		}
	}
}

// BeatSent notes that a heartbeat is about to be sent to an address; see Redial.
func (s *Conns) BeatSent(addr string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.open {
		if c.to == addr {
			c.still.Store(true)
		}
	}
}

// Redial closes the connections to an address on which this side waits, after a heartbeat has been
// answered late or needed a new connection. After a short cut, TCP may wait for as long again
// before it sends what was lost. It spares a long message if something has moved since the last
// call of BeatSent, before that heartbeat was sent, and a snapshot in any case. In a stream, that
// says nothing: bytes that are written go to TCP's buffer, and answers to earlier messages may
// come late.
//
// If the heartbeat needed a new connection (dead is true), what has lost the old one may have lost others.
// So those are closed, too, on which nothing is under way.
func (s *Conns) Redial(addr string, dead bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.open {
		if c.to != addr || c.Long.Load() {
			continue
		}
		if waits := c.waits(); waits && (c.still.Load() || c.Pipelined.Load()) || dead && !waits && (!c.unanswered.Load() || c.Pipelined.Load()) {
			c.late.Store(waits)
			s.wg.Go(func() { c.Close() }) // as in Run
		}
	}
}
