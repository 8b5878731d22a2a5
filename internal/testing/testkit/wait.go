package testkit

import (
	"runtime/pprof"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Check fails the test on an error.
func Check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Must returns a function that returns v, or fails the test if err is not nil.
func Must[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		Check(t, err)
		return v
	}
}

// Eventually waits until ok returns true. It fails the test if that takes more than a
// minute.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for began := time.Now(); !ok(); time.Sleep(min(max(time.Since(began)/10, time.Millisecond), 20*time.Millisecond)) {
		if time.Since(began) > time.Minute {
			t.Fatalf("did not happen: %s", what)
		}
	}
}

// NoGoroutineLeft fails the test if more goroutines run code of servers at its end
// than when NoGoroutineLeft was called.
func NoGoroutineLeft(t testing.TB) {
	t.Helper()
	before := len(ofServers())
	t.Cleanup(func() {
		if t.Failed() {
			return
		}
		var left []string
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			if left = ofServers(); len(left) <= before {
				return
			}
		}
		t.Errorf("%d goroutines are left, of %d at the start:\n%s", len(left), before, strings.Join(left, "\n\n"))
	})
}

// ofServers returns the stacks of the goroutines that run code of servers.
func ofServers() (stacks []string) {
	var all strings.Builder
	pprof.Lookup("goroutine").WriteTo(&all, 2)
	for g := range strings.SplitSeq(all.String(), "\n\n") {
		for _, of := range []string{"lockkeeper/internal/core/server.", "lockkeeper/cluster.", "hashicorp/raft", "lockkeeper/lockkeeper.(*Server)"} {
			if strings.Contains(g, of) {
				stacks = append(stacks, g)
				break
			}
		}
	}
	return stacks
}

// Receive returns what comes from c within a minute, or that c is closed.
func Receive[T any](t testing.TB, what string, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(time.Minute):
		t.Fatalf("never came: %s", what)
	}
	return v
}

// Bubble runs f in a subtest that is a bubble of synctest.
func Bubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}
