package procgroup

import "syscall"

// self is this program, even if its file has been replaced.
func self() string { return "/proc/self/exe" }

// dieWithParent makes the kernel kill the command when the thread that has started it ends.
func dieWithParent(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGKILL }
