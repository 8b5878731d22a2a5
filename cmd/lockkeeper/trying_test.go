package main

import (
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestSaysWhy: a command that cannot connect says so once, after a moment, and not if it could at first.
func TestSaysWhy(t *testing.T) {
	for _, works := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var said strings.Builder
			fails := !works
			dial := saysWhy(func(string, string, time.Duration) (net.Conn, error) {
				if fails {
					return nil, errors.New("connection refused")
				}
				return nil, nil
			}, &said, 15*time.Second, "timeout")
			dial("tcp", "a:1", time.Second)
			fails = true
			if dial("tcp", "a:1", time.Second); said.Len() > 0 {
				t.Errorf("said at once: %s", said.String())
			}
			for range 5 {
				time.Sleep(time.Second)
				dial("tcp", "a:1", time.Second)
			}
			want := "lockkeeper: cannot connect to a:1: connection refused; trying for 15s (--timeout)\n"
			if works {
				want = ""
			}
			if said.String() != want {
				t.Errorf("said %q, want %q", said.String(), want)
			}
		})
	}
}
