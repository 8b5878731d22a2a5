//go:build unix

package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/core/locks"
	"github.com/lockkeeper/lockkeeper/internal/testing/overlay"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/procgroup"
	"github.com/lockkeeper/lockkeeper/lock"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

// runServer starts a server whose sessions last at least a minute, so that a slow machine does not take a lock away.
func runServer(t *testing.T) *lockkeepertest.Server {
	t.Helper()
	return runServerWith(t, 30*time.Second)
}

// shortServer starts a server that grants sessions of 1 s and more.
func shortServer(t *testing.T) *lockkeepertest.Server {
	t.Helper()
	return runServerWith(t, 500*time.Millisecond)
}

func runServerWith(t *testing.T, tick time.Duration) *lockkeepertest.Server {
	t.Helper()
	return lockkeepertest.Start(t, lockkeepertest.WithTCP(), lockkeepertest.WithTickTime(tick),
		lockkeepertest.WithConfig(func(c *lockkeeper.Config) { c.Features.FourLetterWords = []string{"cons"} }))
}

// locked is a running lock run.
type locked struct {
	*process
	out *bufio.Scanner // what the command prints
}

// startRun starts lock run. At the end of the test its process and the one that it has
// printed are killed.
func startRun(t *testing.T, s *lockkeepertest.Server, args ...string) *locked {
	t.Helper()
	return startRunAt(t, s.Addr(), args...)
}

// startRunAt is startRun for several servers.
func startRunAt(t *testing.T, servers string, args ...string) *locked {
	t.Helper()
	return startRunOf(t, binary, servers, args...)
}

// startRunOf is startRunAt for another build of the command.
func startRunOf(t *testing.T, binary, servers string, args ...string) *locked {
	t.Helper()
	cmd := exec.Command(binary, append([]string{"lock", "run", "--server", servers}, args...)...)
	read, write, err := os.Pipe() // unlike with StdoutPipe, what the command leaves behind does not matter
	check1(t, err)
	cmd.Stdout = write
	l := &locked{startCmd(t, cmd), bufio.NewScanner(read)}
	write.Close()
	t.Cleanup(func() { read.Close() })
	read.SetReadDeadline(time.Now().Add(time.Minute))
	return l
}

// line waits for a line that the command prints.
func (l *locked) line() string {
	l.t.Helper()
	if !l.out.Scan() {
		l.t.Fatalf("the command prints nothing: %v %q", l.out.Err(), l.lines())
	}
	return l.out.Text()
}

// group waits for a line that is the pid of the command, which leads its process group.
func (l *locked) group() int {
	l.t.Helper()
	pid, err := strconv.Atoi(l.line())
	check1(l.t, err)
	l.t.Cleanup(func() { syscall.Kill(-pid, syscall.SIGKILL) })
	group, err := syscall.Getpgid(pid)
	check1(l.t, err)
	if own := l.Process.Pid; group != pid || group == own {
		l.t.Fatalf("the command %d is in the group %d", pid, group)
	}
	return pid
}

// alive reports whether a process of a group runs. Zombies do not count: the process
// that has to wait for them may be slow.
func alive(t *testing.T, group int) bool {
	t.Helper()
	if syscall.Kill(-group, 0) == syscall.ESRCH {
		return false
	}
	runs := func(stat string) bool {
		text, _ := os.ReadFile(stat) // it may just have ended
		_, rest, _ := strings.Cut(string(text), ") ")
		f := strings.Fields(rest)
		return len(f) > 2 && f[2] == strconv.Itoa(group) && f[0] != "Z" && f[0] != "X"
	}
	if runs(fmt.Sprintf("/proc/%d/stat", group)) { // which is quick
		return true
	}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	check1(t, err)
	return slices.ContainsFunc(stats, runs)
}

// stubborn is a command that prints its pid, and that does not end by itself or by TERM, and
// neither does the process that it starts.
const stubborn = `trap '' TERM; sleep 1000 & echo $$; exec sleep 1000`

