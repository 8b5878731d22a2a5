package lock

import "context"

// Mutex is a lock that one client holds at a time. Its methods may be called from any
// goroutine, and each call of Lock is a contender of its own.
type Mutex struct{ q *queue }

// NewMutex returns the mutex at a path, whose znode is created when it is needed. The path
// should be used for nothing else. NewMutex sends no request: what is wrong with its arguments,
// as with those of the other constructors and of the options, is the error of the first attempt
// to lock.
func NewMutex(conn Conn, path string, options ...Option) *Mutex {
	return &Mutex{newQueue(conn, path, newOptions(options))}
}

var exclusive = kind{mark: markLock}

// Lock waits until it holds the lock. It outlasts lost connections, restarts of servers, and
// even the end of the session, after which it queues up again. If ctx ends before that, the
// error is that of ctx: [context.DeadlineExceeded] or
// [context.Canceled]. It also returns [ErrDeadlock], [ErrTimeoutUnknown], and the errors of
// go-zookeeper for what a server refuses (zk.ErrNoAuth) and for a connection that the program
// has closed (zk.ErrClosing).
func (m *Mutex) Lock(ctx context.Context) (*Held, error) { return m.q.lock(ctx, exclusive, true) }

// TryLock takes the lock if that is possible without waiting for another holder. Otherwise it
// returns [ErrBusy]: another one has the lock or waits for it. It waits only for a server that
// can answer; if ctx ends before that, the error is that of ctx, as for Lock. To wait for the
// lock for a limited time, call Lock with a context that has a deadline.
func (m *Mutex) TryLock(ctx context.Context) (*Held, error) { return m.q.lock(ctx, exclusive, false) }

// Wait waits until nothing happens in the background any more: until the znodes of all calls
// whose contexts have ended, and of everything that was unlocked, are known to be gone. A lock
// that is held, or waited for, counts as well. If ctx ends before that, the error is that of ctx.
func (m *Mutex) Wait(ctx context.Context) error { return m.q.wait(ctx) }

// RWMutex is a lock that one writer or any number of readers hold. They get it in the order
// in which they ask: a reader does not overtake a writer that waits. It shares its queue with
// Curator's InterProcessReadWriteLock. kazoo's ReadLock and WriteLock see it with
// extra_lock_patterns, "__WRIT__" for both and "__READ__" for WriteLock. Its methods may be
// called from any goroutine.
//
// With [Reentrant], a writer's context can also take the lock for reading: it keeps the lock
// for writing until both are unlocked. A reader's context cannot take it for writing
// ([ErrDeadlock]).
type RWMutex struct{ q *queue }

// NewRWMutex returns the lock for readers and writers at a path, like [NewMutex].
func NewRWMutex(conn Conn, path string, options ...Option) *RWMutex {
	return &RWMutex{newQueue(conn, path, newOptions(options))}
}

var (
	writing = kind{mark: markWrite}
	reading = kind{mark: markRead, shared: true}
)

// Lock takes the lock for writing, like [Mutex.Lock].
func (m *RWMutex) Lock(ctx context.Context) (*Held, error) { return m.q.lock(ctx, writing, true) }

// TryLock takes the lock for writing if it need not wait, like [Mutex.TryLock].
func (m *RWMutex) TryLock(ctx context.Context) (*Held, error) { return m.q.lock(ctx, writing, false) }

// RLock takes the lock for reading, like [Mutex.Lock]. It waits only for writers.
func (m *RWMutex) RLock(ctx context.Context) (*Held, error) { return m.q.lock(ctx, reading, true) }

// TryRLock takes the lock for reading if it need not wait for a writer, like [Mutex.TryLock].
func (m *RWMutex) TryRLock(ctx context.Context) (*Held, error) { return m.q.lock(ctx, reading, false) }

// Wait is like [Mutex.Wait].
func (m *RWMutex) Wait(ctx context.Context) error { return m.q.wait(ctx) }
