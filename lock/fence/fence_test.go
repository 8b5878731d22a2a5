package fence_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/lockkeeper/lockkeeper/lock/fence"
)

func TestChecker(t *testing.T) {
	c := fence.NewChecker(5)
	for _, x := range []struct {
		token uint64
		err   error
	}{{4, fence.ErrStale}, {5, nil}, {5, nil}, {9, nil}, {8, fence.ErrStale}, {9, nil}, {1 << 63, nil}, {9, fence.ErrStale}} {
		called := false
		err := c.Do(x.token, func() error { called = true; return nil })
		if !errors.Is(err, x.err) || called != (x.err == nil) {
			t.Errorf("%d: %v, called: %v", x.token, err, called)
		}
	}
	failed := errors.New("disk full")
	if err := c.Do(1<<63+1, func() error { return failed }); err != failed {
		t.Errorf("got %v", err)
	}
	if err := c.Check(1 << 63); !errors.Is(err, fence.ErrStale) || c.Highest() != 1<<63+1 {
		t.Errorf("a token whose write failed was forgotten: %v, %#x", err, c.Highest())
	}
}

// TestOneStep: no write of a smaller token follows one of a greater, however many there are
// at the same time.
func TestOneStep(t *testing.T) {
	var c fence.Checker
	var last uint64
	var wg sync.WaitGroup
	for token := range uint64(100) {
		wg.Go(func() {
			err := c.Do(token, func() error {
				if token < last {
					t.Errorf("token %d was written after %d", token, last)
				}
				last = token
				return nil
			})
			if err != nil && !errors.Is(err, fence.ErrStale) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if last != 99 || c.Highest() != 99 {
		t.Errorf("ends with %d, %d", last, c.Highest())
	}
}
