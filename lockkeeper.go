// Package lockkeeper embeds a ZooKeeper-compatible lock coordinator in a Go
// program. The server provides znodes (including ephemeral and sequential ones),
// sessions, watches and ACLs to stock ZooKeeper clients, and replicates its state
// with Raft.
//
// [Open] starts a server inside this process. With the zero [Config] it keeps
// its state in memory and opens no port; clients connect through [Server.Dial].
// With a DataDir, every acknowledged write is on disk and survives a crash. With
// a ClientAddr, clients in other processes can connect. With Peers, the server is a
// member of a cluster.
//
// A process can run several servers. The package has no global state, reads no
// flags or environment variables, handles no signals, and logs only to
// Config.Logger. [Server.Shutdown] and [Server.Close] leave no goroutine and no open file
// behind.
//
// Package lock has locks and an election for clients of such a server, and package admin metrics, probes and a
// console for operators. A program that ends first unlocks what it holds and closes its
// connections, and then calls Shutdown: the first example of leader_test.go, which go doc does not print,
// is such a program.
//
// A lock can be lost while its holder believes that it still has it: if the
// holder pauses for longer than its session timeout, the session expires and
// another client gets the lock. No lock service can prevent that. Protect the
// locked resource with a fencing token that increases with every holder, such as
// the czxid or the sequence number of the lock's znode.
//
// # Compatibility
//
// This package, lockkeepertest, lock and lock/fence promise compatibility: a program that uses
// them builds unchanged with later versions of the module. Before version 1.0, a new minor version
// (0.2, 0.3) may break that, and CHANGELOG.md then says how to change the program; a patch version
// (0.1.1) may not. From 1.0 on, only a new major version may. Any version may add fields and
// methods, so use field names in literals of structs. None adds a method to an interface, since
// programs implement those: lock.Conn and [SASLExchange].
//
// Packages admin and conform promise less: a new minor version may break programs that use them,
// also after 1.0. The other packages of the module promise nothing.
//
// # Errors
//
// Where a comment names an error, as [ErrNoMember] or that of a context, it may be wrapped: ask
// [errors.Is], or [errors.As] for a [*ConfigError].
package lockkeeper

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/cluster"
	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/logqueue"
	"github.com/lockkeeper/lockkeeper/internal/core/membership"
	"github.com/lockkeeper/lockkeeper/internal/core/peer"
	"github.com/lockkeeper/lockkeeper/internal/core/report"
	"github.com/lockkeeper/lockkeeper/internal/core/request"
	"github.com/lockkeeper/lockkeeper/internal/core/server"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/core/testhooks"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/internal/core/wake"
)

// Version is the version of lockkeeper.
const Version = "0.1.0"

// The end of the version and the release date that four-letter words report. The version starts
// with that of the ZooKeeper release whose behaviour lockkeeper follows, because
// monitoring tools and clients parse it.
const (
	versionSuffix = "-lockkeeper-" + Version
	released      = "2026-11-21 00:00"
)

var (
	// ErrClosed is returned when the server has been closed, or is being shut down.
	ErrClosed = errors.New("lockkeeper: server closed")
	// ErrStandalone is returned for what only a member of a cluster can do.
	ErrStandalone = errors.New("lockkeeper: the server is standalone")
	// ErrNoLeader says that no member has led the cluster for as long as a change of its members has
	// waited for a leader. The change was not made.
	ErrNoLeader = own(request.ErrNoLeader)
	// ErrNoMember says that the cluster has no member with an id.
	ErrNoMember = own(request.ErrNoMember)
	// ErrUnknownOutcome is the error of a change of the members, or of EndSession, if it was asked for
	// and this server does not know whether it was made. It may also still be made. Other errors of
	// these methods say why it was not, or not as a whole.
	ErrUnknownOutcome = own(request.ErrUnknownOutcome)
	// ErrNoSession says that a session does not exist or has ended.
	ErrNoSession = own(cluster.ErrNoSession)
	// ErrInUse is returned by [Open] when another process, or another server in this
	// process, is using the data directory.
	ErrInUse = own(storage.ErrInUse)
	// ErrRemoved is the fault of a server that was removed from its cluster, either
	// while it was running or before it was opened. Its data directory is kept.
	ErrRemoved = own(request.ErrRemoved)
	// ErrDiffers is the fault of a server whose state, or whose log, is not that of the other
	// members of its cluster: memory or a disk has failed, or the programs differ. The server has
	// stopped serving, and its data directory is kept. See "Two members differ" in
	// docs/operations.md.
	ErrDiffers = own(election.ErrDiffers)
)

