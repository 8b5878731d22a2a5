//go:build unix

package testkit

import (
	"os"
	"syscall"
	"testing"
	"time"
)

// CPU is how much time of processors f takes, which is the same on a machine that
// has others to serve; and whatever else this process does meanwhile.
func CPU(t testing.TB, f func()) time.Duration {
	t.Helper()
	used := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			t.Fatal(os.NewSyscallError("getrusage", err))
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	before := used()
	f()
	return used() - before
}