func TestLockRun(t *testing.T) {
	t.Parallel()
	s := runServer(t)
	l := startRun(t, s, "/locks/a", "--", "sh", "-c", `echo $LOCKKEEPER_PATH $LOCKKEEPER_TOKEN $LOCKKEEPER_SESSION; exit 7`)
	got := l.line()
	if code := l.exit(); code != 7 || len(l.lines()) != 0 {
		t.Errorf("exit code %d, %q", code, l.lines())
	}
	var at string
	var token, session int64
	if n, err := fmt.Sscanf(got, "%s %d %v", &at, &token, &session); n != 3 || at != "/locks/a" || token <= 0 || session == 0 {
		t.Errorf("%q: %v", got, err)
	}
	if held := s.Locks(); len(held) != 0 {
		t.Errorf("left: %v", held)
	}

	l = startRun(t, s, "/locks/a", "--", "sh", "-c", `echo $LOCKKEEPER_TOKEN $LOCKKEEPER_SESSION; trap 'exit 3' USR1; echo ready; while :; do sleep 0.05; done`)
	next := l.line()
	held := s.Locks()
	if want := fmt.Sprintf("%d %s", held[0].Token, locks.ID(held[0].Holder)); len(held) != 1 || next != want || held[0].Token <= token {
		t.Errorf("got %s, not %s; %v", next, want, held)
	}
	l.line()
	check1(t, l.Process.Signal(syscall.SIGUSR1))
	if code := l.exit(); code != 3 {
		t.Errorf("exit code %d", code)
	}
}

// TestLockRunDescriptors: the command has the files that the user has handed over, with their
// numbers, and no others.
func TestLockRunDescriptors(t *testing.T) {
	t.Parallel()
	s := runServer(t)
	run := func(args ...string) (texts []string) {
		t.Helper()
		args = append(args, "sh", "-c", "echo three >&3; echo four >&4; echo six >&6; ls /proc/$$/fd >&6; (echo five >&5) 2>/dev/null")
		cmd := exec.Command(args[0], args[1:]...)
		for range 4 {
			f, err := os.CreateTemp(t.TempDir(), "")
			check1(t, err)
			defer f.Close()
			cmd.ExtraFiles = append(cmd.ExtraFiles, f)
		}
		files := slices.Clone(cmd.ExtraFiles)
		cmd.ExtraFiles[2] = nil // nothing is handed over as descriptor 5
		out, err := cmd.CombinedOutput()
		if err == nil || len(out) > 0 {
			t.Errorf("%q: %v %s", args, err, out)
		}
		for _, f := range files {
			text, err := os.ReadFile(f.Name())
			check1(t, err)
			texts = append(texts, string(text))
		}
		return texts
	}
	want, got := run(), run(binary, "lock", "run", "--server", s.Addr(), "/a", "--")
	if want[0] != "three\n" || !slices.Equal(got, want) {
		t.Errorf("got %q, but without lock run %q", got, want)
	}
}

// TestLockRunFinds: commands are found and executed as by execvp.
func TestLockRunFinds(t *testing.T) {
	t.Parallel()
	s := runServer(t)
	dir := t.TempDir()
	check1(t, os.WriteFile(filepath.Join(dir, "my-script"), []byte(`echo "$0" "$@"`), 0o700)) // without #!
	check1(t, os.WriteFile(filepath.Join(dir, "plain"), []byte("text"), 0o600))
	check1(t, os.Mkdir(filepath.Join(dir, "directory"), 0o700))
	for _, c := range []struct {
		path, command, out string
		code               int
	}{
		{"PATH=" + dir, "my-script", dir + "/my-script 1 2 3\n", 0},
		{"PATH=/bin", dir + "/my-script", dir + "/my-script 1 2 3\n", 0},
		{"PATH=/bin", "./my-script", "./my-script 1 2 3\n", 0},
		{"PATH=.:/bin", "my-script", "./my-script 1 2 3\n", 0},
		{"PATH=:/bin", "my-script", "./my-script 1 2 3\n", 0},
		{"NO_PATH=", "echo", "1 2 3\n", 0},
		{"PATH=/bin", "my-script", "", exitNotFound},
		{"PATH=" + dir, "plain", "", exitNoExec},
		{"PATH=" + dir, "directory", "", exitNotFound},
		{"PATH=" + dir, "", "", exitNotFound},
	} {
		cmd := exec.Command(binary, "lock", "run", "--server", s.Addr(), "/a", "--", c.command, "1", "2", "3")
		cmd.Dir, cmd.Env = dir, []string{c.path}
		out, _ := cmd.Output()
		if code := cmd.ProcessState.ExitCode(); code != c.code || string(out) != c.out {
			t.Errorf("%s %s: exit code %d %q", c.path, c.command, code, out)
		}
	}
}