// ownError is an error of the packages below this one.
type ownError struct{ error }

// own returns an error of the packages below as one of this package; nil for nil.
func own(err error) error {
	if err == nil {
		return nil
	}
	return ownError{err}
}

func (e ownError) Error() string { return "lockkeeper: " + e.error.Error() }
func (e ownError) Unwrap() error { return e.error }

// Is reports whether e is one of the errors above.
func (e ownError) Is(target error) bool {
	t, ok := target.(ownError)
	return ok && errors.Is(e.error, t.error)
}

// Server is a running server. Its methods are safe for concurrent use and may be
// called at any time, also after Close.
type Server struct {
	member  *cluster.Member
	replica *fsm.Replica
	clients *server.Server
	*traces

	forPeers
	clientPorts
	inside

	ready    chan struct{}   // closed when sessions can first be created
	life     context.Context // ends when the server has stopped serving for good, and its cause is why
	end      context.CancelCauseFunc
	open     context.Context // ends with Shutdown and Close: new clients are refused
	shut     context.CancelFunc
	running  context.Context // ends with Close
	stop     context.CancelFunc
	handing  wake.Turn     // of handing leadership over, which ends with running
	closing  atomic.Bool   // close has begun
	gone     chan struct{} // closed when it has ended, and closeErr is set
	closeErr error
	wg       sync.WaitGroup // the server's own goroutines
}

// traces are where a server says what has become of it, and who changed what.
type traces struct {
	log   *slog.Logger
	lines *logqueue.Queue // of log
	audit *auditor        // nil for none
}

// forPeers is where the other members connect, and how.
type forPeers struct {
	peerAddr string // empty if the server is standalone
	peerTLS  string // as in request.About
	network  peer.Network
}

// clientPorts are the ports at which clients connect. Only plain changes after Open.
type clientPorts struct {
	portMu sync.Mutex   // guards plain
	plain  net.Listener // nil without Config.ClientAddr; a reconfig may replace it
	secure net.Listener // nil without Config.SecureAddr
	tls    *tls.Config  // for connections accepted on secure
	either *tls.Config  // for those on plain that may use TLS; nil without Config.TLSOnClientAddr
}

