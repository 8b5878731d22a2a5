package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRemoveAsks: on a terminal, cluster remove asks before it takes the last spare.
func TestRemoveAsks(t *testing.T) {
	t.Parallel()
	peers := startMembers(t, 3)
	for _, c := range []struct {
		typed         string
		code, members int
	}{{"no\n", exitFault, 3}, {"\x04", exitFault, 3}, {"yes\n", exitOK, 2}} {
		keyboard, tty := openTerminal(t)
		var stdout, stderr bytes.Buffer
		cmd := exec.Command(binary, "cluster", "remove", "3", "--peer", peers[0])
		cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, &stdout, &stderr
		_, err := keyboard.WriteString(c.typed)
		check1(t, err)
		cmd.Run()
		if code := cmd.ProcessState.ExitCode(); code != c.code || !strings.Contains(stderr.String(), "The cluster will have 2 voting members") || c.code != exitOK && !strings.Contains(stderr.String(), "nothing was changed") {
			t.Errorf("%q: %d\n%s%s", c.typed, code, &stdout, &stderr)
		}
		if n := len(ask(t, "status", "--peer", peers[0]).Members); n != c.members {
			t.Errorf("%q: %d members", c.typed, n)
		}
	}
}

// openTerminal returns a terminal of the test's own: what is written to keyboard is typed.
func openTerminal(t *testing.T) (keyboard, tty *os.File) {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	check1(t, err)
	t.Cleanup(func() { keyboard.Close() })
	fd := int(keyboard.Fd())
	check1(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	check1(t, err)
	tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	check1(t, err)
	t.Cleanup(func() { tty.Close() })
	return keyboard, tty
}
