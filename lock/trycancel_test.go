package lock_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/lock"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

// TestTryLockLeavesNothing: whatever becomes of a TryLock (its context ends at any moment, the connection
// is lost, the session ends), no znode and no goroutine is left.
func TestTryLockLeavesNothing(t *testing.T) {
	setsWatchesAgain(t)
	for range 60 {
		virtual(t, func(t *testing.T, s *lockkeepertest.Server) {
			conn := s.Connect(t, timeout)
			holder := lock.NewMutex(s.Connect(t, timeout), path, known)
			m, sem := lock.NewMutex(conn, path, known), lock.NewSemaphore(conn, "/sem", 1, known)
			for range 12 {
				var h *lock.Held
				if rand.IntN(2) == 0 {
					h = take(t, holder.Lock)
				}
				ops := []string{"create", "getChildren", "getData", "delete", "sync", "createContainer"}
				action := []lockkeepertest.Action{lockkeepertest.CloseBefore(), lockkeepertest.CloseAfter(), lockkeepertest.Delay(time.Millisecond * 20)}[rand.IntN(3)]
				in := s.Inject(lockkeepertest.Fault{Op: ops[rand.IntN(len(ops))], Do: action, Optional: true})
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(60))*time.Millisecond)
				if rand.IntN(5) == 0 {
					id := conn.SessionID()
					time.AfterFunc(time.Duration(rand.IntN(30))*time.Millisecond, func() { s.ExpireSession(id) })
				}
				f := m.TryLock
				if rand.IntN(3) == 0 {
					f = sem.TryLock
				}
				got, err := f(ctx)
				cancel()
				in.Remove()
				if err == nil {
					got.Unlock(t.Context())
				}
				if h != nil {
					h.Unlock(t.Context())
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			for _, l := range []waiter{m, sem, holder} {
				if err := l.Wait(ctx); err != nil {
					t.Error(err)
				}
			}
			if locks := s.Locks(); len(locks) > 0 {
				t.Errorf("left behind: %v", locks)
			}
			noGoroutines(t)
		})
	}
}
