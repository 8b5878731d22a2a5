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
)

// The environment of these tests; README.md explains it to people.
const (
	envBinary = "LOCKKEEPER_INTEROP_BINARY" // test this binary instead of building one
	envAddr   = "LOCKKEEPER_INTEROP_ADDR"   // test this endpoint where no server must be started or killed
	envSeed   = "LOCKKEEPER_INTEROP_SEED"   // repeat the random choices of an earlier run
	envKills  = "LOCKKEEPER_INTEROP_KILLS"  // how often TestKilledServer kills
	envKeep   = "LOCKKEEPER_INTEROP_KEEP"   // keep the crash tests' data directories here
	envRole   = "LOCKKEEPER_INTEROP_ROLE"   // set by the tests: this process is a part in one of them
)

// startDeadline is how long a server may take to say that it serves. It is far
// above what a start takes, since it only decides when a test gives up.
const startDeadline = time.Minute

// scratch is the temporary folder of the whole run; it holds the binary.
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

// built is the binary under test. The first test that needs it builds it, so that
// a package that does not build fails the tests that need it and no others.
var built = sync.OnceValues(func() (string, error) {
	if path := os.Getenv(envBinary); path != "" {
		return filepath.Abs(path)
	}
	path := filepath.Join(scratch, "lockkeeper")
	build := exec.Command("go", "build", "-buildvcs=false", "-o", path, "./cmd/lockkeeper")
	build.Dir = ".."
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build ./cmd/lockkeeper: %w\n%s", err, out)
	}
	return path, nil
})

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
	exited chan struct{} // closed when the process is gone; then state is set
	state  *os.ProcessState
}

// startLockkeeper starts `lockkeeper serve` on a free loopback port and waits
// until it says that it serves clients. Without --data or --memory among the
// arguments it gets a data directory of its own. The process is killed when the
// test ends, and its standard error is shown if the test failed.
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

// execLockkeeper starts the process and does not wait for it to serve.
func execLockkeeper(t testing.TB, args ...string) *lockkeeper {
	t.Helper()
	return execLockkeeperBy(t, nil, args...)
}

// execLockkeeperBy has another program, which becomes it, start the process.
func execLockkeeperBy(t testing.TB, by []string, args ...string) *lockkeeper {
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
	command := slices.Concat(by, []string{lockkeeperBinary(t), "serve"}, args)
	l.cmd = exec.Command(command[0], command[1:]...)
	l.cmd.Env = cleanEnv()
	l.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	l.stderr = &tail{want: servingLine, match: make(chan string, 1)}
	l.cmd.Stderr = l.stderr
	l.cmd.WaitDelay = 10 * time.Second // for a child of its own that keeps standard error open
	if err := l.cmd.Start(); err != nil {
		t.Fatalf("lockkeeper does not start: %v", err)
	}
	l.pid = l.cmd.Process.Pid
	go func() {
		l.cmd.Wait() // the state tells all, the error only repeats it
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

// Kill ends the process with SIGKILL and waits until it is gone.
func (l *lockkeeper) Kill() {
	l.cmd.Process.Kill() // an error means that it is gone already
	<-l.exited
}

// Stop ends the process with SIGTERM and fails the test unless it exits with 0.
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

// cleanEnv is the environment without LOCKKEEPER_ variables, which are flags to
// the server: a developer's own settings must not change what is tested.
func cleanEnv() []string {
	return slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "LOCKKEEPER_") })
}

// tail keeps the end of what a process prints, and hands out the first line that
// contains want.
type tail struct {
	want  string
	match chan string // capacity 1

	mu   sync.Mutex
	text bytes.Buffer
	line []byte // the last line, while it has no end
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

// seeded gives the test's source of random choices and prints its seed.
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

// TestServe is the shortest life of a server: start, one znode, SIGTERM, start
// again on the same directory, and the znode is there.
func TestServe(t *testing.T) {
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

	// A second process on the same directory must be refused, in one line.
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
