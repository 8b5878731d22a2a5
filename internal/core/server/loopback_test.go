package server_test

import (
	"crypto"
	"crypto/tls"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/report"
	"github.com/lockkeeper/lockkeeper/internal/core/server"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient/rawtest"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// loopback is a server.Proposer without a log: a goroutine applies what is proposed to
// the replica. As in a cluster, it does so after Propose has returned, and sessions
// expire. Commands that wait are applied together as one entry, or answered if none of
// them is a write. They are lost only when the loopback ends, or if a test asks for it.
type loopback struct {
	replica *fsm.Replica
	start   time.Time // origin of nowMs
	expired atomic.Int64
	resume  func(w fsm.Waiter, propose func(fsm.Waiter)) // if not nil, called in place of proposing that a session is resumed
	wake    chan struct{}                                // holds an element when commands wait or a deadline may be earlier
	stop    chan struct{}
	stopped chan struct{} // closed when run has returned

	mu       sync.Mutex
	settings fsm.Settings // of the entries
	room     sync.Cond    // on mu: signaled when the entry is taken
	entry    []byte       // the encoded commands that wait
	waiters  []fsm.Waiter // one per command
	writes   bool         // there is a write among them
	closed   bool
	accepts  int // how many more commands are accepted
	tracker  *session.Tracker

	// Used only by run.
	index   uint64       // of the last entry
	running []fsm.Waiter // of the entry that is being applied
}

// origin is the id of the server under test.
const origin = 7

// The limits of an entry, as in package propose.
const (
	maxCommands = 4096
	maxEntry    = 1 << 20
)

// newLoopback returns a loopback that applies to a new replica after begin. Sessions
// expire at multiples of tick.
func newLoopback(tick time.Duration) *loopback {
	l := &loopback{
		replica: fsm.NewReplica(), start: time.Now(), accepts: math.MaxInt, tracker: session.NewTracker(tick.Milliseconds()),
		wake: make(chan struct{}, 1), stop: make(chan struct{}), stopped: make(chan struct{}),
	}
	l.room.L = &l.mu
	l.replica.Observe(sessions{l})
	l.replica.Complete(func(_ *fsm.Envelope, i int) fsm.Waiter { return l.running[i] })
	return l
}

func (l *loopback) begin() { go l.run() }

// end stops applying and waits until nothing is applied any more.
func (l *loopback) end() {
	close(l.stop)
	<-l.stopped
}

// set changes the settings of the entries from now on.
func (l *loopback) set(settings fsm.Settings) {
	l.mu.Lock()
	l.settings = settings
	l.mu.Unlock()
}

// accept makes the loopback lose all commands after the next n.
func (l *loopback) accept(n int) {
	l.mu.Lock()
	l.accepts = n
	l.mu.Unlock()
}

func (l *loopback) nowMs() int64 { return time.Since(l.start).Milliseconds() }

func (l *loopback) raise() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *loopback) Propose(c *fsm.Command, w fsm.Waiter, over <-chan struct{}) {
	if c.Op == fsm.OpResumeSession && l.resume != nil {
		l.resume(w, func(w fsm.Waiter) { l.propose(c, w, over) })
		return
	}
	l.propose(c, w, over)
}

func (l *loopback) propose(c *fsm.Command, w fsm.Waiter, over <-chan struct{}) {
	l.mu.Lock()
	for !l.closed && (len(l.waiters) >= maxCommands || len(l.entry) >= maxEntry) {
		l.room.Wait()
	}
	lost := l.closed || l.accepts == 0
	select {
	case <-over:
		lost = true
	default:
	}
	if !lost {
		l.accepts--
		l.add(c, w)
	}
	l.mu.Unlock()
	if lost {
		w.Lost()
	}
}

// add queues a command. The caller holds l.mu.
func (l *loopback) add(c *fsm.Command, w fsm.Waiter) {
	if l.entry == nil {
		l.entry = fsm.BeginEntry(nil)
	}
	l.entry = fsm.AppendCommand(l.entry, c)
	l.waiters = append(l.waiters, w)
	l.writes = l.writes || !c.ReadOnly()
	l.raise()
}

// take removes and returns the commands that wait, as an entry, and whether there is a
// write among them. It returns nil if there are none.
func (l *loopback) take() (entry []byte, waiters []fsm.Waiter, writes bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	entry, waiters, writes = l.entry, l.waiters, l.writes
	if writes {
		entry = fsm.EndEntry(entry, &fsm.Envelope{
			Origin: origin, Batch: l.index + 1, Time: time.Now().UnixMilli(), Settings: l.settings, Count: len(waiters),
		})
	}
	l.entry, l.waiters, l.writes = nil, nil, false
	l.room.Broadcast()
	return entry, waiters, writes
}

