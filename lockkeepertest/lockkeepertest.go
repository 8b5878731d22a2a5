// Package lockkeepertest is a ZooKeeper for tests: one line starts a server inside the
// test.
//
//	func TestReport(t *testing.T) {
//		server := lockkeepertest.Start(t)
//		conn := server.Connect(t, 10*time.Second) // a client of go-zookeeper
//		...
//	}
//
// # Start a server or a cluster
//
// [Start] takes milliseconds. The server keeps everything in memory and needs no port, so
// each test can have its own, also in parallel. It stops when the test ends.
// [Server.Connect] returns a client; other clients connect with [Server.Dial], or through a
// port that is opened [WithTCP]. [StartCluster] is the same for a cluster.
//
// The test decides when a session expires ([Server.ExpireSession]), a connection breaks
// ([Server.Disconnect]), or a server crashes and starts again ([Server.Kill],
// [Server.Restart]). In the first example of example_test.go, a lock goes to the next client that way.
//
// # Virtual time
//
// Servers, clusters and go-zookeeper's clients work inside a [testing/synctest] bubble. An
// hour passes there as soon as nobody has anything to do:
//
//	synctest.Test(t, func(t *testing.T) {
//		server := lockkeepertest.Start(t)
//		...
//		time.Sleep(time.Hour)
//	})
//
// A test that waits for ever fails after an hour of virtual time, with the state of its servers
// ([WithDeadline]). Start servers in the bubble in which they are used.
//
// Real sockets must stay outside: [WithTCP], and the clients that need it. In a bubble, time
// moves on only when all goroutines are asleep or wait for each other. One that waits for a
// socket does not count as waiting, because data may come from outside at any moment, so
// time would stand still. Connect and Dial connect through memory. Outside of bubbles,
// [Server.Advance] sets the server's clock forward.
//
// # Aim a fault
//
// [Server.Inject] aims a [Fault] at one request: the second create below /locks, or a watch
// event of one session. The request is delayed, held, answered with an error, or dropped; it
// is executed but its reply lost ([DropReply], [CloseAfter]); or the connection ends. A fault
// that never takes effect fails the test, which can also wait until it does ([Injection.Wait]).
// A client is cut off, as if it were paused for longer than its session timeout, by three faults with its
// Session, Times -1 and [Drop]: one without an Op, one for ping, and one for connect.
//
// In a cluster, the network between two members is cut one way, slow or lossy
// ([Cluster.SetLink], [Cluster.Partition]), a disk is slow or full ([Server.SetDisk]), and
// members are paused, step down, or have a wrong clock ([Server.Pause], [Cluster.StepDown],
// [Server.SetClock]).
//
// # Look inside, and wait
//
// [Server.Tree], [Server.Get], [Server.Sessions], [Server.Watches] and [Server.Locks] show
// what a server knows. They need no client and cause no request. [Waits.WaitHeld],
// [Waits.WaitWaiters] and [Waits.WaitGone] block until a lock is held, has a queue, or is
// gone. They do not poll, and miss no state, however short. Others wait for data, children,
// requests and watches, and [Waits.Within] limits the time.
//
// # Check that a lock protects
//
// [Server.GuardLock] records who holds a lock and when. Let the code under test write to a
// [Resource] of the [Guard] with its fencing token. When the test ends, it fails with a
// timeline if two holders overlapped in what they did, if a stale token was accepted, or if
// a znode of the lock is left whose client is gone or does not know of it.
//
// # Check what the clients said
//
// [Server.Requests] returns the requests of the clients, decoded: was there exactly one
// setWatches after the reconnect, and which paths did it contain? [Request.Field] has the
// answer.
//
// # Begin with a state, and put it back
//
// A server begins [WithTree] or [WithTreeFile] with the znodes that a test needs. Tests that
// share a server take a [Server.Snapshot] and put it back with [Server.Restore], which
// takes microseconds for a small tree, so that each finds the server clean. [Server.AddTree] adds
// znodes later. Tests that run at the same time share a server with a [Server.Namespace] each.
//
// # Five famous failures
//
// The examples in failures_test.go, which go doc does not print, show how locks fail in practice:
//
//   - Orphan: the reply to a create is lost, and the client waits behind its own znode.
//   - PausedClient: a client wakes up after it has lost the lock, and writes. Its fencing
//     token stops it.
//   - Herd: a lock is released, and every client that waits for it wakes up.
//   - LostWatch: a watch is not set again after a reconnect.
//   - OldEphemeral: a client takes the znode of its last session for its own.
//
// # When a test ends
//
// Its servers are closed. If one of them leaves a goroutine behind, the test fails. If the
// test has failed, the state of its servers and the last messages of their clients are
// logged.
//
// This package promises compatibility, as package lockkeeper explains.
package lockkeepertest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime/pprof"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/core/testhooks"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
	"github.com/lockkeeper/lockkeeper/internal/tools/stock"
	"github.com/lockkeeper/lockkeeper/znode"
)

