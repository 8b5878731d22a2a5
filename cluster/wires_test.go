package cluster

import (
	"bytes"
	"context"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/peer"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
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

func (n *wires) host(name string) peer.Network { return wiresHost{n, name} }

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

// open starts three members, or as many as count says, on this network, and returns them and
// the leader's index.
func (n *wires) open(t *testing.T, count int, change func(*Config)) (members []*Member, lead int) {
	t.Helper()
	return openMembers(t, count, n.host, change)
}

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
	stream    bool // it is the leader's end of a stream: what is committed was written
	read      int  // bytes
	forgotten bool
	hole      net.Conn // what is read from when the connection is forgotten
}

func (w *wire) note(p []byte, read int) (forgotten bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.kind == 0 && len(p) > 0 {
		w.kind = p[0]
	}
	w.stream = w.stream || w.dialed && w.kind == peer.KindRaft && read == 0 && bytes.HasPrefix(p, []byte("C"))
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

// Write implements net.Conn. With a rate, what is written arrives in parts, as with TCP.
func (w *wire) Write(p []byte) (n int, err error) {
	part := len(p)
	if w.n.rate.Load() > 0 {
		part = 16 << 10
	}
	for m := 0; n < len(p) && err == nil; n += m {
		m, err = w.write(p[n:min(len(p), n+part)])
	}
	return n, err
}

func (w *wire) write(p []byte) (int, error) {
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

type wiresHost struct {
	n    *wires
	name string
}

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

// slowDials is a network whose new connections take long; those that exist work.
type slowDials struct {
	peer.Network
	takes *atomic.Int64
}

func (s slowDials) Dial(ctx context.Context, addr string) (net.Conn, error) {
	if d := time.Duration(s.takes.Load()); d > 0 {
		late := time.NewTimer(d)
		defer late.Stop()
		select {
		case <-late.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return s.Network.Dial(ctx, addr)
}

// wired starts three members on such a network, and returns the leader and the two others.
func wired(t *testing.T, change func(*Config)) (n *wires, leader, next, third *Member) {
	t.Helper()
	n = newWires()
	members, lead := n.open(t, 3, change)
	return n, members[lead], members[(lead+1)%3], members[(lead+2)%3]
}

// end closes one end of the connections that match.
func (n *wires) end(match func(w *wire) bool) (ended int) {
	n.mu.Lock()
	var all []*wire
	for w := range n.ends {
		w.mu.Lock()
		if match(w) {
			all = append(all, w)
		}
		w.mu.Unlock()
	}
	n.mu.Unlock()
	for _, w := range all {
		w.Close()
	}
	return len(all)
}

// between matches the connections of these kinds, or of any kind, between two members.
func between(a, b *Member, kinds ...byte) func(w *wire) bool {
	return func(w *wire) bool {
		return (w.from == hostOf(a) && w.to == hostOf(b) || w.from == hostOf(b) && w.to == hostOf(a)) && (len(kinds) == 0 || slices.Contains(kinds, w.kind))
	}
}

// streamTo matches the leader's end of its stream to another member, once it has said over it what is committed.
func streamTo(leader, to *Member) func(w *wire) bool {
	return func(w *wire) bool { return w.stream && w.from == hostOf(leader) && w.to == hostOf(to) }
}

// when calls f once, when bytes have come on a connection that matches.
func (n *wires) when(match func(w *wire) bool, f func(w *wire)) {
	came := func(w *wire) {
		w.mu.Lock()
		is := match(w)
		w.mu.Unlock()
		if is && n.came.Swap(nil) != nil {
			f(w)
		}
	}
	n.came.Store(&came)
}

// cut cuts or heals both ways between two members.
func (n *wires) cut(a, b *Member, cut bool) {
	n.Cut(hostOf(a), hostOf(b), cut)
	n.Cut(hostOf(b), hostOf(a), cut)
}

// alone cuts off a member from all others of three.
func (n *wires) alone(m *Member) {
	for _, host := range []string{"a", "b", "c"} {
		if host != hostOf(m) {
			n.Cut(host, hostOf(m), true)
			n.Cut(hostOf(m), host, true)
		}
	}
}

// receiving matches the connection on which a member has received so many bytes of a snapshot.
func (n *wires) receiving(m *Member, bytes int) func(w *wire) bool {
	host := hostOf(m)
	return func(w *wire) bool { return w.kind == peer.KindRaft && !w.dialed && w.to == host && w.read > bytes }
}

// lose cuts off a member, whose connections carry nothing any more from then on.
func (n *wires) lose(m *Member) {
	host := hostOf(m)
	n.forget(func(w *wire) bool { return w.from == host || w.to == host })
	n.alone(m)
}