func (l *loopback) run() {
	defer close(l.stopped)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-l.wake:
		case <-timer.C:
		case <-l.stop:
			l.mu.Lock()
			l.closed = true
			l.mu.Unlock()
			_, waiters, _ := l.take()
			for _, w := range waiters {
				w.Lost()
			}
			return
		}
		l.expireLate()
		var entry []byte
		var writes bool
		entry, l.running, writes = l.take()
		switch {
		case writes:
			l.index++
			l.replica.Apply(&raft.Log{Index: l.index, Term: 1, Data: entry})
		case entry != nil:
			l.replica.Answer(entry, l.running)
		}
		l.mu.Lock()
		if next, ok := l.tracker.Next(); ok {
			timer.Reset(time.Duration(next-l.nowMs()) * time.Millisecond)
		} else {
			timer.Reset(time.Hour)
		}
		l.mu.Unlock()
	}
}

// expireLate queues the end of the sessions that have timed out.
func (l *loopback) expireLate() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.tracker.Late(l.nowMs()) {
		l.add(fsm.ExpireSession(s, 0), expiry{l, s, nil})
	}
}

// expire ends a session as if it had timed out, and returns when that is applied.
func (l *loopback) expire(t testing.TB, id int64) {
	t.Helper()
	var s *session.Session
	l.replica.View(func(v *fsm.View) { s = v.Sessions().Get(id) })
	if s == nil {
		t.Fatalf("there is no session %#x", uint64(id))
	}
	ended := make(chan bool, 1)
	l.Propose(fsm.ExpireSession(s, 0), expiry{l, s, ended}, nil)
	if !<-ended {
		t.Fatalf("session %#x does not end", uint64(id))
	}
}

// expiry waits for the end of a session.
type expiry struct {
	l     *loopback
	s     *session.Session
	ended chan<- bool // nil if nobody wants to know
}

func (e expiry) Done(_ *fsm.View, r *fsm.Result) {
	if r.Code == proto.OK {
		e.l.expired.Add(1)
	} else { // a client has resumed it
		e.l.mu.Lock()
		e.l.tracker.Spare(e.s, e.l.nowMs())
		e.l.mu.Unlock()
	}
	if e.ended != nil {
		e.ended <- r.Code == proto.OK
	}
}

func (e expiry) Lost() {
	if e.ended != nil {
		e.ended <- false
	}
}

func (l *loopback) Touch(id int64, _ <-chan struct{}) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tracker.Touch(id, l.nowMs())
}

func (l *loopback) Deadlines() []session.Bucket {
	l.mu.Lock()
	defer l.mu.Unlock()
	sessions := map[int64][]int64{}
	l.tracker.Each(func(id, deadline int64) {
		deadline += l.start.UnixMilli()
		sessions[deadline] = append(sessions[deadline], id)
	})
	return session.Buckets(sessions)
}

func (l *loopback) Expired() int64                { return l.expired.Load() }
func (l *loopback) Role() string                  { return "standalone" }
func (l *loopback) Quorum() (report.Quorum, bool) { return report.Quorum{}, false }
func (l *loopback) Work() (w report.Work)         { return w }
func (l *loopback) ResetProposals()               {}
func (l *loopback) Reconfigure([]byte, time.Duration) (proto.Code, bool) {
	return proto.BadArguments, true
}

// sessions tracks the sessions that are opened, resumed and closed.
type sessions struct{ l *loopback }

func (o sessions) Changed(v *fsm.View, changes []proto.Change) {
	o.l.mu.Lock()
	defer o.l.mu.Unlock()
	for i := range changes {
		switch c := &changes[i]; c.Kind {
		case proto.SessionOpened, proto.SessionResumed:
			o.l.tracker.Add(v.Sessions().Get(c.Session), o.l.nowMs())
		case proto.SessionClosed:
			o.l.tracker.Remove(c.Session)
		}
	}
}

func (sessions) Applied(uint64, uint64, int) {}
func (sessions) Answered()                   {}
func (sessions) Restoring()                  {}
func (sessions) Restored()                   {}
func (sessions) Failed(err error)            { panic(err) }

// port is a server on a loopback.
type port struct {
	*server.Server
	loop          *loopback
	plain, secure net.Listener // nil if it does not listen there
}