// patience is how long a step, such as starting a server, may take before the test
// fails.
const patience = time.Minute

// reconnectDelay is how long a client of a single server waits before it reconnects.
const reconnectDelay = 20 * time.Millisecond

// Option changes how [Start] and [StartCluster] start a server. The zero Option changes nothing.
type Option struct{ apply func(*Server) }

// WithTCP opens a port on the loopback interface, for clients that run in other
// processes or do not accept a dialer. [Server.Addr] returns its address.
func WithTCP() Option { return Option{func(s *Server) { s.cfg.ClientAddr = "127.0.0.1:0" }} }

// WithTickTime sets the tick; session expiry is rounded up to multiples of it. The
// default is 50 ms, so that short timeouts can be tested in real time.
func WithTickTime(d time.Duration) Option { return Option{func(s *Server) { s.cfg.TickTime = d }} }

// WithRelease makes the server answer as an older release line of ZooKeeper: "3.4", "3.5", "3.6",
// "3.7" or "3.8". A test can thus show what a client does when the server lacks an operation;
// see lockkeeper.Features.BehaveAs. In a cluster, all members behave so.
func WithRelease(line string) Option {
	return Option{func(s *Server) { s.cfg.Features.BehaveAs = line }}
}

// WithConfig changes any other field of the configuration.
func WithConfig(change func(*lockkeeper.Config)) Option {
	return Option{func(s *Server) { change(&s.cfg) }}
}

// common is what a [Server] and a [Cluster] have in common.
type common struct {
	t       testing.TB
	servers []*Server // the server, or all members, the one with the id 1 first
	cluster bool
	report  *report // shared by the members of a cluster
}

// leaderFirst returns the servers, the one that leads first. Of a cluster, it waits for that.
func (c *common) leaderFirst() []*Server {
	c.t.Helper()
	all := slices.Clone(c.servers)
	if c.cluster {
		lead := Waits{c, patience, context.Background()}.Leader() - 1
		all[0], all[lead] = all[lead], all[0]
	}
	return all
}

// here fails the test if the calling goroutine cannot use the servers.
func (c *common) here(t testing.TB) {
	t.Helper()
	if why := c.servers[0].misplaced(); why != "" {
		t.Fatalf("lockkeepertest: %s", why)
	}
}

// Server is a server under test. Its methods may be called from any goroutine
// of the test.
type Server struct {
	common
	Waits

	cfg   lockkeeper.Config
	label string                         // profiler label that marks the server's goroutines
	addr  string                         // of the port; empty without one
	tree  func() ([]znode.Record, error) // with which it begins; nil for none

	faults    faults
	changes   changes
	condition condition
	skew      clock
	network   *memnet.Network // of its cluster; nil without one

	bubble   string          // in which it was started; see bubble
	deadline time.Duration   // see WithDeadline
	life     context.Context // ends with the test

	turn chan struct{} // holds an element while a goroutine starts or stops the server

	mu   sync.Mutex
	s    *lockkeeper.Server // nil while stopped
	last *lockkeeper.Server // as s, but also while stopped
}

