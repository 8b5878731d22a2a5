package server

import (
	"bufio"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/either"
	"github.com/lockkeeper/lockkeeper/internal/core/fdlimit"
	"github.com/lockkeeper/lockkeeper/internal/core/persona"
	"github.com/lockkeeper/lockkeeper/internal/core/report"
	"github.com/lockkeeper/lockkeeper/internal/core/sasl"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// Proposer is the client port's interface to the cluster.
type Proposer interface {
	// Propose adds a command to the log, after the commands that the caller proposed
	// before. It blocks while too many commands are waiting. It does not use c after it
	// returns; w is told the outcome. Once over is closed, Propose adds nothing to the
	// log; w may close over when a command is lost.
	Propose(c *fsm.Command, w fsm.Waiter, over <-chan struct{})
	// Touch records that the client of a session has been heard from. It blocks until
	// the session is certain to live for as long as its client will rely on it once it
	// has an answer. It returns false if the session is about to end, or if over is
	// closed first.
	Touch(session int64, over <-chan struct{}) bool
	// Role returns this server's role in the cluster, in the form that four-letter
	// words use.
	Role() string
	// Deadlines returns the sessions grouped by the time when they expire unless their
	// clients are heard from, as far as this server knows. Times are in ms since the
	// epoch, the earliest first.
	Deadlines() []session.Bucket
	// Expired returns the number of sessions that this server has expired.
	Expired() int64
	// Reconfigure changes the members as the body of a reconfig request says. The
	// request must have passed the checks against the state. A server that is to vote
	// is given the duration wait to catch up first. When Reconfigure returns, the change
	// has been applied here. It returns ok false if the outcome is unknown.
	Reconfigure(body []byte, wait time.Duration) (code proto.Code, ok bool)
	// Quorum describes the cluster. It returns false if this server is standalone.
	Quorum() (report.Quorum, bool)
	// ResetProposals resets the proposal lengths in Quorum.
	ResetProposals()
	// Work returns what the replication has done.
	Work() report.Work
}

// Config configures a Server. Every limit must be set.
type Config struct {
	ID       uint64 // of this server; the high byte of its sessions' ids
	Proposer Proposer
	Replica  *fsm.Replica
	Log      *slog.Logger // its handler must not block: it is called while locks are held

	Tick time.Duration
	Limits
	Auth

	ReadOnly bool // while suspended, serve reads to clients that accept read-only mode
	// ZooKeeperPasswords gives new sessions the passwords that ZooKeeper would give them.
	ZooKeeperPasswords bool
	FourLetterWords    []string // words to answer besides srvr, and isro if ReadOnly; "*" means all
	Version            string   // of this program, for four-letter words
	Built              string   // for four-letter words: YYYY-MM-DD HH:MM
	DataDir            string   // for four-letter words
	PeerAddr           string   // likewise; empty if the server is standalone

	SlowRequest time.Duration // requests that take longer are logged; 0 is none

	// Persona is the older line of ZooKeeper that clients see; nil is the newest.
	Persona *persona.Persona

	Audit     func(AuditEvent)        // is told of changes and attempts, mostly while the state is locked; may be nil
	TimeOfDay func() time.Time        // the clock that four-letter words show; nil is time.Now
	Tap       func(net.Conn) net.Conn // for tests: replaces each connection that does not use TLS; may be nil
}

// Limits are how much clients may use, and for how long.
type Limits struct {
	MinSessionTimeout time.Duration
	MaxSessionTimeout time.Duration
	MaxFrame          int           // bytes of a request (jute.maxbuffer)
	MaxConns          int           // 0 is no limit but that of file descriptors (see tooManyFiles)
	MaxConnsPerAddr   int           // 0 is no limit (maxClientCnxns)
	MaxOutstanding    int           // waiting requests of one connection
	MaxWatches        int           // of one connection; 0 is no limit
	MaxSessions       int           // in the whole cluster, checked when one is opened; 0 is no limit
	OutboxBytes       int           // queued for one client; at least MinOutbox more than MaxFrame
	HandshakeTimeout  time.Duration // for the TLS handshake and the first frame together
	MaxTLSHandshakes  int           // in progress; see mostTLSHandshakes
}

// Auth says how clients authenticate, and who is the super user.
type Auth struct {
	Digest      crypto.Hash // for identities of scheme digest
	SuperDigest string      // "user:base64(hash(user:password))" of the super user; empty for none
	NoDigest    bool        // clients cannot authenticate with scheme digest
	EnforceAuth []string    // schemes; if not empty, a connection needs an identity of one of them
	SuperX509   string      // subject of the super user's certificate, in the form of RFC 2253; empty for none

	SASL            func() sasl.Exchange // begins with one connection; nil if SASL is not configured
	SuperSASL       []string             // users of SASL who are super users
	AllowSASLFailed bool                 // clients that fail to authenticate may continue without an identity
}

// Server serves clients. Its methods are safe for concurrent use.
type Server struct {
	cfg   Config
	start time.Time

	roster
	wg sync.WaitGroup // goroutines of connections and listeners, and writers

	opened   atomic.Bool // Open has been called
	draining atomic.Bool // connections end when what was received is answered

	dirty   dirtyConns
	scratch []byte // buffer for replies to parked reads; used only while the tree is locked for Done

	readers sync.Pool // of *bufio.Reader, for connections whose clients are not idle
	writers writers

	tlsHandshakes tlsHandshakes

	older fsm.Older // how reads differ with Config.Persona

	opening   atomic.Int64  // sessions that handshakes have asked for and that are not in the replica yet
	number    atomic.Uint64 // of the latest connection
	traceMask atomic.Int64  // of the words gtmk and stmk
	stats     stats
	warnings  warnings

	followers sync.Map // the report.Followers; it is changed while mu is held
}

// roster is who is connected, and who may connect. mu guards it.
type roster struct {
	mu       sync.Mutex
	closed   bool
	refusing bool // no new connections
	serving  bool
	readOnly bool  // serving only clients that accept read-only mode; serving is false
	ports    ports // for the word conf
	conns    map[*conn]struct{}
	perAddr  map[string]int
	sessions map[int64]*conn    // by session id: the connection on this server that owns it
	leaving  map[*conn]struct{} // those in discard
}

// ports are the addresses at which clients connect; nil if there is no such port.
type ports struct{ plain, secure net.Addr }

// dirtyConns are the connections for which frames were queued while the tree was locked,
// and whose outbox is not flushed yet. It is safe for concurrent use.
type dirtyConns struct {
	mu    sync.Mutex
	conns []*conn
	spare []*conn // a list to reuse, swapped with conns
}

func (d *dirtyConns) add(c *conn) {
	d.mu.Lock()
	d.conns = append(d.conns, c)
	d.mu.Unlock()
}

// flush starts sending what is queued for the connections, and empties the list.
func (d *dirtyConns) flush() {
	d.mu.Lock()
	conns := d.conns
	d.conns, d.spare = d.spare, nil
	d.mu.Unlock()
	for _, c := range conns {
		c.dirty.Store(false)
		c.out.flush()
	}
	clear(conns)
	d.mu.Lock()
	d.spare = conns[:0]
	d.mu.Unlock()
}

// New returns a server that refuses clients until [Server.Open]. It observes the
// replica, so it must be called before entries are applied.
func New(cfg Config) *Server {
	s := &Server{
		cfg: cfg, start: time.Now(), older: olderReads(cfg.Persona),
		roster: roster{conns: map[*conn]struct{}{}, perAddr: map[string]int{}, sessions: map[int64]*conn{}, leaving: map[*conn]struct{}{}},
	}
	s.writers.wg = &s.wg
	s.readers.New = func() any { return bufio.NewReaderSize(nil, 4<<10) }
	if s.cfg.TimeOfDay == nil {
		s.cfg.TimeOfDay = time.Now
	}
	// Sessions record the number of the connection that owns them, so numbers must not
	// repeat after a restart. A random start ensures that; the clock does not, since it
	// may be set back.
	var number [8]byte
	rand.Read(number[:])
	s.number.Store(binary.BigEndian.Uint64(number[:]) >> 1)
	s.stats.reset()
	s.traceMask.Store(defaultTraceMask)
	cfg.Replica.Observe(observer{s})
	return s
}

// Open begins to serve clients. It closes connections in read-only mode, so that
// their clients reconnect and get a session.
func (s *Server) Open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opened.Store(true)
	s.serving, s.readOnly = true, false
	for c := range s.conns {
		if c.readOnly {
			c.kill()
		}
	}
}

