//go:build interop

package interop

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/proto"
)

// TestWire records go-zookeeper clients that contend for a lock on ZooKeeper, give up
// waiting, or disappear. Replayed on lockkeeper, no frame may differ.
func TestWire(t *testing.T) {
	t.Parallel()
	zookeeper := startZooKeeper(t, zk38, nil, map[string]string{"tickTime": "500"}).addr
	file := filepath.Join(t.TempDir(), "lock.txt")
	addr, stop := startWire(t, zookeeper, "--record", file, "--only", "connect,conn,4lw")
	ctx, cancel := context.WithTimeout(t.Context(), programDeadline)
	defer cancel()

	const dir = "/locks/a"
	first := connect(t, addr, 10*time.Second)
	create(t, first, "/locks")
	create(t, first, dir)
	create(t, first, dir+"-new")
	var clients sync.WaitGroup
	for i := range 4 {
		conn := connect(t, addr, 10*time.Second)
		clients.Go(func() {
			defer conn.Close()
			for range 3 {
				take, where := byRecipe, dir
				if i%2 == 0 {
					take, where = byNewLock, dir+"-new" // its znodes have other names
				}
				if err := take(ctx, conn, where, func(int64) error { return nil }); err != nil {
					t.Error(err)
				}
			}
			// Some give up.
			if held, ok, err := tryLock(conn, dir, time.Millisecond); err != nil {
				t.Error(err)
			} else if ok {
				if err := unlock(conn, held); err != nil {
					t.Error(err)
				}
			}
		})
	}
	clients.Wait()
	if answer, err := fourLetterWord(addr, "srvr", rawTimeout); err != nil || !strings.Contains(answer, "Mode: standalone") {
		t.Errorf("srvr gives %q, %v", answer, err)
	}

	// A holder disappears without closing its session: the lock is free when the session expires.
	// The watch is on a connection of its own, without pings: one in flight when the session expires may be answered before or after
	// the event.
	gone := must(dialRaw(addr, 5*time.Second, 0, proto.ConnectReply{}))(t)
	must(gone.Create(dir+"/held", nil, proto.FlagEphemeral))(t)
	watcher := must(dialRaw(addr, 10*time.Second, 0, proto.ConnectReply{}))(t)
	must(watcher.Exists(dir+"/held", true))(t)
	gone.Close()
	f := must(watcher.Read())(t)
	if ev, ok := f.Event(); !ok || ev.Type != proto.EventNodeDeleted {
		t.Errorf("%+v", f)
	}
	watcher.Close()
	first.Close()
	if out := stop(); !strings.Contains(out, "<- connect {") {
		t.Errorf("the proxy prints\n%s", out)
	}

	began := time.Now()
	server := startLockkeeper(t, "--memory", "--tick-time", "500ms")
	replay := exec.Command(lockkeeperBinary(t), "wire", "replay", "--event-zxid", file, server.addr)
	replay.Env = cleanEnv()
	out, err := replay.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "the same in all ") {
		t.Errorf("%v\n%s", err, out)
	}
	t.Logf("%s in %v", strings.TrimSpace(string(out)), time.Since(began).Round(time.Millisecond))
}

// startWire starts `lockkeeper wire` as a proxy to a server. stop stops it and returns its
// output.
func startWire(t *testing.T, server string, args ...string) (addr string, stop func() string) {
	t.Helper()
	const line = "lockkeeper: proxying "
	cmd := exec.Command(lockkeeperBinary(t), append([]string{"wire", "--to", server}, args...)...)
	cmd.Env = cleanEnv()
	var stdout strings.Builder
	stderr := &tail{want: line, match: make(chan string, 1)}
	cmd.Stdout, cmd.Stderr = &stdout, stderr
	check(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	select {
	case text := <-stderr.match:
		if _, err := fmt.Sscanf(text, line+"%s to", &addr); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
	case <-time.After(startDeadline):
		t.Fatalf("the proxy does not start: %s", stderr)
	}
	return addr, func() string {
		cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("the proxy ends with %v: %s", err, stderr)
		}
		if got := strings.Count(stderr.String(), "\n"); got != 1 {
			t.Errorf("the proxy says %s", stderr)
		}
		return stdout.String()
	}
}
