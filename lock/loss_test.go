package lock_test

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/lock"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

// TestCutOff: a holder that is cut off loses the lock two thirds of the session timeout after
// its last request that was answered, and the next one gets it later.
func TestCutOff(t *testing.T) {
	setsWatchesAgain(t)
	virtual(t, func(t *testing.T, s *lockkeepertest.Server) {
		l := newLink()
		m, other := lock.NewMutex(connect(t, l.dial(s.Dial)), path, known), lock.NewMutex(s.Connect(t, timeout), path, known)
		h := take(t, m.Lock)
		w := wait(t.Context(), other.Lock)
		time.Sleep(10 * timeout)
		w.pending(t)
		l.set(func(l *link) { l.cut = true })
		began := time.Now()
		ctx := h.Context(t.Context())
		select {
		case <-h.Lost():
		case <-w:
			l.set(func(l *link) { l.cut = false })
			t.Fatal("two believe in the lock")
		}
		if d := time.Since(began); d > timeout*2/3 || d < timeout/2 {
			t.Errorf("lost after %v", d)
		}
		synctest.Wait()
		if h.Err() == nil || h.Remaining() != 0 || ctx.Err() == nil {
			t.Errorf("lost: %v, %v, %v", h.Err(), h.Remaining(), ctx.Err())
		}
		w.pending(t)
		next := w.held(t)
		if d := time.Since(began); d < timeout*11/12 || d > timeout*5/4 {
			t.Errorf("the next one got it after %v", d)
		}
		if err := h.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
			t.Errorf("got %v", err)
		}
		l.set(func(l *link) { l.cut = false })
		again := wait(t.Context(), m.Lock)
		s.WaitWaiters(path, 1)
		again.pending(t)
		unlock(t, next)
		unlock(t, again.held(t)) // in a new session
		finish(t, s, m, other)
	})
}

// TestSlowAnswers: answers that take long keep the lock only for what is left since their
// requests were sent. With two thirds of the timeout gone when they arrive, nothing is left.
func TestSlowAnswers(t *testing.T) {
	virtual(t, func(t *testing.T, s *lockkeepertest.Server) {
		l := newLink()
		m := lock.NewMutex(connect(t, l.dial(s.Dial)), path, known)
		h := take(t, m.Lock)
		l.set(func(l *link) { l.down = timeout / 4 })
		time.Sleep(10 * timeout)
		if left := h.Remaining(); h.Err() != nil || left > timeout*2/3-timeout/4 {
			t.Errorf("%v are left, %v", left, h.Err())
		}
		unlock(t, h)
		finish(t, s, m)
	})
}

// TestNothingLeft: the last answer before the lock is held comes so late that nothing is left.
// Then Lost is closed when Lock returns, so that no caller starts with such a lock.
func TestNothingLeft(t *testing.T) {
	for kind, contend := range kinds {
		t.Run(kind, func(t *testing.T) {
			virtual(t, func(t *testing.T, s *lockkeepertest.Server) {
				for range 10 {
					var p pausing
					m := contend(connect(t, p.dial(s.Dial)), lock.WithSessionTimeout(timeout/2))
					p.create.Store(int64(timeout / 6)) // so that it sends a sync
					p.sync.Store(int64(timeout / 2))
					h := take(t, m.lock)
					select {
					case <-h.Lost():
					default:
						t.Error("the lock seems to be held")
					}
					p.create.Store(0)
					p.sync.Store(0)
					if err := h.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
						t.Errorf("got %v", err)
					}
					finish(t, s, m)
				}
			})
		})
	}
}

// pausing makes connections that are slow to deliver the next answer after each create and sync,
// by these numbers of nanoseconds.
type pausing struct{ create, sync atomic.Int64 }

func (p *pausing) dial(dial dialer) dialer {
	return func(network, address string, timeout time.Duration) (net.Conn, error) {
		c, err := dial(network, address, timeout)
		return &pausingConn{Conn: c, p: p}, err
	}
}

type pausingConn struct {
	net.Conn
	p    *pausing
	next atomic.Int64
}