func TestLockRunExitCodes(t *testing.T) {
	t.Parallel()
	s := runServer(t)
	conn := s.Connect(t, 10*time.Second)
	l, held := contend(conn, "/held")
	check1(t, <-held)
	defer l.Unlock()
	plain := filepath.Join(t.TempDir(), "plain")
	check1(t, os.WriteFile(plain, []byte("text"), 0o600))
	script := filepath.Join(t.TempDir(), "script") // whose interpreter does not exist
	check1(t, os.WriteFile(script, []byte("#!/no/such/interpreter\n"), 0o700))
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"/a", "--", "true"}, 0, ""},
		{[]string{"-v", "/a", "--", "true"}, 0, "lockkeeper: /a taken after "},
		{[]string{"/a", "--", "sh", "-c", "exit 200"}, 200, ""},
		{[]string{"/a", "--", "sh", "-c", "kill -TERM $$"}, 128 + 15, ""},
		{[]string{"/a", "--", "sh", "-c", "kill -KILL $$"}, 128 + 9, ""},
		{[]string{"--try", "/a", "--", "true"}, 0, ""},
		{[]string{"--try", "/held", "--", "true"}, exitNotHeld, "/held is held by another client"},
		{[]string{"--try", "--shared", "/held", "--", "true"}, exitNotHeld, "/held is held by another client"},
		{[]string{"--timeout", "10ms", "/held", "--", "true"}, exitNotHeld, "/held was not free within 10ms"},
		{[]string{"/a", "--", script}, exitNotFound, "no such file"},
		{[]string{"/a", "--", plain}, exitNoExec, "permission denied"},
		{[]string{"/a", "--", "no-such-command"}, exitNotFound, "no-such-command"},
		{[]string{"/a", "--", "/no/such/command"}, exitNotFound, "/no/such/command"},
		{[]string{"--server", "127.0.0.1:1", "--connect-timeout", "10ms", "/a", "--", "true"}, exitNoRun, "cannot connect to 127.0.0.1:1"},
	} {
		l := startRun(t, s, c.args...)
		if code := l.exit(); code != c.code {
			t.Errorf("%q: exit code %d: %q", c.args, code, l.lines())
		}
		lines := l.lines()
		if len(lines) > 1 && strings.HasPrefix(lines[0], "lockkeeper: waiting for /held: ") {
			lines = lines[1:] // it took longer than --timeout until it gave up
		}
		if c.says == "" {
			if len(lines) > 0 {
				t.Errorf("%q: %q", c.args, lines)
			}
			continue
		}
		oneError(t, strings.Join(lines, "\n")+"\n", c.says)
	}
	if locks := s.Locks(); len(locks) != 1 || len(locks[0].Queue) != 0 {
		t.Errorf("left: %v", locks)
	}
}

// TestLockRunWaits: lock run says who holds the lock, takes its turn, and says that. A signal ends the wait.
func TestLockRunWaits(t *testing.T) {
	t.Parallel()
	s := runServer(t)
	conn := client(t, s.Addr())
	l, held := contend(conn, "/lock")
	check1(t, <-held)
	first := startRun(t, s, "/lock", "--", "echo", "mine")
	s.WaitWaiters("/lock", 1)
	second := startRun(t, s, "/lock", "--", "echo", "mine")
	s.WaitWaiters("/lock", 2)
	waitFor(t, "what lock run says", func() bool { return len(first.lines()) > 0 && len(second.lines()) > 0 })
	want := fmt.Sprintf("lockkeeper: waiting for /lock: session %s (client 127.0.0.1:", locks.ID(conn.SessionID()))
	if said := first.lines()[0]; !strings.HasPrefix(said, want) || !strings.HasSuffix(said, fmt.Sprintf("token %d", s.Locks()[0].Token)) {
		t.Errorf("it says %q", said)
	}
	if said := second.lines()[0]; !strings.HasPrefix(said, want) || !strings.HasSuffix(said, "; 1 more wait before this command") {
		t.Errorf("it says %q", said)
	}
	check1(t, second.Process.Signal(syscall.SIGTERM))
	if code := second.exit(); code != exitSignal+15 {
		t.Errorf("exit code %d", code)
	}
	s.WaitWaiters("/lock", 1)
	check1(t, l.Unlock())
	if code := first.exit(); code != exitOK || first.line() != "mine" {
		t.Errorf("exit code %d", code)
	}
	taken := regexp.MustCompile(`^lockkeeper: /lock taken after [0-9.]+m?s, token [0-9]+$`)
	if said := first.lines(); len(said) != 2 || !taken.MatchString(said[1]) {
		t.Errorf("it says %q", said)
	}
}

func TestLockRunTogether(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{"shared": {"--shared"}, "slots": {"--slots", "2"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := runServer(t)
			command := []string{"/lock", "--", "sh", "-c", "echo $$; exec sleep 1000"}
			a, b := startRun(t, s, append(flags, command...)...), startRun(t, s, append(flags, command...)...)
			a.group()
			b.group() // both hold it
			if name == "shared" {
				if code := startRun(t, s, "--try", "/lock", "--", "true").exit(); code != exitNotHeld {
					t.Errorf("exit code %d", code)
				}
			} else if code := startRun(t, s, "--try", "--slots", "2", "/lock", "--", "true").exit(); code != exitNotHeld {
				t.Errorf("exit code %d", code)
			}
			if l := lsJSON(t, s.Addr()).Locks; len(l) != 1 || len(l[0].Holders) != 2 || len(l[0].Queue) != 0 {
				t.Errorf("got %+v", l)
			}
			check1(t, a.Process.Signal(syscall.SIGTERM))
			if code := a.exit(); code != exitSignal+15 {
				t.Errorf("exit code %d", code)
			}
		})
	}
}

