//go:build unix

package server

import (
	"syscall"
	"testing"
)

// TestTLSHandshakesLeaveFiles: handshakes in progress take at most a quarter of the file
// descriptors that the process may have.
func TestTLSHandshakesLeaveFiles(t *testing.T) {
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	few := before
	few.Cur = 1600
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few); err != nil {
		t.Skip(err)
	}
	defer syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before)
	for limit, want := range map[int]int{1000: 400, 100: 100, 1: 1} {
		if got := (&Server{cfg: Config{Limits: Limits{MaxTLSHandshakes: limit}}}).mostTLSHandshakes(); got != want {
			t.Errorf("with a limit of %d, %d", limit, got)
		}
	}
}
