// Package lockkeepertest is a ZooKeeper for tests: one line starts a server
// inside the test, ready in milliseconds and gone with it.
//
//	zk := lockkeepertest.Start(t)
//	conn := zk.Connect(t, 10*time.Second)
//
// Everything is in memory and takes its time from package time alone, so all
// of it works inside a [testing/synctest] bubble, where a session's timeout
// passes without a real second going by. Only a server [WithTCP] does not: a
// bubble cannot see real sockets.
//
// When a test ends its servers are closed, and a goroutine that one of them
// left behind fails the test.
//
// This package promises compatibility, as package lockkeeper explains.
package lockkeepertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"runtime/pprof"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/cluster"
	"github.com/lockkeeper/lockkeeper/internal/storage"
	"github.com/lockkeeper/lockkeeper/internal/testhooks"
)

// patience is how long a step of the test double may take before the test fails.
const patience = time.Minute

// ErrNoSession says that a session does not exist, or does not any more.
var ErrNoSession = cluster.ErrNoSession

// Option changes what [Start] starts.
type Option func(*lockkeeper.Config)

// WithTCP opens a port on the loopback interface, for clients that cannot be
// given a dialer or are in other processes. See [Server.Addr].
func WithTCP() Option { return func(c *lockkeeper.Config) { c.ClientAddr = "127.0.0.1:0" } }

// WithTickTime sets the tick, in steps of which sessions expire. The default
// is 50 ms, so that short timeouts can be tested in real time.
func WithTickTime(d time.Duration) Option { return func(c *lockkeeper.Config) { c.TickTime = d } }

// WithConfig changes anything else of the configuration.
func WithConfig(change func(*lockkeeper.Config)) Option { return change }

// Server is a server under test. Its methods may be called from any goroutine
// of the test.
type Server struct {
	t     testing.TB
	cfg   lockkeeper.Config
	label string // marks the server's goroutines
	addr  string

	mu sync.Mutex
	s  *lockkeeper.Server // nil while stopped
}

// labelKey is the profiler label that goroutines of a server carry.
const labelKey = "lockkeepertest"

var labels atomic.Int64

// Start starts a server in memory, waits until it is ready, and stops it when
// the test ends. Sessions may last from 2 ticks to one hour.
func Start(t testing.TB, options ...Option) *Server {
	t.Helper()
	s := newServer(t, options)
	if err := s.start(); err != nil {
		t.Fatalf("lockkeepertest: %v", err)
	}
	return s
}

// newServer is a server that is not started yet, and is stopped when the test ends.
func newServer(t testing.TB, options []Option) *Server {
	s := &Server{t: t, label: fmt.Sprintf("%s-%d", t.Name(), labels.Add(1))}
	s.cfg = lockkeeper.Config{TickTime: 50 * time.Millisecond, MaxSessionTimeout: time.Hour}
	for _, o := range options {
		o(&s.cfg)
	}
	if s.cfg.DataDir == "" {
		testhooks.In(&s.cfg).Memory = storage.NewMemory() // for Restart
	}
	t.Cleanup(func() {
		if err := s.stop((*lockkeeper.Server).Close); err != nil {
			t.Errorf("lockkeepertest: stop: %v", err)
		}
		s.checkGoroutines()
	})
	return s
}

// labelled runs f so that every goroutine that it starts, and those that they
// start, can be told from others.
func (s *Server) labelled(f func()) {
	pprof.Do(context.Background(), pprof.Labels(labelKey, s.label), func(context.Context) { f() })
}

// start opens the server and waits until it is ready.
func (s *Server) start() error {
	if err := s.open(); err != nil {
		return err
	}
	return s.await()
}

func (s *Server) open() (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.s != nil {
		return errors.New("the server is running")
	}
	var server *lockkeeper.Server
	s.labelled(func() { server, err = lockkeeper.Open(s.cfg) })
	// Its port may be in use for a moment, by a connection of another program.
	for end := time.Now().Add(patience); s.addr != "" && errors.Is(err, syscall.EADDRINUSE) && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
		s.labelled(func() { server, err = lockkeeper.Open(s.cfg) })
	}
	if err != nil {
		return err
	}
	if server.Addr() != nil {
		s.addr = server.Addr().String()
		s.cfg.ClientAddr = s.addr // the same port again after a restart
	}
	s.s = server
	return nil
}

func (s *Server) await() error {
	server, err := s.running()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err = server.Wait(ctx); err == nil {
		return nil
	}
	return errors.Join(fmt.Errorf("not ready: %w", err), s.stop((*lockkeeper.Server).Close))
}

