//go:build interop

package interop

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// Environment variables of these tests; README.md describes them.
const (
	envBinary = "LOCKKEEPER_INTEROP_BINARY" // test this binary instead of building one
	envAddr   = "LOCKKEEPER_INTEROP_ADDR"   // test this endpoint where no server must be started or killed
	envSeed   = "LOCKKEEPER_INTEROP_SEED"   // repeat the random choices of an earlier run
	envKills  = "LOCKKEEPER_INTEROP_KILLS"  // how often TestKilledServer kills
	envKeep   = "LOCKKEEPER_INTEROP_KEEP"   // keep the crash tests' data directories here
	envRole   = "LOCKKEEPER_INTEROP_ROLE"   // set by the tests: the role of this process in a test
)

// startDeadline is how long a server may take to start. It is much longer than a start
// takes, because it only decides when a test gives up.
const startDeadline = time.Minute

// scratch is the temporary directory of the whole run. It contains the binary.
var scratch string

func TestMain(m *testing.M) {
	if role := os.Getenv(envRole); role != "" {
		os.Exit(play(role))
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	var err error
	if scratch, err = os.MkdirTemp("", "lockkeeper-interop-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(scratch)
	return m.Run()
}

// built returns the path of the binary under test. The first test that needs the binary
// builds it, so that a failing build fails only tests that need it.
var built = sync.OnceValues(func() (string, error) {
	if path := os.Getenv(envBinary); path != "" {
		return filepath.Abs(path)
	}
	return build("lockkeeper")
})

func build(name string, flags ...string) (path string, err error) {
	path = filepath.Join(scratch, name)
	build := exec.Command("go", append(append([]string{"build", "-buildvcs=false"}, flags...), "-o", path, "./cmd/lockkeeper")...)
	build.Dir = ".."
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build ./cmd/lockkeeper: %w\n%s", err, out)
	}
	return path, nil
}

func lockkeeperBinary(t testing.TB) string {
	t.Helper()
	path, err := built()
	if err != nil {
		t.Fatalf("no lockkeeper to test: %v", err)
	}
	return path
}

// lockkeeper is a running `lockkeeper serve`.
type lockkeeper struct {
	addr string // where clients connect, with the real port
	dir  string // its data directory, "" with --memory
	pid  int

	t      testing.TB
	quiet  bool // do not show its standard error, even if the test failed
	cmd    *exec.Cmd
	stderr *tail
	exited chan struct{} // closed when the process has ended and state is set
	state  *os.ProcessState
}

// startLockkeeper starts `lockkeeper serve` on a free loopback port and waits until it
// serves clients. Without --data or --memory in args, it gets a data directory of its
// own. The process is killed at the end of the test, and its standard error is logged if
// the test failed.
func startLockkeeper(t testing.TB, args ...string) *lockkeeper {
	t.Helper()
	l := execLockkeeper(t, args...)
	select {
	case line := <-l.stderr.match:
		l.addr = strings.TrimSpace(line[strings.Index(line, servingLine)+len(servingLine):])
	case <-l.exited:
		t.Fatalf("lockkeeper ended before it served clients: %v", l.state)
	case <-time.After(startDeadline):
		t.Fatalf("lockkeeper did not print %q within %v", servingLine, startDeadline)
	}
	return l
}

const servingLine = "lockkeeper: serving ZooKeeper clients on "

// execLockkeeper starts the process without waiting until it serves.
func execLockkeeper(t testing.TB, args ...string) *lockkeeper {
	t.Helper()
	return execLockkeeperBy(t, nil, args...)
}

// execLockkeeperBy is like execLockkeeper, but starts the process with the command by, which must exec it.
func execLockkeeperBy(t testing.TB, by []string, args ...string) *lockkeeper {
	t.Helper()
	return execProgram(t, lockkeeperBinary(t), by, args...)
}

// execProgram is like execLockkeeperBy, but takes the path of the binary.
func execProgram(t testing.TB, program string, by []string, args ...string) *lockkeeper {
	t.Helper()
	l := &lockkeeper{t: t, exited: make(chan struct{})}
	if v, ok := flagValue(args, "listen"); !ok {
		args = append([]string{"--listen", "127.0.0.1:0"}, args...)
	} else {
		l.addr = v
	}
	if v, ok := flagValue(args, "data"); ok {
		l.dir = v
	} else if !slices.Contains(args, "--memory") {
		l.dir = t.TempDir()
		args = append(args, "--data", l.dir)
	}
	command := slices.Concat(by, []string{program, "serve"}, args)
	l.cmd = exec.Command(command[0], command[1:]...)
	l.cmd.Env = cleanEnv()
	l.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	l.stderr = &tail{want: servingLine, match: make(chan string, 1)}
	l.cmd.Stderr = l.stderr
	l.cmd.WaitDelay = 10 * time.Second // in case a child process keeps standard error open
	if err := l.cmd.Start(); err != nil {
		t.Fatalf("lockkeeper does not start: %v", err)
	}
	l.pid = l.cmd.Process.Pid
	go func() {
		l.cmd.Wait() // the error only repeats what is in the state
		l.state = l.cmd.ProcessState
		close(l.exited)
	}()
	t.Cleanup(func() {
		l.Kill()
		if t.Failed() && !l.quiet {
			t.Logf("lockkeeper %s (pid %d): %v, standard error:\n%s", strings.Join(args, " "), l.pid, l.state, l.stderr)
		}
	})
	return l
}

// Kill kills the process with SIGKILL and waits until it has ended.
func (l *lockkeeper) Kill() {
	l.cmd.Process.Kill() // an error means that it has already ended
	<-l.exited
}

// Stop stops the process with SIGTERM, after which it must exit with code 0.
func (l *lockkeeper) Stop() {
	l.t.Helper()
	if err := l.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		l.t.Fatalf("SIGTERM: %v", err)
	}
	select {
	case <-l.exited:
	case <-time.After(startDeadline):
		l.t.Fatalf("lockkeeper still runs %v after SIGTERM", startDeadline)
	}
	if code := l.state.ExitCode(); code != 0 {
		l.t.Fatalf("after SIGTERM lockkeeper must exit with 0: %v", l.state)
	}
}

