//go:build unix

package main

import (
	"os"
	"syscall"
	"time"
)

// pollEnd returns when a process has ended. It sees the end of this process's parent at once, and
// that of another process when somebody has waited for it.
func pollEnd(pid int) {
	isParent := os.Getppid() == pid
	for syscall.Kill(pid, 0) != syscall.ESRCH && (!isParent || os.Getppid() == pid) {
		time.Sleep(200 * time.Millisecond)
	}
}
