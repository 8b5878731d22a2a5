package main

import "golang.org/x/sys/unix"

// awaitEnd returns when a process has ended, also one that nobody has waited for yet.
func awaitEnd(pid int) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err == nil {
		defer unix.Close(fd)
		for err = unix.EINTR; err == unix.EINTR; {
			_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		}
	}
	if err != nil { // pidfds need Linux 5.3, and a container may forbid them
		pollEnd(pid)
	}
}