func (c *pausingConn) Write(b []byte) (int, error) {
	if len(b) >= 12 {
		switch binary.BigEndian.Uint32(b[8:]) { // after the length of the frame and the xid
		case 1, 15, 19: // create, create2, createContainer
			c.next.Add(c.p.create.Load())
		case 9: // sync
			c.next.Add(c.p.sync.Load())
		}
	}
	return c.Conn.Write(b)
}

func (c *pausingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	time.Sleep(time.Duration(c.next.Swap(0)))
	return n, err
}

// TestLateAnswers: what a holder has sent is answered, slowly, and what it sends next is lost.
// It must count from when it sent the last request, not from when the answer came.
func TestLateAnswers(t *testing.T) {
	setsWatchesAgain(t)
	virtual(t, func(t *testing.T, s *lockkeepertest.Server) {
		l := newLink()
		m, other := lock.NewMutex(connect(t, l.dial(s.Dial)), path, known), lock.NewMutex(s.Connect(t, timeout), path, known)
		h := take(t, m.Lock)
		w := wait(t.Context(), other.Lock)
		l.set(func(l *link) { l.down = timeout * 55 / 100 })
		time.Sleep(timeout / 10) // one request is sent
		l.set(func(l *link) { l.mute = true })
		next := w.held(t)
		select {
		case <-h.Lost():
		default:
			t.Error("two believe in the lock")
		}
		l.set(func(l *link) { l.mute, l.down = false, 0 })
		if err := h.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
			t.Errorf("got %v", err)
		}
		unlock(t, next)
		time.Sleep(2 * timeout)
		finish(t, s, m, other)
	})
}

// TestMemberLost: the member that has answered a holder's last request is lost before it could
// report that the session is alive, which is due a moment later. The leader knows all the same,
// since the request was a write or a sync. So the holder has the last third of the session to
// stop, and `lock run` kills its command in time.
func TestMemberLost(t *testing.T) {
	const timeout = 12 * time.Second
	for name, last := range map[string]func(t *testing.T, l *link, m *lock.Mutex) (h *lock.Held, sent time.Time){
		"a create": func(t *testing.T, l *link, m *lock.Mutex) (*lock.Held, time.Time) {
			time.Sleep(timeout*2/3 - time.Second/2) // the leader has heard of the ping before, so the create need not wait
			sent := time.Now()
			return take(t, m.Lock), sent
		},
		"a sync": func(t *testing.T, l *link, m *lock.Mutex) (*lock.Held, time.Time) {
			h := take(t, m.Lock)
			time.Sleep(3*timeout - timeout/24)
			l.set(func(l *link) { l.down = timeout/3 - 400*time.Millisecond }) // no sync meanwhile
			time.Sleep(timeout / 12)
			l.set(func(l *link) { l.down = 0 })
			time.Sleep(timeout / 12)
			for h.Remaining() < timeout*2/3-time.Millisecond {
				time.Sleep(time.Millisecond)
			}
			return h, time.Now().Add(h.Remaining() - timeout*2/3)
		},
	} {
		t.Run(name, func(t *testing.T) {
			setsWatchesAgain(t)
			synctest.Test(t, func(t *testing.T) {
				c := lockkeepertest.StartCluster(t, 3)
				lead := c.Leader()
				member, known := lead%3+1, lock.WithSessionTimeout(timeout)
				l := newLink()
				m := lock.NewMutex(connectFor(t, l.dial(c.Server(member).Dial), timeout), path, known)
				other := lock.NewMutex(c.Server(lead).Connect(t, timeout), path, known)
				h, sent := last(t, l, m)
				w := wait(t.Context(), other.Lock)
				w.pending(t)
				l.set(func(l *link) { l.cut = true })
				c.Server(member).Kill()
				<-h.Lost()
				w.pending(t)
				next := w.held(t)
				if got := time.Since(sent); got < timeout {
					t.Errorf("the next one got the lock %v after the last answered request was sent", got)
				}
				unlock(t, next)
				c.Server(member).Restart()
				l.set(func(l *link) { l.cut = false })
				h.Unlock(t.Context())
				time.Sleep(2 * timeout)
				noGoroutines(t)
			})
		})
	}
}

