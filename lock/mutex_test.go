package lock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/lock"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

// TestMutex: the token, the session and the path are those that the server shows.
func TestMutex(t *testing.T) {
	virtual(t, func(t *testing.T, s *lockkeepertest.Server) {
		conn := s.Connect(t, timeout)
		m := lock.NewMutex(conn, path, known)
		var last int64
		for range 3 {
			h := take(t, m.Lock)
			l := s.Locks()
			if len(l) != 1 || l[0].Path != path || l[0].Token != h.Token() || l[0].Holder != h.Session() || h.Session() != conn.SessionID() {
				t.Errorf("token %#x of session %#x, the server has %v", h.Token(), h.Session(), l)
			}
			if _, stat, err := s.Get(h.Path()); err != nil || stat.Czxid != h.Token() {
				t.Errorf("%s: %+v, %v", h.Path(), stat, err)
			}
			if h.Token() <= last {
				t.Errorf("token %#x after %#x", h.Token(), last)
			}
			last = h.Token()
			ctx := h.Context(t.Context())
			time.Sleep(time.Minute)
			if h.Err() != nil || ctx.Err() != nil || h.Remaining() < timeout/2 {
				t.Errorf("after a minute: %v, %v, %v", h.Err(), ctx.Err(), h.Remaining())
			}
			unlock(t, h)
			synctest.Wait()
			if !errors.Is(h.Err(), lock.ErrUnlocked) || !errors.Is(context.Cause(ctx), lock.ErrUnlocked) || h.Remaining() != 0 {
				t.Errorf("unlocked: %v, %v, %v", h.Err(), context.Cause(ctx), h.Remaining())
			}
			if err := h.Unlock(t.Context()); !errors.Is(err, lock.ErrUnlocked) {
				t.Errorf("unlocked twice: %v", err)
			}
			select {
			case <-h.Lost():
				t.Error("an unlocked lock is not lost")
			default:
			}
			finish(t, s, m)
		}
	})
}

// TestOrder: contenders get the lock in the order in which they came, each watches only the
// one before it, and a release wakes only one.
func TestOrder(t *testing.T) {
	virtual(t, func(t *testing.T, s *lockkeepertest.Server) {
		m := lock.NewMutex(s.Connect(t, timeout), path, known)
		first := take(t, m.Lock)
		const n = 20
		var clients []*lock.Mutex
		var queue []waiting
		for i := range n {
			clients = append(clients, lock.NewMutex(s.Connect(t, timeout), path, known))
			queue = append(queue, wait(t.Context(), clients[i].Lock))
			s.WaitWaiters(path, i+1)
		}
		synctest.Wait()
		watched := map[string]int{}
		for _, w := range s.Watches() {
			watched[w.Path]++
		}
		children := names(t, s.Connect(t, timeout))
		slices.SortFunc(children, func(a, b string) int { return strings.Compare(a[len(a)-10:], b[len(b)-10:]) })
		for i, name := range children {
			want := 1
			if i == 0 {
				want = 2 // the holder's own watch
			}
			if i == n {
				want = 0
			}
			if got := watched[path+"/"+name]; got != want {
				t.Errorf("%d watches of contender %d, want %d", got, i, want)
			}
			delete(watched, path+"/"+name)
		}
		if len(watched) > 0 {
			t.Errorf("other watches: %v", watched)
		}

		held, last := first, first.Token()
		for i, w := range queue {
			for _, later := range queue[i:] {
				later.pending(t)
			}
			before := len(s.Requests("getChildren*"))
			unlock(t, held)
			held = w.held(t)
			if held.Token() <= last {
				t.Errorf("token %#x after %#x", held.Token(), last)
			}
			last = held.Token()
			synctest.Wait()
			if lists := len(s.Requests("getChildren*")) - before; lists != 1 {
				t.Errorf("a release made %d clients list the queue", lists)
			}
		}
		unlock(t, held)
		finish(t, s, m)
		for _, m := range clients {
			finish(t, s, m)
		}
	})
}

