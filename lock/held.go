package lock

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// Held is a lock that is held, until it is unlocked or lost. Its methods may be called from
// any goroutine.
type Held struct {
	k        *keeper
	unlocked atomic.Bool
}

// Token returns the fencing token: the czxid of the lock's znode, which is also what the
// server shows. Each holder of a path has a greater one than all holders before it, except
// that those that hold it together, as readers or through a semaphore, have tokens in the
// order in which they joined the queue.
func (h *Held) Token() int64 { return h.k.token }

// Session returns the id of the session that holds the lock.
func (h *Held) Session() int64 { return h.k.session }

// Path returns the path of the znode by which the lock is held.
func (h *Held) Path() string { return h.k.path }

// Lost returns a channel that is closed when the lock is lost, but not when it is unlocked.
// It is closed before another client can hold the lock, as the package comment explains; then
// stop what the lock protects within a third of the session timeout, and call Unlock.
func (h *Held) Lost() <-chan struct{} { return h.k.lost }

// Remaining returns for how long the lock is held even if no server answers any more. It
// looks at the clock, so unlike Lost it is right at once after the program has been paused.
// Whoever adds it to the time must take the time before the call: the program may be paused
// in between. It is 0 when the lock is lost or unlocked.
func (h *Held) Remaining() time.Duration {
	if h.unlocked.Load() {
		return 0
	}
	return h.k.check()
}

// Err returns nil while the lock is held, [ErrLost] with the reason when it was lost, and
// [ErrUnlocked] when it was unlocked. Like Remaining, it looks at the clock.
func (h *Held) Err() error {
	h.k.check()
	h.k.mu.Lock()
	defer h.k.mu.Unlock()
	switch {
	case h.k.why != nil:
		return h.k.why
	case h.unlocked.Load():
		return ErrUnlocked
	}
	return nil
}

// Context returns a context that is derived from parent and cancelled when the lock is lost
// or released, with [ErrLost] or [ErrUnlocked] as its [context.Cause]. With [Reentrant], it can
// take the lock again.
func (h *Held) Context(parent context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(context.WithValue(parent, holding{h.k.q}, h.k))
	stop := context.AfterFunc(h.k.life, func() { cancel(context.Cause(h.k.life)) })
	context.AfterFunc(ctx, func() { stop() })
	if h.k.life.Err() != nil {
		cancel(context.Cause(h.k.life))
	}
	return ctx
}

// Unlock releases the lock. If it was taken several times by the same context, the last
// Unlock does. Only the caller's own znode is deleted, never another holder's.
//
// If the lock was lost, Unlock returns [ErrLost] at once. It must be called even then:
// until then the znode stays in the queue if the session still exists. If ctx ends before a
// server has answered, Unlock returns an error, and the znode is deleted in the background.
// A second Unlock of the same Held returns [ErrUnlocked].
func (h *Held) Unlock(ctx context.Context) error {
	k := h.k
	last, err := h.release()
	if err != nil || !last {
		return err
	}
	select {
	case <-k.gone:
	case <-ctx.Done():
		select {
		case <-k.gone:
		default:
			return fmt.Errorf("lock: %s is being deleted in the background: %w", h.Path(), reason(ctx))
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.why != nil {
		return k.why
	}
	if k.removed != nil {
		return fmt.Errorf("lock: %s: %w", k.q.path, k.removed)
	}
	return nil
}

// release is Unlock without waiting. It reports whether the keeper was told to delete the
// znode.
func (h *Held) release() (last bool, err error) {
	k := h.k
	if h.unlocked.Swap(true) {
		return false, ErrUnlocked
	}
	k.check()
	k.mu.Lock()
	defer k.mu.Unlock()
	err = k.why
	k.refs--
	if k.refs == 0 {
		k.releaseLocked()
	}
	return k.refs == 0, err
}