// TestLockRunOutlastsARestart of the server, while it holds the lock and while it waits.
func TestLockRunOutlastsARestart(t *testing.T) {
	t.Parallel()
	s := runServer(t)
	a := startRun(t, s, "/lock", "--", "sh", "-c", "trap 'exit 5' USR1; echo $$; while :; do sleep 0.05; done")
	a.group()
	b := startRun(t, s, "/lock", "--", "echo", "mine")
	s.WaitWaiters("/lock", 1)
	s.Kill()
	s.Restart()
	s.WaitWaiters("/lock", 1)
	check1(t, a.Process.Signal(syscall.SIGUSR1))
	if code := a.exit(); code != 5 {
		t.Errorf("exit code %d %q", code, a.lines())
	}
	if code := b.exit(); code != exitOK || b.line() != "mine" {
		t.Errorf("exit code %d %q", code, b.lines())
	}
}

// TestLockRunOutlastsLeaders: when the leader of a cluster is killed, the command that runs
// keeps the lock, and the one that waits keeps its place.
func TestLockRunOutlastsLeaders(t *testing.T) {
	t.Parallel()
	c := lockkeepertest.StartCluster(t, 3, lockkeepertest.WithTCP(), lockkeepertest.WithTickTime(30*time.Second))
	var addrs []string
	for i := 1; i <= 3; i++ {
		addrs = append(addrs, c.Server(i).Addr())
	}
	a := startRunAt(t, strings.Join(addrs, ","), "/lock", "--", "sh", "-c", "trap 'exit 5' USR1; echo $$; while :; do sleep 0.05; done")
	a.group()
	b := startRunAt(t, strings.Join(addrs, ","), "/lock", "--", "sh", "-c", "echo mine")
	for range 2 {
		killed := c.Leader()
		other := c.Server(killed%3 + 1)
		other.WaitWaiters("/lock", 1)
		before := other.Locks()
		c.Server(killed).Kill()
		leader := c.Server(c.Leader())
		if leader == c.Server(killed) {
			t.Fatal("a killed server leads")
		}
		if after := leader.Locks(); len(after) != 1 || after[0].Holder != before[0].Holder || after[0].Token != before[0].Token || !slices.Equal(after[0].Queue, before[0].Queue) {
			t.Errorf("before: %+v, after: %+v", before, after)
		}
		c.Server(killed).Restart()
	}
	check1(t, a.Process.Signal(syscall.SIGUSR1))
	if code := a.exit(); code != 5 {
		t.Errorf("exit code %d %q", code, a.lines())
	}
	if code := b.exit(); code != exitOK || b.line() != "mine" {
		t.Errorf("exit code %d %q", code, b.lines())
	}
}

// TestLockRunLoses: whatever takes the lock away, every process of the group has ended before
// another client holds the lock.
func TestLockRunLoses(t *testing.T) {
	if !testkit.Thorough {
		t.Skip("the run under the race detector includes it")
	}
	t.Parallel()
	for _, c := range []struct {
		name string
		take func(t *testing.T, s *lockkeepertest.Server, l *locked, group int)
		code int // of lock run, -1 if a signal ends it
		says string
	}{
		{"SIGSTOP", func(t *testing.T, s *lockkeepertest.Server, l *locked, group int) {
			check1(t, l.Process.Signal(syscall.SIGSTOP))
			t.Cleanup(func() { l.Process.Signal(syscall.SIGCONT) })
		}, exitLost, "the lock is not held any more"},
		{"server stopped", func(t *testing.T, s *lockkeepertest.Server, l *locked, group int) {
			s.Kill()
			l.exit()
			gone(t, group)
			s.Restart()
		}, exitLost, "ended the command, since the lock is not held any more"},
		{"kill -9", func(t *testing.T, s *lockkeepertest.Server, l *locked, group int) {
			check1(t, l.Process.Kill())
		}, -1, "lockkeeper: ended the command, since lock run has ended"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := shortServer(t)
			l := startRun(t, s, "--session-timeout", "10s", "/lock", "--", "sh", "-c", stubborn)
			group := l.group()
			if !alive(t, group) {
				t.Fatal("the group is not seen")
			}
			conn := s.Connect(t, time.Minute)
			next := make(chan error, 1)
			go func() {
				_, err := lock.NewMutex(conn, "/lock", lock.WithSessionTimeout(time.Minute)).Lock(context.Background())
				next <- err
			}()
			s.WaitWaiters("/lock", 1)
			c.take(t, s, l, group)
			check1(t, <-next)
			if alive(t, group) {
				t.Error("another client holds the lock, and the command goes on")
			}
			l.Process.Signal(syscall.SIGCONT)
			if code := l.exit(); code != c.code {
				t.Errorf("exit code %d", code)
			}
			if said := strings.Join(l.lines(), "\n"); !strings.Contains(said, c.says) {
				t.Errorf("it says %q", said)
			}
			gone(t, group)
			conn.Close()
		})
	}
}

