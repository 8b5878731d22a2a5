//go:build interop

package interop

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/internal/tools/stock"
)

// TestUpgrade upgrades a cluster from the last release to this version, a member at a time and the
// leader last, as docs/operations.md says, and then downgrades it in the same way. Meanwhile clients
// write: no session ends, no acknowledged write is lost, and a lock stays with its holder. On each way one
// member comes back without its data, so that it gets a snapshot from members of the other version.
func TestUpgrade(t *testing.T) {
	old := olderBinary(t)
	e := newEnsemble(t, 3)
	this := e.runs[0]
	for i := range e.procs {
		e.runs[i] = old
		e.launch(i)
	}
	e.await()
	rewrite(t, e.listen[0], "/large", func() bool {
		for i := range e.procs {
			if oldestEntry(t, e.data(i)) == 1 {
				return false
			}
		}
		return true
	})
	streams := startStreams(t, e.listen, seeded(t))
	var stays []*stayer
	for range 4 {
		stays = append(stays, startStayer(t, e.listen))
	}
	progress := func() {
		t.Helper()
		for _, s := range stays {
			s.progress()
		}
	}
	held := holdThroughout(t, e.listen)
	for _, way := range []struct{ name, to string }{{"upgrade", this}, {"downgrade", old}} {
		began := time.Now()
		leader := e.leader()
		for n := range e.procs {
			i := (leader + 1 + n) % len(e.procs) // the leader last
			e.stop(i)
			if n == 0 {
				if err := os.RemoveAll(e.data(i)); err != nil {
					t.Fatal(err)
				}
			}
			progress()
			e.runs[i] = way.to
			e.launch(i)
			e.await()
			progress()
			if n == 0 {
				e.caughtUp(i)
			}
			if e.up(i).cmd.Path != way.to {
				t.Fatalf("server %d runs %s", i+1, e.procs[i].cmd.Path)
			}
			held.still()
		}
		t.Logf("%s of all members, one by one: %v", way.name, time.Since(began).Round(time.Millisecond))
	}
	held.end()
	writes := 0
	for _, s := range stays {
		writes += s.end()
	}
	sent, acked, segments := endStreams(t, e.listen[0], streams)
	t.Logf("%d clients kept their sessions and wrote %d times; %d creates sent on %d connections, %d acknowledged", len(stays), writes, sent, segments, acked)
	e.finish()
}

// caughtUp waits until a member that came back without its data has it again and votes, so that
// the next one may be stopped.
func (e *ensemble) caughtUp(i int) {
	e.t.Helper()
	var out []byte
	for deadline := time.Now().Add(startDeadline); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		status := exec.Command(lockkeeperBinary(e.t), "cluster", "status", "--peer", e.peers[i])
		status.Env = cleanEnv()
		var err error
		if out, err = status.CombinedOutput(); err == nil { // all members are well
			if oldestEntry(e.t, e.data(i)) == 1 {
				e.t.Fatalf("server %d got no snapshot", i+1)
			}
			return
		}
	}
	e.t.Fatalf("the cluster is not well again:\n%s", out)
}

// olderBinary builds the version of the last tag. It skips the test if there is none.
func olderBinary(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("../.ci/base").Output()
	commit, what, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if err != nil || !strings.HasPrefix(what, "tag ") {
		t.Skip("there is no release before this version")
	}
	dir := filepath.Join(scratch, "old")
	path := filepath.Join(scratch, "lockkeeper-old")
	build := exec.Command("bash", "-euo", "pipefail", "-c", `mkdir "$1" && git -C .. -c safe.directory='*' archive "$3" | tar -x -C "$1"
		go build -C "$1" -buildvcs=false -pgo=off -o "$2" ./cmd/lockkeeper`, "bash", dir, path, commit)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building %s: %v\n%s", what, err, out)
	}
	t.Logf("the earlier version is %s", what)
	return path
}

// keptLock is a lock that one client holds and another one waits for.
type keptLock struct {
	t       *testing.T
	holder  *zk.Conn
	session int64
	ticket  ticket
	next    chan error // the other client has the lock
}

// holdThroughout takes a lock, for which a second client waits. Both are clients of all servers.
func holdThroughout(t *testing.T, addrs []string) *keptLock {
	t.Helper()
	const dir = "/throughout"
	var conns [2]*zk.Conn
	for i := range conns {
		var err error
		if conns[i], _, err = zk.Connect(addrs, 40*time.Second, zk.WithLogInfo(false), zk.WithLogger(stock.Quiet{})); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conns[i].Close)
	}
	create(t, conns[0], dir)
	k := &keptLock{t: t, holder: conns[0], next: make(chan error, 1)}
	var err error
	if k.ticket, err = lock(t.Context(), k.holder, dir); err != nil {
		t.Fatal(err)
	}
	k.session = k.holder.SessionID()
	waits, err := enqueue(conns[1], dir)
	if err != nil {
		t.Fatal(err)
	}
	go func() { k.next <- waitsOn(t.Context(), conns[1], waits) }()
	return k
}

// waitsOn waits for the lock, through lost connections.
func waitsOn(ctx context.Context, conn *zk.Conn, t ticket) error {
	for {
		err := await(ctx, conn, t)
		if !errors.Is(err, zk.ErrConnectionClosed) && !errors.Is(err, zk.ErrNoServer) && !errors.Is(err, zk.ErrSessionMoved) {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// still checks that the holder has the lock, and the other client has not.
func (k *keptLock) still() {
	k.t.Helper()
	var stat *zk.Stat
	var err error = zk.ErrConnectionClosed
	for deadline := time.Now().Add(startDeadline); (err == zk.ErrConnectionClosed || err == zk.ErrNoServer) && time.Now().Before(deadline); {
		_, stat, err = k.holder.Get(k.ticket.path)
	}
	if err != nil || stat.EphemeralOwner != k.session || k.holder.SessionID() != k.session {
		k.t.Fatalf("the holder has lost the lock: %+v, %v", stat, err)
	}
	select {
	case err := <-k.next:
		k.t.Fatalf("the other client has the lock as well: %v", err)
	default:
	}
}

// end releases the lock, after which the other client must have it.
func (k *keptLock) end() {
	k.t.Helper()
	k.still()
	if err := unlock(k.holder, k.ticket); err != nil {
		k.t.Fatal(err)
	}
	select {
	case err := <-k.next:
		if err != nil {
			k.t.Fatal(fmt.Errorf("the other client: %w", err))
		}
	case <-time.After(startDeadline):
		k.t.Fatal("the other client does not get the lock")
	}
}