// TestShortOutage: a lock is kept if the server is back soon enough.
func TestShortOutage(t *testing.T) {
	setsWatchesAgain(t)
	virtual(t, func(t *testing.T, s *lockkeepertest.Server) {
		m, other := lock.NewMutex(s.Connect(t, timeout), path, known), lock.NewMutex(s.Connect(t, timeout), path, known)
		h := take(t, m.Lock)
		w := wait(t.Context(), other.Lock)
		s.WaitWaiters(path, 1)
		for range 5 {
			s.Disconnect(h.Session())
			time.Sleep(timeout)
			s.Kill()
			time.Sleep(time.Second / 2)
			s.Restart()
			time.Sleep(timeout)
		}
		w.pending(t)
		unlock(t, h)
		unlock(t, w.held(t))
		finish(t, s, m, other)
	})
}

// TestExpired: holder and waiter lose their sessions. The holder loses the lock, and both can
// get it again in a new session.
func TestExpired(t *testing.T) {
	setsWatchesAgain(t)
	virtual(t, func(t *testing.T, s *lockkeepertest.Server) {
		conn, other := s.Connect(t, timeout), s.Connect(t, timeout)
		m, n := lock.NewMutex(conn, path, known), lock.NewMutex(other, path, known)
		h := take(t, m.Lock)
		w := wait(t.Context(), n.Lock)
		s.WaitWaiters(path, 1)
		if err := s.ExpireSession(other.SessionID()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(timeout)
		s.WaitWaiters(path, 1) // it has queued up again
		w.pending(t)
		if err := s.ExpireSession(h.Session()); err != nil {
			t.Fatal(err)
		}
		<-h.Lost()
		next := w.held(t)
		if next.Token() <= h.Token() {
			t.Error("the token does not grow")
		}
		if err := h.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
			t.Errorf("got %v", err)
		}
		again := wait(t.Context(), m.Lock)
		s.WaitWaiters(path, 1)
		unlock(t, next)
		unlock(t, again.held(t))
		finish(t, s, m, n)
	})
}

// beforeWatch is a wrapper of a connection that calls a function before the request that watches another
// contender. For the waiter of these tests that is its only GetW until it is the first.
type beforeWatch struct {
	lock.Conn
	once sync.Once
	do   func()
}

func (c *beforeWatch) GetW(path string) ([]byte, *zk.Stat, <-chan zk.Event, error) {
	c.once.Do(c.do)
	return c.Conn.GetW(path)
}

// TestExpiredBeforeWatch: a waiter's session expires after the waiter has found its place and
// before it watches the contender in front, so that its watch belongs to the next session. It
// queues up again at once. It does the same if it cannot know which session its znode belongs to,
// because the answer to its create was lost.
func TestExpiredBeforeWatch(t *testing.T) {
	setsWatchesAgain(t)
	for _, lost := range []bool{false, true} {
		virtual(t, func(t *testing.T, s *lockkeepertest.Server) {
			m := lock.NewMutex(s.Connect(t, timeout), path, known)
			h := take(t, m.Lock)
			conn := s.Connect(t, timeout)
			n := lock.NewMutex(&beforeWatch{Conn: conn, do: func() {
				old := conn.SessionID()
				if err := s.ExpireSession(old); err != nil {
					t.Error(err)
				}
				for conn.SessionID() == old || conn.SessionID() == 0 {
					time.Sleep(time.Millisecond)
				}
			}}, path, known)
			if lost {
				s.Inject(lockkeepertest.Fault{Op: "create", Do: lockkeepertest.CloseAfter()})
			}
			w := wait(t.Context(), n.Lock)
			time.Sleep(timeout)
			w.pending(t)
			s.WaitWaiters(path, 1)
			unlock(t, h)
			unlock(t, w.held(t))
			finish(t, s, m, n)
		})
	}
}

// TestOldSession: a client that gets a new session does not take its old znode for its own,
// even if a server still has it.
func TestOldSession(t *testing.T) {
	virtual(t, func(t *testing.T, s *lockkeepertest.Server) {
		conn := s.Connect(t, timeout)
		m := lock.NewMutex(conn, path, known)
		session := conn.SessionID()
		// The server says that the session has expired, which it has not.
		s.Inject(lockkeepertest.Fault{Op: "getData", Do: lockkeepertest.CloseBefore()})
		s.Inject(lockkeepertest.Fault{Op: "connect", Do: lockkeepertest.Answer(zk.ErrSessionExpired)})
		h := take(t, m.Lock)
		if h.Session() == session || h.Session() != conn.SessionID() {
			t.Errorf("held by session %#x, which was %#x", h.Session(), session)
		}
		unlock(t, h)
		finish(t, s, m)
	})
}

