package lock

import (
	"context"
	"fmt"
)

// Semaphore is held by at most n clients at a time. All clients of a path must agree on n. It
// consists of the same znodes as Curator's InterProcessSemaphoreV2, with which it shares its
// queue: a mutex for whose turn it is to ask, so that a slot that becomes free wakes only one
// client, and the leases. Its methods may be called from any goroutine.
type Semaphore struct {
	turn, leases *queue
	slots        int
}

// NewSemaphore returns the semaphore with n slots at a path, like [NewMutex]. If n is less than
// 1, every attempt to get a slot fails.
func NewSemaphore(conn Conn, path string, n int, options ...Option) *Semaphore {
	o := newOptions(options)
	if n < 1 {
		o.refuse(fmt.Sprintf("NewSemaphore: %d slots are less than 1", n))
	}
	q := newQueue(conn, path, o)
	return &Semaphore{newQueue(conn, q.at("locks"), o), newQueue(conn, q.at("leases"), o), n}
}

// Lock waits for a slot, like [Mutex.Lock]. A context that holds a slot may take another one.
func (s *Semaphore) Lock(ctx context.Context) (*Held, error) {
	turn, err := s.turn.lock(ctx, exclusive, true)
	if err != nil {
		return nil, err
	}
	// If the turn is lost meanwhile, two clients may wait for a slot. The leases are ordered,
	// so they do not get the same.
	defer turn.Unlock(ctx)
	return s.leases.lock(ctx, s.lease(), true)
}

// TryLock takes a slot if one is free, like [Mutex.TryLock]. It returns [ErrBusy] if all slots are
// held or waited for; it may overtake others that have not come to ask for a slot yet.
func (s *Semaphore) TryLock(ctx context.Context) (*Held, error) {
	// Whoever has the turn may be about to get a slot while others are free, so that says
	// nothing. The leases do: one who waits for a slot has one too.
	return s.leases.lock(ctx, s.lease(), false)
}

func (s *Semaphore) lease() kind { return kind{mark: markLease, slots: s.slots} }

// Wait is like [Mutex.Wait].
func (s *Semaphore) Wait(ctx context.Context) error {
	if err := s.turn.wait(ctx); err != nil {
		return err
	}
	return s.leases.wait(ctx)
}
