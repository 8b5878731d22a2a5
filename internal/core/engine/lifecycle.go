package engine

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/lockkeeper/lockkeeper/internal/core/storage"
)

// Lifecycle stops a member and reports its first fault. Its methods are safe for concurrent use.
type Lifecycle struct {
	Stop    chan struct{}  // closed when the member is to end
	Killed  atomic.Bool    // nothing may be written any more
	Broken  atomic.Bool    // something could not be written
	Running sync.WaitGroup // of the member's goroutines

	failed sync.Once
	Over   atomic.Bool // the member has failed, or something could not be read after Stop was closed
	Errs   chan error  // gets the first fault
}

// NewLifecycle returns that of a member which is about to start.
func NewLifecycle() *Lifecycle {
	return &Lifecycle{Stop: make(chan struct{}), Errs: make(chan error, 1)}
}

// Fail reports a fault after which this member cannot go on.
func (l *Lifecycle) Fail(err error) {
	l.failed.Do(func() {
		l.Over.Store(true)
		l.Errs <- err
	})
}

// ErrClosed is returned when the member has been closed.
var ErrClosed = errors.New("cluster: closed")

// errBroken marks errors of writes that follow a failed one. The first failure was reported, so that Raft need not log
// the same at each attempt of the leader.
var errBroken = errors.New("cluster: an earlier write has failed")

// errSuperseded is why a snapshot of this member's own is given up.
var errSuperseded = errors.New("cluster: the leader has sent a newer snapshot")

// errNeedless is why a snapshot of the leader's is not installed.
var errNeedless = errors.New("cluster: this member has all that the snapshot covers")

// CannotRead reports a failed read as this member's fault. That a member was closed, or has no file descriptor, is none.
func (l *Lifecycle) CannotRead(s *storage.Storage, err error) {
	select {
	case <-l.Stop:
		l.Over.Store(true)
	default:
		if !storage.OutOfFiles(err) {
			l.Fail(fmt.Errorf("cannot read from %s: %w", s.Name, err))
		}
	}
}

// CannotWrite reports a failed write as this member's fault.
func (l *Lifecycle) CannotWrite(s *storage.Storage, err error) {
	l.Broken.Store(true)
	l.Fail(fmt.Errorf("cannot write to %s: %w", s.Name, err))
}