// stop stops the server by Close or Kill.
func (s *Server) stop(how func(*lockkeeper.Server) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.s == nil {
		return nil
	}
	err := how(s.s)
	s.s = nil
	return err
}

// checkGoroutines fails the test if the server, which is stopped, left a goroutine behind.
func (s *Server) checkGoroutines() {
	s.t.Helper()
	var left bytes.Buffer
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		left.Reset()
		if err := pprof.Lookup("goroutine").WriteTo(&left, 1); err != nil {
			s.t.Errorf("lockkeepertest: %v", err)
			return
		}
		if !bytes.Contains(left.Bytes(), fmt.Appendf(nil, "%q:%q", labelKey, s.label)) {
			return
		}
	}
	s.t.Errorf("lockkeepertest: the server left goroutines behind:\n%s", left.Bytes())
}

// running returns the server, or an error while it is stopped.
func (s *Server) running() (*lockkeeper.Server, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.s == nil {
		return nil, errors.New("lockkeepertest: connection refused: the server is stopped")
	}
	return s.s, nil
}

// Addr is the address of the port, HOST:PORT, which stays the same over a
// restart; empty unless the server was started [WithTCP].
func (s *Server) Addr() string { return s.addr }

// Dial connects to the server without a port. It fits zk.WithDialer; network
// and address mean nothing. While the server is stopped it fails.
func (s *Server) Dial(network, address string, timeout time.Duration) (conn net.Conn, err error) {
	server, err := s.running()
	if err != nil {
		return nil, err
	}
	s.labelled(func() { conn, err = server.Dial(network, address, timeout) })
	return conn, err
}

// Connect returns a stock client with a session of the given timeout, which is
// closed when the test ends.
func (s *Server) Connect(t testing.TB, sessionTimeout time.Duration) *zk.Conn {
	t.Helper()
	return connect(t, 1, sessionTimeout, s.Dial)
}

// connect returns a stock client of n servers, that dial connects to.
func connect(t testing.TB, n int, sessionTimeout time.Duration, dial zk.Dialer) *zk.Conn {
	t.Helper()
	// The addresses are not dialled, but the client wants some that it can
	// resolve. Their ports tell the servers apart.
	var addrs []string
	for i := range n {
		addrs = append(addrs, fmt.Sprintf("127.0.0.1:%d", i+1))
	}
	conn, events, err := zk.Connect(addrs, sessionTimeout, zk.WithDialer(dial), zk.WithLogger(quiet{}))
	if err != nil {
		t.Fatalf("lockkeepertest: %v", err)
	}
	t.Cleanup(conn.Close)
	late := time.After(patience)
	for {
		select {
		case e := <-events:
			if e.State == zk.StateHasSession {
				return conn
			}
		case <-late:
			t.Fatalf("lockkeepertest: no session after %v", patience)
		}
	}
}

// quiet is a zk.Logger for tests that have their own things to say.
type quiet struct{}

func (quiet) Printf(string, ...any) {}

// ExpireSession ends a session as if its client had been silent for its
// timeout: its ephemerals go, its connection is cut, and the client learns
// that the session has expired when it comes back. It returns when that is done,
// or [ErrNoSession] if there is no such session. After any other error the
// session may have ended or not.
func (s *Server) ExpireSession(id int64) error {
	server, err := s.running()
	if err != nil {
		return err
	}
	return testhooks.Of(server).ExpireSession(id)
}

// Disconnect cuts the connection of a session, which lives on, and reports
// whether there was one. A client that can dial comes back by itself.
func (s *Server) Disconnect(id int64) bool {
	server, err := s.running()
	return err == nil && testhooks.Of(server).Disconnect(id)
}

// Stop stops the server as a crash would for its clients: connections are cut
// and new ones fail. Its state is kept for [Server.Restart]. Stopping a stopped
// server does nothing.
func (s *Server) Stop() {
	s.t.Helper()
	if err := s.stop((*lockkeeper.Server).Close); err != nil {
		s.t.Errorf("lockkeepertest: stop: %v", err)
	}
	s.checkGoroutines()
}

// Restart starts a stopped server with the state that it had. Sessions have
// their whole timeout again, as after any restart. It must be called by the
// test's own goroutine.
func (s *Server) Restart() {
	s.t.Helper()
	if err := s.start(); err != nil {
		s.t.Fatalf("lockkeepertest: restart: %v", err)
	}
}
