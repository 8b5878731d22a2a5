package main

import (
	"os"
	"os/exec"
	"testing"
)

// TestLockRunIgnored: the command ignores the signals that lock run was started with ignored, and no others.
func TestLockRunIgnored(t *testing.T) {
	t.Parallel()
	s := runServer(t)
	for _, signals := range []string{"", "TERM", "PIPE", "QUIT USR1", "HUP INT", "HUP INT QUIT PIPE ALRM TERM USR1 USR2 TSTP TTIN TTOU WINCH"} {
		ignored := func(under ...string) string {
			args := append([]string{"-c", `for s in $0; do trap '' $s; done; exec "$@"`, signals}, under...)
			cmd := exec.Command("sh", append(args, "grep", "SigIgn", "/proc/self/status")...)
			cmd.Stderr = os.Stderr
			return string(value(cmd.Output())(t))
		}
		if want, got := ignored(), ignored(binary, "lock", "run", "--server", s.Addr(), "/a", "--"); got != want {
			t.Errorf("ignored %q: %q, but without lock run %q", signals, got, want)
		}
	}
}