// labelKey is the key of the profiler label on a server's goroutines.
const labelKey = "lockkeepertest"

var labels atomic.Int64

// Start starts a server that keeps its state in memory, waits until it is ready,
// and stops it when the test ends. Clients may ask for session timeouts from 2
// ticks to one hour.
func Start(t testing.TB, options ...Option) *Server {
	t.Helper()
	s := newServer(t, options)
	s.begin()
	return s
}

// begin opens the servers, and waits until they are ready.
func (c *common) begin() {
	c.t.Helper()
	var err error
	for _, step := range []func(*Server) error{(*Server).open, (*Server).await} {
		for _, s := range c.servers {
			if err = step(s); err != nil && c.cluster {
				err = fmt.Errorf("%s: %w", s.name(), err)
			}
			if err != nil {
				c.t.Fatalf("lockkeepertest: %v", err)
			}
		}
	}
	for end := time.Now().Add(patience); !c.vote(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			c.t.Fatalf("lockkeepertest: a member has no vote after %v", patience)
		}
	}
	if err = c.plant(); err != nil {
		c.t.Fatalf("lockkeepertest: %v", err)
	}
	c.report.watch()
}

// newServer returns a server that is not started yet. It will be stopped when the
// test ends.
func newServer(t testing.TB, options []Option) *Server {
	t.Helper()
	life, end := context.WithCancel(context.Background())
	s := &Server{
		turn: make(chan struct{}, 1), label: fmt.Sprintf("%s-%d", t.Name(), labels.Add(1)),
		bubble: bubble(), deadline: defaultDeadline, life: life,
	}
	s.common = common{t: t, servers: []*Server{s}}
	s.Waits = Waits{in: &s.common, ctx: context.Background()}
	s.cfg = lockkeeper.Config{TickTime: 50 * time.Millisecond, Limits: lockkeeper.Limits{MaxSessionTimeout: time.Hour}}
	for _, o := range options {
		if o.apply != nil {
			o.apply(s)
		}
	}
	if s.cfg.DataDir == "" {
		testhooks.In(&s.cfg).Memory = storage.NewMemory() // for Restart
	}
	testhooks.In(&s.cfg).Tap = s.tap
	testhooks.In(&s.cfg).TimeOfDay = s.skew.now
	s.changes.firsts, s.changes.waiting, s.changes.opened = map[string]first{}, map[*waiting]struct{}{}, make(chan struct{})
	s.report = newReport(s)
	t.Cleanup(func() {
		t.Helper()
		end()
		for _, why := range s.faults.unused() {
			t.Errorf("lockkeepertest: %s", why)
		}
		s.report.log(t)
		if err := s.stop((*lockkeeper.Server).Close); err != nil {
			t.Errorf("lockkeepertest: stop: %v", err)
		}
		s.checkGoroutines()
	})
	return s
}

// labelled runs f with a profiler label that all goroutines it starts inherit, so
// that checkGoroutines can find them.
func (s *Server) labelled(f func()) {
	pprof.Do(context.Background(), pprof.Labels(labelKey, s.label), func(context.Context) { f() })
}

