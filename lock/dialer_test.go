package lock_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/lock"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

// contention is a way to take a lock.
type contention struct {
	lock func(context.Context) (*lock.Held, error)
	waiter
}

// kinds are all ways to take a lock alone.
var kinds = map[string]func(*zk.Conn, ...lock.Option) contention{
	"mutex": func(c *zk.Conn, o ...lock.Option) contention {
		m := lock.NewMutex(c, path, o...)
		return contention{m.Lock, m}
	},
	"try": func(c *zk.Conn, o ...lock.Option) contention {
		m := lock.NewMutex(c, path, o...)
		return contention{func(ctx context.Context) (*lock.Held, error) {
			for {
				held, err := m.TryLock(ctx)
				if !errors.Is(err, lock.ErrBusy) {
					return held, err
				}
				time.Sleep(10 * time.Millisecond)
			}
		}, m}
	},
	"write": func(c *zk.Conn, o ...lock.Option) contention {
		m := lock.NewRWMutex(c, path, o...)
		return contention{m.Lock, m}
	},
	"semaphore": func(c *zk.Conn, o ...lock.Option) contention {
		m := lock.NewSemaphore(c, path, 1, o...)
		return contention{m.Lock, m}
	},
	"election": func(c *zk.Conn, o ...lock.Option) contention {
		m := lock.NewElection(c, path, o...)
		return contention{m.Campaign, m}
	},
}

// TestGrantedTimeout: a holder counts with the session timeout that the server has granted,
// which may be less than 4 s, and less than what the client asked for or was told.
func TestGrantedTimeout(t *testing.T) {
	setsWatchesAgain(t)
	const granted = time.Second
	second := lock.WithSessionTimeout(granted)
	for name, x := range map[string]struct {
		tick, ask time.Duration
		most      bool // the server grants no more than a second
		options   []lock.Option
	}{
		"least":           {tick: 500 * time.Millisecond, ask: granted},
		"raised":          {tick: 500 * time.Millisecond, ask: granted / 10},
		"most":            {tick: 50 * time.Millisecond, ask: 10 * granted, most: true},
		"option more":     {tick: 50 * time.Millisecond, ask: 10 * granted, most: true, options: []lock.Option{lock.WithSessionTimeout(10 * granted)}},
		"option less":     {tick: 500 * time.Millisecond, ask: 10 * granted, options: []lock.Option{second}},
		"option the same": {tick: 500 * time.Millisecond, ask: granted, options: []lock.Option{second}},
	} {
		for kind, contend := range kinds {
			t.Run(name+" "+kind, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := lockkeepertest.Start(t, lockkeepertest.WithTickTime(x.tick), lockkeepertest.WithConfig(func(c *lockkeeper.Config) {
						if x.most {
							c.Limits.MaxSessionTimeout = granted
						}
					}))
					l := newLink()
					d := &lock.Dialer{Base: zk.Dialer(l.dial(s.Dial))}
					m := contend(connectFor(t, d.Dial, x.ask), append(x.options, lock.WithDialer(d))...)
					e := &lock.Dialer{Base: s.Dial}
					other := contend(connectFor(t, e.Dial, time.Minute), lock.WithDialer(e))
					h := take(t, m.lock)
					w := wait(t.Context(), other.lock)
					time.Sleep(10 * granted)
					w.pending(t)
					if h.Err() != nil || h.Remaining() > granted*2/3 {
						t.Errorf("%v are left, %v", h.Remaining(), h.Err())
					}
					l.set(func(l *link) { l.cut = true })
					began := time.Now()
					<-h.Lost()
					if d := time.Since(began); d > granted*2/3 || d < granted/2 {
						t.Errorf("lost after %v", d)
					}
					w.pending(t)
					l.set(func(l *link) { l.cut = false })
					if err := h.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
						t.Errorf("got %v", err)
					}
					unlock(t, w.held(t))
					finish(t, s, m, other)
				})
			})
		}
	}
}

// TestGrantedLess: when the client reconnects and the server grants less than before, a holder
// counts with that at once.
func TestGrantedLess(t *testing.T) {
	setsWatchesAgain(t)
	virtual(t, func(t *testing.T, s *lockkeepertest.Server) {
		l := newLink()
		granted := timeout
		dial := l.dial(s.Dial)
		d := &lock.Dialer{Base: func(network, address string, timeout time.Duration) (net.Conn, error) {
			conn, err := dial(network, address, timeout)
			return &granting{Conn: conn, timeout: granted}, err
		}}
		m, other := lock.NewMutex(connect(t, d.Dial), path, lock.WithDialer(d)), lock.NewMutex(s.Connect(t, timeout), path, known)
		if d.SessionTimeout() != timeout {
			t.Errorf("granted: %v", d.SessionTimeout())
		}
		h := take(t, m.Lock)
		synctest.Wait()
		if left := h.Remaining(); left <= time.Second {
			t.Errorf("%v are left", left)
		}
		granted = time.Second
		s.Disconnect(h.Session())
		synctest.Wait()
		for began := time.Now(); d.SessionTimeout() != granted; time.Sleep(time.Millisecond) {
			if time.Since(began) > time.Minute {
				t.Fatal("it does not learn what the server grants now")
			}
		}
		if left := h.Remaining(); left > granted*2/3 || h.Err() != nil {
			t.Errorf("%v are left, %v", left, h.Err())
		}
		l.set(func(l *link) { l.cut = true })
		began := time.Now()
		<-h.Lost()
		if d := time.Since(began); d > granted*2/3 {
			t.Errorf("lost after %v", d)
		}
		l.set(func(l *link) { l.cut = false })
		if err := h.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
			t.Errorf("got %v", err)
		}
		finish(t, s, m, other)
	})
}

