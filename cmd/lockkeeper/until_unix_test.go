//go:build unix

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// TestUntil kills a program that a server is to end with. The server must end as after a signal.
func TestUntil(t *testing.T) {
	t.Parallel()
	const victim = "sh -c 'echo $$ >victim; exec sleep 600'"
	memory := binary + " serve --memory --listen 127.0.0.1:0 "
	for name, script := range map[string]string{
		"stdin":            victim + " | " + memory + "--until-stdin-closes; echo $? >code",
		"stdin, for tests": victim + " | " + memory + "--until-stdin-closes --test-control :0; echo $? >code",
		"stdin, on disk":   victim + " | " + binary + " serve --data d --listen 127.0.0.1:0 --until-stdin-closes; echo $? >code",
		"a process":        victim + " & " + memory + "--parent-pid $!; echo $? >code", // which nobody waits for: a zombie
		"its parent":       "echo $$ >victim; (" + memory + "--parent-pid $$ --test-control :0; echo $? >code) & wait",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command("sh", "-c", script)
			cmd.Dir = t.TempDir()
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			p := startCmd(t, cmd)
			t.Cleanup(func() { syscall.Kill(-p.Process.Pid, syscall.SIGKILL) })
			if _, err := p.waitReady().connect().Create("/n", nil, 0); err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(filepath.Join(cmd.Dir, "victim"))
			check1(t, err)
			pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
			check1(t, err)
			check1(t, syscall.Kill(pid, syscall.SIGKILL))
			p.exit() // when all have closed standard error
			if code, err := os.ReadFile(filepath.Join(cmd.Dir, "code")); string(code) != "0\n" {
				t.Errorf("exit code %q, %v: %q", code, err, p.lines())
			}
		})
	}
}

// TestUntilGone starts a server whose parent has ended already.
func TestUntilGone(t *testing.T) {
	t.Parallel()
	gone := exec.Command("true")
	check1(t, gone.Run())
	p := start(t, nil, "serve", "--memory", "--listen", "127.0.0.1:0", "--parent-pid", strconv.Itoa(gone.Process.Pid))
	if code := p.exit(); code != exitOK {
		t.Errorf("exit code %d: %q", code, p.lines())
	}
}

// TestPollEnd is for systems and containers without pidfds.
func TestPollEnd(t *testing.T) {
	t.Parallel()
	sleeps := exec.Command("sleep", "600")
	check1(t, sleeps.Start())
	ended := make(chan struct{})
	go func() {
		pollEnd(sleeps.Process.Pid)
		close(ended)
	}()
	select {
	case <-ended:
		t.Error("it does not wait")
	default:
	}
	check1(t, sleeps.Process.Kill())
	sleeps.Wait()
	waitFor(t, "the end", func() bool {
		select {
		case <-ended:
			return true
		default:
			return false
		}
	})
}
