package lock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/lock"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

// TestRWMutex: readers share the lock, writers do not, and nobody overtakes.
func TestRWMutex(t *testing.T) {
	virtual(t, func(t *testing.T, s *lockkeepertest.Server) {
		var m []*lock.RWMutex
		for range 5 {
			m = append(m, lock.NewRWMutex(s.Connect(t, timeout), path, known))
		}
		r0, r1 := take(t, m[0].RLock), take(t, m[1].RLock)
		if _, err := m[2].TryLock(t.Context()); !errors.Is(err, lock.ErrBusy) {
			t.Errorf("a writer beside readers: %v", err)
		}
		unlock(t, take(t, m[2].TryRLock))
		w2 := wait(t.Context(), m[2].Lock)
		s.WaitWaiters(path, 2)
		if _, err := m[3].TryRLock(t.Context()); !errors.Is(err, lock.ErrBusy) {
			t.Errorf("a reader overtook a writer: %v", err)
		}
		r3 := wait(t.Context(), m[3].RLock)
		s.WaitWaiters(path, 3)
		r4 := wait(t.Context(), m[4].RLock)
		s.WaitWaiters(path, 4)
		unlock(t, r0)
		w2.pending(t)
		unlock(t, r1)
		h2 := w2.held(t)
		r3.pending(t)
		r4.pending(t)
		unlock(t, h2)
		h3, h4 := r3.held(t), r4.held(t)
		w0 := wait(t.Context(), m[0].Lock)
		s.WaitWaiters(path, 2)
		unlock(t, h4)
		w0.pending(t)
		unlock(t, h3)
		h0 := w0.held(t)
		if _, err := m[1].TryLock(t.Context()); !errors.Is(err, lock.ErrBusy) {
			t.Errorf("two writers: %v", err)
		}
		unlock(t, h0)
		for _, m := range m {
			finish(t, s, m)
		}
	})
}

// TestRWReentrant: a writer reads, a reader does not write.
func TestRWReentrant(t *testing.T) {
	virtual(t, func(t *testing.T, s *lockkeepertest.Server) {
		m, other := lock.NewRWMutex(s.Connect(t, timeout), path, known, lock.Reentrant()), lock.NewRWMutex(s.Connect(t, timeout), path, known)
		w := take(t, m.Lock)
		r, err := m.RLock(w.Context(t.Context()))
		if err != nil {
			t.Fatal(err)
		}
		waits := wait(t.Context(), other.RLock)
		unlock(t, w)
		waits.pending(t) // the writer's znode is still there
		unlock(t, r)
		unlock(t, waits.held(t))
		r = take(t, m.RLock)
		ctx := r.Context(t.Context())
		again, err := m.RLock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.Lock(ctx); !errors.Is(err, lock.ErrDeadlock) {
			t.Errorf("a reader becomes a writer: %v", err)
		}
		unlock(t, r)
		unlock(t, again)
		finish(t, s, m, other)
	})
}

// TestSemaphore: at most n hold it, in order, and a slot that becomes free wakes one client.
func TestSemaphore(t *testing.T) {
	virtual(t, func(t *testing.T, s *lockkeepertest.Server) {
		const slots, clients = 3, 10
		var all []*lock.Semaphore
		for range clients {
			all = append(all, lock.NewSemaphore(s.Connect(t, timeout), path, slots, known))
		}
		var held []*lock.Held
		for i := range slots {
			h, err := all[i].TryLock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, h)
		}
		if _, err := all[slots].TryLock(t.Context()); !errors.Is(err, lock.ErrBusy) {
			t.Errorf("got %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		began := time.Now()
		if _, err := all[slots].TryLock(ctx); !errors.Is(err, lock.ErrBusy) || time.Since(began) > 0 {
			t.Errorf("got %v after %v", err, time.Since(began))
		}
		if _, err := all[slots].Lock(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Minute {
			t.Errorf("got %v after %v", err, time.Since(began))
		}
		cancel()
		if err := all[slots].Wait(t.Context()); err != nil {
			t.Error(err)
		}
		var queue []waiting
		for i := slots; i < clients; i++ {
			queue = append(queue, wait(t.Context(), all[i].Lock))
			s.WaitWaiters(path+"/locks", i-slots)
			queue[i-slots].pending(t)
		}
		for i, w := range queue {
			for _, later := range queue[i:] {
				later.pending(t)
			}
			next := held[i%2] // not always the first
			held = append(held[:i%2], held[i%2+1:]...)
			before := len(s.Requests("getChildren*"))
			unlock(t, next)
			held = append(held, w.held(t))
			synctest.Wait()
			// The new holder lists the leases; the next in turn lists the turns, and the
			// leases twice, before and after it sets its watch.
			if n := len(s.Requests("getChildren*")) - before; n > 6 {
				t.Errorf("a free slot has caused %d lists", n)
			}
		}
		for _, h := range held {
			unlock(t, h)
		}
		for _, x := range all {
			if err := x.Wait(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if l := s.Locks(); len(l) > 0 {
			t.Errorf("left behind: %v", l)
		}
		noGoroutines(t)
	})
}

// TestSemaphoreTryTogether: as many clients as there are slots try at the same time, as cron jobs of
// several machines do, and each gets one. If there are more, the others do not.
func TestSemaphoreTryTogether(t *testing.T) {
	const slots = 3
	for _, clients := range []int{slots, 2 * slots} {
		virtual(t, func(t *testing.T, s *lockkeepertest.Server) {
			got := make(chan *lock.Held, clients)
			var all []waiter
			for range clients {
				m := lock.NewSemaphore(s.Connect(t, timeout), path, slots, known)
				all = append(all, m)
				go func() {
					h, err := m.TryLock(t.Context())
					if err != nil && !errors.Is(err, lock.ErrBusy) {
						t.Error(err)
					}
					got <- h
				}()
			}
			var held []*lock.Held
			for range clients {
				if h := <-got; h != nil {
					held = append(held, h)
				}
			}
			if len(held) != slots {
				t.Errorf("%d of %d clients have got one of %d slots", len(held), clients, slots)
			}
			for _, h := range held {
				unlock(t, h)
			}
			finish(t, s, all...)
		})
	}
}

// TestElection: candidates lead in turn, even when a leader's session ends.
func TestElection(t *testing.T) {
	setsWatchesAgain(t)
	virtual(t, func(t *testing.T, s *lockkeepertest.Server) {
		var all []*lock.Election
		var queue []waiting
		for i := range 3 {
			all = append(all, lock.NewElection(s.Connect(t, timeout), path, known, lock.WithData(fmt.Append(nil, i))))
		}
		if _, _, err := all[0].Leader(t.Context()); !errors.Is(err, lock.ErrNoCandidate) {
			t.Errorf("got %v", err)
		}
		for i, e := range all {
			queue = append(queue, wait(t.Context(), e.Campaign))
			s.WaitWaiters(path, i)
			synctest.Wait()
		}
		for i, w := range queue {
			h := w.held(t)
			for _, later := range queue[i+1:] {
				later.pending(t)
			}
			data, token, err := all[2].Leader(t.Context())
			if string(data) != fmt.Sprint(i) || token != h.Token() || err != nil {
				t.Errorf("candidate %d leads: %q, %#x, %v", i, data, token, err)
			}
			if i == 1 {
				if err := s.ExpireSession(h.Session()); err != nil {
					t.Fatal(err)
				}
				<-h.Lost()
				if err := h.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
					t.Errorf("got %v", err)
				}
				continue
			}
			unlock(t, h)
		}
		finish(t, s, all[0], all[1], all[2])
	})
}