// TestGrantedMuchLess: when the client reconnects and the server grants so little that the next
// request would be due too late, the holder sends one earlier, and keeps the lock.
func TestGrantedMuchLess(t *testing.T) {
	setsWatchesAgain(t)
	virtual(t, func(t *testing.T, s *lockkeepertest.Server) {
		granted := 40 * time.Second
		d := &lock.Dialer{Base: func(network, address string, timeout time.Duration) (net.Conn, error) {
			conn, err := s.Dial(network, address, timeout)
			return &granting{Conn: conn, timeout: granted}, err
		}}
		m := lock.NewMutex(connectFor(t, d.Dial, granted), path, lock.WithDialer(d))
		for range 5 { // each at another time since the last request
			granted = 40 * time.Second
			h := take(t, m.Lock)
			granted = time.Second
			asked := len(s.Requests("sync"))
			for len(s.Requests("sync")) == asked {
				time.Sleep(time.Millisecond)
			}
			s.Disconnect(h.Session())
			time.Sleep(10 * granted)
			if err := h.Err(); err != nil {
				t.Error(err)
			}
			unlock(t, h)
		}
		finish(t, s, m)
	})
}

// TestOnGrant: the program learns what a server grants before the client does, and when the
// locks know it already.
func TestOnGrant(t *testing.T) {
	setsWatchesAgain(t)
	virtual(t, func(t *testing.T, s *lockkeepertest.Server) {
		granted := timeout
		var conn *zk.Conn
		var h *lock.Held
		d := &lock.Dialer{Base: func(network, address string, timeout time.Duration) (net.Conn, error) {
			conn, err := s.Dial(network, address, timeout)
			return &granting{Conn: conn, timeout: granted}, err
		}}
		calls := 0
		d.OnGrant = func(session int64, timeout time.Duration) {
			calls++
			if timeout != granted || d.SessionTimeout() != granted || session == 0 {
				t.Errorf("session %#x is granted %v, not %v", session, timeout, granted)
			}
			if h == nil {
				return
			}
			if state := conn.State(); state == zk.StateHasSession || session != conn.SessionID() {
				t.Errorf("the client is in state %v", state)
			}
			if left := h.Remaining(); left <= 0 || left > timeout*2/3 {
				t.Errorf("%v are left of %v", left, timeout)
			}
		}
		conn = connect(t, d.Dial)
		m := lock.NewMutex(conn, path, lock.WithDialer(d))
		h = take(t, m.Lock)
		granted = time.Second
		s.Disconnect(h.Session())
		time.Sleep(timeout)
		if calls != 2 {
			t.Errorf("called %d times", calls)
		}
		unlock(t, h)
		finish(t, s, m)
	})
}

// granting is a connection on which a server seems to grant another session timeout.
type granting struct {
	net.Conn
	timeout time.Duration
	head    []byte // of the answer to the handshake, not read yet
	done    bool
}

func (g *granting) Read(b []byte) (int, error) {
	if !g.done {
		g.done, g.head = true, make([]byte, 12)
		if _, err := io.ReadFull(g.Conn, g.head); err != nil {
			return 0, err
		}
		binary.BigEndian.PutUint32(g.head[8:], uint32(g.timeout.Milliseconds()))
	}
	if len(g.head) > 0 {
		n := copy(b, g.head)
		g.head = g.head[n:]
		return n, nil
	}
	return g.Conn.Read(b)
}

// TestTimeoutUnknown: a lock that does not know the session timeout is refused, and leaves
// nothing behind.
func TestTimeoutUnknown(t *testing.T) {
	for kind, contend := range kinds {
		t.Run(kind, func(t *testing.T) {
			virtual(t, func(t *testing.T, s *lockkeepertest.Server) {
				conn := s.Connect(t, timeout)
				var unused lock.Dialer
				used := &lock.Dialer{Base: s.Dial}
				connect(t, used.Dial)
				for _, options := range [][]lock.Option{nil, {lock.WithDialer(&unused)}, {lock.WithDialer(used)}, {lock.WithDialer(used), known}} {
					for _, holder := range []bool{false, true} {
						if holder && kind == "try" {
							continue // it is refused because another one has the lock
						}
						other := contend(s.Connect(t, timeout), known)
						m := contend(conn, options...)
						var h *lock.Held
						if holder {
							h = take(t, other.lock)
						}
						ctx, cancel := context.WithTimeout(t.Context(), patience)
						defer cancel()
						if _, err := m.lock(ctx); !errors.Is(err, lock.ErrTimeoutUnknown) {
							t.Fatalf("got %v", err)
						}
						if holder {
							unlock(t, h)
						}
						finish(t, s, m, other)
					}
				}
			})
		})
	}
}
