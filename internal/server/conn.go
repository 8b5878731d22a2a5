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
	raw    net.Conn      // below TLS, or the same: to close it takes no time
	r      *bufio.Reader // the reader's
	addr   string        // of the client, without port; "" in memory
	number uint64
	since  time.Time // of day: it is only told

	session  int64 // set by the handshake, under Server.mu and before the reader goes on
	timeout  int32 // ms, likewise
	readOnly bool  // likewise: it is served reads alone, and its session is not this server's to keep
	identity atomic.Pointer[identity]

	out     outbox
	dirty   atomic.Bool // in Server.dirty
	closing atomic.Bool // its client asked for the end of the session

	gone     chan struct{} // closed by kill
	goneOnce sync.Once
	slots    chan struct{} // an element for each slot taken in the queue

	mu    sync.Mutex
	queue []request // in order of arrival; the first one waits for the log
	dead  bool      // the connection is over: nothing of it is run any more

	// The reader's own.
	scratch []byte // replies that it makes
	unsent  bool   // it has queued something since it last woke the writer
	fed     bool   // something came from the network since the session was last touched

	stats connStats
}

// identity is who a connection is. It is replaced, never changed.
type identity struct {
	ids     []proto.ID
	encoded []byte // as it goes into commands
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

// frame queues one frame, and counts it before: who has got it may ask for the counts.
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

// markDirty has what was queued sent when the running entry is applied.
func (c *conn) markDirty() {
	if !c.dirty.Swap(true) {
		c.s.markDirty(c)
	}
}

func (c *conn) remote() string { return c.nc.RemoteAddr().String() }

// kill ends the connection at once. It may be called from anywhere.
func (c *conn) kill() {
	c.goneOnce.Do(func() { close(c.gone) })
	c.out.close()
	c.raw.Close()
}

// goodbye tells a client that speaks TLS that this was all.
func (c *conn) goodbye() {
	if t, ok := c.nc.(*tls.Conn); ok {
		t.CloseWrite() // takes 5 s at the longest
	}
}

// end closes the connection once what is queued is sent, or soon at the latest.
func (c *conn) end() {
	c.nc.SetWriteDeadline(time.Now().Add(c.s.cfg.HandshakeTimeout))
	c.out.finish()
}

// fromNetwork is the reader's way to the socket. Before it waits there, what it
// has answered is sent: one flush for all the requests that came together.
type fromNetwork struct{ c *conn }

func (f fromNetwork) Read(p []byte) (int, error) {
	if f.c.unsent {
		f.c.unsent = false
		f.c.out.flush()
	}
	f.c.fed = true
	return f.c.nc.Read(p)
}

// serveConn is the reader of one connection, from its first byte to its end.
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
		ids[0].ID = "127.0.0.1" // in memory is as local as can be
	}
	c.identity.Store(newIdentity(ids))
	nc.SetDeadline(time.Now().Add(s.cfg.HandshakeTimeout))
	if isTLS && !c.shakeTLS(secured) {
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
		s.forget(c) // a client that sees the end may come back at once, and must not be one too many
		c.goodbye()
		c.kill() // and with it the reader, wherever it waits
	}()
	switch err := c.talk(first); {
	case err == nil: // what is queued is still sent, if the client takes it
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

// badInput reports whether an error is of what a client sent, and not of the network.
func badInput(err error) bool {
	for _, bad := range []error{jute.ErrFrame, jute.ErrShort, jute.ErrLength, jute.ErrNull, errAuth, errSASL} {
		if errors.Is(err, bad) {
			return true
		}
	}
	return false
}

// talk reads the handshake, whose frame has length first, and then requests,
// until the connection is to end: with nil when what is queued shall be sent
// before, with an error at once.
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
		if c.readOnly { // nobody else sees to its end
			c.nc.SetReadDeadline(time.Now().Add(time.Duration(c.timeout) * time.Millisecond))
		}
		if buf, err = jute.ReadFrame(c.r, c.s.cfg.MaxFrame, buf); err != nil {
			if err == io.EOF || errors.Is(err, net.ErrClosed) {
				return errEnd
			}
			return err
		}
		// One touch does for all frames that came together.
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
			buf = nil // a large frame's buffer is not kept for a quiet connection
		}
	}
}

// late counts a connection that ended because its handshake did not come in time.
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
