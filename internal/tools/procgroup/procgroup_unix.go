//go:build unix

package procgroup

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Forwarded are the signals that a program passes on to its group.
var Forwarded = []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM}

// platform is what a Group has on Unix.
type platform struct {
	watchdog    *exec.Cmd
	watchdogEnd chan struct{} // closed when the watchdog's process has ended
	terminal    *terminal     // nil if there is none

	once sync.Once // for release
	fate Fate      // set by release

	mu   sync.Mutex
	pipe *os.File // to the watchdog; nil when released
}

// Messages to the watchdog are numbers of 64 bits: first the process group and the time, then one or
// more times until when it is trusted, in nanoseconds on the clock of Now, and at the end
// dismissed.
const dismissed = math.MinInt64

// Start starts a command in a group of its own, which is trusted until the given time on the
// clock of [Now]. watchdog has the arguments that make this program call [Watchdog]. become has
// those that make it call [Become]; Start appends to them what Become takes. The command gets
// the open files of this process that are not to be closed by exec, with their numbers.
func Start(cmd *exec.Cmd, watchdog, become []string, until time.Duration) (*Group, error) {
	g := &Group{cmd: cmd, done: make(chan struct{})}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer read.Close()
	g.watchdog = exec.Command(self(), watchdog...)
	g.watchdog.Args[0] = os.Args[0]
	g.watchdog.Stdin, g.watchdog.Stderr = read, os.Stderr
	g.watchdog.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // the terminal's signals are not for it
	if err := g.watchdog.Start(); err != nil {
		write.Close()
		return nil, fmt.Errorf("cannot start the watchdog: %w", err)
	}
	g.watchdogEnd = make(chan struct{})
	go func() { // ends with the watchdog, for which release waits
		defer close(g.watchdogEnd)
		g.watchdog.Wait()
	}()
	g.pipe = write
	gate, open, err := os.Pipe()
	if err != nil {
		g.release()
		return nil, err
	}
	defer gate.Close()
	defer open.Close()
	// The gate keeps the number that it has in this process, which is that of no file that the
	// user has handed over: the command gets those with their numbers. Another process that is
	// started at the same moment may inherit the gate, too, which does no harm.
	if _, err := unix.FcntlInt(gate.Fd(), unix.F_SETFD, 0); err != nil {
		g.release()
		return nil, os.NewSyscallError("fcntl", err)
	}
	cmd.Args = slices.Concat([]string{os.Args[0]}, become, []string{strconv.Itoa(int(gate.Fd())), cmd.Path}, cmd.Args)
	cmd.Path = self()
	attributes := syscall.SysProcAttr{Setpgid: true}
	dieWithParent(&attributes)
	cmd.SysProcAttr = &attributes
	g.terminal = openTerminal()
	started := make(chan error)
	go func() { // ends with the command
		// For the kernel, the command's parent ends when the thread that started it ends.
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		status := g.await()
		g.ended(status)
		cmd.Wait() // for what the command has printed; there is no process any more
		if g.code = status.ExitStatus(); status.Signaled() {
			g.code = 128 + int(status.Signal())
		}
		close(g.done)
	}()
	if err := <-started; err != nil {
		if g.terminal != nil {
			unix.Close(g.terminal.fd)
		}
		g.release()
		return nil, err
	}
	if t := g.terminal; t != nil {
		signal.Ignore(syscall.SIGTTOU) // which else stops a process in the background that takes the terminal back
		if alone(cmd.Stdin, cmd.Stdout) {
			t.pass(t.own, cmd.Process.Pid)
		}
	}
	if os.Getpid() == 1 {
		go g.reap() // ends with the last child, or with the process
	}
	err = g.tell(int64(cmd.Process.Pid))
	for _, n := range []time.Duration{Now(), until} {
		if err == nil {
			err = g.tell(int64(n))
		}
	}
	if err == nil && Now() >= until { // this process was stopped for a while
		err = errors.New("there is no time left")
	}
	if err == nil {
		_, err = open.Write([]byte{0})
	}
	if err != nil {
		open.Close()
		<-g.done
		g.release()
		return nil, err
	}
	return g, nil
}

func (g *Group) await() (status syscall.WaitStatus) {
	for {
		switch _, err := syscall.Wait4(g.cmd.Process.Pid, &status, syscall.WUNTRACED, nil); {
		case err == syscall.EINTR:
		case err == nil && status.Stopped():
			g.stopped(status.StopSignal())
		default:
			return status
		}
	}
}

// Become is the main function of the command's process. args are those that Start has appended:
// the descriptor of the pipe from which the process reads a byte first, and the command's path
// and arguments. Become executes the command in place of this program. If it returns, the
// command was not executed: either the process that started this one has given up, and the
// error is nil, or the error says why it was impossible.
func Become(args []string) error {
	number, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	syscall.CloseOnExec(number)
	if _, err := io.ReadFull(os.NewFile(uintptr(number), "gate"), make([]byte, 1)); err != nil {
		return nil
	}
	runtime.LockOSThread()
	if err := keepDyingWithParent(); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	KeepIgnoring()
	path, args := args[1], args[2:]
	err = syscall.Exec(path, args, os.Environ())
	if errors.Is(err, syscall.ENOEXEC) { // a script without an interpreter's name, as execvp runs it
		const shell = "/bin/sh"
		err = syscall.Exec(shell, slices.Concat([]string{shell, path}, args[1:]), os.Environ())
	}
	return &os.PathError{Op: "exec", Path: path, Err: err}
}

