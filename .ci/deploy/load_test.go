//go:build linux

package deploy

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/internal/tools/stock"
	"github.com/lockkeeper/lockkeeper/lock"
)

// hosts is a zk.HostProvider whose names are resolved when they are dialled.
type hosts struct {
	servers []string
	next    int
}

func (h *hosts) Init(servers []string) error { h.servers = servers; return nil }
func (h *hosts) Len() int                    { return len(h.servers) }
func (h *hosts) Connected()                  {}

func (h *hosts) Next() (string, bool) {
	h.next++
	return h.servers[h.next%len(h.servers)], h.next%len(h.servers) == 0
}

// load is what clients do all the time: one holds a lock, and others write. They connect to the first three members, by
// their names.
type load struct {
	t       *testing.T
	n       *node
	cancel  context.CancelFunc
	clients sync.WaitGroup
	kept    *lock.Held // for the whole time

	mu    sync.Mutex
	wrote []string // znodes whose creation was acknowledged
}

const writers = 3

// connect opens a session, which must not end before the test.
func (n *node) connect(first int) (*zk.Conn, *lock.Dialer) {
	n.t.Helper()
	d := &lock.Dialer{Base: n.dial}
	var servers []string
	for id := range 3 {
		servers = append(servers, fmt.Sprintf("%s.%s.%s.svc:2181", n.podName(id+1), n.set.Spec.ServiceName, namespace))
	}
	conn, events, err := zk.Connect(servers, 40*time.Second, zk.WithDialer(d.Dial), zk.WithHostProvider(&hosts{next: first}), zk.WithLogger(stock.Quiet{}),
		zk.WithEventCallback(func(e zk.Event) {
			if e.State == zk.StateExpired {
				n.t.Error("a session has expired")
			}
		}))
	check(n.t, err)
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	check(n.t, stock.Await(ctx, events))
	return conn, d
}

func startLoad(n *node) *load {
	n.t.Helper()
	l := &load{t: n.t, n: n}
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel = cancel
	n.t.Cleanup(func() { cancel(); l.clients.Wait() })
	conn, dialer := n.connect(0)
	_, err := conn.Create("/wrote", nil, 0, zk.WorldACL(zk.PermAll))
	check(n.t, err)
	l.kept = must(lock.NewMutex(conn, "/locks/kept", lock.WithDialer(dialer)).Lock(ctx))(n.t)
	n.t.Cleanup(conn.Close)
	for i := range writers {
		conn, _ := n.connect(i)
		l.clients.Go(func() { defer conn.Close(); l.write(ctx, conn) })
	}
	l.progress()
	return l
}

// write creates znodes.
func (l *load) write(ctx context.Context, conn *zk.Conn) {
	for ctx.Err() == nil {
		path, err := conn.Create("/wrote/n-", nil, zk.FlagSequence, zk.WorldACL(zk.PermAll))
		if err != nil {
			time.Sleep(20 * time.Millisecond) // it was perhaps created, but that was not acknowledged
			continue
		}
		l.mu.Lock()
		l.wrote = append(l.wrote, path)
		l.mu.Unlock()
		time.Sleep(5 * time.Millisecond)
	}
}

// progress waits until clients have written.
func (l *load) progress() {
	l.t.Helper()
	written := func() int { l.mu.Lock(); defer l.mu.Unlock(); return len(l.wrote) }
	wrote := written()
	l.n.await("progress of the clients", func() bool { return written() > wrote+writers })
}

// end stops the clients, and checks that nothing was lost, by what the given members say.
func (l *load) end(ids ...int) {
	t := l.t
	t.Helper()
	l.progress()
	l.cancel()
	l.clients.Wait()
	if err := l.kept.Err(); err != nil {
		t.Errorf("the lock that was held all the time was lost: %v", err)
	}
	for _, id := range ids {
		l.holds(id)
	}
	t.Logf("%d znodes", len(l.wrote))
}

// holds checks that a member has all that was acknowledged.
func (l *load) holds(id int) {
	t := l.t
	t.Helper()
	dial := func(_, _ string, timeout time.Duration) (net.Conn, error) {
		return l.n.dial("tcp", fmt.Sprintf("%s.%s.%s.svc:2181", l.n.podName(id), l.n.set.Spec.ServiceName, namespace), timeout)
	}
	conn, events, err := zk.Connect([]string{"member"}, 20*time.Second, zk.WithDialer(dial), zk.WithHostProvider(&hosts{}), zk.WithLogger(stock.Quiet{}))
	check(t, err)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	check(t, stock.Await(ctx, events))
	must(conn.Sync("/"))(t)
	names, _, err := conn.Children("/wrote")
	check(t, err)
	there := map[string]bool{}
	for _, name := range names {
		there["/wrote/"+name] = true
	}
	for _, path := range l.wrote {
		if !there[path] {
			t.Errorf("member %d does not have %s, whose creation was acknowledged", id, path)
		}
	}
}