// gone waits until a group has no process any more.
func gone(t *testing.T, group int) {
	t.Helper()
	waitFor(t, "the end of the group", func() bool { return !alive(t, group) })
}

// TestLockRunStoppedTwice: lock run is stopped after it has found out how much longer the lock is
// held, and before it tells the watchdog. It goes on, tells the watchdog, and is stopped again. The
// group has ended before another client holds the lock.
func TestLockRunStoppedTwice(t *testing.T) {
	if !testkit.Thorough {
		t.Skip("the run under the race detector includes it")
	}
	t.Parallel()
	// This build stops at a point when there is a file of that name, which it deletes.
	dir := t.TempDir()
	edits := []overlay.Edit{{"cmd/lockkeeper/lockrun.go", "import (\n", "import (\n\"runtime\"\n"}}
	for old, point := range map[string]string{"\tleft := held.Remaining()\n": "asked", "\t\t\tr.extend()\n": "told"} {
		// A signal to its own thread stops a process before it does anything else.
		edits = append(edits, overlay.Edit{"cmd/lockkeeper/lockrun.go", old, fmt.Sprintf("%sif os.Remove(%q) == nil {\nruntime.LockOSThread()\nsyscall.Tgkill(os.Getpid(), syscall.Gettid(), syscall.SIGSTOP)\nruntime.UnlockOSThread()\n}\n", old, filepath.Join(dir, point))})
	}
	list, stopping := value(overlay.Write("../..", dir, value(overlay.Apply("../..", edits...))(t)))(t), filepath.Join(dir, "stopping")
	if out, err := exec.Command("go", "build", "-overlay", list, "-o", stopping, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}

	s := shortServer(t)
	l := startRunOf(t, stopping, s.Addr(), "--session-timeout", "10s", "/lock", "--", "sh", "-c", stubborn)
	group := l.group()
	conn := s.Connect(t, time.Minute)
	next := make(chan error, 1)
	go func() {
		_, err := lock.NewMutex(conn, "/lock", lock.WithSessionTimeout(time.Minute)).Lock(context.Background())
		next <- err
	}()
	s.WaitWaiters("/lock", 1)
	check1(t, os.WriteFile(filepath.Join(dir, "asked"), nil, 0o600))
	waitFor(t, "the first stop", func() bool { return !exists(filepath.Join(dir, "asked")) && stopped(t, l.Process.Pid) })
	t.Cleanup(func() { l.Process.Signal(syscall.SIGCONT) })
	check1(t, os.WriteFile(filepath.Join(dir, "told"), nil, 0o600))
	s.Disconnect(s.Locks()[0].Holder) // so that it cannot reach the server in the moment in between
	time.Sleep(5 * time.Second)       // by which a watchdog that counts from its end on is wrong
	check1(t, l.Process.Signal(syscall.SIGCONT))
	select {
	case err := <-next:
		check1(t, err)
	case <-time.After(time.Minute):
		t.Fatal("the other client never gets the lock")
	}
	if alive(t, group) {
		t.Error("another client holds the lock, and the command goes on")
	}
	l.Process.Signal(syscall.SIGCONT)
	if code := l.exit(); code != exitLost {
		t.Errorf("exit code %d: %q", code, l.lines())
	}
	conn.Close()
}

