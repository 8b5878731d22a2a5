package server

import (
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
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// Proposer is what the client port needs of the cluster.
type Proposer interface {
	// Propose puts a command into the log behind those that the caller proposed before, and
	// returns at once or when there is room. c is not used after it returns. Once over
	// is closed, which w may do when a command is lost, nothing is proposed.
	Propose(c *fsm.Command, w fsm.Waiter, over <-chan struct{})
	// Touch notes that a session was heard of. It returns when the session is sure to
	// outlive the trust that its client takes from an answer, and reports false if
	// the session is at its end, or over was closed before.
	Touch(session int64, over <-chan struct{}) bool
	// Role is this server's part in the cluster, as four-letter words say it.
	Role() string
	// Deadlines tells when the sessions are to end if nothing more is heard of
	// them, as far as this server knows: in ms since the epoch, the earliest first.
	Deadlines() []session.Bucket
	// Expired is how many sessions this server has ended because they were late.
	Expired() int64
	// Reconfigure changes the members as the body of a reconfig says, whose checks
	// against the state were passed; who is to vote has wait to catch up. When it
	// returns, the change is applied here. It reports false if its fate is unknown.
	Reconfigure(body []byte, wait time.Duration) (code proto.Code, ok bool)
	// Quorum tells about the cluster; false if this server is alone.
	Quorum() (Quorum, bool)
	// ResetProposals forgets the lengths of proposals in it.
	ResetProposals()
}

// Quorum is what four-letter words tell of a cluster.
type Quorum struct {
	Voters    int           // members that vote
	Observer  bool          // this server does not
	PeerPort  int           // of this server
	Followers int           // of a leader: those that it hears of, with a vote
	Observers int           // likewise, without one
	Leads     time.Duration // how long this server does
	// Bytes of what it has proposed as the leader: the last, the least and the
	// most; -1 if there is nothing.
	Last, Min, Max int64
}

// Config says how to serve clients. Every limit must be set.
type Config struct {
	ID       uint64 // of this server; the high byte of its sessions' ids
	Proposer Proposer
	Replica  *fsm.Replica
	Log      *slog.Logger

	Tick              time.Duration
	MinSessionTimeout time.Duration
	MaxSessionTimeout time.Duration
	Digest            crypto.Hash // of identities of scheme digest
	SuperDigest       string      // "user:base64(hash(user:password))" of the super user; empty for none
	NoDigest          bool        // there is no scheme digest
	EnforceAuth       []string    // schemes, of one of which a connection needs an identity; none enforces nothing
	SuperX509         string      // subject of the super user's certificate, in the form of RFC 2253; empty for none

	MaxFrame         int           // bytes of a request (jute.maxbuffer)
	MaxConns         int           // 0 is no limit
	MaxConnsPerAddr  int           // 0 is no limit (maxClientCnxns)
	MaxOutstanding   int           // requests of one connection that wait
	MaxWatches       int           // of one connection; 0 is no limit
	MaxSessions      int           // that may be opened, in the whole cluster; 0 is no limit
	OutboxBytes      int           // queued for a client, at least MinOutbox more than MaxFrame
	HandshakeTimeout time.Duration // for TLS and the first frame
	MaxTLSHandshakes int           // under way
	ReadOnly         bool          // serve reads while suspended, to clients who say that they are content with them
	FourLetterWords  []string      // those that are answered besides srvr, and isro if ReadOnly; "*" is all
	Version          string        // for four-letter words
	Built            string        // likewise: YYYY-MM-DD HH:MM
	DataDir          string        // likewise

	TimeOfDay func() time.Time // what four-letter words tell of; nil is time.Now
}

// Server serves clients. Its methods may be called at any time.
type Server struct {
	cfg   Config
	start time.Time

	mu        sync.Mutex
	closed    bool
	serving   bool
	readOnly  bool     // not serving, but clients who are content with reads
	listening net.Addr // for the word conf
	secure    net.Addr // likewise: where TLS is spoken
	conns     map[*conn]struct{}
	perAddr   map[string]int
	sessions  map[int64]*conn // whose connection it is, here
	wg        sync.WaitGroup  // one for each connection and listener

	dirtyMu sync.Mutex
	dirty   []*conn // have frames that the applier queued since it last flushed
	scratch []byte  // replies of reads that the applier runs; the applier's own

	opening   atomic.Int64  // sessions that are asked for and not in the replica yet
	number    atomic.Uint64 // of the last connection
	traceMask atomic.Int64  // of the words gtmk and stmk
	stats     stats
	warnings  warnings
}

// New returns a server, which refuses clients until [Server.Open]. It observes
// the replica, so it must be made before entries are applied.
func New(cfg Config) *Server {
	s := &Server{
		cfg: cfg, start: time.Now(),
		conns: map[*conn]struct{}{}, perAddr: map[string]int{}, sessions: map[int64]*conn{},
	}
	if s.cfg.TimeOfDay == nil {
		s.cfg.TimeOfDay = time.Now
	}
	// Numbers of an earlier run must not come back: sessions remember the
	// number of their connection. A clock may be the same again.
	var number [8]byte
	rand.Read(number[:])
	s.number.Store(binary.BigEndian.Uint64(number[:]) >> 1)
	s.stats.reset()
	s.traceMask.Store(defaultTraceMask)
	cfg.Replica.Observe(observer{s})
	return s
}

// Open begins to serve clients. Those who were served reads alone are closed,
// so that they come back for a session.
func (s *Server) Open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serving, s.readOnly = true, false
	for c := range s.conns {
		if c.readOnly {
			c.kill()
		}
	}
}

