//go:build !linux

package testkit

import "net"

// TakePort finds a TCP port of 127.0.0.1 for a server that is still to be started.
// Here, nothing keeps others from taking it meanwhile.
func TakePort() (port int, release func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, nil, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, func() {}, nil
}
