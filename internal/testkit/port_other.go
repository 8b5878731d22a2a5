//go:build !linux

package testkit

import (
	"net"
	"testing"
)

// Port finds a TCP port of 127.0.0.1 for a server that is still to be started.
// Here, nothing keeps others from taking it meanwhile.
func Port(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
