package lock_test

import (
	"context"
	"errors"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/stock"
	"github.com/lockkeeper/lockkeeper/lock"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

const path = "/locks/report"

// timeout is the session timeout of most tests.
const timeout = 4 * time.Second

var known = lock.WithSessionTimeout(timeout)

// virtual runs a test in virtual time, with a server.
func virtual(t *testing.T, f func(t *testing.T, s *lockkeepertest.Server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, lockkeepertest.Start(t)) })
}

// setsWatchesAgain skips a test under the race detector if it makes a client reconnect that
// has watches: go-zookeeper then reads its last zxid in sendSetWatches while another of its
// goroutines writes it.
func setsWatchesAgain(t *testing.T) {
	t.Helper()
	if testkit.Race {
		t.Skip("go-zookeeper has a data race when a client with watches reconnects")
	}
}

// patience is how long a test waits for a lock that is free, or will be, in virtual time.
const patience = 10 * time.Minute

// take locks, which must succeed.
func take(t testing.TB, lock func(context.Context) (*lock.Held, error)) *lock.Held {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	h, err := lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// waiting is a call of Lock in a goroutine.
type waiting chan outcome

type outcome struct {
	held *lock.Held
	err  error
}

func wait(ctx context.Context, lock func(context.Context) (*lock.Held, error)) waiting {
	w := make(waiting, 1)
	go func() {
		h, err := lock(ctx)
		w <- outcome{h, err}
	}()
	return w
}

// held returns the lock that the call must get.
func (w waiting) held(t testing.TB) *lock.Held {
	t.Helper()
	select {
	case o := <-w:
		if o.err != nil {
			t.Fatal(o.err)
		}
		return o.held
	case <-time.After(patience):
		t.Fatal("it never gets the lock")
	}
	return nil
}

// pending checks that the call has not returned when nobody has anything to do.
func (w waiting) pending(t testing.TB) {
	t.Helper()
	synctest.Wait()
	select {
	case o := <-w:
		t.Fatalf("does not wait any more: %+v", o)
	default:
	}
}

func unlock(t testing.TB, h *lock.Held) {
	t.Helper()
	if err := h.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

type waiter interface{ Wait(context.Context) error }

// finish waits for what the locks do in the background, and checks that they have left no
// znode and no goroutine.
func finish(t testing.TB, s *lockkeepertest.Server, locks ...waiter) {
	t.Helper()
	for _, l := range locks {
		if err := l.Wait(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if locks := s.Locks(); len(locks) > 0 {
		t.Errorf("left behind: %v", locks)
	}
	if w := s.Watches(); len(w) > 0 {
		t.Errorf("watches left: %v", w)
	}
	noGoroutines(t)
}

// noGoroutines checks that the package runs no goroutine.
func noGoroutines(t testing.TB) {
	t.Helper()
	synctest.Wait()
	buf := make([]byte, 4<<20)
	for g := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(g, "lock.(*keeper)") {
			t.Errorf("left behind:\n%s", g)
		}
	}
}

// names returns the names of the znodes below the lock.
func names(t testing.TB, conn *zk.Conn) []string {
	t.Helper()
	children, _, err := conn.Children(path)
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		t.Fatal(err)
	}
	return children
}

// link is the network between a client and a server. Like TCP, it delivers in order.
type link struct {
	mu       sync.Mutex
	up, down time.Duration // how long requests and replies take
	cut      bool          // nothing is delivered until the link is mended
	mute     bool          // no requests are delivered, but replies are
	changed  chan struct{} // closed and replaced at each change
}

func newLink() *link { return &link{changed: make(chan struct{})} }

func (l *link) set(change func(*link)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(l)
	close(l.changed)
	l.changed = make(chan struct{})
}

// whole waits until the link delivers in a direction, or done is closed.
func (l *link) whole(up bool, done <-chan struct{}) bool {
	for {
		l.mu.Lock()
		blocked, changed := l.cut || up && l.mute, l.changed
		l.mu.Unlock()
		if !blocked {
			return true
		}
		select {
		case <-changed:
		case <-done:
			return false
		}
	}
}

type dialer func(network, address string, timeout time.Duration) (net.Conn, error)

// dial returns a dialer whose connections go over the link.
func (l *link) dial(dial dialer) dialer {
	return func(network, address string, timeout time.Duration) (net.Conn, error) {
		l.mu.Lock()
		blocked := l.cut || l.mute
		l.mu.Unlock()
		if blocked {
			time.Sleep(timeout)
			return nil, errors.New("no answer")
		}
		server, err := dial(network, address, timeout)
		if err != nil {
			return nil, err
		}
		client, inner := net.Pipe()
		closed := make(chan struct{}) // by the client
		go func() {
			l.pump(server, inner, true, nil)
			close(closed)
			l.whole(true, nil) // the server does not see it before
			server.Close()
		}()
		go func() {
			l.pump(inner, server, false, closed)
			inner.Close()
		}()
		return client, nil
	}
}

// pump copies from one connection to another.
func (l *link) pump(to, from net.Conn, up bool, done <-chan struct{}) {
	type packet struct {
		data []byte
		due  time.Time
	}
	packets := make(chan packet, 1<<16)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for p := range packets {
			time.Sleep(time.Until(p.due))
			if !l.whole(up, done) {
				return
			}
			if _, err := to.Write(p.data); err != nil {
				return
			}
		}
	}()
	for {
		buf := make([]byte, 1<<16)
		n, err := from.Read(buf)
		if err != nil {
			break
		}
		l.mu.Lock()
		delay := l.down
		if up {
			delay = l.up
		}
		l.mu.Unlock()
		packets <- packet{buf[:n], time.Now().Add(delay)}
	}
	close(packets)
	if done != nil {
		<-sent
	}
}

type silent = stock.Quiet

// connect returns a client that has a session. It is closed when the test ends.
func connect(t testing.TB, dial dialer) *zk.Conn {
	t.Helper()
	return connectFor(t, dial, timeout)
}

// connectFor is connect for another session timeout.
func connectFor(t testing.TB, dial dialer, timeout time.Duration) *zk.Conn {
	t.Helper()
	conn, events, err := zk.Connect([]string{"127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"}, timeout, zk.WithDialer(zk.Dialer(dial)), zk.WithLogger(silent{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	if err := stock.Await(t.Context(), events); err != nil {
		t.Fatal(err)
	}
	return conn
}
