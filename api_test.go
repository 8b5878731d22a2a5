package lockkeeper_test

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/memnet"
	"github.com/lockkeeper/lockkeeper/internal/testhooks"
)

// TestWait: Wait ends with whatever comes first, and a fault reaches everybody who
// waits as well as the reader of Err.
func TestWait(t *testing.T) {
	// waiting calls Wait with no end to its context.
	waiting := func(s *lockkeeper.Server) chan error {
		got := make(chan error, 1)
		go func() { got <- s.Wait(context.Background()) }()
		synctest.Wait()
		return got
	}
	t.Run("ready", func(t *testing.T) {
		s := open(t, lockkeeper.Config{})
		done, cancel := context.WithCancel(t.Context())
		cancel()
		if err := s.Wait(done); err != nil {
			t.Errorf("on a server that is ready: %v", err)
		}
		check(t, s.Close())
		if err := s.Wait(t.Context()); err != lockkeeper.ErrClosed {
			t.Errorf("after Close: %v", err)
		}
	})
	t.Run("not ready", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			cfg := lockkeeper.Config{Peers: map[uint64]string{1: "host1:7000", 2: "host2:7000"}}
			testhooks.In(&cfg).Network = memnet.New().Host("host1") // without the other
			s := must(lockkeeper.Open(cfg))(t)
			got := waiting(s)
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			if err := s.Wait(ctx); err != context.DeadlineExceeded {
				t.Errorf("after an hour: %v", err)
			}
			if _, err := s.Dial("", "", time.Second); err == nil || errors.Is(err, lockkeeper.ErrClosed) {
				t.Errorf("Dial: %v", err)
			}
			check(t, s.Close())
			if err := <-got; err != lockkeeper.ErrClosed {
				t.Errorf("while it is closed: %v", err)
			}
		})
	})
	t.Run("fault", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			cfg, full := withMemory(lockkeeper.Config{}), make(chan struct{})
			s := must(lockkeeper.Open(cfg))(t) // which writes when it opens for the first time
			check(t, s.Close())
			testhooks.In(&cfg).Memory.SetFault(func() error { <-full; return syscall.ENOSPC })
			s = must(lockkeeper.Open(cfg))(t)
			defer s.Close()
			got, again := waiting(s), waiting(s)
			close(full)
			for _, c := range []<-chan error{got, again, s.Err(), waiting(s)} {
				if err := <-c; !errors.Is(err, syscall.ENOSPC) {
					t.Errorf("got %v", err)
				}
			}
			if _, err := s.Dial("", "", 0); !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("Dial: %v", err)
			}
		})
	})
}
