// Package lockkeeper embeds a ZooKeeper-compatible lock coordinator in a Go
// program. The server provides znodes (including ephemeral and sequential ones),
// sessions, watches and ACLs to stock ZooKeeper clients, and replicates its state
// with Raft.
//
// [Open] starts a server inside this process. With the zero [Config] it keeps
// its state in memory and opens no port; clients connect through [Server.Dial].
// With a DataDir, every acknowledged write is on disk and survives a crash. With
// a ClientAddr, clients in other processes can connect.
//
// A process can run several servers. The package has no global state, reads no
// flags or environment variables, handles no signals, and logs only to
// Config.Logger. [Server.Close] leaves no goroutine and no open file behind.
//
// A lock can be lost while its holder believes that it still has it: if the
// holder pauses for longer than its session timeout, the session expires and
// another client gets the lock. No lock service can prevent that. Protect the
// locked resource with a fencing token that increases with every holder, such as
// the czxid or the sequence number of the lock's znode.
//
// # Compatibility
//
// This package, lockkeepertest, conform, lock, lock/fence and admin promise
// compatibility: a program that uses them builds unchanged with later versions of
// the module. Before version 1.0, a new minor version (0.2, 0.3) may break that, and
// CHANGELOG.md then says how to change the program; a patch version (0.1.1) may not.
// From 1.0 on, only a new major version may. Any version may add fields and methods,
// so use field names in literals of [Config]. The other packages of the module
// promise nothing.
package lockkeeper

import (
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
	"github.com/lockkeeper/lockkeeper/internal/core/report"
	"github.com/lockkeeper/lockkeeper/internal/core/server"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
)

// Version is the version of lockkeeper.
const Version = "0.1.0"

// The version and release date that four-letter words report. The version starts
// with that of the ZooKeeper release whose behaviour lockkeeper follows, because
// monitoring tools and clients parse it.
const (
	zookeeperVersion = "3.9.5-lockkeeper-" + Version
	released         = "2026-11-21 00:00"
)

// ErrClosed is returned when the server has been closed.
var ErrClosed = errors.New("lockkeeper: server closed")

// ErrInUse is returned by [Open] when another process, or another server in this
// process, is using the data directory.
var ErrInUse = storage.ErrInUse

// ErrRemoved is the fault of a server that was removed from its cluster, either
// while it was running or before it was opened. Its data directory is kept.
var ErrRemoved = cluster.ErrRemoved

// ErrDiffers is the fault of a server whose state, or whose log, is not that of the other
// members of its cluster: memory or a disk has failed, or the programs differ. The server has
// stopped serving, and its data directory is kept. See "Two members differ" in
// docs/operations.md.
var ErrDiffers = cluster.ErrDiffers

// Server is a running server. Its methods are safe for concurrent use and may be
// called at any time, also after Close.
type Server struct {
	member  *cluster.Member
	replica *fsm.Replica
	clients *server.Server
	log     *slog.Logger

	peerAddr string // empty if the server is standalone
	network  cluster.Network

	portMu sync.Mutex   // guards plain
	plain  net.Listener // nil without Config.ClientAddr; a reconfig may replace it
	secure net.Listener // nil without Config.SecureAddr
	tls    *tls.Config  // for connections accepted on secure

	ready     chan struct{} // closed when sessions can first be created
	failed    chan struct{} // closed once fault is set
	fault     error         // the error that is sent to errs
	errs      chan error
	stop      chan struct{} // closed by Close
	closeOnce sync.Once
	closeErr  error
	wg        sync.WaitGroup // the server's own goroutines
}

// Open starts a server. It validates the configuration, locks and verifies the
// data directory, opens the ports, and returns. The server begins to serve clients
// some milliseconds later; [Server.Wait] waits until it does. Errors name the
// file, directory, address or field of Config that they are about.
func Open(cfg Config) (*Server, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	s := &Server{
		log: cfg.Logger, peerAddr: cfg.PeerAddr, network: cfg.hooks.Network,
		ready: make(chan struct{}), failed: make(chan struct{}), errs: make(chan error, 1), stop: make(chan struct{}),
	}
	if err := s.listen(&cfg); err != nil {
		s.closeListeners()
		return nil, err
	}
	replica := fsm.NewReplica()
	if o := cfg.hooks.Observer; o != nil {
		replica.Observe(o)
	}
	s.replica = replica
	follows := cfg.Reconfig && !s.standalone() && s.plain != nil
	changes := make(memberChanges, 1)
	if follows {
		replica.Observe(changes)
	}
	member := cfg.cluster()
	member.About = s.about
	s.member = cluster.New(member, replica)
	s.clients = server.New(cfg.server(replica, proposer{s.member})) // must observe the replica before Start applies entries
	if err := s.member.Start(); err != nil {
		s.closeListeners()
		return nil, err
	}
	s.wg.Go(s.run)
	if follows {
		s.wg.Go(func() { s.followPort(cfg.ID, cfg.ClientAddrs[cfg.ID], changes) })
	}
	if len(cfg.ClientAddrs)+len(cfg.ElectionPorts) > 0 {
		s.wg.Go(func() {
			if s.Wait(context.Background()) == nil { // ends when the server is closed or has a fault
				s.member.Describe(!cfg.Reconfig)
			}
		})
	}
	return s, nil
}