// stopped reports whether a process is stopped by a signal.
func stopped(t *testing.T, pid int) bool {
	t.Helper()
	_, rest, _ := strings.Cut(string(value(os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)))(t)), ") ")
	return strings.HasPrefix(rest, "T")
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// TestTrustAfterSleep: after the machine was suspended, lock run trusts its command no longer
// than before, until a request is answered that was sent since then.
func TestTrustAfterSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lockkeepertest.Start(t)
		const timeout = 12 * time.Second
		r := &lockRun{clock: newSleepClock()}
		r.dialer.Base = s.Dial
		conn, _, err := zk.Connect([]string{"127.0.0.1:1"}, timeout, zk.WithDialer(r.dialer.Dial), zk.WithLogInfo(false))
		check1(t, err)
		defer conn.Close()
		held, err := lock.NewMutex(conn, "/lock", lock.WithDialer(&r.dialer)).Lock(t.Context())
		check1(t, err)
		// ahead makes the clock of procgroup, which is real, gain so much on that of package time.
		ahead := func(d time.Duration) {
			r.clock.start = procgroup.Now() - time.Since(r.clock.began) - r.clock.slept - d
		}
		ahead(-time.Hour)
		before := procgroup.Now()
		until, ok := r.trust(held)
		if least, most := before+timeout/2, procgroup.Now()+timeout-margin(timeout); !ok || until < least || until > most {
			t.Errorf("trusted until %v, %v, not between %v and %v", until, ok, least, most)
		}
		for range 3 {
			time.Sleep(timeout / 36)
			synctest.Wait()
			ahead(5 * time.Second)
			asked := len(s.Requests("sync"))
			if until, ok := r.trust(held); ok {
				t.Errorf("trusted until %v right after a sleep", until)
			}
			ahead(-time.Hour)
			for len(s.Requests("sync")) == asked {
				if _, ok := r.trust(held); ok {
					t.Fatal("trusted without a new answer")
				}
				time.Sleep(timeout / 100)
				synctest.Wait()
			}
			if _, ok := r.trust(held); !ok {
				t.Error("not trusted after a new answer")
			}
		}
		check1(t, held.Unlock(t.Context()))
		if until, ok := r.trust(held); ok {
			t.Errorf("trusted until %v without the lock", until)
		}
	})
}

// TestTrustLess: when the client reconnects and the server grants less than before, lock run
// trusts its command for less.
func TestTrustLess(t *testing.T) {
	if testkit.Race {
		t.Skip("go-zookeeper has a data race when a client with watches reconnects")
	}
	synctest.Test(t, func(t *testing.T) {
		s := lockkeepertest.Start(t)
		var least atomic.Int64 // what the server seems to grant, in ms
		least.Store(12_000)
		r := &lockRun{clock: newSleepClock()}
		r.clock.start += time.Hour // it never seems that the machine was suspended
		r.dialer.Base = func(network, address string, timeout time.Duration) (net.Conn, error) {
			nc, err := s.Dial(network, address, timeout)
			return &granting{Conn: nc, ms: uint32(least.Load())}, err
		}
		conn, _, err := zk.Connect([]string{"127.0.0.1:1"}, 12*time.Second, zk.WithDialer(r.dialer.Dial), zk.WithLogInfo(false))
		check1(t, err)
		defer conn.Close()
		held, err := lock.NewMutex(conn, "/lock", lock.WithDialer(&r.dialer)).Lock(t.Context())
		check1(t, err)
		for _, timeout := range []time.Duration{12 * time.Second, 3 * time.Second} {
			least.Store(timeout.Milliseconds())
			s.Disconnect(held.Session())
			for began := time.Now(); r.dialer.SessionTimeout() != timeout; time.Sleep(time.Millisecond) {
				if time.Since(began) > time.Minute {
					t.Fatal("it does not learn what the server grants")
				}
			}
			for range 20 {
				time.Sleep(timeout / 10)
				synctest.Wait()
				least := procgroup.Now() + timeout/2
				if until, ok := r.trust(held); !ok || until < least || until > procgroup.Now()+timeout-margin(timeout) {
					t.Errorf("with %v: trusted until %v, %v, at %v", timeout, until, ok, procgroup.Now())
				}
			}
		}
		check1(t, held.Unlock(t.Context()))
	})
}

// granting is a connection on which a server seems to grant another session timeout.
type granting struct {
	net.Conn
	ms   uint32
	head []byte // of the answer to the handshake
}

func (g *granting) Read(b []byte) (int, error) {
	missing := 12 - len(g.head)
	if missing == 0 {
		return g.Conn.Read(b)
	}
	n, err := g.Conn.Read(b[:min(len(b), missing)])
	for i := range n {
		g.head = append(g.head, b[i])
		if at := len(g.head) - 1; at >= 8 { // after the length of the frame and the version of the protocol
			b[i] = byte(g.ms >> (8 * (11 - at)))
		}
	}
	return n, err
}

