package lockkeepertest

import (
	"bytes"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper"
)

// bubble returns the number of the synctest bubble that the calling goroutine is in, as text;
// "" if it is in none. Package synctest does not tell, but a goroutine's trace does.
func bubble() string {
	var trace [128]byte
	line, _, _ := bytes.Cut(trace[:runtime.Stack(trace[:], false)], []byte("]"))
	_, number, _ := bytes.Cut(line, []byte("synctest bubble "))
	return string(number)
}

// misplaced returns why the calling goroutine cannot use the server; "" if it can. The runtime
// ends the whole program when channels are used on both sides of a bubble's edge.
func (s *Server) misplaced() string {
	switch here := bubble(); {
	case here == s.bubble:
		return ""
	case here == "":
		return "the server was started in a synctest bubble and can be used only there"
	default:
		return "the server was started outside of this synctest bubble and cannot be used in it: start it in the function that synctest.Test calls"
	}
}

// defaultDeadline is how much virtual time a test in a bubble has.
const defaultDeadline = time.Hour + time.Minute

// grace is how much longer a test may take, in virtual time, that has missed its deadline.
const grace = time.Hour

// WithDeadline sets how much virtual time may pass in a synctest bubble after the server was
// started, until the test fails; 0 means any time. The default is an hour and a minute, so that a
// test can sleep for an hour. Without a deadline, a test that waits for ever for a lock would
// use a whole processor until go test's timeout, since the pings of clients keep time going,
// and would not say what it waits for.
//
// A test that misses the deadline fails with the state of its servers: who holds which lock,
// and who waits. The servers are stopped, and two seconds later the clients that Connect has
// returned are closed, so that their calls return. If the test then goes on for another hour, the test program
// panics. Outside of bubbles, there is no deadline.
func WithDeadline(d time.Duration) Option { return Option{func(s *Server) { s.deadline = d }} }

// watch fails the test when the deadline of its servers has passed.
func (r *report) watch() {
	s := r.servers[0]
	if s.bubble == "" || s.deadline <= 0 {
		return
	}
	go func() { // ends with the test, since s is stopped then
		select {
		case <-time.After(s.deadline):
		case <-s.life.Done():
			return
		}
		text := fmt.Sprintf("lockkeepertest: %v of virtual time have passed since %s, where the servers were started, so the test seems to wait in vain; WithDeadline sets another limit\nlockkeepertest: %s", s.deadline, r.started, r)
		s.t.Errorf("%s", text)
		r.mu.Lock()
		r.logged[s.t] = true
		clients := r.clients
		r.mu.Unlock()
		for _, s := range r.servers { // first, so that nobody gets a lock because its holder is closed
			s.stop((*lockkeeper.Server).Close) // an error would be another failure than the test's
		}
		// Calls that wait for a server's answer return now, and the test may then close a client
		// itself. That is over after two seconds; see [connected.close] for why it matters.
		time.Sleep(2 * time.Second)
		for _, c := range clients {
			c.close()
		}
		select {
		case <-time.After(grace):
			panic(text)
		case <-s.life.Done():
		}
	}()
}

// opened notes a client that Connect returns.
func (r *report) opened(c *connected) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clients = append(r.clients, c)
}

// connected is a client that Connect has returned.
type connected struct {
	conn    *zk.Conn
	closing atomic.Bool
	closed  chan struct{}
	state   zk.State // for happened
}

// close closes the client, or waits for another call of close. Two goroutines must not call
// conn.Close at a time: the second would wait for a mutex until the first has its answer or
// a second has passed, and in a bubble no time passes while a goroutine waits for a mutex.
func (c *connected) close() {
	if c.closing.Swap(true) {
		<-c.closed
		return
	}
	defer close(c.closed)
	// A Close while the client reconnects would take a second.
	for end := time.Now().Add(100 * time.Millisecond); c.reconnecting() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	c.conn.Close()
}

// happened is called with the client's events. conn.Close says that the client ends before it
// makes its own request. The client's goroutine, if it waits to reconnect, may miss that request
// when it answers those that wait, after the event that it is disconnected. Calls on the client
// would then return while Close goes on for a second, and the test could close the client itself.
func (c *connected) happened(e zk.Event) {
	if e.Type != zk.EventSession {
		return
	}
	if e.State == zk.StateDisconnected && c.state == zk.StateConnecting && c.closing.Load() {
		time.Sleep(time.Millisecond)
	}
	c.state = e.State
}

func (c *connected) reconnecting() bool {
	switch c.conn.State() {
	case zk.StateConnecting, zk.StateConnected, zk.StateExpired:
		return true
	}
	return false
}

// callSite returns where this package was called, FILE:LINE.
func callSite() string {
	var pcs [32]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	for {
		frame, more := frames.Next()
		if pkg := "/lockkeepertest."; !strings.Contains(frame.Function, pkg) || !more {
			return fmt.Sprintf("%s:%d", filepath.Base(frame.File), frame.Line)
		}
	}
}
