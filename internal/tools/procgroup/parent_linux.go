package procgroup

import (
	"syscall"

	"golang.org/x/sys/unix"
)

const sharedClock = unix.CLOCK_BOOTTIME

// self is this program, even if its file has been replaced.
func self() string { return "/proc/self/exe" }

// dieWithParent makes the kernel kill the command when the thread that has started it ends.
func dieWithParent(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGKILL }

// keepDyingWithParent keeps the effect of dieWithParent when the calling thread executes
// another program. The kernel has this setting separately for each thread, and after execve
// only that of the thread that called it counts.
func keepDyingWithParent() error {
	return unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0, 0, 0)
}