func (s *Server) open() (err error) {
	// A mutex would not do: a synctest bubble does not take a goroutine that waits for
	// it as idle, and starting and stopping may take time.
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	if _, err := s.running(); err == nil {
		return errors.New("the server is running")
	}
	if s.life.Err() != nil {
		return errors.New("the test has ended")
	}
	s.condition.change(func(x *condition) { x.stopping = false })
	o := &observer{changes: &s.changes, guards: &s.report.guards}
	testhooks.In(&s.cfg).Observer = o
	var server *lockkeeper.Server
	s.labelled(func() { server, err = lockkeeper.Open(s.cfg) })
	// After a restart another program's connection may be using the port for a moment.
	for end := time.Now().Add(patience); s.addr != "" && errors.Is(err, syscall.EADDRINUSE) && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
		s.labelled(func() { server, err = lockkeeper.Open(s.cfg) })
	}
	if err != nil {
		return err
	}
	if server.Addr() != nil {
		s.addr = server.Addr().String()
		s.cfg.ClientAddr = s.addr // use the same port after a restart
	}
	s.mu.Lock()
	s.s, s.last = server, server
	s.mu.Unlock()
	o.server.Store(server)
	s.changes.restarted()
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

// stop stops the server, if it is running, with how: Close or Kill.
func (s *Server) stop(how func(*lockkeeper.Server) error) error {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	s.mu.Lock()
	server := s.s
	s.s = nil
	s.mu.Unlock()
	if server == nil {
		return nil
	}
	s.condition.change(func(x *condition) { x.stopping, x.paused = true, false })
	if s.network != nil {
		s.network.Pause(host(s.cfg.ID), false)
	}
	return how(server)
}

// running returns the running server, or an error if it is stopped.
func (s *Server) running() (*lockkeeper.Server, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.s == nil {
		return nil, errors.New("lockkeepertest: connection refused: the server is stopped")
	}
	return s.s, nil
}

// Addr returns the address of the server's port, HOST:PORT, which does not change
// when the server is restarted. It is empty unless the server was started [WithTCP].
func (s *Server) Addr() string { return s.addr }

// Role returns what the server is in its cluster. It is empty while the server is stopped.
func (s *Server) Role() lockkeeper.Role {
	server, err := s.running()
	if err != nil {
		return ""
	}
	return server.Role()
}

// Err returns why the server has failed: it has stopped serving clients for good, such as because its
// disk is full ([Server.SetDisk]), and has to be stopped and restarted. It is nil while the server
// runs, and while it is stopped.
func (s *Server) Err() error {
	server, err := s.running()
	if err != nil {
		return nil
	}
	return server.Err()
}

// Dial connects through memory: to the server, whatever the address, or to the member of a cluster
// whose id is the port in address. Its signature fits zk.WithDialer. It fails while that server is
// stopped, and panics outside of the synctest bubble in which it was started.
func (c *common) Dial(network, address string, timeout time.Duration) (conn net.Conn, err error) {
	s := c.servers[0]
	if c.cluster {
		_, port, _ := net.SplitHostPort(address)
		id, err := strconv.Atoi(port)
		if err != nil || id < 1 || id > len(c.servers) {
			return nil, fmt.Errorf("lockkeepertest: there is no member %s, only 1 to %d", port, len(c.servers))
		}
		s = c.servers[id-1]
	}
	if why := s.misplaced(); why != "" { // a client would take an error for one that passes
		panic("lockkeepertest: " + why)
	}
	server, err := s.running()
	if err != nil {
		return nil, err
	}
	if s.faults.refuses() {
		return nil, &net.OpError{Op: "dial", Net: "memory", Err: syscall.ECONNREFUSED}
	}
	s.labelled(func() { conn, err = server.Dial(network, address, timeout) })
	return conn, err
}

// lateNotice is how long after the end of its client a lock of package lock may notice that, if the program has not unlocked it.
// In virtual time its goroutine must have ended by then: the time stands still after the test.
const lateNotice = 2 * time.Second