// TestCancel: a waiter whose context ends leaves nothing behind, and the one behind it does
// not overtake the holder.
func TestCancel(t *testing.T) {
	virtual(t, func(t *testing.T, s *lockkeepertest.Server) {
		m, other := lock.NewMutex(s.Connect(t, timeout), path, known), lock.NewMutex(s.Connect(t, timeout), path, known)
		held := take(t, m.Lock)
		ctx, cancel := context.WithCancel(t.Context())
		second := wait(ctx, other.Lock)
		s.WaitWaiters(path, 1)
		third := wait(t.Context(), m.Lock)
		s.WaitWaiters(path, 2)
		cancel()
		if o := <-second; !errors.Is(o.err, context.Canceled) {
			t.Errorf("got %+v", o)
		}
		if err := other.Wait(t.Context()); err != nil {
			t.Error(err)
		}
		if n := len(names(t, s.Connect(t, timeout))); n != 2 {
			t.Errorf("%d contenders are left, want 2", n)
		}
		third.pending(t)
		unlock(t, held)
		unlock(t, third.held(t))
		finish(t, s, m, other)
		if _, err := m.Lock(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("with a context that has ended: %v", err)
		}
	})
}

// TestBehindOdd: a lock waits for whatever has one of the marks of locks in its name, and an error
// says behind what it waited.
func TestBehindOdd(t *testing.T) {
	virtual(t, func(t *testing.T, s *lockkeepertest.Server) {
		conn := s.Connect(t, timeout)
		m := lock.NewMutex(conn, path, known)
		held, err := m.Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, odd := range []string{"lock-", "x-lock-", "01234567-89ab-cdef-0123-456789abcdef-lock-", "x__lock__", "_c_01234567-89ab-cdef-0123-456789abcdef-latch-"} {
			at, err := conn.Create(path+"/"+odd, nil, zk.FlagSequence, zk.WorldACL(zk.PermAll))
			if err != nil {
				t.Fatal(err)
			}
			if held != nil {
				held.Unlock(t.Context())
				held = nil
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			_, err = m.Lock(ctx)
			cancel()
			if want := "waiting behind " + strings.TrimPrefix(at, path+"/") + ": "; !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), want) {
				t.Errorf("%v does not say %q", err, want)
			}
			if err := errors.Join(conn.Delete(at, -1), m.Wait(t.Context())); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestTryLock: it does not wait for another holder, whether its context has a deadline or not.
// Lock waits until the deadline.
func TestTryLock(t *testing.T) {
	virtual(t, func(t *testing.T, s *lockkeepertest.Server) {
		m, other := lock.NewMutex(s.Connect(t, timeout), path, known), lock.NewMutex(s.Connect(t, timeout), path, known)
		held, err := m.TryLock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		creates := len(s.Requests("create*"))
		limited, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for _, ctx := range []context.Context{t.Context(), limited} {
			began := time.Now()
			if _, err := other.TryLock(ctx); !errors.Is(err, lock.ErrBusy) || errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 0 {
				t.Errorf("got %v after %v", err, time.Since(began))
			}
		}
		if n := len(s.Requests("create*")); n != creates {
			t.Error("a TryLock that failed has created a znode")
		}
		for range 3 {
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			if _, err := other.Lock(ctx); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, lock.ErrBusy) || time.Since(began) != time.Minute {
				t.Errorf("got %v after %v", err, time.Since(began))
			}
			cancel()
			if err := other.Wait(t.Context()); err != nil {
				t.Error(err)
			}
		}
		// Three waits that were given up have left one watch; the other is the holder's own.
		if w := s.Watches(); len(w) != 2 {
			t.Errorf("watches: %v", w)
		}
		if n := len(s.Requests("getData")); n != 2 {
			t.Errorf("set %d watches", n)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		w := wait(ctx, other.Lock)
		w.pending(t)
		unlock(t, held)
		unlock(t, w.held(t))
		finish(t, s, m, other)

		why := errors.New("shutting down")
		cancelled, end := context.WithCancelCause(t.Context())
		end(why)
		for name, lock := range map[string]func(context.Context) (*lock.Held, error){"TryLock": m.TryLock, "Lock": m.Lock} {
			if _, err := lock(cancelled); !errors.Is(err, context.Canceled) || !errors.Is(err, why) {
				t.Errorf("%s: got %v", name, err)
			}
		}
	})
}

// TestTryLockWithoutServer: it waits for a server until its context ends, and then does not
// claim that another one has the lock.
func TestTryLockWithoutServer(t *testing.T) {
	virtual(t, func(t *testing.T, s *lockkeepertest.Server) {
		m := lock.NewMutex(s.Connect(t, timeout), path, known)
		unlock(t, take(t, m.TryLock))
		s.Kill()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		if _, err := m.TryLock(ctx); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, lock.ErrBusy) || time.Since(began) != time.Minute {
			t.Errorf("got %v after %v", err, time.Since(began))
		}
		w := wait(t.Context(), m.TryLock)
		w.pending(t)
		s.Restart()
		unlock(t, w.held(t))
		finish(t, s, m)
	})
}

// TestWrongArguments: what is wrong with the arguments of constructors and options is the error
// of each attempt to lock.
func TestWrongArguments(t *testing.T) {
	virtual(t, func(t *testing.T, s *lockkeepertest.Server) {
		conn := s.Connect(t, timeout)
		var none *zk.Conn
		for want, all := range map[string][]func(context.Context) (*lock.Held, error){
			"connection is nil": {
				lock.NewMutex(nil, path, known).Lock, lock.NewMutex(none, path, known).TryLock, lock.NewRWMutex(nil, path, known).RLock,
				lock.NewSemaphore(none, path, 1, known).Lock, lock.NewElection(nil, path, known).Campaign,
				func(ctx context.Context) (*lock.Held, error) {
					_, _, err := lock.NewElection(nil, path).Leader(ctx)
					return nil, err
				},
			},
			"0 slots":         {lock.NewSemaphore(conn, path, 0, known).Lock, lock.NewSemaphore(conn, path, 0, known).TryLock},
			"-2 slots":        {lock.NewSemaphore(conn, path, -2, known).TryLock},
			"Dialer is nil":   {lock.NewMutex(conn, path, known, lock.WithDialer(nil)).Lock},
			"-1s is not":      {lock.NewRWMutex(conn, path, lock.WithSessionTimeout(-time.Second), known).TryRLock},
			"0s is not above": {lock.NewMutex(conn, path, lock.WithSessionTimeout(0)).Lock},
			"invalid path":    {lock.NewMutex(conn, "locks", known).Lock, lock.NewSemaphore(conn, "", 1, known).TryLock},
			"invalid ACL":     {lock.NewMutex(conn, path, known, lock.WithACL()).Lock},
		} {
			for i, lock := range all {
				if held, err := lock(t.Context()); err == nil || held != nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%s, number %d: got %v, %v", want, i, held, err)
				}
			}
		}
		m := lock.NewMutex(conn, path, lock.Option{}, known)
		unlock(t, take(t, m.Lock))
		finish(t, s, m)
	})
}

// TestReentrant: a context that holds the lock takes it again.
func TestReentrant(t *testing.T) {
	virtual(t, func(t *testing.T, s *lockkeepertest.Server) {
		conn := s.Connect(t, timeout)
		m, other := lock.NewMutex(conn, path, known, lock.Reentrant()), lock.NewMutex(s.Connect(t, timeout), path, known)
		outer := take(t, m.Lock)
		ctx := outer.Context(t.Context())
		inner, err := m.Lock(ctx)
		if err != nil || inner.Token() != outer.Token() {
			t.Fatalf("got %+v, %v", inner, err)
		}
		tried, err := m.TryLock(inner.Context(ctx))
		if err != nil {
			t.Fatal(err)
		}
		w := wait(t.Context(), other.Lock)
		s.WaitWaiters(path, 1)
		mine := wait(t.Context(), m.Lock) // not in the context
		for _, h := range []*lock.Held{outer, tried} {
			unlock(t, h)
			w.pending(t)
			if h.Err() == nil || inner.Err() != nil || ctx.Err() != nil {
				t.Error("all Helds together hold the lock")
			}
		}
		unlock(t, inner)
		synctest.Wait()
		if ctx.Err() == nil {
			t.Error("the context has not ended")
		}
		unlock(t, w.held(t))
		unlock(t, mine.held(t))
		if again, err := m.Lock(context.WithoutCancel(ctx)); err != nil { // like any other context
			t.Error(err)
		} else {
			unlock(t, again)
		}
		finish(t, s, m, other)

		plain := lock.NewMutex(conn, path, known)
		h := take(t, plain.Lock)
		if _, err := plain.Lock(h.Context(t.Context())); !errors.Is(err, lock.ErrDeadlock) {
			t.Errorf("got %v", err)
		}
		unlock(t, h)
		finish(t, s, plain)
	})
}

// TestForeignChildren: children that are not contenders are ignored, and the contenders of
// other clients are not.
func TestForeignChildren(t *testing.T) {
	virtual(t, func(t *testing.T, s *lockkeepertest.Server) {
		conn := s.Connect(t, timeout)
		m := lock.NewMutex(conn, path, known)
		unlock(t, take(t, m.Lock))
		for _, name := range []string{"config", "lock", "x-0000000000", "block-0000000000", "_c_0123-lease-0000000000", "-lock-12", "0000000000"} {
			if _, err := conn.Create(path+"/"+name, nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
				t.Fatal(err)
			}
		}
		unlock(t, take(t, m.Lock))
		for _, prefix := range []string{"_c_b1c8f1f9-13b0-4f0f-8e6c-4b1d9a8d0c11-lock-", "0123456789abcdef0123456789abcdef__lock__",
			"0123456789abcdef0123456789abcdef__rlock__", "lock-", "_c_b1c8f1f9-13b0-4f0f-8e6c-4b1d9a8d0c11-__READ__", "_c_x-__WRIT__"} {
			at, err := conn.Create(path+"/"+prefix, nil, zk.FlagEphemeralSequential, zk.WorldACL(zk.PermAll))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := m.TryLock(t.Context()); !errors.Is(err, lock.ErrBusy) {
				t.Errorf("%s: got %v", at, err)
			}
			w := wait(t.Context(), m.Lock)
			w.pending(t)
			if err := conn.Delete(at, -1); err != nil {
				t.Fatal(err)
			}
			unlock(t, w.held(t))
		}
		finish(t, s, m)
	})
}

// TestDeleted: a holder whose znode is deleted loses the lock at once, and a waiter queues up
// again.
func TestDeleted(t *testing.T) {
	virtual(t, func(t *testing.T, s *lockkeepertest.Server) {
		conn := s.Connect(t, timeout)
		m := lock.NewMutex(s.Connect(t, timeout), path, known, lock.WithData([]byte("me")))
		h := take(t, m.Lock)
		if data, _, err := conn.Get(h.Path()); string(data) != "me" || err != nil {
			t.Errorf("got %q, %v", data, err)
		}
		// A change of the data is not a loss.
		if _, err := conn.Set(h.Path(), []byte("you"), -1); err != nil {
			t.Fatal(err)
		}
		time.Sleep(timeout)
		ctx := h.Context(t.Context())
		if h.Err() != nil {
			t.Fatal(h.Err())
		}
		w := wait(t.Context(), m.Lock)
		s.WaitWaiters(path, 1)
		for _, name := range names(t, conn) {
			if at := path + "/" + name; at != h.Path() { // the waiter's
				if err := conn.Delete(at, -1); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := conn.Delete(h.Path(), -1); err != nil {
			t.Fatal(err)
		}
		<-h.Lost()
		<-ctx.Done()
		if err := h.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) || !errors.Is(context.Cause(ctx), lock.ErrLost) {
			t.Errorf("got %v, %v", err, context.Cause(ctx))
		}
		unlock(t, w.held(t))
		finish(t, s, m)
	})
}

// TestRefused: what a server refuses is an error, at once.
func TestRefused(t *testing.T) {
	virtual(t, func(t *testing.T, s *lockkeepertest.Server) {
		m := lock.NewMutex(s.Connect(t, timeout), path, known, lock.WithACL(zk.ACL{Perms: zk.PermAll, Scheme: "nonsense"}))
		if _, err := m.Lock(t.Context()); !errors.Is(err, zk.ErrInvalidACL) {
			t.Errorf("got %v", err)
		}
		finish(t, s, m)
		closed := s.Connect(t, timeout)
		m = lock.NewMutex(closed, path, known)
		closed.Close()
		if _, err := m.Lock(t.Context()); !errors.Is(err, zk.ErrClosing) {
			t.Errorf("on a closed connection: %v", err)
		}
		if err := m.Wait(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestLostReplies aims at each request of a lock, from the first to the last: it is executed
// and the reply lost with the connection, it is not executed, or it is executed and the reply
// does not come. Whatever happens, the lock is taken and released, and nothing is left.
func TestLostReplies(t *testing.T) {
	setsWatchesAgain(t)
	for _, op := range []string{"create*", "getChildren2", "getData", "sync", "delete"} {
		for _, do := range []lockkeepertest.Action{lockkeepertest.CloseAfter(), lockkeepertest.CloseBefore(), lockkeepertest.DropReply(), lockkeepertest.Answer(zk.ErrSessionMoved)} {
			for nth := range 4 { // the last two once more, when the lock's own path exists
				t.Run(fmt.Sprintf("%s %v %d", strings.Trim(op, "*"), do, nth+1), func(t *testing.T) {
					virtual(t, func(t *testing.T, s *lockkeepertest.Server) {
						m, other := lock.NewMutex(s.Connect(t, timeout), path, known), lock.NewMutex(s.Connect(t, timeout), path, known)
						if nth >= 2 {
							unlock(t, take(t, m.Lock))
						}
						guard := s.GuardLock(t, path)
						fault := s.Inject(lockkeepertest.Fault{Op: op, Nth: nth%2 + 1, Times: 2, Do: do, Optional: true})
						ended := make(chan struct{})
						go func() { // a client waits for a reply as long as it is connected
							next := fault.Fired()
							for {
								select {
								case <-next:
								case <-ended:
									return
								}
								select {
								case <-time.After(3 * time.Second):
								case <-ended:
									return
								}
								for _, x := range s.Sessions() {
									s.Disconnect(x.ID)
								}
							}
						}()
						first := wait(t.Context(), m.Lock)
						h := first.held(t)
						w := wait(t.Context(), other.Lock)
						time.Sleep(2 * timeout)
						w.pending(t)
						resource := guard.Resource()
						if h.Err() == nil {
							if err := resource.Write(h.Token()); err != nil {
								t.Error(err)
							}
						}
						if err := h.Unlock(t.Context()); err != nil && !errors.Is(err, lock.ErrLost) {
							t.Error(err)
						}
						h = w.held(t)
						if err := resource.Write(h.Token()); err != nil {
							t.Error(err)
						}
						if err := h.Unlock(t.Context()); err != nil && !errors.Is(err, lock.ErrLost) {
							t.Error(err)
						}
						close(ended)
						time.Sleep(timeout) // until the clients are connected
						finish(t, s, m, other)
					})
				})
			}
		}
	}
}
