package perturb

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestPause pauses one of two servers. Its goroutines, including those started by its
// goroutines, stop at the next point and continue when it is resumed.
func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := Begin(1)
		defer r.End()
		var mu sync.Mutex
		counts := map[string]int{}
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for _, name := range []string{"a", "b"} {
			r.As(name, func() {
				wg.Go(func() {
					wg.Go(func() {
						for {
							Point(0)
							mu.Lock()
							counts[name]++
							mu.Unlock()
							select {
							case <-stop:
								return
							case <-time.After(time.Second):
							}
						}
					})
				})
			})
		}
		check := func(a, b int) {
			t.Helper()
			time.Sleep(10*time.Second + time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			if counts["a"] != a || counts["b"] != b {
				t.Fatalf("%v, want %d and %d", counts, a, b)
			}
		}
		check(11, 11)
		r.Pause("a")
		check(11, 21)
		r.Resume("a")
		check(22, 31) // a's expired timer fires at once
		close(stop)
		wg.Wait()
	})
}

// TestMutex sleeps while it holds a mutex that another goroutine waits for: virtual time
// must go on.
func TestMutex(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu Mutex
		mu.Lock()
		got := make(chan time.Time)
		go func() {
			mu.Lock()
			got <- time.Now()
		}()
		began := time.Now()
		time.Sleep(time.Minute)
		mu.Unlock()
		if waited := (<-got).Sub(began); waited < time.Minute || waited > time.Minute+time.Millisecond {
			t.Errorf("it waited %v", waited)
		}
		mu.Unlock()
	})
}
