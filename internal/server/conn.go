package server

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// conn is one connection.
type conn struct {
	s      *Server
	nc     net.Conn
	raw    net.Conn      // the connection below TLS, or nc; closing it does not block
	r      *bufio.Reader // used only by the reader
	addr   string        // of the client, without port; "" for a connection in memory
	number uint64
	since  time.Time // by the clock that four-letter words show; used for nothing else

	// Set by the handshake while Server.mu is held, before the reader continues.
	session  int64
	timeout  int32 // ms
	readOnly bool  // in read-only mode: this server does not track the session
	identity atomic.Pointer[identity]

	out     outbox
	dirty   atomic.Bool // c is in Server.dirty
	closing atomic.Bool // the client has asked to close its session

	gone     chan struct{} // closed by kill
	goneOnce sync.Once
	slots    chan struct{} // an element for each slot taken in the queue

	mu    sync.Mutex
	queue []request // in order of arrival; the first one waits for the log
	dead  bool      // the connection has ended: no queued request is run any more

	// Used only by the reader.
	scratch []byte // buffer for replies
	unsent  bool   // it has queued frames since it last woke the writer
	fed     bool   // it has read from the network since it last touched the session

	stats connStats
}

// identity is the set of identities of a connection. It is immutable; auth
// replaces it.
type identity struct {
	ids     []proto.ID
	encoded []byte // as it appears in commands
}

func newIdentity(ids []proto.ID) *identity { return &identity{ids, fsm.AppendIDs(nil, ids)} }

// Identities implements fsm.Watcher.
func (c *conn) Identities() []proto.ID { return c.identity.Load().ids }

// Event implements fsm.Watcher. The applier calls it, or the reader in setWatches.
func (c *conn) Event(zxid int64, t proto.EventType, path string) {
	c.frame(&proto.ReplyHeader{Xid: proto.XidEvent, Zxid: zxid}, func(b []byte) []byte {
		e := proto.WatcherEvent{Type: t, State: proto.EventStateConnected, Path: path}
		start := len(b)
		b = e.Append(b)
		c.s.stats.eventBytes.Add(int64(16 + len(b) - start))
		return b
	})
	c.markDirty()
}

// frame queues one frame. It counts the frame first, because a client that has
// received it may ask for the count.
func (c *conn) frame(h *proto.ReplyHeader, body func(b []byte) []byte) {
	c.stats.sent.Add(1)
	c.s.stats.sent.Add(1)
	ok := c.out.add(func(b []byte) []byte {
		b, start := jute.BeginFrame(b)
		b = body(h.Append(b))
		jute.EndFrame(b, start)
		return b
	})
	if !ok {
		const msg = "closing a connection whose client does not read"
		c.warnLater(msg, msg)
		c.kill()
	}
}

// markDirty makes the applier wake the writer once the running entry is applied.
func (c *conn) markDirty() {
	if !c.dirty.Swap(true) {
		c.s.markDirty(c)
	}
}

func (c *conn) remote() string { return c.nc.RemoteAddr().String() }

// kill ends the connection at once, without sending what is queued. It does not
// block and may be called from any goroutine.
func (c *conn) kill() {
	c.goneOnce.Do(func() { close(c.gone) })
	c.out.close()
	c.raw.Close()
}

// goodbye sends a client that uses TLS the alert that the connection is complete.
func (c *conn) goodbye() {
	if t, ok := c.nc.(*tls.Conn); ok {
		t.CloseWrite() // takes 5 s at the longest
	}
}

// end closes the connection once everything queued is sent, or after
// HandshakeTimeout at the latest.
func (c *conn) end() {
	c.nc.SetWriteDeadline(time.Now().Add(c.s.cfg.HandshakeTimeout))
	c.out.finish()
}

// fromNetwork reads from the socket for the reader's buffer. Before each read it
// wakes the writer if replies are queued, so that requests that arrived together
// are answered with one write.
type fromNetwork struct{ c *conn }

func (f fromNetwork) Read(p []byte) (int, error) {
	if f.c.unsent {
		f.c.unsent = false
		f.c.out.flush()
	}
	f.c.fed = true
	return f.c.nc.Read(p)
}

