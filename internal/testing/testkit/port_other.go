//go:build !linux

package testkit

import (
	"fmt"
	"net"
)

// TakePort finds a free TCP port of 127.0.0.1 for a server that is to be started later.
// On this system it cannot reserve the port, so another process may take it.
func TakePort() (port int, release func(), err error) { return takePort(0) }

func takePort(want int) (port int, release func(), err error) {
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", want))
	if err != nil {
		return 0, nil, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, func() {}, nil
}
