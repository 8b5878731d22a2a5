package cluster

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// wires is a network between hosts a, b and so on, whose connections a test can watch, slow
// down and break as real ones break.
type wires struct {
	*memnet.Network
	came atomic.Pointer[func(w *wire)] // called after bytes were read from a connection; it may block
	rate atomic.Int64                  // how many bytes a second are written to a connection; 0 is no limit

	mu   sync.Mutex
	ends map[*wire]struct{}
}

func newWires() *wires { return &wires{Network: memnet.New(), ends: map[*wire]struct{}{}} }

// wire is one end of a connection.
type wire struct {
	net.Conn
	n        *wires
	from, to string // the host that dialed, and the other
	dialed   bool   // this is the end of the host that dialed
	gone     chan struct{}
	once     sync.Once

	mu        sync.Mutex
	kind      byte // 0 until the first byte
	read      int  // bytes
	forgotten bool
	hole      net.Conn // what is read from when the connection is forgotten
}

type wiresHost struct {
	n    *wires
	name string
}

func (n *wires) host(name string) Network { return wiresHost{n, name} }

func (h wiresHost) Dial(ctx context.Context, addr string) (net.Conn, error) {
	c, err := h.n.Host(h.name).Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return h.n.wrap(&wire{Conn: c, from: h.name, to: addr[:1], dialed: true}), nil
}

func (h wiresHost) Listen(addr string) (net.Listener, error) {
	l, err := h.n.Host(h.name).Listen(addr)
	return wiresListener{l, h}, err
}

type wiresListener struct {
	net.Listener
	h wiresHost
}

func (l wiresListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.h.n.wrap(&wire{Conn: c, from: c.RemoteAddr().String(), to: l.h.name}), nil
}

func (n *wires) wrap(w *wire) *wire {
	w.n, w.gone = n, make(chan struct{})
	w.hole, _ = net.Pipe()
	n.mu.Lock()
	n.ends[w] = struct{}{}
	n.mu.Unlock()
	return w
}

// forget makes those connections that match carry nothing any more, without ending them, as
// when a firewall has forgotten them or TCP waits long until it sends again.
func (n *wires) forget(match func(w *wire) bool) (forgotten int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for w := range n.ends {
		w.mu.Lock()
		if match(w) && !w.forgotten {
			w.forgotten = true
			forgotten++
			w.Conn.SetReadDeadline(time.Unix(1, 0))
			w.Conn.SetWriteDeadline(time.Unix(1, 0))
		}
		w.mu.Unlock()
	}
	return forgotten
}

func (w *wire) note(p []byte, read int) (forgotten bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.kind == 0 && len(p) > 0 {
		w.kind = p[0]
	}
	w.read += read
	return w.forgotten
}

func (w *wire) Read(p []byte) (int, error) {
	forgotten := w.note(nil, 0)
	var n int
	var err error
	if !forgotten {
		n, err = w.Conn.Read(p)
		forgotten = w.note(p[:n], n)
	}
	if forgotten {
		if n, err = w.hole.Read(p); err == io.ErrClosedPipe {
			err = net.ErrClosed
		}
		return n, err
	}
	if came := w.n.came.Load(); came != nil && n > 0 {
		(*came)(w)
	}
	return n, err
}

func (w *wire) Write(p []byte) (int, error) {
	select {
	case <-w.gone:
		return 0, net.ErrClosed
	default:
	}
	if w.note(p, 0) {
		return len(p), nil
	}
	if rate := w.n.rate.Load(); rate > 0 {
		select {
		case <-time.After(time.Duration(float64(len(p)) / float64(rate) * float64(time.Second))):
		case <-w.gone:
			return 0, net.ErrClosed
		}
	}
	n, err := w.Conn.Write(p)
	if w.note(nil, 0) {
		return len(p), nil
	}
	return n, err
}

func (w *wire) SetDeadline(t time.Time) error {
	w.SetReadDeadline(t)
	return w.SetWriteDeadline(t)
}

func (w *wire) SetReadDeadline(t time.Time) error {
	w.hole.SetReadDeadline(t)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.forgotten {
		return nil
	}
	return w.Conn.SetReadDeadline(t)
}

func (w *wire) SetWriteDeadline(t time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.forgotten {
		return nil
	}
	return w.Conn.SetWriteDeadline(t)
}

func (w *wire) Close() error {
	w.once.Do(func() { close(w.gone) })
	w.n.mu.Lock()
	delete(w.n.ends, w)
	w.n.mu.Unlock()
	w.hole.Close()
	return w.Conn.Close()
}

// open starts three members, or as many as count says, on this network, and returns them and
// the leader's index.
func (n *wires) open(t *testing.T, count int, change func(*Config)) (members []*Member, lead int) {
	t.Helper()
	return openMembers(t, count, n.host, change)
}