// flagValue finds --name VALUE, --name=VALUE or the same with one dash.
func flagValue(args []string, name string) (string, bool) {
	for i, arg := range args {
		arg = "-" + strings.TrimLeft(arg, "-")
		if v, ok := strings.CutPrefix(arg, "-"+name+"="); ok {
			return v, true
		}
		if arg == "-"+name && i+1 < len(args) {
			return args[i+1], true
		}
	}
	return "", false
}

// cleanEnv returns the environment without LOCKKEEPER_ variables, so that a developer's
// settings do not configure the servers under test.
func cleanEnv() []string {
	return slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "LOCKKEEPER_") })
}

// tail keeps the end of a process's output, and sends the first line that contains want
// to match.
type tail struct {
	want  string
	match chan string // capacity 1

	mu   sync.Mutex
	text bytes.Buffer
	line []byte // the last line, if it is incomplete
}

const tailBytes = 64 << 10

func (l *tail) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Write(p)
	if over := l.text.Len() - tailBytes; over > 0 {
		l.text.Next(over)
	}
	if l.want == "" {
		return len(p), nil
	}
	l.line = append(l.line, p...)
	for {
		line, rest, ended := bytes.Cut(l.line, []byte("\n"))
		if !ended {
			return len(p), nil
		}
		if l.line = rest; bytes.Contains(line, []byte(l.want)) {
			l.want, l.line = "", nil
			l.match <- string(line)
			return len(p), nil
		}
	}
}

func (l *tail) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// longer returns the second time for a run that is thorough (testkit.Thorough), as at night, and otherwise the first.
func longer(usual, thorough time.Duration) time.Duration {
	if testkit.Thorough {
		return thorough
	}
	return usual
}

// seeded returns a random number generator for the test and logs its seed.
func seeded(t testing.TB) *rand.Rand {
	t.Helper()
	seed := rand.Uint64()
	if s := os.Getenv(envSeed); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("%s: %v", envSeed, err)
		}
	}
	t.Logf("%s=%d", envSeed, seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// TestServe starts a server, creates a znode, stops the server with SIGTERM and starts it
// again on the same directory. The znode must still exist.
func TestServe(t *testing.T) {
	t.Parallel()
	first := startLockkeeper(t)
	conn := connect(t, first.addr, 10*time.Second)
	if _, err := conn.Create("/kept", []byte("data"), 0, openACL); err != nil {
		t.Fatalf("create /kept: %v", err)
	}
	conn.Close()
	first.Stop()

	second := startLockkeeper(t, "--data", first.dir)
	data, _, err := connect(t, second.addr, 10*time.Second).Get("/kept")
	if err != nil || string(data) != "data" {
		t.Fatalf("get /kept after the restart: %q, %v", data, err)
	}

	// A second process on the same directory must be refused, with a one-line message.
	third := execLockkeeper(t, "--data", first.dir)
	select {
	case <-third.exited:
	case line := <-third.stderr.match:
		t.Fatalf("two servers on one data directory: %s", line)
	case <-time.After(startDeadline):
		t.Fatalf("a second server on the directory neither serves nor gives up within %v", startDeadline)
	}
	if third.state.Success() {
		t.Fatal("a second server on the directory ended with success")
	}
	if text := strings.TrimSpace(third.stderr.String()); text == "" || strings.Contains(text, "\n") {
		t.Errorf("a directory in use should be refused with one line, not with %q", text)
	}
}