// TestLockRunTerminates: a command that is ended by TERM can clean up.
func TestLockRunTerminates(t *testing.T) {
	t.Parallel()
	s := runServer(t)
	l := startRun(t, s, "/lock", "--", "sh", "-c", "trap 'echo cleaned; exit 0' TERM; echo $$; while :; do sleep 0.05; done")
	l.group()
	breakLock(t, s)
	if got := l.line(); got != "cleaned" {
		t.Errorf("got %q", got)
	}
	if code := l.exit(); code != exitLost {
		t.Errorf("exit code %d", code)
	}
}

// TestLockRunKilled: the watchdog does not wait until the session could end.
func TestLockRunKilled(t *testing.T) {
	t.Parallel()
	s := lockkeepertest.Start(t, lockkeepertest.WithTCP(), lockkeepertest.WithTickTime(30*time.Second))
	l := startRun(t, s, "--session-timeout", "10m", "/lock", "--", "sh", "-c", stubborn)
	group := l.group()
	check1(t, l.Process.Kill())
	gone(t, group)
}

// breakLock takes the lock away from lock run, which no client can know before.
func breakLock(t *testing.T, s *lockkeepertest.Server) {
	t.Helper()
	if code, _, stderr := call(nil, "lock", "break", "--yes", "--server", s.Addr(), "/lock"); code != exitOK {
		t.Fatal(stderr)
	}
}

// TestLockRunKills a group that ignores TERM after --grace, long before the session could end.
func TestLockRunKills(t *testing.T) {
	t.Parallel()
	s := lockkeepertest.Start(t, lockkeepertest.WithTCP(), lockkeepertest.WithTickTime(30*time.Second))
	l := startRun(t, s, "--session-timeout", "10m", "--grace", "100ms", "/lock", "--", "sh", "-c", stubborn)
	group := l.group()
	breakLock(t, s)
	if code := l.exit(); code != exitLost || alive(t, group) {
		t.Errorf("exit code %d", code)
	}
	oneError(t, strings.Join(l.lines(), "\n")+"\n", "ended the command, since the lock is not held any more")
}

// TestLockRunKilledWithoutWatchdog: if the watchdog is gone, too, Linux still ends the command.
func TestLockRunKilledWithoutWatchdog(t *testing.T) {
	t.Parallel()
	s := runServer(t)
	l := startRun(t, s, "/lock", "--", "sh", "-c", "echo $$; exec sleep 1000")
	group := l.group()
	watchdog := l.watchdog(group)
	check1(t, l.Process.Signal(syscall.SIGSTOP)) // so that it does not see the watchdog's end
	check1(t, syscall.Kill(watchdog, syscall.SIGKILL))
	check1(t, l.Process.Kill())
	gone(t, group)
}

// watchdog returns the process id of the watchdog of a group: the other child of lock run.
func (l *locked) watchdog(group int) int {
	l.t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", l.Process.Pid))
	check1(l.t, err)
	for _, name := range tasks {
		text, err := os.ReadFile(name)
		check1(l.t, err)
		for field := range strings.FieldsSeq(string(text)) {
			if pid := value(strconv.Atoi(field))(l.t); pid != group {
				return pid
			}
		}
	}
	l.t.Fatal("there is no watchdog")
	return 0
}

// TestLockRunWatchdogKilled: the command does not outlive its watchdog.
func TestLockRunWatchdogKilled(t *testing.T) {
	t.Parallel()
	s := runServer(t)
	l := startRun(t, s, "/lock", "--", "sh", "-c", stubborn)
	group := l.group()
	check1(t, syscall.Kill(l.watchdog(group), syscall.SIGKILL))
	if code := l.exit(); code != exitLost || alive(t, group) {
		t.Errorf("exit code %d", code)
	}
	oneError(t, strings.Join(l.lines(), "\n")+"\n", "ended the command, since its watchdog, a second process, was ended")
	if held := s.Locks(); len(held) != 0 {
		t.Errorf("left: %v", held)
	}
}

// TestLockRunWatchdogStopped: lock run does not wait for a watchdog that is stopped.
func TestLockRunWatchdogStopped(t *testing.T) {
	t.Parallel()
	s := lockkeepertest.Start(t, lockkeepertest.WithTCP(), lockkeepertest.WithTickTime(30*time.Second))
	l := startRun(t, s, "--session-timeout", "10m", "/lock", "--", "sh", "-c", "trap 'exit 5' USR1; echo $$; while :; do sleep 0.05; done")
	watchdog := l.watchdog(l.group())
	check1(t, syscall.Kill(watchdog, syscall.SIGSTOP))
	check1(t, l.Process.Signal(syscall.SIGUSR1))
	if code := l.exit(); code != 5 {
		t.Errorf("exit code %d, %q", code, l.lines())
	}
	if held := s.Locks(); len(held) != 0 {
		t.Errorf("left: %v", held)
	}
}