// Open starts a server. It validates the configuration, locks and verifies the
// data directory, opens the ports, and returns. The server begins to serve clients
// some milliseconds later; [Server.Wait] waits until it does. Errors name the
// file, directory, address or field of Config that they are about: a wrong field is a
// [*ConfigError], and a data directory that is in use [ErrInUse]. Open does not wait
// for an address that this machine does not have yet; command lockkeeper tries again then.
func Open(cfg Config) (*Server, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	var lines *logqueue.Queue
	cfg.Logger, lines = logqueue.New(cfg.Logger) // nothing below waits for the log
	s := &Server{
		traces: &traces{log: cfg.Logger, lines: lines}, forPeers: forPeers{cfg.PeerAddr, cmp.Or(string(cfg.PeerTLSMode), "no"), testhooks.In(&cfg).Network},
		ready: make(chan struct{}), handing: wake.NewTurn(), gone: make(chan struct{}),
	}
	s.life, s.end = context.WithCancelCause(context.Background())
	s.open, s.shut = context.WithCancel(context.Background())
	s.running, s.stop = context.WithCancel(context.Background())
	if err := s.listen(&cfg); err != nil {
		s.closeListeners()
		return nil, err
	}
	if cfg.trustsAnyPeer() {
		s.log.Warn("PeerTLS does not verify certificates of other members: whoever can connect to the peer port can change everything; set its ClientAuth to tls.RequireAndVerifyClientCert", "address", cfg.PeerAddr)
	}
	if cfg.PeerTLS != nil && cfg.PeerTLSMode != PeerTLSOnly {
		s.log.Warn("the peer port accepts connections without TLS, too, while the cluster moves to TLS: until then, whoever can connect to it can change everything", "address", cfg.PeerAddr, "mode", cfg.PeerTLSMode)
	}
	if least := timing.Shortest(cfg.TickTime); cfg.Limits.MinSessionTimeout < least {
		s.log.Warn("sessions shorter than two ticks may expire although their clients are alive, when the leader's process was paused for a moment: raise the minimum session timeout, or lower the tick time",
			"minSessionTimeout", cfg.Limits.MinSessionTimeout, "twoTicks", least)
	}
	replica := fsm.NewReplica()
	replica.Trace(testhooks.In(&cfg).Locked)
	if o := testhooks.In(&cfg).Observer; o != nil {
		replica.Observe(o)
	}
	s.replica = replica
	follows := cfg.Features.Reconfig && !s.standalone() && s.plain != nil
	changes := memberChanges{wake.NewSignal()}
	if follows {
		replica.Observe(changes)
	}
	member := cfg.cluster()
	member.Answers = membership.Answers{About: s.about, Clients: func(find []string) report.ClientList { return s.clients.Clients(find) }, Changed: s.traceChange}
	s.member = cluster.New(member, replica)
	if cfg.Audit != nil {
		s.audit = newAuditor(cfg.Audit)
	}
	s.clients = server.New(cfg.server(replica, s.member, s.audit)) // must observe the replica before Start applies entries
	s.inside = inside{report.New(s.clients, s.askClients), testhooks.New(hooked{s})}
	if err := s.member.Start(); err != nil {
		s.closeListeners()
		s.endTraces()
		return nil, own(err)
	}
	s.wg.Go(s.run)
	if follows {
		told, _ := cfg.advertised()
		s.wg.Go(func() { s.followPort(cfg.ID, told, changes) })
	}
	if cfg.describes() {
		s.wg.Go(func() {
			if s.Wait(context.Background()) == nil { // ends when the server is closed or has a fault
				s.member.Describe(!cfg.Features.Reconfig)
			}
		})
	}
	return s, nil
}

func (s *Server) listen(cfg *Config) (err error) {
	if cfg.ClientAddr != "" {
		if s.plain, err = net.Listen("tcp", cfg.ClientAddr); err != nil {
			return portError{"ClientAddr", fmt.Errorf("client port: %w", err)}
		}
	}
	if s.tls = cfg.TLS.Clone(); cfg.TLSOnClientAddr {
		s.either = s.tls
	}
	if cfg.SecureAddr != "" {
		if s.secure, err = net.Listen("tcp", cfg.SecureAddr); err != nil {
			return portError{"SecureAddr", fmt.Errorf("TLS client port: %w", err)}
		}
	}
	return nil
}

func (s *Server) closeListeners() {
	s.portMu.Lock()
	defer s.portMu.Unlock()
	for _, l := range []net.Listener{s.plain, s.secure} {
		if l != nil {
			l.Close()
		}
	}
}

func (s *Server) standalone() bool { return s.peerAddr == "" }

// run serves clients whenever the member can, until the server is closed. When
// the member has a fault, run disconnects all clients and reports the fault.
func (s *Server) run() {
	// A standalone server is ready within moments, and clients can wait in the
	// backlog of its port until then. A member of a cluster accepts connections at
	// once, because it answers four-letter words even without a leader.
	if !s.standalone() {
		s.serve()
	}
	for first := true; ; {
		select {
		case serving := <-s.member.Serving():
			switch {
			case !serving:
				s.clients.Suspend()
				continue
			case first && s.standalone():
				s.serve()
			}
			s.clients.Open()
			if first {
				first = false
				close(s.ready)
			}
		case err := <-s.member.Err():
			s.clients.Close()
			s.end(own(err))
			return
		case <-s.running.Done():
			return
		}
	}
}

