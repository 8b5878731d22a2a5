//go:build darwin || dragonfly || freebsd || linux || openbsd || solaris

package procgroup

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

func now() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(sharedClock, &t); err != nil {
		panic(os.NewSyscallError("clock_gettime", err)) // the system does not have this clock
	}
	return time.Duration(t.Nano())
}
