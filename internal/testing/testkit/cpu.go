//go:build unix

package testkit

import (
	"os"
	"syscall"
	"testing"
	"time"
)

// CPU returns the processor time that this process uses while f runs. Unlike elapsed
// time, it does not depend on how busy the machine is.
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
