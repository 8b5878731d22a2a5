// Package lockkeeper embeds a ZooKeeper-compatible lock coordinator: a server
// of the znode tree, ephemeral and sequential znodes, sessions, watches and
// ACLs, replicated with Raft, that stock ZooKeeper clients talk to.
//
// [Open] starts a server inside this process. The zero [Config] keeps
// everything in memory and opens no port; clients reach it through
// [Server.Dial]. With a DataDir everything acknowledged is on disk and there
// again after a crash; with a ClientAddr clients of other processes can connect.
//
// Several servers may live in one process. The package has no globals, reads
// no flags or environment, handles no signals, and logs only to Config.Logger.
// [Server.Close] leaves no goroutine and no open file behind.
//
// No lock service can stop a program that does not watch the clock: a holder
// that stands still for longer than its session timeout has lost its lock
// without knowing. Guard what the lock protects with a token that grows with
// every holder, such as the czxid or the sequence number of the lock's znode.
//
// # Compatibility
//
// This package, lockkeepertest and conform promise compatibility: a program that
// uses them can be built with later versions of the module as it is. Until version
// 1.0 a new minor version (0.2, 0.3) may break that, and CHANGELOG.md then says what
// to write instead; a patch (0.1.1) does not. From 1.0 on only a new major version
// may. New fields and methods may come with any version, so set fields of a
// [Config] by their names. The other packages of the module promise nothing.
package lockkeeper

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/cluster"
	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/storage"
)

// Version is this program's version.
const Version = "0.1.0"

// What the four-letter words say: the version of ZooKeeper whose behaviour
// this is, since monitoring tools and clients parse it, and the release date.
const (
	zookeeperVersion = "3.9.5-lockkeeper-" + Version
	released         = "2026-11-21 00:00"
)

// ErrClosed says that the server was closed.
var ErrClosed = errors.New("lockkeeper: server closed")

// ErrInUse says that another process, or another server of this one, has the
// data directory open.
var ErrInUse = storage.ErrInUse

// ErrRemoved says that this server was removed from its cluster, while it ran or
// before it was opened. What is in its data stays there.
var ErrRemoved = cluster.ErrRemoved

// Server is a running server. Its methods may be called at any time, from any goroutine.
type Server struct {
	member  *cluster.Member
	replica *fsm.Replica
	clients *server.Server
	log     *slog.Logger

	peerAddr string // empty if the server is standalone
	network  cluster.Network

	portMu sync.Mutex   // for plain
	plain  net.Listener // nil without a port; a reconfig may move it
	secure net.Listener // nil without a port
	tls    *tls.Config  // spoken on secure

	ready     chan struct{}
	failed    chan struct{} // closed once fault is set
	fault     error         // what Err gets
	errs      chan error
	stop      chan struct{}
	closeOnce sync.Once
	closeErr  error
	wg        sync.WaitGroup // the goroutine that Open starts
}

// Open starts a server. It returns when the configuration is good, the data
// directory verified and locked, and the port taken. Clients are served some
// milliseconds later: [Server.Wait] waits for that. Errors name the file, directory
// or address that they are about.
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
	s.member = cluster.New(cfg.cluster(), replica)
	s.clients = server.New(cfg.server(replica, proposer{s.member})) // before anything is applied
	if err := s.member.Start(); err != nil {
		s.closeListeners()
		return nil, err
	}
	s.wg.Go(s.run)
	if follows {
		s.wg.Go(func() { s.followPort(cfg.ID, changes) })
	}
	return s, nil
}

// listen takes the ports.
func (s *Server) listen(cfg *Config) (err error) {
	if cfg.ClientAddr != "" {
		if s.plain, err = net.Listen("tcp", cfg.ClientAddr); err != nil {
			return err
		}
	}
	if cfg.SecureAddr != "" {
		s.tls = cfg.TLS.Clone()
		s.secure, err = net.Listen("tcp", cfg.SecureAddr)
	}
	return err
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

// proposer is the member as the client port sees it.
type proposer struct{ *cluster.Member }

func (p proposer) Quorum() (server.Quorum, bool) {
	q, ok := p.Member.Quorum()
	return server.Quorum(q), ok
}

func (s *Server) standalone() bool { return s.peerAddr == "" }

// run lets clients in while the member can serve them, and closes the client
// port when the member cannot go on.
func (s *Server) run() {
	// Clients of a server alone wait in its port's backlog, for the moment that
	// it takes. A member answers words without a leader too.
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

// serve accepts clients on the ports that there are.
func (s *Server) serve() {
	if l := s.plain; l != nil {
		s.wg.Go(func() { s.clients.Serve(l) })
	}
	if s.secure != nil {
		s.wg.Go(func() { s.clients.ServeTLS(s.secure, s.tls) })
	}
}

// Ready is closed when sessions can be created. After a fault before that it
// never is; [Server.Wait] waits for both.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Wait waits until the server is ready, and returns nil then, or until it cannot
// become ready any more: the error is the fault that [Server.Err] gets too,
// [ErrClosed] after Close, or that of ctx. A server that was ready and has had a
// fault since is not.
func (s *Server) Wait(ctx context.Context) error {
	select {
	case <-s.ready:
	case <-s.failed:
	case <-s.stop:
	case <-ctx.Done():
	}
	// Several of them may have happened.
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

// Addr is the address of the client port, with the real port number; nil
// without a ClientAddr.
func (s *Server) Addr() net.Addr {
	s.portMu.Lock()
	defer s.portMu.Unlock()
	return addr(s.plain)
}

// SecureAddr is Addr for the port where TLS is spoken; nil without a
// Config.SecureAddr.
func (s *Server) SecureAddr() net.Addr { return addr(s.secure) }

func addr(l net.Listener) net.Addr {
	if l == nil {
		return nil
	}
	return l.Addr()
}

// Dial connects to the server within this process, without a port. It fits
// go-zookeeper's zk.WithDialer; network and address mean nothing. It waits
// as [Server.Wait] does, and for timeout at most if that is positive.
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
	go s.clients.ServeConn(ours) // Close waits for it
	return client, nil
}

// ServeConn serves a client on a connection that the caller has accepted, and
// returns when that has ended.
func (s *Server) ServeConn(c net.Conn) { s.clients.ServeConn(c) }

// Err gets a fault that happened after Open and that the server cannot survive,
// such as a disk that cannot be written. Clients are cut off then, and nothing
// that was acknowledged is lost; what remains is to call Close.
func (s *Server) Err() <-chan error { return s.errs }

// Close stops the server, waits for all that it started, and closes its files.
// Sessions live on in the data directory. Calls after the first return the same.
func (s *Server) Close() error { return s.close((*cluster.Member).Close) }

func (s *Server) close(member func(*cluster.Member) error) error {
	s.closeOnce.Do(func() {
		close(s.stop)
		s.closeListeners()
		s.clients.Close()
		s.closeErr = member(s.member) // lets go of whoever waits for the log
		s.clients.Wait()
		s.wg.Wait()
	})
	return s.closeErr
}
