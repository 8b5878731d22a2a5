package lock

import (
	"context"

	"github.com/go-zookeeper/zk"
)

// Mutex is a lock that one client holds at a time. Its methods may be called from any
// goroutine, and each call of Lock is a contender of its own.
type Mutex struct{ q *queue }

// New returns the mutex at a path, whose znode is created when it is needed. The path should
// be used for nothing else.
func New(conn *zk.Conn, path string, options ...Option) *Mutex {
	return &Mutex{newQueue(conn, path, newOptions(options))}
}

var exclusive = kind{mark: markLock}

// Lock waits until it holds the lock or ctx ends. It outlasts lost connections, restarts of
// servers, and even the end of the session, after which it queues up again.
func (m *Mutex) Lock(ctx context.Context) (*Held, error) { return m.q.lock(ctx, exclusive, true) }

// TryLock waits for the lock until the deadline of ctx, and then returns [ErrBusy]. If ctx has
// no deadline, it does not wait: it returns ErrBusy if another has the lock or waits for it.
// Even then it waits for a server that can answer. If ctx is cancelled, it returns ctx's
// error.
func (m *Mutex) TryLock(ctx context.Context) (*Held, error) { return m.q.try(ctx, exclusive) }

// Wait waits until nothing happens in the background any more: until the znodes of all calls
// whose contexts have ended, and of everything that was unlocked, are known to be gone. A lock
// that is held, or waited for, counts as well.
func (m *Mutex) Wait(ctx context.Context) error { return m.q.wait(ctx) }

// RWMutex is a lock that one writer or any number of readers hold. They get it in the order
// in which they ask: a reader does not overtake a writer that waits. It shares its queue with
// Curator's InterProcessReadWriteLock. kazoo's ReadLock and WriteLock see it with
// extra_lock_patterns, "__WRIT__" for both and "__READ__" for WriteLock.
//
// With [Reentrant], a writer's context can also take the lock for reading: it keeps the lock
// for writing until both are unlocked. A reader's context cannot take it for writing
// ([ErrDeadlock]).
type RWMutex struct{ q *queue }

// NewRW returns the lock for readers and writers at a path, like [New].
func NewRW(conn *zk.Conn, path string, options ...Option) *RWMutex {
	return &RWMutex{newQueue(conn, path, newOptions(options))}
}

var (
	writing = kind{mark: markWrite}
	reading = kind{mark: markRead, shared: true}
)

// Lock takes the lock for writing, like [Mutex.Lock].
func (m *RWMutex) Lock(ctx context.Context) (*Held, error) { return m.q.lock(ctx, writing, true) }

// TryLock tries to take the lock for writing, like [Mutex.TryLock].
func (m *RWMutex) TryLock(ctx context.Context) (*Held, error) { return m.q.try(ctx, writing) }

// RLock takes the lock for reading, like [Mutex.Lock]. It waits only for writers.
func (m *RWMutex) RLock(ctx context.Context) (*Held, error) { return m.q.lock(ctx, reading, true) }

// TryRLock tries to take the lock for reading, like [Mutex.TryLock].
func (m *RWMutex) TryRLock(ctx context.Context) (*Held, error) { return m.q.try(ctx, reading) }

// Wait is like [Mutex.Wait].
func (m *RWMutex) Wait(ctx context.Context) error { return m.q.wait(ctx) }