// about is what this server's status in the cluster says about it.
func (s *Server) about() request.About {
	return request.About{Version: Version, Serving: s.clients.Serving(), ClientPort: s.reachable(s.Addr()), SecurePort: s.reachable(s.SecureAddr()), PeerTLS: s.peerTLS}
}

// reachable returns the address of a client port as other machines may use it: with the host
// of the peer port, if it is open on all addresses.
func (s *Server) reachable(a net.Addr) string {
	if a == nil {
		return ""
	}
	tcp, ok := a.(*net.TCPAddr)
	if host, _, err := net.SplitHostPort(s.peerAddr); ok && tcp.IP.IsUnspecified() && err == nil && host != "" {
		return net.JoinHostPort(host, strconv.Itoa(tcp.Port))
	}
	return a.String()
}

func (s *Server) serve() {
	s.clients.Announce(addr(s.plain), addr(s.secure)) // before the first client can ask
	if l := s.plain; l != nil {
		s.wg.Go(func() { s.clients.Serve(l, s.either) })
	}
	if s.secure != nil {
		s.wg.Go(func() { s.clients.ServeTLS(s.secure, s.tls) })
	}
}

// Ready returns a channel that is closed when clients can first create sessions.
// If the server has a fault or is closed before that, the channel is never closed; use
// [Server.Wait] to wait for either.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Done returns a channel that is closed when the server has stopped serving for good: after
// [Server.Close] or [Server.Shutdown], or because it has a fault that it cannot survive, such as
// a failed write to disk. It has then disconnected all clients, and no acknowledged write is
// lost. [Server.Err] says why. After a fault the caller should call Close.
func (s *Server) Done() <-chan struct{} { return s.life.Done() }

// Err returns nil until [Server.Done] is closed. Then it returns the server's fault, among them
// [ErrRemoved] and [ErrDiffers], or [ErrClosed] if it was closed without one, and always the same.
func (s *Server) Err() error { return context.Cause(s.life) }

// Wait waits until clients can first create sessions and then returns nil. If the server has stopped
// serving for good, before or after it became ready, Wait returns what [Server.Err] returns. If
// ctx ends first, its error is that of ctx, and says what the server waits
// for, as far as it knows: which members have not been started yet, for instance.
func (s *Server) Wait(ctx context.Context) error {
	select {
	case <-s.ready:
	case <-s.Done():
	case <-ctx.Done():
	}
	// If several of them have happened, the end counts most, then ready.
	if err := s.Err(); err != nil {
		return err
	}
	select {
	case <-s.ready:
		return nil
	default:
		return s.notReady(fmt.Errorf("lockkeeper: the server is not ready: %w", ctx.Err()))
	}
}

// notReady returns err with what this server waits for, if it knows.
func (s *Server) notReady(err error) error {
	if why := s.member.Waiting(); why != "" {
		return fmt.Errorf("%w: %s", err, why)
	}
	return err
}

// Addr returns the address on which the server listens for clients, with the
// actual port number, or nil if Config.ClientAddr was empty. A client's reconfig may change it
// (see Config.ClientAddr).
func (s *Server) Addr() net.Addr {
	s.portMu.Lock()
	defer s.portMu.Unlock()
	return addr(s.plain)
}

// SecureAddr returns the address on which the server listens for clients that use
// TLS, with the actual port number, or nil if Config.SecureAddr was empty.
func (s *Server) SecureAddr() net.Addr { return addr(s.secure) }

func addr(l net.Listener) net.Addr {
	if l == nil {
		return nil
	}
	return l.Addr()
}

// Dial is [Server.DialContext] with a timeout, if that is positive, in place of a context. Its
// signature fits go-zookeeper's zk.WithDialer, and lock.Dialer's field Base. The address that
// zk.Connect is given must be one that it can look up, such as 127.0.0.1, although nothing connects to it.
func (s *Server) Dial(network, address string, timeout time.Duration) (net.Conn, error) {
	ctx := context.Background()
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	return s.DialContext(ctx, network, address)
}

