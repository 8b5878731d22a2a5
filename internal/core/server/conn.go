package server

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/either"
	"github.com/lockkeeper/lockkeeper/internal/core/locks"
	"github.com/lockkeeper/lockkeeper/internal/core/persona"
	"github.com/lockkeeper/lockkeeper/internal/core/sasl"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

type conn struct {
	s      *Server
	nc     net.Conn
	raw    net.Conn // the connection below TLS, or nc; closing it does not block
	ended  func()   // called when everything of the connection has ended
	addr   string   // of the client, without port; "" for a connection in memory
	number uint64
	since  time.Time // by the clock that four-letter words show; used for nothing else

	agreed
	identity atomic.Pointer[identity]
	proving  atomic.Bool // the client proves an identity by TLS or SASL, perhaps to what was valid when it began

	// When the client was sent the event that the znode before its own in the queue of a lock
	// is gone, in ns since Server.start; 0 if the client has read something since then.
	released atomic.Int64

	out     outbox
	dirty   atomic.Bool // the connection is in Server.dirty
	closing atomic.Bool // the client has asked to close its session
	stopped atomic.Bool // the reader handles no more requests, whatever comes

	gone     chan struct{} // closed by kill
	goneOnce sync.Once

	requestQueue
	reader
	stats connStats
}

// agreed is what the handshake of a connection has led to. It is set while Server.mu is held,
// before the reader continues.
type agreed struct {
	session  int64
	timeout  int32 // ms
	readOnly bool  // in read-only mode: this server does not track the session
}

// requestQueue holds a connection's writes that wait for the log, and the requests that
// arrived behind them. The reader adds to it, and the applier removes.
type requestQueue struct {
	slots chan struct{} // an element for each slot taken in the queue

	mu    sync.Mutex
	queue []request // in order of arrival; empty if no request waits for the log
	first int       // index in queue of the first one, which waits for the log; the elements before it are unused
	dead  bool      // the connection has ended: no queued request is run any more
}

// newRequestQueue returns an empty queue with that many slots.
func newRequestQueue(slots int) requestQueue {
	return requestQueue{slots: make(chan struct{}, slots)}
}

// reader is the state of a connection's reader, which no other goroutine uses.
type reader struct {
	r       *bufio.Reader // nil while the client is idle
	scratch []byte        // buffer for replies
	head    [4]byte       // receives the first bytes after an idle time
	ahead   []byte        // the part of head that r has yet to read
	begun   bool          // the client is being served: a handshake has begun
	between bool          // no byte of the next request has been read
	timed   bool          // reading has a deadline, when the client counts as idle
	busy    bool          // something has been read since that deadline was set
	unsent  bool          // frames have been queued since the outbox was last flushed
	fed     bool          // something has been read since the session was last touched
	sasl    sasl.Exchange // nil before the first request sasl
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
	if !c.s.cfg.Persona.Does(persona.EventZxid) {
		zxid = -1
	}
	c.frame(&proto.ReplyHeader{Xid: proto.XidEvent, Zxid: zxid}, func(b []byte) []byte {
		e := proto.WatcherEvent{Type: t, State: proto.EventStateConnected, Path: path}
		start := len(b)
		b = e.Append(b)
		c.s.stats.eventBytes.Add(int64(16 + len(b) - start))
		return b
	})
	if t == proto.EventNodeDeleted && locks.Interesting(path[strings.LastIndexByte(path, '/')+1:]) {
		c.released.CompareAndSwap(0, int64(time.Since(c.s.start)))
	}
	c.markDirty()
}

// reads ends the handover of a lock to this client, if there is one: a client that was told
// that the znode before its own is gone looks at the queue before it takes the lock.
func (c *conn) reads() {
	if c.released.Load() == 0 {
		return
	}
	if at := c.released.Swap(0); at != 0 {
		c.s.stats.handovers.Since(c.s.start.Add(time.Duration(at)))
	}
}

// frame queues one frame.
func (c *conn) frame(h *proto.ReplyHeader, body func(b []byte) []byte) {
	if !c.queueFrame(func(b []byte) []byte { return body(h.Append(b)) }) {
		c.warn("closing a connection whose client does not read")
		c.kill()
	}
}

