package testkit

import (
	"os"
	"syscall"
)

// TakePort reserves a TCP port of 127.0.0.1 for a server that is to be started later.
// Until release is called, the system does not assign the port to anyone who asks for
// any free port, nor to an outgoing connection. A server that names the port can listen
// on it, also after a restart. While no server listens, connections are refused.
func TakePort() (port int, release func(), err error) { return takePort(0) }

// takePort is TakePort for a certain port, or for any if it is 0.
func takePort(want int) (port int, release func(), err error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, nil, os.NewSyscallError("socket", err)
	}
	release = func() { syscall.Close(fd) }
	// Listeners set SO_REUSEADDR as well, so this socket does not keep them from binding.
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		release()
		return 0, nil, os.NewSyscallError("setsockopt", err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Port: want, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
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
