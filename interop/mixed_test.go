//go:build interop

package interop

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	locks "github.com/lockkeeper/lockkeeper/lock"
)

// mixedSlots is how many may hold the semaphores of these tests. MixedLocks.java knows it,
// too.
const mixedSlots = 2

// TestMixedLocks lets clients of several kinds take the same lock, on lockkeeper and on
// ZooKeeper 3.9: package lock, go-zookeeper, and kazoo or Curator. kazoo and Curator do not
// take part together, because Curator does not see kazoo's znodes.
func TestMixedLocks(t *testing.T) {
	t.Parallel()
	classpath := must(javaClients())(t)
	kazoo := func(addr, path, dir, kind, turns string) *exec.Cmd {
		return clientCommand(clientCache(t, "kazoo/bin/python"), "-u", "clients/kazoo/mixed.py", addr, path, dir, kind, turns)
	}
	curator := func(addr, path, dir, kind, turns string) *exec.Cmd {
		return javaCommand("-Xmx128m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
			"-cp", classpath, "MixedLocks", addr, path, dir, kind, turns)
	}
	for _, server := range []string{"lockkeeper", "ZooKeeper"} {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			var addr string
			if server == "lockkeeper" {
				addr = startLockkeeper(t).addr
			} else {
				addr = startZooKeeper(t, zk39, nil, anyClients).addr
			}
			for _, x := range []struct {
				name   string
				client func(addr, path, dir, kind, turns string) *exec.Cmd
				kinds  []string
			}{
				{"kazoo", kazoo, []string{"mutex", "mutex"}},
				{"curator", curator, []string{"mutex", "mutex"}},
				{"kazoo-rw", kazoo, []string{"write", "read", "read"}},
				{"curator-rw", curator, []string{"write", "read", "read"}},
				{"curator-semaphore", curator, []string{"slot", "slot"}},
			} {
				t.Run(x.name, func(t *testing.T) { mixed(t, addr, "/mixed/"+x.name, x.kinds, x.client) })
			}
		})
	}
}

// mixed runs a foreign client for each kind, and as many of ours.
func mixed(t *testing.T, addr, path string, kinds []string, client func(addr, path, dir, kind, turns string) *exec.Cmd) {
	const turns = 20
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), programDeadline)
	defer cancel()
	var wg sync.WaitGroup
	foreign := make(chan struct{})
	var programs sync.WaitGroup
	for _, kind := range kinds {
		cmd := client(addr, path, dir, kind, fmt.Sprint(turns))
		log := &tail{}
		cmd.Stdout, cmd.Stderr = log, log
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		check(t, cmd.Start())
		stuck := time.AfterFunc(programDeadline, func() { cmd.Process.Kill() })
		programs.Go(func() {
			defer stuck.Stop()
			if err := cmd.Wait(); err != nil {
				t.Errorf("the client for %s: %v\n%s", kind, err, log)
			}
		})
	}
	go func() { programs.Wait(); close(foreign) }()

	// Ours take turns until the programs, which take long to start, have had theirs.
	goOn := func(i int) bool {
		select {
		case <-foreign:
			return i < turns
		default:
			return ctx.Err() == nil
		}
	}
	ours := 0
	var mu sync.Mutex
	for i, kind := range kinds {
		dialer := &locks.Dialer{}
		conn := connectBy(t, addr, 10*time.Second, dialer.Dial)
		take := ourLock(conn, dialer, path, kind)
		if kind == "mutex" && i == 1 {
			take = func(context.Context) (func() error, error) {
				l := zk.NewLock(conn, path, openACL)
				return l.Unlock, l.Lock()
			}
		}
		wg.Go(func() {
			for i := 0; goOn(i); i++ {
				unlock, err := take(ctx)
				if err != nil {
					t.Errorf("%s: %v", kind, err)
					return
				}
				if err := inside(dir, kind, i); err != nil {
					t.Error(err)
				}
				if err := unlock(); err != nil {
					t.Errorf("%s: %v", kind, err)
				}
				mu.Lock()
				ours++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	<-foreign
	t.Logf("%d turns of ours, %d of others", ours, turns*len(kinds))
}

// ourLock returns a function that takes a lock of package lock.
func ourLock(conn *zk.Conn, dialer *locks.Dialer, path, kind string) func(context.Context) (unlock func() error, err error) {
	granted := locks.WithDialer(dialer)
	rw := locks.NewRWMutex(conn, path, granted)
	take := map[string]func(context.Context) (*locks.Held, error){
		"mutex": locks.NewMutex(conn, path, granted).Lock, "write": rw.Lock, "read": rw.RLock,
		"slot": locks.NewSemaphore(conn, path, mixedSlots, granted).Lock,
	}[kind]
	return func(ctx context.Context) (func() error, error) {
		held, err := take(ctx)
		if err != nil {
			return nil, err
		}
		return func() error { return held.Unlock(ctx) }, nil
	}
}

// inside is what a holder does: it has a file in dir while it is inside, and looks at the
// files of the others.
func inside(dir, kind string, i int) error {
	me := fmt.Sprintf("%s-%d-%d", kind, i, time.Now().UnixNano())
	mine := filepath.Join(dir, me)
	if err := os.WriteFile(mine, nil, 0o600); err != nil {
		return err
	}
	defer os.Remove(mine)
	all, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if kind == "slot" && len(all) > mixedSlots {
		return fmt.Errorf("%d are inside", len(all))
	}
	for _, other := range all {
		name := other.Name()
		if name != me && kind != "slot" && (kind != "read" || !strings.HasPrefix(name, "read-")) {
			return fmt.Errorf("%s is inside together with %s", me, name)
		}
	}
	time.Sleep(2 * time.Millisecond)
	return nil
}