// queueFrame queues one frame, and returns false if too much is queued then. It counts the frame first, because a
// client that has received it may ask for the count.
func (c *conn) queueFrame(payload func(b []byte) []byte) bool {
	c.stats.sent.Add(1)
	c.s.stats.sent.Add(1)
	return c.out.add(func(b []byte) []byte {
		b, start := jute.BeginFrame(b)
		b = payload(b)
		jute.EndFrame(b, start)
		return b
	})
}

// markDirty makes the applier flush the outbox once the current entry is applied.
func (c *conn) markDirty() {
	if !c.dirty.Swap(true) {
		c.s.dirty.add(c)
	}
}

func (c *conn) remote() string { return c.nc.RemoteAddr().String() }

// shown returns the client's address and port as ZooKeeper's four-letter words show them.
func (c *conn) shown() string {
	a, ok := c.nc.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return c.remote()
	}
	return net.JoinHostPort(hostAddress(a), strconv.Itoa(a.Port))
}

// hostAddress returns the address of a client as Java writes it, which identities of the scheme ip
// have: an IPv6 address in eight groups, of which none is left out.
func hostAddress(a *net.TCPAddr) string {
	if ip := a.IP.To4(); ip != nil {
		return ip.String()
	}
	var groups []string
	for ip := a.IP.To16(); len(ip) > 1; ip = ip[2:] {
		groups = append(groups, strconv.FormatUint(uint64(ip[0])<<8|uint64(ip[1]), 16))
	}
	if a.Zone != "" {
		return strings.Join(groups, ":") + "%" + a.Zone
	}
	return strings.Join(groups, ":")
}

// kill ends the connection at once, without sending what is queued. It does not
// block and may be called from any goroutine.
func (c *conn) kill() {
	c.goneOnce.Do(func() { close(c.gone) })
	c.out.close()
	c.raw.Close()
}

// goodbye sends a client that uses TLS the alert that ends the connection properly.
func (c *conn) goodbye() {
	if t := either.TLS(c.nc); t != nil {
		t.CloseWrite() // takes at most 5 s
	}
}

// lingerTime is how long a client may take to read a connection's last answer and to close its
// side.
const lingerTime = 2 * time.Second

// halfClose sends the end of the connection and keeps its other half, which discard reads. It
// returns false if the connection cannot do that.
func (c *conn) halfClose() bool {
	c.goodbye()
	t, ok := c.raw.(*net.TCPConn)
	return ok && t.CloseWrite() == nil
}

// discard reads what the client still sends until it closes its side, for lingerTime at most.
// Closing a connection with unread bytes resets it, and the client loses answers that it has not
// read. The reader calls it after halfClose.
func (c *conn) discard() {
	s := c.s
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.leaving[c] = struct{}{}
	s.mu.Unlock()
	c.raw.SetReadDeadline(time.Now().Add(lingerTime))
	io.Copy(io.Discard, c.raw)
	s.mu.Lock()
	delete(s.leaving, c)
	s.mu.Unlock()
}

// end closes the connection once everything queued is sent, or after
// HandshakeTimeout at the latest.
func (c *conn) end() {
	c.nc.SetWriteDeadline(time.Now().Add(c.s.cfg.HandshakeTimeout))
	c.out.finish()
}

// A client that sends nothing for idleAfter counts as idle.
const idleAfter = 50 * time.Millisecond

// passed is a deadline that ends reading at once.
var passed = time.Unix(1, 0)

// readBy sets the deadline for reading; zero is none. While the server drains its connections,
// nothing more is read.
func (c *conn) readBy(t time.Time) {
	c.nc.SetReadDeadline(t)
	if c.s.draining.Load() {
		c.nc.SetReadDeadline(passed)
	}
}

// await sets the deadline for reading to the time at which the client counts as idle,
// unless it sends something before.
func (c *conn) await() {
	c.timed, c.busy = true, false
	c.readBy(time.Now().Add(idleAfter))
}

