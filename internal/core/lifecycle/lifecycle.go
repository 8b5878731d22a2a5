// Package lifecycle says how a member is stopped, and what was wrong with it first.
package lifecycle

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/core/wake"
)

// Lifecycle stops a member and reports its first fault. Its methods are safe for concurrent use.
type Lifecycle struct {
	Stop    chan struct{}  // closed when the member is to end
	Killed  atomic.Bool    // nothing may be written any more
	Broken  atomic.Bool    // something could not be written
	Running sync.WaitGroup // of the member's goroutines

	failed sync.Once
	Failed atomic.Bool // the member has failed, or something could not be read after Stop was closed
	Errs   chan error  // gets the first fault
}

// NewLifecycle returns that of a member which is about to start.
func NewLifecycle() *Lifecycle {
	return &Lifecycle{Stop: make(chan struct{}), Errs: make(chan error, 1)}
}

// Fail reports a fault after which this member cannot go on.
func (l *Lifecycle) Fail(err error) {
	l.failed.Do(func() {
		l.Failed.Store(true)
		l.Errs <- err
	})
}

// ErrClosed is returned when the member has been closed.
var ErrClosed = errors.New("cluster: closed")

// CannotRead reports a failed read as this member's fault. That a member was closed, or has no file descriptor, is none.
func (l *Lifecycle) CannotRead(s *storage.Storage, err error) {
	if wake.Closed(l.Stop) {
		l.Failed.Store(true)
	} else if !storage.OutOfFiles(err) {
		l.Fail(fmt.Errorf("cannot read from %s: %w", s.Name, err))
	}
}

// CannotWrite reports a failed write as this member's fault.
func (l *Lifecycle) CannotWrite(s *storage.Storage, err error) {
	l.Broken.Store(true)
	l.Fail(fmt.Errorf("cannot write to %s: %w", s.Name, err))
}
