package procgroup

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// self is this program, even if its file has been replaced.
func self() string { return "/proc/self/exe" }

// dieWithParent makes the kernel kill the command when the thread that has started it ends.
func dieWithParent(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGKILL }

// keepDyingWithParent makes what dieWithParent has said last when the calling thread executes
// another program: the kernel keeps that for each thread apart, and only that of the thread
// that calls execve remains.
func keepDyingWithParent() error {
	return unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0, 0, 0)
}