// Suspend closes all connections and refuses clients until the next
// [Server.Open], so that they go to another server; but for those who are content
// with reads, if there is a read-only mode.
func (s *Server) Suspend() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serving, s.readOnly = false, s.cfg.ReadOnly
	for c := range s.conns {
		c.kill()
	}
}

// Serve accepts connections on l until it is closed, and then closes l.
func (s *Server) Serve(l net.Listener) error { return s.serve(l, &s.listening) }

// ServeTLS is Serve for clients that speak TLS. Whose certificate was verified
// has its subject as an identity of scheme x509.
func (s *Server) ServeTLS(l net.Listener, config *tls.Config) error {
	return s.serve(tls.NewListener(l, config), &s.secure)
}

func (s *Server) serve(l net.Listener, addr *net.Addr) error {
	if !s.enter() {
		l.Close()
		return net.ErrClosed
	}
	defer s.wg.Done()
	defer l.Close()
	s.mu.Lock()
	*addr = l.Addr()
	s.mu.Unlock()
	for {
		c, err := l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return err
			}
			// Most likely too many open files: that passes when some close.
			s.cfg.Log.Warn("cannot accept a connection", "error", err)
			time.Sleep(10 * time.Millisecond)
			continue
		}
		if !s.enter() {
			c.Close()
			continue
		}
		go func() {
			defer s.wg.Done()
			s.serveConn(c)
		}()
	}
}

// ServeConn serves one connection until it ends.
func (s *Server) ServeConn(c net.Conn) {
	if !s.enter() {
		c.Close()
		return
	}
	defer s.wg.Done()
	s.serveConn(c)
}

// enter counts a goroutine that Close waits for; false if there can be no more.
func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.wg.Add(1)
	return true
}

// Close closes all connections and takes no more; [Server.Wait] waits for their
// goroutines. In between, whoever holds what they wait for can let go of it.
// Listeners must be closed by whoever opened them.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed, s.serving, s.readOnly = true, false, false
	for c := range s.conns {
		c.kill()
	}
	s.mu.Unlock()
}

// Wait waits for the goroutines of all connections and listeners, after Close.
func (s *Server) Wait() { s.wg.Wait() }

// Disconnect closes the connection of a session, which lives on, and reports
// whether there was one.
func (s *Server) Disconnect(session int64) bool {
	s.mu.Lock()
	c := s.sessions[session]
	s.mu.Unlock()
	if c == nil {
		return false
	}
	c.kill()
	return true
}

// admit registers a connection, if the limits allow.
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

// forget drops a connection that has ended. It may be called twice.
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

// own makes c the connection of a session and closes the one that was.
func (s *Server) own(c *conn, session int64, timeout int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.session, c.timeout = session, timeout
	if _, ok := s.conns[c]; !ok {
		return // it ended meanwhile; the session waits for another
	}
	if before := s.sessions[session]; before != nil && before != c {
		before.kill()
	}
	s.sessions[session] = c
}

func (s *Server) isServing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.serving
}

func (s *Server) isReadOnly() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.readOnly
}

// role is this server's part in the cluster, as four-letter words say it.
func (s *Server) role() string {
	if s.isReadOnly() {
		return "read-only"
	}
	return s.cfg.Proposer.Role()
}

// markDirty notes that c has frames to send when the running entry is applied.
func (s *Server) markDirty(c *conn) {
	s.dirtyMu.Lock()
	s.dirty = append(s.dirty, c)
	s.dirtyMu.Unlock()
}

// observer tells the connections of what happens to the replica.
type observer struct{ s *Server }

func (o observer) Changed(v *fsm.View, changes []proto.Change) {
	for i := range changes {
		id := changes[i].Session
		switch changes[i].Kind {
		case proto.SessionClosed:
		case proto.SessionResumed: // on another server it is of no use here any more
			if v.Sessions().Get(id).Owner.Server == o.s.cfg.ID {
				continue
			}
		default:
			continue
		}
		o.s.mu.Lock()
		c := o.s.sessions[id]
		delete(o.s.sessions, id)
		o.s.mu.Unlock()
		if c != nil && !c.closing.Load() { // else its reply is to come, and then the end
			c.kill()
		}
	}
}

func (o observer) Applied(uint64, uint64, int) {
	o.s.dirtyMu.Lock()
	dirty := o.s.dirty
	o.s.dirty = nil
	o.s.dirtyMu.Unlock()
	for _, c := range dirty {
		c.dirty.Store(false)
		c.out.flush()
	}
}

// Restoring makes sure that nothing more is sent on any connection. Events
// between the old state and the new one are not known: a client that saw a zxid
// of the new one would name it when it sets its watches again, and never be told
// of what it missed. Requests that are answered while the tree is unlocked again
// go nowhere.
func (o observer) Restoring() {
	o.s.mu.Lock()
	defer o.s.mu.Unlock()
	for c := range o.s.conns {
		c.out.close()
	}
}

// Restored closes all connections, which may take longer than the tree should be
// locked. Clients come back and set their watches again.
func (o observer) Restored() {
	o.s.mu.Lock()
	defer o.s.mu.Unlock()
	for c := range o.s.conns {
		c.kill()
	}
}

func (observer) Failed(error) {}
