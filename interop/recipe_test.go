//go:build interop

package interop

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/internal/tools/stock"
)

// The lock recipe, with only the primitives of go-zookeeper.

var openACL = zk.WorldACL(zk.PermAll)

// ticket is a position in the queue of a lock.
type ticket struct {
	path string
	seq  int64
}

// enqueue creates a ticket: an ephemeral sequential child of dir.
func enqueue(conn *zk.Conn, dir string) (ticket, error) {
	p, err := conn.Create(dir+"/n-", nil, zk.FlagEphemeral|zk.FlagSequence, openACL)
	if err != nil {
		return ticket{}, fmt.Errorf("create %s/n-: %w", dir, err)
	}
	seq, err := sequence(p)
	return ticket{p, seq}, err
}

// sequence returns the number at the end of a sequential znode's name.
func sequence(name string) (int64, error) {
	i := strings.LastIndexByte(name, '-')
	seq, err := strconv.ParseInt(name[i+1:], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%q does not end in a sequence number", name)
	}
	return seq, nil
}

var errTicketGone = errors.New("own znode is gone")

// await blocks until the ticket is the first in the queue. It watches the previous znode,
// and lists the queue again when that is deleted, before or after the watch was set.
func await(ctx context.Context, conn *zk.Conn, t ticket) error {
	dir := path.Dir(t.path)
	for {
		names, _, err := conn.Children(dir)
		if err != nil {
			return fmt.Errorf("children of %s: %w", dir, err)
		}
		queue := make([]ticket, len(names))
		for i, name := range names {
			seq, err := sequence(name)
			if err != nil {
				return err
			}
			queue[i] = ticket{dir + "/" + name, seq}
		}
		slices.SortFunc(queue, func(a, b ticket) int { return cmp.Compare(a.seq, b.seq) })
		at := slices.Index(queue, t)
		if at < 0 {
			return fmt.Errorf("%s: %w", t.path, errTicketGone)
		}
		if at == 0 {
			return nil
		}
		before := queue[at-1].path
		exists, _, gone, err := conn.ExistsW(before)
		if err != nil {
			return fmt.Errorf("exists %s: %w", before, err)
		}
		if !exists {
			continue
		}
		select {
		case ev := <-gone:
			if ev.Err != nil {
				return fmt.Errorf("watch of %s: %w", before, ev.Err)
			}
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", before, ctx.Err())
		}
	}
}

// lock creates a ticket and waits until it is the first.
func lock(ctx context.Context, conn *zk.Conn, dir string) (ticket, error) {
	t, err := enqueue(conn, dir)
	if err != nil {
		return t, err
	}
	return t, await(ctx, conn, t)
}

// tryLock is like lock with a time limit. If it does not get the lock in time, it deletes
// the ticket and returns false.
func tryLock(conn *zk.Conn, dir string, patience time.Duration) (ticket, bool, error) {
	t, err := enqueue(conn, dir)
	if err != nil {
		return t, false, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err = await(ctx, conn, t)
	if errors.Is(err, context.DeadlineExceeded) {
		return t, false, unlock(conn, t)
	}
	return t, err == nil, err
}

func unlock(conn *zk.Conn, t ticket) error {
	if err := conn.Delete(t.path, -1); err != nil {
		return fmt.Errorf("delete %s: %w", t.path, err)
	}
	return nil
}

// connect returns a go-zookeeper client with a session. It is closed at the end of the test.
func connect(t testing.TB, addr string, timeout time.Duration) *zk.Conn {
	t.Helper()
	return connectBy(t, addr, timeout, net.DialTimeout)
}

// connectBy is connect with another dialer.
func connectBy(t testing.TB, addr string, timeout time.Duration, dial zk.Dialer) *zk.Conn {
	t.Helper()
	log := &clientLog{t: t}
	t.Cleanup(log.end)
	conn, events, err := zk.Connect([]string{addr}, timeout, zk.WithDialer(dial), zk.WithLogInfo(false), zk.WithLogger(log))
	if err != nil {
		t.Fatalf("connect to %s: %v", addr, err)
	}
	t.Cleanup(conn.Close)
	ctx, cancel := context.WithTimeout(context.Background(), startDeadline)
	defer cancel()
	if err := stock.Await(ctx, events); err != nil {
		t.Fatalf("connect to %s: %v", addr, err)
	}
	return conn
}

// clientLog forwards a client's log to its test while the test runs.
type clientLog struct {
	mu sync.Mutex
	t  testing.TB
}

func (l *clientLog) Printf(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.t != nil {
		l.t.Logf("client: "+format, args...)
	}
}

func (l *clientLog) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.t = nil
}

// endpoint returns a server for tests that neither kill it nor depend on its settings: a
// new one, or the one that LOCKKEEPER_INTEROP_ADDR names. All znodes must be below base.
func endpoint(t testing.TB) (addr, base string) {
	t.Helper()
	addr = os.Getenv(envAddr)
	if addr == "" {
		return startLockkeeper(t).addr, ""
	}
	base = fmt.Sprintf("/interop-%d", time.Now().UnixNano())
	create(t, connect(t, addr, 10*time.Second), base)
	return addr, base
}

// create creates a persistent znode.
func create(t testing.TB, conn *zk.Conn, path string) {
	t.Helper()
	if _, err := conn.Create(path, nil, 0, openACL); err != nil {
		t.Fatalf("create %s: %v", path, err)
	}
}

// children returns the children of a znode. It ends the test if there is an error.
func children(t testing.TB, conn *zk.Conn, path string) []string {
	t.Helper()
	names, _, err := conn.Children(path)
	if err != nil {
		t.Fatalf("children of %s: %v", path, err)
	}
	slices.Sort(names)
	return names
}
