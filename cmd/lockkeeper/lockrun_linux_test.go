package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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

// terminal is a pseudo-terminal with a session that has it as its controlling terminal.
type terminal struct {
	*exec.Cmd
	t      *testing.T
	master *os.File
	mu     sync.Mutex
	seen   bytes.Buffer // what was printed since the last expect
}

// onTerminal starts a program on a terminal.
func onTerminal(t *testing.T, args ...string) *terminal {
	t.Helper()
	fd := value(unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0))(t)
	master := os.NewFile(uintptr(fd), "/dev/ptmx") // Close ends its Read
	check1(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	number := value(unix.IoctlGetInt(fd, unix.TIOCGPTN))(t)
	slave := value(os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0))(t)
	x := &terminal{Cmd: exec.Command(args[0], args[1:]...), t: t, master: master}
	x.Stdin, x.Stdout, x.Stderr = slave, slave, slave
	x.Env = append(os.Environ(), "TERM=dumb", "PS1=$ ", "HISTFILE=")
	x.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	check1(t, x.Start())
	slave.Close()
	read := make(chan struct{})
	go func() {
		defer close(read)
		b := make([]byte, 4096)
		for {
			n, err := master.Read(b)
			if err != nil {
				return
			}
			x.mu.Lock()
			x.seen.Write(b[:n])
			x.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		master.Close() // the terminal hangs up
		x.Process.Kill()
		x.Wait()
		<-read
	})
	return x
}

// expect waits until something is printed.
func (x *terminal) expect(text string) {
	x.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		x.mu.Lock()
		_, rest, found := bytes.Cut(x.seen.Bytes(), []byte(text))
		if found {
			x.seen = *bytes.NewBuffer(bytes.Clone(rest))
		}
		seen := x.seen.String()
		x.mu.Unlock()
		if found {
			return
		}
		if time.Now().After(deadline) {
			x.t.Fatalf("no %q in %q", text, seen)
		}
	}
}

func (x *terminal) typed(text string) {
	x.t.Helper()
	value(x.master.WriteString(text))(x.t)
}

// prompting is a command that asks on the terminal, which is not its standard input.
const prompting = `sh -c 'echo rea''dy; read x </dev/tty; echo go''t $x' </dev/null`

// TestLockRunTerminal: a command can ask on the terminal, also one in a pipeline, and what comes after
// lock run has the terminal again.
func TestLockRunTerminal(t *testing.T) {
	t.Parallel()
	s := runServer(t)
	run := binary + " lock run --server " + s.Addr() + " /a -- "
	for name, script := range map[string]string{
		"alone":            run + prompting,
		"after a pipe":     "echo | " + run + prompting,
		"before a pipe":    run + prompting + " | cat",
		"standard input":   run + `sh -c 'echo rea''dy; read x; echo go''t $x'`,
		"another executes": "sh -c '" + strings.ReplaceAll(run+prompting, "'", `'\''`) + "'",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := onTerminal(t, "sh", "-c", script+`; echo th''en; read y </dev/tty; echo an''d $y`)
			x.expect("ready")
			x.typed("one\n")
			x.expect("got one")
			x.expect("then")
			x.typed("two\n")
			x.expect("and two")
			check1(t, x.Wait())
		})
	}
}

// TestLockRunJobControl: a shell can stop lock run and its command, and let them go on, and can start
// them in the background and bring them to the foreground. Ctrl-C ends the command.
func TestLockRunJobControl(t *testing.T) {
	t.Parallel()
	s := runServer(t) // its sessions outlast the stops
	x := onTerminal(t, "bash", "--norc", "--noprofile", "--noediting", "-i")
	run := binary + " lock run --server " + s.Addr() + " --session-timeout 10m /a -- "
	x.typed("stty -echo; set -b\n" + run + prompting + "\n")
	x.expect("ready")
	x.typed("\x1a") // Ctrl-Z
	x.expect("Stopped")
	s.WaitHeld("/a", s.Locks()[0].Holder)
	x.typed("echo mi''ne; fg\n")
	x.expect("mine")
	x.typed("one\n")
	x.expect("got one")

	x.typed(run + prompting + " &\n")
	x.expect("ready")
	x.expect("Stopped") // since it reads in the background
	x.typed("fg\n")
	x.typed("two\n")
	x.expect("got two")

	x.typed(run + prompting + "; echo co''de $?\n")
	x.expect("ready")
	x.typed("\x03") // Ctrl-C
	x.expect("code 130")

	// Those who have started lock run get the signal, too, as without it.
	x.typed("bash -c 'trap \"echo sig''nal\" INT; " + run + "sh -c \"echo ru''ns; exec sleep 1000\"; echo co''de $?'\n")
	x.expect("runs")
	x.typed("\x03")
	x.expect("signal")
	x.expect("code 130")
}

