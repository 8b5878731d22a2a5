package main

import (
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/tools/connect"
)

// TestSaysWhy: a command that no server answers says so once, after a moment, with what is wrong with each of
// them, and not if one has answered first.
func TestSaysWhy(t *testing.T) {
	for _, works := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var said strings.Builder
			serves := works
			dial := saysWhy(func(_, addr string, _ time.Duration) (net.Conn, error) {
				if addr == "a:1" && !serves {
					return nil, errors.New("connection refused")
				}
				ours, theirs := net.Pipe()
				if serves {
					go theirs.Write([]byte{0})
				} else {
					theirs.Close()
				}
				t.Cleanup(func() { theirs.Close() })
				return ours, nil
			}, &connect.Dialer{}, &said, 15*time.Second, "timeout")
			try := func(addr string) {
				if nc, err := dial("tcp", addr, time.Second); err == nil {
					nc.Read(make([]byte, 1))
					nc.Close()
				}
			}
			try("a:1")
			serves = false
			if try("127.0.0.1:1"); said.Len() > 0 { // nobody listens there
				t.Errorf("said at once: %s", said.String())
			}
			for range 5 {
				time.Sleep(time.Second)
				try("a:1")
				try("127.0.0.1:1")
			}
			want := "lockkeeper: cannot connect to a:1: connection refused; 127.0.0.1:1 serves no clients at the moment, as when it has no majority, is in no cluster yet or has too many clients; trying for 15s (--timeout)\n"
			if works {
				want = ""
			}
			if said.String() != want {
				t.Errorf("said %q, want %q", said.String(), want)
			}
		})
	}
}