// Suspend closes all connections and refuses clients until the next [Server.Open],
// so that they go to another server. If Config.ReadOnly is set, it still accepts
// clients that accept read-only mode.
func (s *Server) Suspend() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loseFollowers()
	s.serving, s.readOnly = false, s.cfg.ReadOnly
	for c := range s.conns {
		c.kill()
	}
}

// Announce sets the addresses that four-letter words show, nil for none.
func (s *Server) Announce(plain, secure net.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ports = ports{plain, secure}
}

// ServeTLS is like Serve, for clients that use TLS. A client whose certificate was
// verified gets an identity of scheme x509: the certificate's subject.
func (s *Server) ServeTLS(l net.Listener, config *tls.Config) error {
	return s.Serve(tls.NewListener(l, config), nil)
}

// Serve accepts connections on l until it is closed, and then closes l. With withTLS, a client may also use TLS, as with
// ServeTLS.
func (s *Server) Serve(l net.Listener, withTLS *tls.Config) error {
	if !s.enter() {
		l.Close()
		return net.ErrClosed
	}
	defer s.wg.Done()
	defer l.Close()
	ended := s.wg.Done
	var warned time.Time
	for {
		c, err := l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return err
			}
			// Probably too many files are open, which may be over in a moment.
			if now := time.Now(); now.Sub(warned) >= acceptWarnEvery {
				warned = now
				const msg = "cannot accept a connection"
				s.warn(msg, msg, []any{"error", err})
			}
			time.Sleep(10 * time.Millisecond)
			continue
		}
		// Here, not in the connection's goroutine: many of those may have to wait for a
		// processor, and would hold the descriptors that are to stay free.
		if s.tooManyFiles(c) {
			continue
		}
		if !s.enter() {
			c.Close()
			continue
		}
		if withTLS != nil {
			c = either.New(c, withTLS)
		}
		go s.serveConn(c, ended)
	}
}