// exclusion observes whether several clients believe in the lock at the same time.
type exclusion struct {
	mu    sync.Mutex
	holds []*lock.Held // of those that have not begun to unlock
	turns int
	wrong []string
}

func (x *exclusion) begin(h *lock.Held) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, o := range x.holds {
		// Err looks at the clock. What counts here is what the holder has been told.
		select {
		case <-o.Lost():
		default:
			x.wrong = append(x.wrong, fmt.Sprintf("%#x has the lock while %#x believes in it", h.Token(), o.Token()))
		}
	}
	x.holds = append(x.holds, h)
	x.turns++
}

func (x *exclusion) end(h *lock.Held) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for i, o := range x.holds {
		if o == h {
			x.holds = append(x.holds[:i], x.holds[i+1:]...)
			return
		}
	}
}

// world is a server or a cluster.
type world interface {
	GuardLock(t testing.TB, path string) *lockkeepertest.Guard
	Inject(lockkeepertest.Fault) *lockkeepertest.Injection
}

// random lets clients take a lock in turn, while their links are slow and cut and disturb is
// called now and then. It returns what was wrong.
func random(t *testing.T, seed uint64, w world, dial dialer, disturb func(r *rand.Rand)) *exclusion {
	r := rand.New(rand.NewPCG(seed, 0))
	for _, op := range []string{"create*", "delete", "getChildren2", "getData", "sync", "event"} {
		do := lockkeepertest.CloseAfter()
		if r.IntN(2) == 0 {
			do = lockkeepertest.CloseBefore()
		}
		w.Inject(lockkeepertest.Fault{Op: op, Nth: 1 + r.IntN(40), Times: 1 + r.IntN(2), Do: do, Optional: true})
	}
	ctx, cancel := context.WithCancel(t.Context())
	x := &exclusion{}
	var links []*link
	var locks []*lock.Mutex
	var wg sync.WaitGroup
	for range 4 {
		l := newLink()
		d := &lock.Dialer{Base: zk.Dialer(l.dial(dial))}
		m := lock.NewMutex(connect(t, d.Dial), path, lock.WithDialer(d))
		links, locks = append(links, l), append(locks, m)
		r := rand.New(rand.NewPCG(r.Uint64(), 0))
		wg.Go(func() {
			for ctx.Err() == nil {
				patience := ctx
				if r.IntN(4) == 0 {
					var stop func()
					patience, stop = context.WithTimeout(ctx, time.Duration(r.Int64N(int64(2*timeout))))
					defer stop()
				}
				h, err := m.Lock(patience)
				if err != nil {
					if !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
						x.mu.Lock()
						x.wrong = append(x.wrong, err.Error())
						x.mu.Unlock()
					}
					continue
				}
				x.begin(h)
				work := time.NewTimer(time.Duration(r.Int64N(int64(2 * timeout))))
				select {
				case <-work.C:
				case <-h.Lost():
				}
				x.end(h)
				h.Unlock(ctx)
			}
		})
	}
	for range 40 {
		time.Sleep(time.Duration(r.Int64N(int64(timeout))))
		l := links[r.IntN(len(links))]
		switch r.IntN(5) {
		case 0:
			l.set(func(l *link) { l.cut = true })
		case 1:
			l.set(func(l *link) { l.cut, l.mute = false, false })
		case 2:
			// Answers are under way when requests get lost.
			l.set(func(l *link) { l.down = timeout * time.Duration(50+r.IntN(10)) / 100 })
			time.Sleep(time.Duration(r.Int64N(int64(timeout / 2))))
			l.set(func(l *link) { l.mute = true })
		case 3:
			l.set(func(l *link) {
				l.up, l.down = time.Duration(r.Int64N(int64(timeout/4))), time.Duration(r.Int64N(int64(timeout*6/10)))
			})
		default:
			disturb(r)
		}
	}
	for _, l := range links {
		l.set(func(l *link) { l.cut, l.mute, l.up, l.down = false, false, 0, 0 })
	}
	cancel()
	wg.Wait()
	for _, m := range locks {
		if err := m.Wait(t.Context()); err != nil {
			t.Error(err)
		}
	}
	time.Sleep(2 * timeout) // messages that are under way arrive, and lost sessions end
	return x
}

