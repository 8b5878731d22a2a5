package cluster

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestCloseWaitsForOwnWord: a member is asked by its own user to form its cluster, and its disk is slow
// to store the id. Close waits for that. Otherwise the id could be written after the storage was closed,
// and in the place of what the next run on it has stored.
func TestCloseWaitsForOwnWord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3)
		m := f.start(0)
		f.start(1)
		time.Sleep(5 * time.Second) // they wait for the third
		var writes atomic.Int64
		f.disks[0].SetFault(func() error {
			writes.Add(1)
			defer writes.Add(-1)
			time.Sleep(20 * time.Second)
			return nil
		})
		asked := make(chan error, 1)
		go func() {
			_, err := m.Ask(t.Context(), Request{Form: true})
			asked <- err
		}()
		until(t, "it writes the id", func() bool { return writes.Load() > 0 })
		f.running[0] = nil
		m.Close()
		if n := writes.Load(); n > 0 {
			t.Errorf("Close has returned, and %d writes are under way", n)
		}
		if err := <-asked; !errors.Is(err, ErrUnknownOutcome) || !errors.Is(err, ErrClosed) {
			t.Errorf("asked: %v", err)
		}
		f.disks[0].SetFault(nil)
	})
}

// TestCloseTwice: a member is closed by two goroutines while its disk takes seconds for a write. Both wait until it is
// closed, and get the same result.
func TestCloseTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 1)
		f.disks[0].SetFault(func() error { time.Sleep(3 * time.Second); return nil })
		m := f.running[0]
		f.running[0] = nil
		m.Propose(someWrite(), make(result, 1), nil)
		time.Sleep(time.Second)
		began := time.Now()
		var closers sync.WaitGroup
		for range 2 {
			closers.Go(func() {
				if err := m.Close(); err != nil {
					t.Error(err)
				}
				if time.Since(began) < time.Second {
					t.Error("it waits for nothing")
				}
			})
		}
		closers.Wait()
	})
}