// serveConn serves one connection from its first byte to its end, as its reader.
func (s *Server) serveConn(nc net.Conn) {
	c := &conn{s: s, nc: nc, raw: nc, number: s.number.Add(1), since: s.cfg.TimeOfDay(),
		gone: make(chan struct{}), slots: make(chan struct{}, s.cfg.MaxOutstanding)}
	if a, ok := nc.RemoteAddr().(*net.TCPAddr); ok {
		c.addr = a.IP.String()
	}
	c.out.init(s.cfg.OutboxBytes)
	secured, isTLS := nc.(*tls.Conn)
	if isTLS {
		c.raw = secured.NetConn()
	} else if a, ok := nc.RemoteAddr().(*net.TCPAddr); ok && !a.IP.IsLoopback() {
		s.stats.plainFar.Add(1)
	} else {
		s.stats.plainNear.Add(1)
	}
	if !s.admit(c) {
		s.stats.refused.Add(1)
		c.warn("refusing a connection: too many")
		if t, ok := c.raw.(*net.TCPConn); ok {
			t.SetLinger(0) // a reset, as from ZooKeeper
		}
		c.raw.Close()
		return
	}
	defer s.stats.ended.Add(1)
	defer s.forget(c)
	defer nc.Close()

	ids := []proto.ID{{Scheme: proto.SchemeIP, ID: c.addr}}
	if c.addr == "" {
		ids[0].ID = "127.0.0.1" // a connection in memory is local
	}
	c.identity.Store(newIdentity(ids))
	nc.SetDeadline(time.Now().Add(s.cfg.HandshakeTimeout))
	if isTLS && !c.handshakeTLS(secured) {
		return
	}
	nc.SetWriteDeadline(time.Time{})
	c.r = bufio.NewReaderSize(fromNetwork{c}, 4<<10)

	first, err := jute.FrameLength(c.r)
	if err != nil {
		c.late(err)
		s.cfg.Log.Debug("connection ends without a handshake", "client", c.remote(), "error", err)
		return
	}
	if word := fourLetters(first); s.knows(word) {
		s.stats.received.Add(1)
		s.stats.bytesIn.Add(4)
		s.answer(c, word)
		return
	}
	if !s.isServing() && !s.isReadOnly() {
		s.stats.unserved.Add(1)
		return
	}

	writer := make(chan struct{})
	go func() {
		defer close(writer)
		c.out.run(nc)
		s.forget(c) // before the client sees the end: if it reconnects at once, this one must not count
		c.goodbye()
		c.kill() // also unblocks the reader
	}()
	switch err := c.talk(first); {
	case err == nil: // send what is queued, if the client reads it
		nc.SetWriteDeadline(time.Now().Add(s.cfg.HandshakeTimeout))
	case badInput(err):
		c.warn("closing a connection: bad input", "error", err)
		c.kill()
	default:
		s.cfg.Log.Debug("connection ends", "client", c.remote(), "session", session.FormatID(c.session), "error", err)
		c.kill()
	}
	<-writer
	c.kill()

	c.mu.Lock()
	c.dead = true
	s.stats.outstanding.Add(-int64(len(c.queue)))
	c.queue = nil
	c.mu.Unlock()
	s.cfg.Replica.DropWatches(c)
}

var errEnd = errors.New("the server ends it")

// badInput reports whether an error was caused by what a client sent rather than by
// the network.
func badInput(err error) bool {
	for _, bad := range []error{jute.ErrFrame, jute.ErrShort, jute.ErrLength, jute.ErrNull, errAuth, errSASL} {
		if errors.Is(err, bad) {
			return true
		}
	}
	return false
}

// talk reads the handshake, whose frame has length first, and then handles requests
// until the connection is to end. It returns nil if queued replies are to be sent
// first, and an error if the connection is to be closed at once.
func (c *conn) talk(first uint32) error {
	buf, err := jute.ReadPayload(c.r, first, c.s.cfg.MaxFrame, nil)
	if err != nil {
		c.late(err)
		return err
	}
	if ok, err := c.handshake(buf); !ok {
		return err
	}
	c.nc.SetReadDeadline(time.Time{})
	for buf = nil; ; {
		if c.readOnly { // its session is not tracked, so nothing else ends the connection
			c.nc.SetReadDeadline(time.Now().Add(time.Duration(c.timeout) * time.Millisecond))
		}
		if buf, err = jute.ReadFrame(c.r, c.s.cfg.MaxFrame, buf); err != nil {
			if err == io.EOF || errors.Is(err, net.ErrClosed) {
				return errEnd
			}
			return err
		}
		// Frames that arrived together need only one touch.
		if c.fed && len(buf) >= 8 && !isAuth(buf) {
			c.fed = false
			if !c.readOnly && !c.s.cfg.Proposer.Touch(c.session, c.gone) {
				return errEnd
			}
		}
		if ok, err := c.handle(buf); !ok {
			return err
		}
		if cap(buf) > 64<<10 {
			buf = nil // do not keep a large buffer for an idle connection
		}
	}
}

// late counts a connection that ended because its handshake took too long.
func (c *conn) late(err error) {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.s.stats.silent.Add(1)
	}
}

// isAuth reports whether a request is auth or sasl, which ZooKeeper does not
// count as a sign of life.
func isAuth(frame []byte) bool {
	op := proto.OpCode(int32(binary.BigEndian.Uint32(frame[4:])))
	return op == proto.OpAuth || op == proto.OpSASL
}
