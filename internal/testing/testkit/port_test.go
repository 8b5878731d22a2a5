package testkit

import (
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"
)

// TestPort listens on a reserved port again and again, as a server that restarts does.
func TestPort(t *testing.T) {
	addr := fmt.Sprintf("127.0.0.1:%d", Port(t))
	for range 3 {
		if nc, err := net.Dial("tcp", addr); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("connected while no server listens: %v, %v", nc, err)
		}
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		if another, err := net.Listen("tcp", addr); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("a second listener got the port: %v, %v", another, err)
		}
		nc, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
		nc.Close()
	}
}