// DialContext returns a client connection to the server through memory, without a port. It
// ignores network and address. It first waits until the server is ready, as [Server.Wait] does.
// Its error is that of ctx if ctx ends first. If the server has
// stopped serving for good, it is what [Server.Err] returns, and [ErrClosed] once Shutdown has
// begun. The connection does not depend on ctx.
func (s *Server) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if err := s.Wait(ctx); err != nil {
		return nil, err
	}
	if s.open.Err() != nil {
		return nil, cmp.Or(s.Err(), ErrClosed)
	}
	client, ours := net.Pipe()
	go s.clients.ServeConn(ours) // Close waits until it returns
	return &pipe{Conn: client}, nil
}

// pipe is the client's end of a connection through memory. If the connection breaks, the next
// Read fails, but Write reports success, as it may with TCP. Otherwise go-zookeeper could block
// for good if a client is closed while another goroutine makes a request: it may answer the
// request first because of the Close, then because the write fails, and then because the
// connection ends, and has room for two answers.
type pipe struct {
	net.Conn
	closed atomic.Bool // by the client
}

func (p *pipe) Write(b []byte) (int, error) {
	n, err := p.Conn.Write(b)
	if err == nil || p.closed.Load() {
		return n, err
	}
	p.Conn.Close()
	return len(b), nil
}

func (p *pipe) Close() error {
	p.closed.Store(true)
	return p.Conn.Close()
}

// ServeConn serves a client on a connection that the caller has accepted. It
// closes the connection, and returns, when the connection has ended. After Shutdown, Close or a
// fault it does so at once.
func (s *Server) ServeConn(c net.Conn) { s.clients.ServeConn(c) }

// Shutdown stops the server gracefully. It refuses new clients; if the server leads a cluster,
// it makes another member the leader, so that no client has to wait for an election; it answers
// the requests that the server has received, and ends each connection when its client has been
// sent all answers. Then it closes the server, as [Server.Close] does, and returns the result of
// that. If ctx ends first, it closes the server at once and returns ctx.Err(), at most half a
// second later. If the disk does not answer, the server may then still be writing: Close waits until
// it has ended, as a program has to before it opens the same state again.
//
// Shutdown and Close may be called at the same time: Shutdown then no longer waits.
func (s *Server) Shutdown(ctx context.Context) error {
	s.refuse()
	s.clients.Refuse()
	if s.Err() == nil {
		s.handOver(ctx)
		s.clients.Drain(ctx)
	}
	early := ctx.Err()
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }() // it ends when the server is closed
	select {
	case err := <-closed:
		return cmp.Or(err, early)
	case <-ctx.Done():
	}
	select {
	case err := <-closed:
		return cmp.Or(err, ctx.Err())
	case <-time.After(closeTime):
		return ctx.Err()
	}
}

// closeTime is how long Shutdown waits after its context until the server is closed.
const closeTime = 50 * time.Millisecond

// Close stops the server at once, waits for all of its goroutines, and closes its files. Requests
// that were not answered may have been carried out or not. Close does not end sessions: they are
// part of the state in the data directory. Further calls return the result of the first one. The
// members of its cluster elect a leader if this server led; see [Server.Shutdown].
func (s *Server) Close() error { return s.close((*cluster.Member).Close) }

// handOver makes another member the leader if this one leads. If that fails, the others elect one.
func (s *Server) handOver(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.running, cancel)()
	select {
	case s.handing <- struct{}{}:
		defer s.handing.Give()
	case <-ctx.Done():
		return
	}
	if s.running.Err() == nil { // otherwise the member may be closed already
		s.member.HandOver(ctx)
	}
}

// refuse stops accepting clients on the ports.
func (s *Server) refuse() {
	s.shut()
	s.closeListeners()
}

func (s *Server) close(member func(*cluster.Member) error) error {
	if s.closing.Swap(true) {
		<-s.gone
		return s.closeErr
	}
	s.stop()
	s.refuse()
	s.clients.Close()
	s.end(ErrClosed)
	s.handing.Take() // what is being handed over ends
	s.handing.Give()
	s.closeErr = member(s.member) // also releases connections that wait for the log
	s.clients.Wait()
	s.wg.Wait()
	s.endTraces()
	close(s.gone)
	return s.closeErr
}
