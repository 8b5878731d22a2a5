package lock

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"path"
	"sync"
	"syscall"
	"time"

	"github.com/go-zookeeper/zk"
)

// queue is a znode whose sequential children contend for something.
type queue struct {
	conn Conn
	path string
	options

	mu      sync.Mutex
	keepers map[*keeper]struct{}       // those that have not ended
	watches map[string]<-chan zk.Event // by path: watches that have been set and may not have fired
}

func newQueue(conn Conn, path string, o options) *queue {
	if c, ok := conn.(*zk.Conn); conn == nil || ok && c == nil {
		o.refuse("the connection is nil")
	}
	return &queue{conn: conn, path: path, options: o, keepers: map[*keeper]struct{}{}, watches: map[string]<-chan zk.Event{}}
}

// The parts of the names before the sequence number. Ours are those of Curator, so that
// Curator, which looks for no others, sees our contenders; go-zookeeper's is the same, and
// kazoo can be told to look for it. Package locks has the names of all.
const (
	markLock  = "-lock-"
	markRead  = "-__READ__"
	markWrite = "-__WRIT__"
	markLease = "-lease-"
)

// newID returns a random id in the form of go-zookeeper.
func newID() string {
	var id [16]byte
	rand.Read(id[:]) // never fails
	return hex.EncodeToString(id[:])
}

// knowsTimeout reports whether the timeout of the connection's session is known, as far as there
// is a session. If not, the connection is not that of the Dialer, which always knows the
// session and the one before it.
func (q *queue) knowsTimeout() bool {
	session := q.conn.SessionID()
	return q.sessionTimeout(session) > 0 || q.conn.SessionID() != session || session == 0
}

// makePath creates a znode and its parents. They are containers, which the server deletes
// some time after their last child, so that locks that are used once leave nothing behind.
// Servers without containers get persistent ones.
func (q *queue) makePath(at string) error {
	_, err := q.conn.CreateContainer(at, []byte{}, zk.FlagContainer, q.acl)
	if errors.Is(err, zk.ErrNoNode) && at != "/" {
		if err := q.makePath(path.Dir(at)); err != nil {
			return err
		}
		_, err = q.conn.CreateContainer(at, []byte{}, zk.FlagContainer, q.acl)
	}
	if err != nil && !errors.Is(err, zk.ErrNodeExists) && !transient(err) {
		_, err = q.conn.Create(at, []byte{}, zk.FlagPersistent, q.acl)
	}
	if errors.Is(err, zk.ErrNodeExists) {
		return nil
	}
	return err
}

func (q *queue) at(name string) string { return path.Join(q.path, name) }

// watch returns a channel that gets an event, or is closed, when the znode of a contender is
// deleted or otherwise changes. It returns zk.ErrNoNode if there is no such znode.
//
// It reads the data. A request for existence would set a watch for the creation of a znode
// that is never created again.
func (q *queue) watch(name string) (<-chan zk.Event, error) {
	at := q.at(name)
	if ch := q.watching(at); ch != nil {
		return ch, nil
	}
	_, _, ch, err := q.conn.GetW(at)
	if err == nil {
		q.keepWatch(at, ch)
	}
	return ch, err
}

// watching returns a watch that was set on a path and has not fired, or nil.
func (q *queue) watching(at string) <-chan zk.Event {
	q.mu.Lock()
	defer q.mu.Unlock()
	maps.DeleteFunc(q.watches, func(_ string, ch <-chan zk.Event) bool {
		select {
		case <-ch: // others that wait for it see it closed
			return true
		default:
			return false
		}
	})
	return q.watches[at]
}

func (q *queue) keepWatch(at string, ch <-chan zk.Event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.watches[at] = ch
}

// wait blocks until all keepers have ended.
func (q *queue) wait(ctx context.Context) error {
	for {
		var k *keeper
		q.mu.Lock()
		for k = range q.keepers {
			break
		}
		q.mu.Unlock()
		if k == nil {
			return nil
		}
		select {
		case <-k.gone:
		case <-ctx.Done():
			return fmt.Errorf("lock: a znode below %s is not deleted yet: %w", q.path, reason(ctx))
		}
	}
}

// holding is the key in a context for the keeper of a lock that the context holds.
type holding struct{ q *queue }

// lock takes a lock. If patient is false, it does not wait for other contenders.
func (q *queue) lock(ctx context.Context, kind kind, patient bool) (*Held, error) {
	if q.wrong != nil {
		return nil, fmt.Errorf("lock: %s: %w", q.path, q.wrong)
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("lock: %s: %w", q.path, reason(ctx))
	}
	if q.timeout == 0 && q.dialer == nil {
		return nil, fmt.Errorf("lock: %s: %w", q.path, ErrTimeoutUnknown)
	}
	if k, _ := ctx.Value(holding{q}).(*keeper); k != nil && kind.slots == 0 {
		if held, err := k.again(kind); held != nil || err != nil {
			return held, err
		}
	}
	k := &keeper{
		q: q, kind: kind, patient: patient, knowledge: knowledge{id: newID()},
		settled: make(chan struct{}), stop: make(chan struct{}), lost: make(chan struct{}),
		granted: make(chan struct{}, 1), gone: make(chan struct{}),
	}
	k.life, k.end = context.WithCancelCause(context.Background())
	q.mu.Lock()
	q.keepers[k] = struct{}{}
	q.mu.Unlock()
	go k.run()
	select {
	case <-k.settled:
	case <-ctx.Done():
		if k.giveUp() {
			k.mu.Lock()
			defer k.mu.Unlock()
			if k.behind != "" {
				return nil, fmt.Errorf("lock: %s: waiting behind %s: %w", q.path, k.behind, reason(ctx))
			}
			return nil, fmt.Errorf("lock: %s: %w", q.path, reason(ctx))
		}
	}
	<-k.settled
	if k.failed != nil {
		return nil, fmt.Errorf("lock: %s: %w", q.path, k.failed)
	}
	return &Held{k: k}, nil
}

// reason returns the error of a context that has ended, together with its cause if that is
// another one.
func reason(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// transient reports whether a request that failed with err may succeed if it is sent again.
// Whether the server has executed it is unknown.
func transient(err error) bool {
	for _, e := range []error{zk.ErrConnectionClosed, zk.ErrNoServer, zk.ErrSessionExpired, zk.ErrSessionMoved} {
		if errors.Is(err, e) {
			return true
		}
	}
	// go-zookeeper returns the error of a write as it is.
	return errors.As(err, new(net.Error)) || errors.As(err, new(syscall.Errno)) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, io.ErrClosedPipe) || errors.Is(err, io.EOF)
}

// retries paces requests that fail.
type retries struct {
	n      int
	closed int // how many times in a row the connection looked closed
}

// pause waits before a request that failed with err is sent again, or until stop is closed.
// It returns an error if there is no point in trying again.
func (r *retries) pause(conn Conn, err error, stop <-chan struct{}) error {
	if !transient(err) {
		return err
	}
	// go-zookeeper gives the same error for a connection that broke and for one that the
	// program has closed. Only the latter stays disconnected; the other begins to connect at
	// once.
	if errors.Is(err, zk.ErrConnectionClosed) && conn.State() == zk.StateDisconnected {
		if r.closed++; r.closed == 3 {
			return zk.ErrClosing
		}
	} else {
		r.closed = 0
	}
	timer := time.NewTimer(10 * time.Millisecond << min(r.n, 6))
	defer timer.Stop()
	r.n++
	select {
	case <-timer.C:
	case <-stop:
	}
	return nil
}
