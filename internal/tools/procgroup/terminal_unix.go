//go:build unix

package procgroup

import (
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// terminal is the controlling terminal of this process. Its keys send signals to the foreground group, and
// only that group can read from it.
type terminal struct {
	fd  int
	own int // the group of this process
}

// openTerminal returns nil if there is none.
func openTerminal() *terminal {
	own := unix.Getpgrp()
	if own == 0 {
		return nil // the group is that of a process outside of the PID namespace, and cannot be named
	}
	fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	return &terminal{fd, own}
}

// has reports whether a group is in the foreground.
func (t *terminal) has(group int) bool {
	now, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
	return err == nil && now == group
}

// pass moves the foreground from one group to another, if it is there.
func (t *terminal) pass(from, to int) bool {
	return t.has(from) && unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, to) == nil
}

// alone reports whether no other program in this process's group seems to use the terminal: nothing
// reads what the command writes, such as less, and nothing writes what it reads.
func alone(files ...any) bool {
	for _, f := range files {
		if f == nil {
			continue // /dev/null
		}
		file, ok := f.(*os.File)
		if !ok {
			return false
		}
		if info, err := file.Stat(); err != nil || info.Mode()&os.ModeNamedPipe != 0 {
			return false
		}
	}
	return true
}

// stopped is called when a signal has stopped the command. If it was stopped since it wants to use
// the terminal, and the terminal is this process's to give, it gets it. Otherwise this process's
// group is stopped as well, as the terminal would do it if both were one group. When somebody lets
// that go on, so does the command, with the terminal if this process is in the foreground then.
func (g *Group) stopped(by syscall.Signal) {
	t := g.terminal
	group := g.cmd.Process.Pid
	wants := by == syscall.SIGTTIN || by == syscall.SIGTTOU
	if t == nil || !wants && by != syscall.SIGTSTP {
		return // whoever has stopped it lets it go on
	}
	if !wants || !t.pass(t.own, group) {
		t.pass(group, t.own)
		if !suspend(by) && wants && !t.has(t.own) {
			// No shell is there to put this process into the foreground. The system does the same with a
			// stopped group that loses its shell.
			g.Signal(syscall.SIGHUP)
		}
		t.pass(t.own, group)
	}
	g.Signal(syscall.SIGCONT)
}

// suspend stops the group of this process, and returns when it goes on. It returns false if the group was not
// stopped, because there is no shell that could let it go on.
func suspend(by syscall.Signal) bool {
	goesOn := make(chan os.Signal, 1)
	signal.Notify(goesOn, syscall.SIGCONT)
	defer signal.Stop(goesOn)
	if by == syscall.SIGTTOU { // which this process ignores
		by = syscall.SIGTTIN
	}
	syscall.Kill(0, by)
	for range 20 { // more than one timer, which may expire while this process is stopped
		select {
		case <-goesOn:
			return true
		case <-time.After(50 * time.Millisecond):
		}
	}
	return false
}

// ended takes the terminal back. If a key has ended the command, the signal also goes to the
// group of this process, where a shell may wait for it.
func (g *Group) ended(status syscall.WaitStatus) {
	t := g.terminal
	if t == nil {
		return
	}
	defer unix.Close(t.fd)
	if t.pass(g.cmd.Process.Pid, t.own) && status.Signaled() && (status.Signal() == syscall.SIGINT || status.Signal() == syscall.SIGQUIT) {
		syscall.Kill(0, status.Signal())
	}
}