// acceptWarnEvery is how often a listener may log that it cannot accept.
const acceptWarnEvery = 10 * time.Second

// tooManyFiles refuses a connection and returns true if its socket has one of the file
// descriptors that are not for clients.
func (s *Server) tooManyFiles(nc net.Conn) bool {
	if !fdlimit.Last(nc, fdlimit.ForClients) {
		return false
	}
	const msg = "refusing a connection: the process has too many files open"
	s.warn(msg, msg, []any{"client", nc.RemoteAddr().String()})
	s.refuse(nc)
	return true
}

// refuse resets a connection that a limit does not allow, as ZooKeeper does.
func (s *Server) refuse(nc net.Conn) {
	s.stats.refused.Add(1)
	if t, ok := nc.(*tls.Conn); ok {
		nc = t.NetConn()
	}
	if t, ok := nc.(*net.TCPConn); ok {
		t.SetLinger(0)
	}
	nc.Close()
}

// ServeConn serves one connection until it ends.
func (s *Server) ServeConn(c net.Conn) {
	if s.tooManyFiles(c) {
		return
	}
	if !s.enter() {
		c.Close()
		return
	}
	ended := make(chan struct{})
	s.serveConn(c, func() { close(ended) })
	<-ended
	s.wg.Done()
}

// enter adds a goroutine to those that Wait waits for. It returns false if the
// server has been closed, or refuses connections.
func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.refusing {
		return false
	}
	s.wg.Add(1)
	return true
}

// Refuse refuses new connections from now on.
func (s *Server) Refuse() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refusing = true
}