// randomServer is random with one server.
func randomServer(t *testing.T, seed uint64) (x *exclusion) {
	synctest.Test(t, func(t *testing.T) {
		s := lockkeepertest.Start(t, lockkeepertest.WithTickTime(250*time.Millisecond))
		x = random(t, seed, s, s.Dial, func(r *rand.Rand) {
			if all := s.Sessions(); len(all) > 0 && r.IntN(3) > 0 {
				s.Disconnect(all[r.IntN(len(all))].ID)
				return
			}
			s.Kill()
			time.Sleep(time.Duration(r.Int64N(int64(timeout))))
			s.Restart()
		})
		for _, l := range s.Locks() {
			x.wrong = append(x.wrong, "left behind: "+l.String())
		}
		noGoroutines(t)
	})
	return x
}

var seeds = flag.Int("lock.seeds", 6, "TestRandom: how many seeds, of which the first three are always the same")

// TestRandom: whatever happens to links, servers and replies, nobody gets the lock while
// another one believes in it, and no znode is left.
func TestRandom(t *testing.T) {
	setsWatchesAgain(t)
	turns := 0
	for i := 0; i < *seeds && !t.Failed(); i++ {
		seed := uint64(i + 1)
		if i >= 3 {
			seed = rand.Uint64()
		}
		x := randomServer(t, seed)
		for _, wrong := range x.wrong {
			t.Errorf("seed %d: %s", seed, wrong)
		}
		turns += x.turns
	}
	t.Logf("%d turns", turns)
	if turns < 30 && !t.Failed() {
		t.Error("hardly anybody got the lock")
	}
}

// TestRandomCluster is TestRandom with three servers, which are cut off from each other,
// paused and killed.
func TestRandomCluster(t *testing.T) {
	setsWatchesAgain(t)
	for range 3 {
		seed := rand.Uint64()
		synctest.Test(t, func(t *testing.T) {
			c := lockkeepertest.StartCluster(t, 3)
			x := random(t, seed, c, c.Dial, func(r *rand.Rand) {
				i := 1 + r.IntN(3)
				switch r.IntN(3) {
				case 0:
					c.Partition([]int{i}, []int{i%3 + 1, (i+1)%3 + 1})
					time.Sleep(time.Duration(r.Int64N(int64(2 * timeout))))
					c.Heal()
				case 1:
					c.Server(i).Pause()
					time.Sleep(time.Duration(r.Int64N(int64(2 * timeout))))
					c.Server(i).Resume()
				default:
					c.Server(i).Kill()
					time.Sleep(time.Duration(r.Int64N(int64(2 * timeout))))
					c.Server(i).Restart()
				}
			})
			for _, wrong := range x.wrong {
				t.Errorf("seed %d: %s", seed, wrong)
			}
			if x.turns == 0 {
				t.Errorf("seed %d: nobody got the lock", seed)
			}
			noGoroutines(t)
		})
	}
}

// TestEndsAfterPartition: a test in virtual time may end while its client is cut off, whether or not it unlocks what it has lost.
func TestEndsAfterPartition(t *testing.T) {
	setsWatchesAgain(t)
	for _, unlocks := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			c := lockkeepertest.StartCluster(t, 3)
			leader := c.Leader()
			m := lock.NewMutex(c.Server(leader).Connect(t, timeout), path, known)
			held := take(t, m.Lock)
			if unlocks {
				defer func() {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					held.Unlock(ctx)
				}()
			}
			c.Partition([]int{leader}, []int{leader%3 + 1, (leader+1)%3 + 1})
			<-held.Context(t.Context()).Done()
			if !unlocks {
				c.Heal()
				time.Sleep(time.Second) // the session is still there
			}
		})
	}
}
