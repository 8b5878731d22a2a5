package testkit

import (
	"os"
	"syscall"
)

// TakePort takes a TCP port of 127.0.0.1 for a server that is still to be started,
// and keeps it until release is called: the system gives it to nobody who asks for
// any port, nor uses it for a connection. Whoever names it can listen there, as
// often as a test restarts its server; until then connections are refused.
func TakePort() (port int, release func(), err error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, nil, os.NewSyscallError("socket", err)
	}
	release = func() { syscall.Close(fd) }
	// Who listens sets this as well, and then the two do not collide.
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		release()
		return 0, nil, os.NewSyscallError("setsockopt", err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		release()
		return 0, nil, os.NewSyscallError("bind", err)
	}
	addr, err := syscall.Getsockname(fd)
	if err != nil {
		release()
		return 0, nil, os.NewSyscallError("getsockname", err)
	}
	return addr.(*syscall.SockaddrInet4).Port, release, nil
}