// readMore reads from the network. It returns errDrain if nothing is to be read any more.
func (c *conn) readMore(p []byte) (int, error) {
	n, err := c.nc.Read(p)
	if err != nil && errors.Is(err, os.ErrDeadlineExceeded) && c.s.draining.Load() {
		err = errDrain
	}
	return n, err
}

// fromNetwork reads from the socket for the reader's buffer. Before each read it
// flushes the outbox if replies are queued, so that requests that arrived together
// are answered with one write. It returns errIdle if the client has become idle.
type fromNetwork struct{ c *conn }

func (f fromNetwork) Read(p []byte) (n int, err error) {
	c := f.c
	c.fed = true
	if len(c.ahead) > 0 {
		n = copy(p, c.ahead)
		c.ahead = c.ahead[n:]
		return n, nil
	}
	if c.unsent {
		c.unsent = false
		c.out.flush()
	}
	n, err = c.readMore(p)
	for n == 0 && c.timed && errors.Is(err, os.ErrDeadlineExceeded) {
		switch {
		case c.between && !c.busy:
			return 0, errIdle
		case c.between:
			c.await()
		default: // in the middle of a request
			c.timed = false
			c.readBy(time.Time{})
		}
		n, err = c.readMore(p)
	}
	c.busy = true
	return n, err
}

// serveConn serves a connection as its reader, and calls ended when the connection has
// ended. It may return earlier: when a handshake is over, and each time the client
// becomes idle, the reader starts another goroutine and leaves the connection to it. A
// goroutine keeps the stack that its requests needed, and a new one has the smallest.
func (s *Server) serveConn(nc net.Conn, ended func()) {
	secured := either.TLS(nc)
	both, isEither := nc.(*either.Conn)
	if s.cfg.Tap != nil && secured == nil && !isEither {
		nc = s.cfg.Tap(nc)
	}
	c := &conn{s: s, nc: nc, raw: nc, ended: ended, number: s.number.Add(1), since: s.cfg.TimeOfDay(),
		gone: make(chan struct{}), requestQueue: newRequestQueue(s.cfg.MaxOutstanding)}
	if a, ok := nc.RemoteAddr().(*net.TCPAddr); ok {
		c.addr = hostAddress(a)
	}
	c.out.init(s.cfg.OutboxBytes)
	switch {
	case secured != nil:
		c.raw = secured.NetConn()
	case isEither: // counted when its client has decided
		c.raw = both.Conn
	default:
		c.countPlain()
	}
	if !s.admit(c) {
		c.warn("refusing a connection: too many")
		s.refuse(c.raw)
		c.ended()
		return
	}

	ids := inProcess
	if c.addr != "" {
		ids = []proto.ID{{Scheme: proto.SchemeIP, ID: c.addr}}
	}
	c.identity.Store(newIdentity(ids))
	nc.SetWriteDeadline(time.Now().Add(s.cfg.HandshakeTimeout))
	c.readBy(time.Now().Add(s.cfg.HandshakeTimeout))
	if isEither {
		var err error
		switch secured, err = both.Detect(); {
		case err != nil:
			c.late(err)
			c.leave()
			return
		case secured == nil:
			c.countPlain()
		}
	}
	if secured != nil && !c.handshakeTLS(secured) {
		c.leave()
		return
	}
	nc.SetWriteDeadline(time.Time{})
	c.read()
}

func (c *conn) countPlain() {
	if a, ok := c.nc.RemoteAddr().(*net.TCPAddr); ok && !a.IP.IsLoopback() {
		c.s.stats.plainFar.Add(1)
	} else {
		c.s.stats.plainNear.Add(1)
	}
}

// read is the reader before the handshake, and while the client is idle. An idle client's
// connection holds no buffer until something arrives.
func (c *conn) read() {
	if c.timed {
		c.timed = false
		c.readBy(time.Time{})
	}
	var err error
	n := 0
	if c.begun { // before, a four-letter word is read with what follows it, like a newline
		n, err = c.readMore(c.head[:])
		c.ahead = c.head[:n]
	}
	if n > 0 || !c.begun {
		err = c.serve()
	}
	switch {
	case err == errIdle:
		go c.read()
	case err == errDrain && c.begun:
		c.stopped.Store(true)
		c.local(request{fixed: &fixedReply{none: true, end: true}}) // behind what waits for the log
		c.finish(nil)
	case c.begun:
		c.finish(err)
	default:
		if err != nil {
			c.late(err)
			c.s.cfg.Log.Debug("connection ends without a handshake", "client", c.remote(), "error", err)
		}
		c.leave()
	}
}