// Connect returns a go-zookeeper client that has a session with the given timeout, and knows all
// members of a cluster. If its connection to a single server breaks, it reconnects some milliseconds
// later. It is closed when t ends, which may be a subtest. The locks of package lock need
// lock.WithSessionTimeout with the same timeout, if that is between 2 ticks and one hour, which the
// server grants.
func (c *common) Connect(t testing.TB, sessionTimeout time.Duration) *zk.Conn {
	t.Helper()
	c.here(t)
	if sessionTimeout > 0 && sessionTimeout < time.Millisecond {
		t.Fatalf("lockkeepertest: a session timeout of %v is too short; did you mean %d*time.Second?", sessionTimeout, int64(sessionTimeout))
	}
	// The client insists on addresses that it can resolve, though dial does not
	// connect to them. Their ports tell the servers apart.
	n, dial := len(c.servers), c.Dial
	if !c.cluster {
		// go-zookeeper waits for a second before it connects again to the only address it has, or
		// when it has tried all of them. So a single server gets three addresses, and the client
		// waits only for reconnectDelay. Without any wait, a test could not look at the server
		// before the client is back; in virtual time it always can.
		n = 3
		again := false // used by one goroutine of the client
		dial = func(network, address string, timeout time.Duration) (net.Conn, error) {
			if again {
				time.Sleep(reconnectDelay)
			}
			again = true
			return c.Dial(network, address, timeout)
		}
	}
	var addrs []string
	for i := range n {
		addrs = append(addrs, fmt.Sprintf("127.0.0.1:%d", i+1))
	}
	client := &connected{closed: make(chan struct{})}
	conn, events, err := zk.Connect(addrs, sessionTimeout, zk.WithDialer(dial), zk.WithLogger(stock.Quiet{}), zk.WithEventCallback(client.happened))
	if err != nil {
		t.Fatalf("lockkeepertest: %v", err)
	}
	client.conn = conn
	c.report.opened(client)
	t.Cleanup(func() {
		t.Helper()
		c.report.guards.end(t) // while its session exists
		c.report.log(t)
		client.close()
		if bubble() != "" {
			time.Sleep(lateNotice)
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), patience) // a cleanup may connect too
	defer cancel()
	if err := stock.Await(ctx, events); err != nil {
		t.Fatalf("lockkeepertest: after %v: %v", patience, err)
	}
	return conn
}

// ExpireSession expires a session as if its client had been silent for the session
// timeout: the session's ephemeral znodes are deleted, its connection is closed,
// and the client learns that the session has expired when it reconnects.
// ExpireSession returns when the session has ended. Its error is
// [lockkeeper.ErrNoSession] if there is no such session. It gives up after a
// minute, for instance if the server is paused. After any other error than ErrNoSession the
// session may or may not have ended.
func (s *Server) ExpireSession(sessionID int64) error {
	if why := s.misplaced(); why != "" {
		return errors.New("lockkeepertest: " + why)
	}
	server, err := s.running()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return server.EndSession(ctx, sessionID)
}

// Disconnect closes the connection of a session and reports whether there was one.
// The session continues, and a client normally reconnects by itself.
func (s *Server) Disconnect(sessionID int64) bool {
	server, err := s.running()
	return err == nil && testhooks.Of(server).Disconnect(sessionID)
}

// Kill stops the server as abruptly as if its process had been killed: its clients' connections are
// closed and new ones fail. Its state is kept for [Server.Restart]. Killing a stopped server does nothing.
func (s *Server) Kill() {
	s.t.Helper()
	s.here(s.t)
	if s.network != nil {
		s.network.Kill(host(s.cfg.ID))
	}
	if err := s.stop(func(s *lockkeeper.Server) error { return testhooks.Of(s).Kill() }); err != nil {
		s.t.Errorf("lockkeepertest: kill %s: %v", s.name(), err)
	}
}

// Restart starts a stopped server with the state that it had. As after any restart, every session
// gets its full timeout again. Restart waits until the server is ready, unless it is a member of a
// cluster, which needs a leader for that; Dial and Connect do wait. It must be called from the
// goroutine that runs the test.
func (s *Server) Restart() {
	s.t.Helper()
	s.here(s.t)
	err := s.open()
	if err == nil && s.network == nil {
		err = s.await()
	}
	if err != nil {
		s.t.Fatalf("lockkeepertest: restart %s: %v", s.name(), err)
	}
}