const zookeeperVersion, released = "3.9.5-test", "2026-11-21 00:00"

// open opens a server that the end of the test closes. It listens nowhere; see
// listen, listenTLS and dial. Fields of cfg that are not set have the values that
// package lockkeeper gives them by default.
func open(t testing.TB, cfg server.Config) *port {
	t.Helper()
	setDefault(&cfg.Tick, 2*time.Second)
	setDefault(&cfg.MinSessionTimeout, timing.Shortest(cfg.Tick))
	setDefault(&cfg.MaxSessionTimeout, timing.Longest(cfg.Tick))
	setDefault(&cfg.Digest, crypto.SHA1)
	setDefault(&cfg.MaxFrame, jute.DefaultMaxFrame)
	setDefault(&cfg.MaxOutstanding, 1000)
	setDefault(&cfg.OutboxBytes, 64<<20)
	setDefault(&cfg.HandshakeTimeout, 10*time.Second)
	setDefault(&cfg.MaxTLSHandshakes, 1000)
	if cfg.FourLetterWords == nil {
		cfg.FourLetterWords = []string{"*"}
	}
	if cfg.Log == nil {
		cfg.Log = testkit.Quiet
	}
	cfg.ID, cfg.Version, cfg.Built = origin, zookeeperVersion, released
	p := &port{loop: newLoopback(cfg.Tick)}
	cfg.Proposer, cfg.Replica = p.loop, p.loop.replica
	p.Server = server.New(cfg)
	p.loop.begin()
	p.Open()
	t.Cleanup(func() {
		for _, l := range []net.Listener{p.plain, p.secure} {
			if l != nil {
				l.Close()
			}
		}
		p.Close()
		p.loop.end()
		p.Wait()
	})
	return p
}

func setDefault[T comparable](v *T, to T) {
	var zero T
	if *v == zero {
		*v = to
	}
}

// listen has the server accept connections over TCP and returns a dialer for them.
func (p *port) listen(t testing.TB) rawtest.Dialer {
	t.Helper()
	p.plain = must(net.Listen("tcp", "127.0.0.1:0"))(t)
	go p.Serve(p.plain, nil)
	return func() (net.Conn, error) { return net.DialTimeout("tcp", p.plain.Addr().String(), time.Minute) }
}

// listenTLS is listen for clients that use TLS.
func (p *port) listenTLS(t testing.TB) rawtest.Dialer {
	t.Helper()
	ca := testkit.NewCA(t)
	p.secure = must(net.Listen("tcp", "127.0.0.1:0"))(t)
	go p.ServeTLS(p.secure, &tls.Config{Certificates: []tls.Certificate{ca.Server(t)}})
	return func() (net.Conn, error) {
		return tls.DialWithDialer(&net.Dialer{Timeout: time.Minute}, "tcp", p.secure.Addr().String(), &tls.Config{RootCAs: ca.Pool})
	}
}

// dial opens a connection in memory.
func (p *port) dial() (net.Conn, error) {
	client, ours := net.Pipe()
	go p.ServeConn(ours)
	return client, nil
}

// overAll runs a test over TCP, over TLS and in memory, each with its own server.
func overAll(t *testing.T, cfg server.Config, test func(t *testing.T, p *port, dial rawtest.Dialer)) {
	for _, over := range []struct {
		name string
		dial func(t *testing.T, p *port) rawtest.Dialer
	}{
		{"TCP", func(t *testing.T, p *port) rawtest.Dialer { return p.listen(t) }},
		{"TLS", func(t *testing.T, p *port) rawtest.Dialer { return p.listenTLS(t) }},
		{"memory", func(_ *testing.T, p *port) rawtest.Dialer { return p.dial }},
	} {
		t.Run(over.name, func(t *testing.T) {
			noGoroutineLeft(t)
			p := open(t, cfg)
			test(t, p, over.dial(t, p))
		})
	}
}

var (
	eventually      = testkit.Eventually
	noGoroutineLeft = testkit.NoGoroutineLeft
	check           = testkit.Check

	connect    = rawtest.Connect
	connectFor = rawtest.ConnectFor
	closed     = rawtest.Closed
	alive      = rawtest.Alive
	word       = rawtest.Word
	counts     = rawtest.Counts
	number     = rawtest.Number
	frame      = rawtest.Frame
	request32  = rawtest.Ints
)

func must[T any](v T, err error) func(t testing.TB) T { return testkit.Must(v, err) }