// serve handles what the client sends, until it is idle or the connection is to end.
// It returns errIdle, or another error if the connection is to be closed at once, or
// nil if what is queued is to be sent first.
func (c *conn) serve() error {
	c.r = c.s.readers.Get().(*bufio.Reader)
	c.r.Reset(fromNetwork{c})
	c.out.setIdle(false)
	defer func() {
		c.r.Reset(nil)
		c.s.readers.Put(c.r)
		c.r, c.scratch = nil, nil
		c.out.setIdle(true)
		c.mu.Lock()
		if len(c.queue) == 0 {
			c.queue = nil
		}
		c.mu.Unlock()
	}()
	if !c.begun {
		return c.begin()
	}
	return c.talk()
}

// begin reads a four-letter word and answers it, or reads a handshake.
func (c *conn) begin() error {
	s := c.s
	first, err := jute.FrameLength(c.r)
	if err != nil {
		return err
	}
	if word := string(binary.BigEndian.AppendUint32(nil, first)); s.knows(word) {
		s.stats.received.Add(1)
		s.stats.bytesIn.Add(4)
		s.answer(c, word)
		return nil
	}
	if !s.Serving() && !s.isReadOnly() {
		s.stats.unserved.Add(1)
		return nil
	}
	c.begun = true
	c.out.begin(c)
	buf, err := jute.ReadPayload(c.r, first, s.cfg.MaxFrame, nil)
	if err != nil {
		c.late(err)
		return err
	}
	if ok, err := c.handshake(buf); !ok {
		return err
	}
	c.readBy(time.Time{})
	if !c.readOnly && c.r.Buffered() == 0 {
		return errIdle // gives back the stack that the handshake needed
	}
	return c.talk()
}

// finish ends a connection that has begun, after what is queued has been sent if err
// is nil, and otherwise at once.
func (c *conn) finish(err error) {
	s := c.s
	switch {
	case err == nil: // send what is queued, if the client reads it
		c.nc.SetWriteDeadline(time.Now().Add(s.cfg.HandshakeTimeout))
	case badInput(err):
		c.warn("closing a connection: bad input", "error", err)
		c.kill()
	default:
		s.cfg.Log.Debug("connection ends", "client", c.remote(), "session", session.FormatID(c.session), "error", err)
		c.kill()
	}
	if c.out.awaitEnd() {
		c.discard()
		c.kill()
	}

	c.mu.Lock()
	c.dead = true
	s.stats.outstanding.Add(-int64(c.queued()))
	c.queue, c.first = nil, 0
	c.mu.Unlock()
	s.cfg.Replica.DropWatches(c)
	c.leave()
}

// leave closes the connection when its last goroutine is about to end.
func (c *conn) leave() {
	c.nc.Close()
	c.s.forget(c)
	c.s.stats.ended.Add(1)
	c.ended()
}

var (
	errEnd  = errors.New("the server ends it")
	errIdle = errors.New("the client is idle")
	// errDrain ends a connection when what was received is answered.
	errDrain = errors.New("the server is shutting down")
)

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

// talk handles requests. It returns as serve does.
func (c *conn) talk() error {
	var buf []byte
	for {
		switch {
		case c.readOnly: // its session is not tracked, so nothing else ends the connection
			c.readBy(time.Now().Add(time.Duration(c.timeout) * time.Millisecond))
		case !c.timed:
			c.await()
		}
		c.between = true
		_, err := c.r.Peek(1)
		c.between = false
		if err == nil {
			buf, err = jute.ReadFrame(c.r, c.s.cfg.MaxFrame, buf)
		}
		if err != nil {
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
			buf = nil // do not keep a large buffer
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
