//go:build unix

package fdlimit

import "syscall"

// limit returns how many file descriptors this process may have at present.
func limit() (n uint64, ok bool) {
	var r syscall.Rlimit
	err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r)
	return uint64(r.Cur), err == nil // Cur is signed on some systems, and never negative
}