// LookPath finds the command that a user has named, as execvp and so the shell, env and timeout
// do. Unlike exec.LookPath it accepts those in the current directory if PATH lists that, uses
// a default if there is no PATH, and tells a file that may not be executed from none.
func LookPath(name string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	dirs, ok := os.LookupEnv("PATH")
	if !ok {
		dirs = "/bin:/usr/bin"
	}
	why := exec.ErrNotFound
	for dir := range strings.SplitSeq(dirs, ":") {
		at := cmp.Or(dir, ".") + "/" + name
		if info, err := os.Stat(at); err != nil || info.IsDir() {
			continue
		}
		if unix.Access(at, unix.X_OK) == nil {
			return at, nil
		}
		why = fs.ErrPermission
	}
	return "", &exec.Error{Name: name, Err: why}
}

func (g *Group) tell(n int64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.pipe == nil {
		return nil
	}
	g.pipe.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)) // the watchdog may be stopped, and the pipe full
	_, err := g.pipe.Write(binary.BigEndian.AppendUint64(nil, uint64(n)))
	return err
}

func now() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(sharedClock, &t); err != nil {
		panic(os.NewSyscallError("clock_gettime", err)) // the system does not have this clock
	}
	return time.Duration(t.Nano())
}

func (g *Group) trust(until time.Duration) { g.tell(int64(until)) }

func (g *Group) unwatched() <-chan struct{} { return g.watchdogEnd }

// watchdogPatience is how long release waits for the watchdog, which has nothing to do but to end.
const watchdogPatience = time.Second

func (g *Group) release() Fate {
	g.once.Do(func() {
		g.tell(dismissed)
		g.mu.Lock()
		g.pipe.Close()
		g.pipe = nil
		g.mu.Unlock()
		select {
		case <-g.watchdogEnd:
		case <-time.After(watchdogPatience): // it is stopped, or the machine is very busy
			g.watchdog.Process.Kill()
			<-g.watchdogEnd // nothing withstands that signal
			return
		}
		switch f := Fate(g.watchdog.ProcessState.ExitCode()); f {
		case Dismissed, Orphaned, Unheard, Paused:
			g.fate = f
		default:
			g.fate = Died
		}
	})
	return g.fate
}

// Signal sends a signal to all processes of the group.
func (g *Group) Signal(s os.Signal) error {
	number, ok := s.(syscall.Signal)
	if !ok {
		return fmt.Errorf("unknown signal %v", s)
	}
	return syscall.Kill(-g.cmd.Process.Pid, number)
}

// Terminate asks the group to end.
func (g *Group) Terminate() {
	g.Signal(syscall.SIGTERM)
	g.Signal(syscall.SIGCONT) // a stopped process does not see the other signal
}

// Kill ends the group at once.
func (g *Group) Kill() { g.Signal(syscall.SIGKILL) }

// Empty reports whether no process of the group runs, not even the command.
func (g *Group) Empty() bool {
	return syscall.Kill(-g.cmd.Process.Pid, 0) == syscall.ESRCH || onlyZombies(g.cmd.Process.Pid)
}

// Watchdog is the main function of the watchdog. in is the pipe, and its process's standard input.
// It returns how it has ended, which must become the exit code of its process.
func Watchdog(in io.Reader) Fate {
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU)
	said := make(chan int64)
	go func() { // ends with the process
		defer close(said)
		for {
			var b [8]byte
			if _, err := io.ReadFull(in, b[:]); err != nil {
				return
			}
			said <- int64(binary.BigEndian.Uint64(b[:]))
		}
	}()
	group, ok := <-said
	if !ok || group <= 1 {
		return Dismissed // the command was never started
	}
	looked := time.Duration(<-said)
	until := time.Duration(math.MaxInt64) // the command does not run before the watchdog is told
	timer := time.NewTimer(watchdogLooks)
	for {
		closed := false
		select {
		case n, ok := <-said:
			switch {
			case !ok:
				closed = true
			case n == dismissed:
				return Dismissed
			case Now() < until: // otherwise the message has come too late
				until = time.Duration(n)
			}
		case <-timer.C:
		}
		now := Now()
		left, pause := until-now, now-looked
		if closed || left <= 0 {
			switch {
			case syscall.Kill(-int(group), syscall.SIGKILL) != nil:
				return Dismissed
			case closed:
				return Orphaned
			case pause > 2*watchdogLooks:
				return Paused
			}
			return Unheard
		}
		looked = now
		timer.Reset(min(left, watchdogLooks))
	}
}

// watchdogLooks is how often the watchdog looks at the clock at least, because its timers do not
// count the time in which the machine is suspended.
const watchdogLooks = 250 * time.Millisecond