// listen opens the client ports.
func (s *Server) listen(cfg *Config) (err error) {
	if cfg.ClientAddr != "" {
		if s.plain, err = net.Listen("tcp", cfg.ClientAddr); err != nil {
			return portError{"ClientAddr", fmt.Errorf("client port: %w", err)}
		}
	}
	if cfg.SecureAddr != "" {
		s.tls = cfg.TLS.Clone()
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

// proposer makes a cluster.Member usable as a server.Proposer.
type proposer struct{ *cluster.Member }

func (p proposer) Quorum() (report.Quorum, bool) {
	q, ok := p.Member.Quorum()
	return report.Quorum(q), ok
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
			s.fault = err
			close(s.failed)
			s.errs <- err
			return
		case <-s.stop:
			return
		}
	}
}

// about is what this server's status in the cluster says about it.
func (s *Server) about() cluster.About {
	return cluster.About{Version: Version, Serving: s.clients.Stats().Serving, ClientPort: s.reachable(s.Addr()), SecurePort: s.reachable(s.SecureAddr())}
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

// serve starts to accept clients on the open ports.
func (s *Server) serve() {
	var plain, secure net.Addr
	if s.plain != nil {
		plain = s.plain.Addr()
	}
	if s.secure != nil {
		secure = s.secure.Addr()
	}
	s.clients.Announce(plain, secure) // before the first client can ask
	if l := s.plain; l != nil {
		s.wg.Go(func() { s.clients.Serve(l) })
	}
	if s.secure != nil {
		s.wg.Go(func() { s.clients.ServeTLS(s.secure, s.tls) })
	}
}

// Ready returns a channel that is closed when clients can first create sessions.
// If the server has a fault before that, the channel is never closed; use
// [Server.Wait] to wait for either.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Wait waits until clients can create sessions and then returns nil. If the server
// has a fault, before or after it became ready, Wait returns the error that is
// also sent to [Server.Err]. If the server has been closed, it returns
// [ErrClosed], and if ctx ends first, it returns ctx.Err().
func (s *Server) Wait(ctx context.Context) error {
	select {
	case <-s.ready:
	case <-s.failed:
	case <-s.stop:
	case <-ctx.Done():
	}
	// If several of them have happened, Close comes first, then a fault, then ready.
	select {
	case <-s.stop:
		return ErrClosed
	default:
	}
	select {
	case <-s.failed:
		return s.fault
	default:
	}
	select {
	case <-s.ready:
		return nil
	default:
		return ctx.Err()
	}
}

// Addr returns the address on which the server listens for clients, with the
// actual port number, or nil if Config.ClientAddr was empty.
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

// Dial returns a client connection to the server through memory, without a port.
// Its signature fits go-zookeeper's zk.WithDialer; it ignores network and address.
// Dial first waits until the server is ready, as [Server.Wait] does, but no longer
// than timeout if timeout is positive.
func (s *Server) Dial(network, address string, timeout time.Duration) (net.Conn, error) {
	ctx := context.Background()
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	if err := s.Wait(ctx); errors.Is(err, context.DeadlineExceeded) {
		return nil, errors.New("lockkeeper: dial: server not ready in time")
	} else if err != nil {
		return nil, err
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
// closes the connection, and returns, when the connection has ended.
func (s *Server) ServeConn(c net.Conn) { s.clients.ServeConn(c) }

// Err returns a channel that receives at most one error: a fault after Open that
// the server cannot survive, such as a failed write to disk. The server has then
// disconnected all clients, and no acknowledged write is lost. The caller should
// call Close.
func (s *Server) Err() <-chan error { return s.errs }

// Close stops the server, waits for all of its goroutines, and closes its files.
// Close does not end sessions: they are part of the state in the data directory.
// Further calls return the result of the first one.
func (s *Server) Close() error { return s.close((*cluster.Member).Close) }

func (s *Server) close(member func(*cluster.Member) error) error {
	s.closeOnce.Do(func() {
		close(s.stop)
		s.closeListeners()
		s.clients.Close()
		s.closeErr = member(s.member) // also releases connections that wait for the log
		s.clients.Wait()
		s.wg.Wait()
	})
	return s.closeErr
}
