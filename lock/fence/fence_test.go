package fence_test

import (
	"errors"
	"math"
	"sync"
	"testing"

	"github.com/lockkeeper/lockkeeper/lock/fence"
)

func TestChecker(t *testing.T) {
	c := fence.NewChecker(5)
	for _, x := range []struct {
		token int64
		err   error
	}{{4, fence.ErrStale}, {0, fence.ErrInvalid}, {-6, fence.ErrInvalid}, {math.MinInt64, fence.ErrInvalid}, {5, nil}, {5, nil}, {9, nil}, {8, fence.ErrStale}, {9, nil}, {math.MaxInt64 - 1, nil}, {9, fence.ErrStale}} {
		called := false
		err := c.Do(x.token, func() error { called = true; return nil })
		if !errors.Is(err, x.err) || called != (x.err == nil) {
			t.Errorf("%d: %v, called: %v", x.token, err, called)
		}
	}
	failed := errors.New("disk full")
	if err := c.Do(math.MaxInt64, func() error { return failed }); err != failed {
		t.Errorf("got %v", err)
	}
	if err := c.Check(math.MaxInt64 - 1); !errors.Is(err, fence.ErrStale) || c.Highest() != math.MaxInt64 {
		t.Errorf("a token whose write failed was forgotten: %v, %#x", err, c.Highest())
	}
}

// TestNothingStored: without a token that was stored, any valid one is accepted, but no other.
func TestNothingStored(t *testing.T) {
	for _, c := range []*fence.Checker{new(fence.Checker), fence.NewChecker(0), fence.NewChecker(-1)} {
		for _, token := range []int64{0, -1} {
			if err := c.Check(token); !errors.Is(err, fence.ErrInvalid) || errors.Is(err, fence.ErrStale) || c.Highest() != 0 {
				t.Errorf("%d: %v, then the highest is %d", token, err, c.Highest())
			}
		}
		if err := c.Check(1); err != nil || c.Highest() != 1 {
			t.Errorf("1: %v, then the highest is %d", err, c.Highest())
		}
	}
}

// TestOneStep: no write of a smaller token follows one of a greater, however many there are
// at the same time.
func TestOneStep(t *testing.T) {
	var c fence.Checker
	var last int64
	var wg sync.WaitGroup
	for i := range int64(100) {
		token := i + 1
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
	if last != 100 || c.Highest() != 100 {
		t.Errorf("ends with %d, %d", last, c.Highest())
	}
}
