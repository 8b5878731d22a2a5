//go:build interop

package interop

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
)

// shownLock is a lock in the output of lock ls --json.
type shownLock struct {
	Path, Kind, Client string
	Slots              int
	Holders, Queue     []struct {
		Session, Znode, Address, Data string
		Token                         int64
		Left                          *int64 `json:"session_left_ms"`
	}
}

func (l *shownLock) String() string {
	return fmt.Sprintf("%s %s %s %d: %d+%d", l.Path, l.Kind, l.Client, l.Slots, len(l.Holders), len(l.Queue))
}

// runLock runs a lock command and returns its exit code and output.
func runLock(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	cmd := exec.Command(lockkeeperBinary(t), append([]string{"lock"}, args...)...)
	cmd.Env = cleanEnv()
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.Run()
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// lsLocks runs lock ls --json.
func lsLocks(t *testing.T, addr string) []shownLock {
	t.Helper()
	code, stdout, stderr := runLock(t, "ls", "--json", "--server", addr)
	var l struct{ Locks []shownLock }
	if err := json.Unmarshal([]byte(stdout), &l); code != 0 || err != nil {
		t.Fatalf("lock ls: %d %v %q", code, err, stderr)
	}
	return l.Locks
}

// hold runs a program that holds locks until the test ends, and waits until it does.
func hold(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	log := &tail{}
	cmd.Stderr = log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdin := must(cmd.StdinPipe())(t)
	stdout := must(cmd.StdoutPipe())(t)
	check(t, cmd.Start())
	t.Cleanup(func() {
		stdin.Close()
		cmd.Process.Kill()
		cmd.Wait()
	})
	if lines := bufio.NewScanner(stdout); !lines.Scan() || lines.Text() != "held" {
		t.Fatalf("%s says %q, not held:\n%s", cmd, lines.Text(), log)
	}
}

// TestLockCommand lists, checks and breaks the locks of unmodified clients on ZooKeeper 3.9
// and on lockkeeper, and takes them by lock run.
func TestLockCommand(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) string{
		"ZooKeeper": func(t *testing.T) string {
			return startZooKeeper(t, zk39, nil, merged(withWords, anyClients)).addr
		},
		"lockkeeper": func(t *testing.T) string { return startLockkeeper(t).addr },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr := start(t)
			hold(t, clientCommand(clientCache(t, "kazoo/bin/python"), "-u", "clients/kazoo/holder.py", addr))
			classpath := must(javaClients())(t)
			hold(t, javaCommand("-Xmx256m", "-cp", classpath, "LockHolder", addr))
			first, second := connect(t, addr, 10*time.Second), connect(t, addr, 10*time.Second)
			mutex := zk.NewLock(first, "/go/mutex", zk.WorldACL(zk.PermAll))
			check(t, mutex.Lock())
			next := make(chan error, 1)
			go func() { next <- zk.NewLock(second, "/go/mutex", zk.WorldACL(zk.PermAll)).Lock() }()

			want := []string{
				"/curator/latch election curator 0: 1+1",
				"/curator/mutex mutex curator 0: 1+1",
				"/curator/rw read/write curator 0: 2+1",
				"/curator/semaphore semaphore curator 0: 2+1",
				"/go/mutex mutex go-zookeeper 0: 1+1",
				"/kazoo/election mutex kazoo 0: 1+0",
				"/kazoo/mutex mutex kazoo 0: 1+1",
				"/kazoo/rw read/write kazoo 0: 2+1",
				"/kazoo/semaphore semaphore kazoo 2: 2+1",
			}
			var found []shownLock
			var got []string
			for deadline := time.Now().Add(programDeadline); time.Now().Before(deadline) && !slices.Equal(got, want); time.Sleep(100 * time.Millisecond) {
				found, got = lsLocks(t, addr), nil // those who wait queue up in the background
				for i := range found {
					got = append(got, found[i].String())
				}
			}
			if !slices.Equal(got, want) {
				t.Fatalf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			for _, l := range found {
				for _, c := range append(l.Holders, l.Queue...) {
					if c.Session == "" || c.Token == 0 || !strings.HasPrefix(c.Address, "127.0.0.1:") || c.Left == nil {
						t.Errorf("%s: %+v", l.Path, c)
					}
				}
			}

			// The data that kazoo's holder has given itself as its identifier.
			if i := slices.IndexFunc(found, func(l shownLock) bool { return l.Path == "/kazoo/mutex" }); found[i].Holders[0].Data != `worker 1\n` {
				t.Errorf("data: %+v", found[i])
			}

			// The clients' waits are in order.
			if code, stdout, stderr := runLock(t, "check", "--server", addr); code != 0 || strings.Contains(stdout, "watches-nobody") || stderr != "" {
				t.Errorf("lock check: %d %q %q", code, stdout, stderr)
			}
			// A znode whose client does not wait, and one that is not ephemeral.
			const guid = "/go/mutex/_c_0123456789abcdef0123456789abcdef-lock-"
			must(first.Create(guid, nil, zk.FlagSequence, zk.WorldACL(zk.PermAll)))(t)
			third := connect(t, addr, 10*time.Second)
			place := must(third.Create(guid, nil, zk.FlagEphemeral|zk.FlagSequence, zk.WorldACL(zk.PermAll)))(t)
			code, stdout, stderr := runLock(t, "check", "--server", addr, "/go")
			if code != 3 || strings.Count(stdout, "\n") != 2 || !strings.Contains(stdout, "orphan /go/mutex: ") || !strings.Contains(stdout, "watches-nobody /go/mutex: ") {
				t.Errorf("lock check: %d %q %q", code, stdout, stderr)
			}
			if err := third.Delete(place, -1); err != nil {
				t.Error(err)
			}

			for _, at := range []string{"/curator/mutex", "/kazoo/mutex", "/go/mutex"} {
				if code, _, stderr := runLock(t, "run", "--try", "--server", addr, at, "--", "true"); code != 124 {
					t.Errorf("lock run %s: %d %q", at, code, stderr)
				}
			}
			if code, _, stderr := runLock(t, "run", "--try", "--slots", "2", "--server", addr, "/curator/semaphore", "--", "true"); code != 124 {
				t.Errorf("lock run: %d %q", code, stderr)
			}
			if code, stdout, stderr := runLock(t, "run", "--server", addr, "/free", "--", "sh", "-c", "echo $LOCKKEEPER_TOKEN; exit 4"); code != 4 || len(stdout) < 2 {
				t.Errorf("lock run: %d %q %q", code, stdout, stderr)
			}
			if code, stdout, stderr := runLock(t, "break", "--yes", "--server", addr, "/go/mutex"); code != 0 {
				t.Errorf("lock break: %d %q %q", code, stdout, stderr)
			}
			if err := <-next; err != nil {
				t.Error(err)
			}
		})
	}
}