// Drain ends each connection when its client has been sent the answers to all requests that were
// received from it, and returns when all have ended, or ctx ends. It must be called after Refuse.
func (s *Server) Drain(ctx context.Context) {
	s.draining.Store(true)
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		s.mu.Lock()
		for c := range s.conns {
			c.nc.SetReadDeadline(passed) // again: one may just have been admitted
		}
		left := len(s.conns) + len(s.leaving)
		s.mu.Unlock()
		if left == 0 {
			return
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

// Close closes all connections and refuses new ones. It does not wait for their
// goroutines, which may be blocked in the Proposer: the caller can stop that first
// and then call [Server.Wait]. The caller also closes the listeners.
func (s *Server) Close() {
	s.mu.Lock()
	s.loseFollowers()
	s.closed, s.serving, s.readOnly = true, false, false
	for c := range s.conns {
		c.kill()
	}
	for c := range s.leaving {
		c.kill()
	}
	s.mu.Unlock()
}

// Wait waits until the goroutines of all connections and listeners have ended. It
// must be called after Close.
func (s *Server) Wait() { s.wg.Wait() }

// Disconnect closes the connection of a session and reports whether there was one.
// The session continues. It counts as not connected when Disconnect returns, although
// the connection's goroutines may end a moment later.
func (s *Server) Disconnect(session int64) bool {
	s.mu.Lock()
	c := s.sessions[session]
	delete(s.sessions, session)
	s.mu.Unlock()
	if c == nil {
		return false
	}
	c.kill()
	return true
}

// Connected reports whether a session has a connection here.
func (s *Server) Connected(session int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[session] != nil
}

// admit registers a connection. It returns false if a limit does not allow it.
func (s *Server) admit(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	full := s.cfg.MaxConns > 0 && len(s.conns) >= s.cfg.MaxConns
	if s.closed || full || s.cfg.MaxConnsPerAddr > 0 && c.addr != "" && s.perAddr[c.addr] >= s.cfg.MaxConnsPerAddr {
		return false
	}
	s.conns[c] = struct{}{}
	s.perAddr[c.addr]++
	return true
}

// forget removes a connection that has ended. It may be called more than once.
func (s *Server) forget(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.conns[c]; !ok {
		return
	}
	delete(s.conns, c)
	if s.perAddr[c.addr]--; s.perAddr[c.addr] == 0 {
		delete(s.perAddr, c.addr)
	}
	if s.sessions[c.session] == c {
		delete(s.sessions, c.session)
	}
}

// attach makes c the connection of a session, unless c has ended already. The connection that the session had before was
// closed by observer.Changed.
func (s *Server) attach(c *conn, session int64, timeout int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.session, c.timeout = session, timeout
	if _, ok := s.conns[c]; ok { // otherwise its writer has ended it already
		s.sessions[session] = c
	}
}

// Serving reports whether clients that read and write are served.
func (s *Server) Serving() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.serving
}

func (s *Server) isReadOnly() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.readOnly
}

// role returns this server's role, in the form that four-letter words use.
func (s *Server) role() string {
	if s.isReadOnly() {
		return "read-only"
	}
	return s.cfg.Proposer.Role()
}

// observer is the fsm.Observer that reacts to changes of the replica.
type observer struct{ s *Server }

func (o observer) Changed(v *fsm.View, changes []proto.Change) {
	o.s.auditEnded(changes)
	for f := range o.s.followers.Range {
		f.(report.Follower).Changed(changes)
	}
	for i := range changes {
		id := changes[i].Session
		switch changes[i].Kind {
		case proto.SessionClosed:
		case proto.SessionResumed: // by another connection, here or not, that may be gone already
		default:
			continue
		}
		o.s.mu.Lock()
		c := o.s.sessions[id]
		delete(o.s.sessions, id)
		o.s.mu.Unlock()
		if c != nil && !c.closing.Load() { // a closing connection ends after its reply
			c.kill()
		}
	}
}

func (o observer) Applied(uint64, uint64, int) { o.Answered() }

func (o observer) Answered() { o.s.dirty.flush() }

// Restoring makes sure that nothing more is sent on any connection. The events
// between the old state and the new one are unknown. If a client saw a zxid of the
// new state, it would name that zxid when it sets its watches again, and would
// never learn of the events that it missed. Replies made after the tree is unlocked
// are therefore discarded.
func (o observer) Restoring() {
	o.s.mu.Lock()
	defer o.s.mu.Unlock()
	o.s.loseFollowers()
	for c := range o.s.conns {
		c.out.close()
	}
}

// Restored closes all connections, which takes too long to do while the tree is
// locked. Clients reconnect and set their watches again.
func (o observer) Restored() {
	o.s.mu.Lock()
	defer o.s.mu.Unlock()
	for c := range o.s.conns {
		c.kill()
	}
}

func (observer) Failed(error) {}