// TestLockRunZombies: when a lock is lost, lock run does not wait for processes that have ended, but
// that nobody waits for.
func TestLockRunZombies(t *testing.T) {
	t.Parallel()
	s := runServer(t)
	// The parent of the first sleep leaves the group.
	l := startRun(t, s, "--session-timeout", "10m", "--grace", "10m", "/lock", "--", "sh", "-c", `echo $$; sh -c 'sleep 0.01 & exec setsid sh -c "echo \$\$; exec sleep 1000" 2>/dev/null' & wait; exec sleep 1000`)
	l.group()
	parent := 0
	value(fmt.Sscan(l.line(), &parent))(t)
	t.Cleanup(func() { syscall.Kill(parent, syscall.SIGKILL) })
	waitFor(t, "the zombie", func() bool {
		return exec.Command("sh", "-c", fmt.Sprintf("grep -qs '^State:.*Z' $(sed 's|[^ ]*|/proc/&/status|g; s|/proc//status||g' /proc/%d/task/%[1]d/children)", parent)).Run() == nil
	})
	breakLock(t, s)
	if code := l.exit(); code != exitLost {
		t.Errorf("exit code %d: %q", code, l.lines())
	}
}

// TestLockRunQuiet: with --quiet only the command writes, and the exit code says what has happened.
func TestLockRunQuiet(t *testing.T) {
	t.Parallel()
	s := runServer(t)
	l, held := contend(s.Connect(t, 10*time.Second), "/held")
	check1(t, <-held)
	for _, c := range []struct {
		args string
		code int
		out  string
	}{
		{"/a -- sh -c echo${IFS}out;echo${IFS}err>&2;exit${IFS}7", 7, "out\nerr\n"},
		{"--try /held -- true", exitNotHeld, ""},
		{"--timeout 400ms /held -- true", exitNotHeld, ""}, // by then it would have said who holds it
		{"/a -- no-such-command", exitNotFound, "lockkeeper: "},
		{"/a -- /no/such/command", exitNotFound, "lockkeeper: "},
		{"/a -- /dev/null", exitNoExec, "lockkeeper: "},
		{"--server 127.0.0.1:1 --connect-timeout 10ms /a -- true", exitNoRun, ""},
		{"/a -- " + binary + " nonsense", exitUsage, "lockkeeper: "}, // the command's own
	} {
		cmd := exec.Command(binary, append([]string{"lock", "run", "-q", "--server", s.Addr()}, strings.Fields(c.args)...)...)
		out, _ := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != c.code || string(out) != c.out && (c.out != "lockkeeper: " || !strings.HasPrefix(string(out), c.out)) {
			t.Errorf("%s: exit code %d, %q", c.args, code, out)
		}
	}
	check1(t, l.Unlock())
	lost := startRun(t, s, "--quiet", "/lost", "--", "sh", "-c", "echo; exec sleep 1000")
	lost.line()
	if code, _, stderr := call(nil, "lock", "break", "--yes", "--server", s.Addr(), "/lost"); code != exitOK {
		t.Fatal(stderr)
	}
	if code := lost.exit(); code != exitLost || len(lost.lines()) != 0 {
		t.Errorf("exit code %d, %q", code, lost.lines())
	}
	killed := startRun(t, s, "--quiet", "/killed", "--", "sh", "-c", "echo $$; exec sleep 1000")
	group := killed.group()
	check1(t, killed.Process.Kill())
	gone(t, group)
	if killed.exit(); len(killed.lines()) != 0 { // when the watchdog has closed standard error
		t.Errorf("its watchdog says %q", killed.lines())
	}
	refuses(t, exitUsage, []string{"lock", "run", "--quiet", "--verbose", "/a", "--", "true"}, "--quiet: not together with --verbose")
}
