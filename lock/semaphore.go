package lock

import (
	"context"
	"errors"
	"path"

	"github.com/go-zookeeper/zk"
)

// Semaphore is held by at most n clients at a time. All clients of a path must agree on n. It
// consists of the same znodes as Curator's InterProcessSemaphoreV2, with which it shares its
// queue: a mutex for whose turn it is to ask, so that a slot that becomes free wakes only one
// client, and the leases.
type Semaphore struct {
	turn, leases *queue
	slots        int
}

// NewSemaphore returns the semaphore with n slots at a path.
func NewSemaphore(conn *zk.Conn, at string, n int, options ...Option) *Semaphore {
	if n < 1 {
		panic("lock: a semaphore needs at least one slot")
	}
	o := newOptions(options)
	return &Semaphore{newQueue(conn, path.Join(at, "locks"), o), newQueue(conn, path.Join(at, "leases"), o), n}
}

// Lock waits for a slot, like [Mutex.Lock]. A context that holds a slot may take another one.
func (s *Semaphore) Lock(ctx context.Context) (*Held, error) { return s.lock(ctx, true) }

// TryLock tries to get a slot, like [Mutex.TryLock]. Without a deadline, it returns [ErrBusy] if all
// slots are held or waited for; it may overtake others that have not come to ask for a slot yet.
func (s *Semaphore) TryLock(ctx context.Context) (*Held, error) {
	_, patient := ctx.Deadline()
	held, err := s.lock(ctx, patient)
	return held, busy(err)
}

func (s *Semaphore) lock(ctx context.Context, patient bool) (*Held, error) {
	lease := kind{mark: markLease, slots: s.slots}
	if !patient {
		// Whoever has the turn may be about to get a slot while others are free, so that says
		// nothing. The leases do: one who waits for a slot has one too.
		return s.leases.lock(ctx, lease, false)
	}
	turn, err := s.turn.lock(ctx, exclusive, true)
	if err != nil {
		return nil, err
	}
	// If the turn is lost meanwhile, two clients may wait for a slot. The leases are ordered,
	// so they do not get the same.
	defer turn.Unlock(ctx)
	return s.leases.lock(ctx, lease, true)
}

// Wait is like [Mutex.Wait].
func (s *Semaphore) Wait(ctx context.Context) error {
	return errors.Join(s.turn.wait(ctx), s.leases.wait(ctx))
}
