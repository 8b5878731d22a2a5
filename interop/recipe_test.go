//go:build interop

package interop

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
)

// The lock recipe, over the primitives of the stock client only.

var openACL = zk.WorldACL(zk.PermAll)

// ticket is a place in the queue of a lock.
type ticket struct {
	path string
	seq  int64
}

// enqueue takes a ticket: an ephemeral sequential child of dir.
func enqueue(conn *zk.Conn, dir string) (ticket, error) {
	p, err := conn.Create(dir+"/n-", nil, zk.FlagEphemeral|zk.FlagSequence, openACL)
	if err != nil {
		return ticket{}, fmt.Errorf("create %s/n-: %w", dir, err)
	}
	seq, err := sequence(p)
	return ticket{p, seq}, err
}

// sequence is the number at the end of a sequential znode's name.
func sequence(name string) (int64, error) {
	i := strings.LastIndexByte(name, '-')
	seq, err := strconv.ParseInt(name[i+1:], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%q does not end in a sequence number", name)
	}
	return seq, nil
}

var errTicketGone = errors.New("own znode is gone")

// await blocks until the ticket is first in line. It watches the one before it
// and lists again when that is gone, be it before or after the watch was set.
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

// lock takes a ticket and waits until it is first.
func lock(ctx context.Context, conn *zk.Conn, dir string) (ticket, error) {
	t, err := enqueue(conn, dir)
	if err != nil {
		return t, err
	}
	return t, await(ctx, conn, t)
}

// tryLock is lock with patience: when the lock is not ours in time it takes the
// ticket back and says false.
func tryLock(conn *zk.Conn, dir string, patience time.Duration) (ticket, bool, error) {
	t, err := enqueue(conn, dir)
	if err != nil {
		return t, false, err
	}
	ok, err := awaitFor(conn, t, patience)
	return t, ok, err
}

// awaitFor is await with patience: out of it, the ticket is taken back.
func awaitFor(conn *zk.Conn, t ticket, patience time.Duration) (bool, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := await(ctx, conn, t)
	if errors.Is(err, context.DeadlineExceeded) {
		return false, unlock(conn, t)
	}
	return err == nil, err
}

func unlock(conn *zk.Conn, t ticket) error {
	if err := conn.Delete(t.path, -1); err != nil {
		return fmt.Errorf("delete %s: %w", t.path, err)
	}
	return nil
}

// connect gives a stock client with a session, closed when the test ends.
func connect(t testing.TB, addr string, timeout time.Duration) *zk.Conn {
	t.Helper()
	log := &clientLog{t: t}
	t.Cleanup(log.end)
	conn, events, err := zk.Connect([]string{addr}, timeout, zk.WithLogInfo(false), zk.WithLogger(log))
	if err != nil {
		t.Fatalf("connect to %s: %v", addr, err)
	}
	t.Cleanup(conn.Close)
	giveUp := time.After(startDeadline)
	for {
		select {
		case ev, open := <-events:
			if !open {
				t.Fatalf("connect to %s: the client gave up", addr)
			}
			if ev.State == zk.StateHasSession {
				return conn
			}
		case <-giveUp:
			t.Fatalf("no session at %s within %v", addr, startDeadline)
		}
	}
}

// clientLog sends what a client logs to its test, for as long as that runs.
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

// endpoint is a server for tests that neither kill it nor depend on its
// settings: one of its own, or the one that LOCKKEEPER_INTEROP_ADDR names. All
// znodes belong below base.
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

// create makes a plain znode.
func create(t testing.TB, conn *zk.Conn, path string) {
	t.Helper()
	if _, err := conn.Create(path, nil, 0, openACL); err != nil {
		t.Fatalf("create %s: %v", path, err)
	}
}

// children lists a znode and fails the test when it cannot.
func children(t testing.TB, conn *zk.Conn, path string) []string {
	t.Helper()
	names, _, err := conn.Children(path)
	if err != nil {
		t.Fatalf("children of %s: %v", path, err)
	}
	slices.Sort(names)
	return names
}
