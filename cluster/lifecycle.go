package cluster

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/lockkeeper/lockkeeper/internal/core/storage"
)

// lifecycle stops a member and reports its first fault.
type lifecycle struct {
	stop   chan struct{}  // closed by Close and Kill
	once   sync.Once      // closes stop
	ended  chan struct{}  // closed when the first Close has ended
	result error          // of that; set before ended is closed
	killed atomic.Bool    // by Kill: nothing may be written any more
	broken atomic.Bool    // something could not be written
	wg     sync.WaitGroup // of the member's goroutines

	failed sync.Once
	over   atomic.Bool // failed is done, or something could not be read after stop was closed
	errs   chan error  // gets the first fault
}

func newLifecycle() *lifecycle {
	return &lifecycle{stop: make(chan struct{}), ended: make(chan struct{}), errs: make(chan error, 1)}
}

// fail reports a fault after which this member cannot go on.
func (l *lifecycle) fail(err error) {
	l.failed.Do(func() {
		l.over.Store(true)
		l.errs <- err
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

// cannotRead reports a failed read as this member's fault. That a member was closed, or has no file descriptor, is none.
func (l *lifecycle) cannotRead(s *storage.Storage, err error) {
	select {
	case <-l.stop:
		l.over.Store(true)
	default:
		if !storage.OutOfFiles(err) {
			l.fail(fmt.Errorf("cannot read from %s: %w", s.Name, err))
		}
	}
}

// cannotWrite reports a failed write as this member's fault.
func (l *lifecycle) cannotWrite(s *storage.Storage, err error) {
	l.broken.Store(true)
	l.fail(fmt.Errorf("cannot write to %s: %w", s.Name, err))
}
