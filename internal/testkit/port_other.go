//go:build !linux

package testkit

import "net"

// TakePort finds a free TCP port of 127.0.0.1 for a server that is to be started later.
// On this system it cannot reserve the port, so another process may take it.
func TakePort() (port int, release func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, nil, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, func() {}, nil
}