// TestLockRunWatchdogPaused: a watchdog that was stopped for too long ends the command when it goes on,
// and lock run says why.
func TestLockRunWatchdogPaused(t *testing.T) {
	if !testkit.Thorough {
		t.Skip("the run under the race detector includes it, and procgroup's TestWatchdogPaused does always")
	}
	t.Parallel()
	s := shortServer(t)
	l := startRun(t, s, "--session-timeout", "6s", "/lock", "--", "sh", "-c", stubborn)
	group := l.group()
	watchdog := l.watchdog(group)
	check1(t, syscall.Kill(watchdog, syscall.SIGSTOP))
	time.Sleep(6 * time.Second) // its deadline is earlier
	check1(t, syscall.Kill(watchdog, syscall.SIGCONT))
	if code := l.exit(); code != exitLost || alive(t, group) {
		t.Errorf("exit code %d", code)
	}
	oneError(t, strings.Join(l.lines(), "\n")+"\n", "ended the command, since its watchdog, a second process, did not run in time")
}

// TestLockRunLessAtOnce: when the client reconnects and the server grants less than before, the
// watchdog knows it at once, even if lock run is stopped right after that.
func TestLockRunLessAtOnce(t *testing.T) {
	t.Parallel()
	s := lockkeepertest.Start(t, lockkeepertest.WithTCP(), lockkeepertest.WithTickTime(30*time.Second))
	listener := value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer listener.Close()
	l := startRunAt(t, listener.Addr().String(), "--session-timeout", "10m", "/lock", "--", "sh", "-c", stubborn)
	client := value(listener.Accept())(t)
	server := value(net.Dial("tcp", s.Addr()))(t)
	go io.Copy(server, client) // both end when the test closes the connections
	go io.Copy(client, server)
	group := l.group()
	client.Close()
	server.Close()

	client = value(listener.Accept())(t)
	defer client.Close()
	server = value(net.Dial("tcp", s.Addr()))(t)
	defer server.Close()
	go io.Copy(client, &granting{Conn: server, ms: 2000})
	b := make([]byte, 4096)
	for range 2 { // the handshake, and what lock run sends when it has the answer
		n := value(client.Read(b))(t)
		value(server.Write(b[:n]))(t)
	}
	check1(t, l.Process.Signal(syscall.SIGSTOP))
	gone(t, group)
	check1(t, l.Process.Signal(syscall.SIGCONT))
	if code := l.exit(); code != exitLost {
		t.Errorf("exit code %d", code)
	}
}

// TestWatchdogToldLess: when a server grants less than before, the watchdog is told before the client
// learns of it, whether the lock is lost by that or not.
func TestWatchdogToldLess(t *testing.T) {
	if testkit.Race {
		t.Skip("go-zookeeper has a data race when a client with watches reconnects")
	}
	synctest.Test(t, func(t *testing.T) {
		s := lockkeepertest.Start(t)
		ms := uint32(12_000) // what the server seems to grant
		r := newLockRun(nil, "/lock")
		r.clock.start += time.Hour // it never seems that the machine was suspended
		r.dialer.Base = func(network, address string, timeout time.Duration) (net.Conn, error) {
			nc, err := s.Dial(network, address, timeout)
			return &granting{Conn: nc, ms: ms}, err
		}
		conn, _, err := zk.Connect([]string{"127.0.0.1:1"}, 12*time.Second, zk.WithDialer(r.dial), zk.WithLogInfo(false))
		check1(t, err)
		defer conn.Close()
		mutex := lock.NewMutex(conn, "/lock", lock.WithDialer(&r.dialer))
		held, err := mutex.Lock(t.Context())
		check1(t, err)
		told := 0
		r.held, r.until = held, procgroup.Now()+time.Hour
		r.tell = func(until time.Duration) {
			told++
			granted := time.Duration(ms) * time.Millisecond
			if until != r.until || until > procgroup.Now()+granted-margin(granted) {
				t.Errorf("told to trust until %v, at %v", until, procgroup.Now())
			}
			if state := conn.State(); told > 1 && state == zk.StateHasSession {
				t.Error("the client knows already")
			}
		}
		r.extend()
		for i, least := range []uint32{8_000, 6_000, 600} { // the last is too short for the lock
			time.Sleep(11 * time.Second / 12)
			ms = least
			s.Disconnect(held.Session())
			time.Sleep(2 * time.Second) // the client waits before it connects again
			if told != i+2 || len(r.changed) != 1 {
				t.Errorf("told %d times, not %d", told, i+2)
			}
		}
		if held.Err() == nil {
			t.Error("the lock is still held")
		}
		held.Unlock(t.Context())
		check1(t, mutex.Wait(t.Context()))
	})
}
