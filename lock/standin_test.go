package lock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/lock"
)

// failing is a Conn each of whose calls fails.
type failing struct {
	err   error
	state zk.State
}

func (f *failing) Children(string) ([]string, *zk.Stat, error) { return nil, nil, f.err }
func (f *failing) ChildrenW(string) ([]string, *zk.Stat, <-chan zk.Event, error) {
	return nil, nil, nil, f.err
}
func (f *failing) Create(string, []byte, int32, []zk.ACL) (string, error)          { return "", f.err }
func (f *failing) CreateContainer(string, []byte, int32, []zk.ACL) (string, error) { return "", f.err }
func (f *failing) Delete(string, int32) error                                      { return f.err }
func (f *failing) Get(string) ([]byte, *zk.Stat, error)                            { return nil, nil, f.err }
func (f *failing) GetW(string) ([]byte, *zk.Stat, <-chan zk.Event, error) {
	return nil, nil, nil, f.err
}
func (f *failing) SessionID() int64            { return 7 }
func (f *failing) State() zk.State             { return f.state }
func (f *failing) Sync(string) (string, error) { return "", f.err }

// TestConnFails: with a Conn each of whose calls fails, Lock and TryLock return no later than their
// context ends, and leave no goroutine an hour later.
func TestConnFails(t *testing.T) {
	for _, err := range []error{zk.ErrConnectionClosed, zk.ErrNoServer, zk.ErrSessionExpired, zk.ErrSessionMoved, zk.ErrNoNode, zk.ErrNodeExists, zk.ErrNoAuth, zk.ErrClosing, io.EOF, context.DeadlineExceeded, errors.New("refused")} {
		for _, state := range []zk.State{zk.StateDisconnected, zk.StateHasSession, zk.StateExpired} {
			t.Run(fmt.Sprintf("%v/%v", err, state), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := &failing{err: err, state: state}
					defer func() { c.err = zk.ErrClosing; time.Sleep(time.Minute) }() // so that the bubble ends
					m, s := lock.NewMutex(c, path, known), lock.NewSemaphore(c, path, 2, known)
					for _, f := range []func(context.Context) (*lock.Held, error){m.Lock, m.TryLock, s.Lock, s.TryLock} {
						ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
						began := time.Now()
						if _, got := f(ctx); got == nil {
							t.Error("it has the lock")
						}
						if took := time.Since(began); took > time.Minute {
							t.Errorf("it returned after %v", took)
						}
						cancel()
					}
					time.Sleep(time.Hour)
					noGoroutines(t)
				})
			})
		}
	}
}