func hostOf(m *Member) string { return m.cfg.addr()[:1] }

// fillsIn is the session in which fill creates znodes.
func fillsIn(m *Member) int64 { return 70 + int64(m.cfg.ID) }

// fill creates znodes with so many bytes each, through a member, so that snapshots are long.
func fill(t *testing.T, m *Member, prefix string, znodes, size int) {
	t.Helper()
	id := fillsIn(m)
	if !m.hasSession(id) {
		w := make(outcome, 1)
		m.Propose(fsm.OpenSession(1, id, 30_000_000, session.Password{}), w, nil)
		if r := <-w; r == nil || r.Code != proto.OK {
			t.Fatalf("open session: %+v", r)
		}
	}
	for i := range znodes {
		data := make([]byte, size)
		rand.Read(data)
		q := proto.CreateRequest{Path: fmt.Sprint("/", prefix, i), Data: data, ACL: proto.OpenACL}
		w := make(outcome, 1)
		m.Propose(&fsm.Command{Op: proto.OpCreate, Session: id, Conn: 1, Body: q.Append(nil)}, w, nil)
		if r := <-w; r == nil || r.Code != proto.OK {
			t.Fatalf("create: %+v", r)
		}
	}
}

// stopUntilSnapshot closes a member, writes 8 MB through the leader, and leaves the leader
// only a snapshot to send. It returns a function that starts the member again.
func stopUntilSnapshot(t *testing.T, stopped, leader *Member) (again func() *Member) {
	t.Helper()
	again = stopMember(t, stopped)
	fill(t, leader, "long", 40, 200_000)
	time.Sleep(time.Second) // for the snapshots that are due
	fill(t, leader, "last", 1, 1)
	onlySnapshot(t, leader)
	return again
}

// onlySnapshot leaves a member only a snapshot to send to members that lag.
func onlySnapshot(t *testing.T, m *Member) {
	t.Helper()
	r := m.raft.ReloadableConfig()
	r.TrailingLogs = 1
	if err := m.raft.ReloadConfig(r); err != nil {
		t.Fatal(err)
	}
	if err := m.raft.Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
}

// stopMember closes a member, unless it is closed, and returns a function that starts it again.
func stopMember(t *testing.T, m *Member) (again func() *Member) {
	t.Helper()
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	return func() *Member {
		m, err := openMember(m.cfg, fsm.NewReplica())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		return m
	}
}

// TestNeededMemberOnSlowLink: of three members one is down. Another one missed 8 MB, and is behind a slow
// link. It is needed for a majority. The leader's heartbeats wait on the link behind the entries, or behind the
// snapshot.
func TestNeededMemberOnSlowLink(t *testing.T) {
	for _, rate := range []int{140 << 10, 256 << 10, 300 << 10, 400 << 10} {
		for _, snapshot := range []bool{false, true} {
			if snapshot && rate < 256<<10 {
				continue
			}
			t.Run(fmt.Sprintf("%d KiB per s, snapshot %v", rate>>10, snapshot), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					net := newWires()
					members, lead := net.open(t, 3, func(c *Config) { c.SnapshotBytes = 1 << 30 })
					leader, late, third := members[lead], members[(lead+1)%3], members[(lead+2)%3]
					var again func() *Member
					if snapshot {
						again = stopUntilSnapshot(t, late, leader)
					} else {
						again = stopMember(t, late)
						fill(t, leader, "n", 9, 900_000)
					}
					net.SetBandwidth(hostOf(leader), hostOf(late), rate)
					net.SetBandwidth(hostOf(late), hostOf(leader), rate)
					stopMember(t, third)
					term := leader.raft.CurrentTerm()
					began := time.Now()
					late = again()
					most := time.Duration(8<<20/rate+1) * time.Second
					acked := make(chan struct{})
					go func() {
						for w := make(result, 1); ; time.Sleep(10 * time.Millisecond) {
							leader.Propose(someWrite(), w, nil)
							if err := <-w; err == nil || leader.killed.Load() {
								close(acked)
								return
							}
						}
					}()
					select {
					case <-acked:
					case <-time.After(5*most + time.Minute):
						t.Errorf("rate %d, snapshot %v: nothing is acknowledged in %v; term %d, was %d; the late one has %d of %d", rate, snapshot, time.Since(began), leader.raft.CurrentTerm(), term, late.commits.applied(), leader.raft.LastIndex())
						leader.Kill()
						late.Kill()
						return
					}
					t.Logf("rate %d, snapshot %v: a write after %v (8 MB take %v); term %d, was %d", rate, snapshot, time.Since(began), most, leader.raft.CurrentTerm(), term)
				})
			})
		}
	}
}
