// Package memnet is a network in memory for clusters in one process. It can delay
// bytes, cut links and kill hosts, and it runs in virtual time under testing/synctest.
//
// It behaves like TCP: bytes arrive in order or not at all. Bytes sent over a cut link
// arrive when the link is healed, unless the connection ends first. Dial over a cut
// link blocks until the link is healed or its context ends.
package memnet

import (
	"context"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// Network is a network of named hosts. Its methods are safe for concurrent use.
type Network struct {
	mu        sync.Mutex
	listeners map[string]*listener // by address
	cut       map[link]bool
	paused    map[string]bool // by host
	delay     func(from, to string) time.Duration
	conns     map[*conn]struct{}
	changed   chan struct{} // closed and replaced when links change
}

type link struct{ from, to string }

// New returns a network without hosts, delays or faults.
func New() *Network {
	return &Network{listeners: map[string]*listener{}, cut: map[link]bool{}, paused: map[string]bool{}, conns: map[*conn]struct{}{}, changed: make(chan struct{})}
}

// Host is the network as one host sees it. Its methods are those of cluster.Network.
type Host struct {
	n    *Network
	name string
}

// Host returns the host of that name.
func (n *Network) Host(name string) Host { return Host{n, name} }

// SetDelay makes every write take as long to arrive as f returns. f may return random
// values. It is called while the network is locked.
func (n *Network) SetDelay(f func(from, to string) time.Duration) {
	n.mu.Lock()
	n.delay = f
	n.mu.Unlock()
}

// Cut cuts or heals the link from one host to another, but not the link back.
func (n *Network) Cut(from, to string, cut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if cut {
		n.cut[link{from, to}] = true
	} else {
		delete(n.cut, link{from, to})
	}
	close(n.changed)
	n.changed = make(chan struct{})
}

// Heal heals all links.
func (n *Network) Heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.cut)
	close(n.changed)
	n.changed = make(chan struct{})
}

// Pause stops or continues a host: while it is paused, all links from and to it behave as
// if they were cut. Heal does not continue it.
func (n *Network) Pause(host string, paused bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if paused {
		n.paused[host] = true
	} else {
		delete(n.paused, host)
	}
	close(n.changed)
	n.changed = make(chan struct{})
}

// Kill ends all connections and listeners of a host, as when its process is killed.
func (n *Network) Kill(host string) {
	n.mu.Lock()
	var ends []*conn
	for c := range n.conns {
		if c.in.link.to == host || c.in.link.from == host {
			ends = append(ends, c)
		}
	}
	for addr, l := range n.listeners {
		if hostOf(addr) == host {
			delete(n.listeners, addr)
			l.shut()
		}
	}
	n.mu.Unlock()
	for _, c := range ends {
		c.in.end(syscall.ECONNRESET)
		c.out.end(syscall.ECONNRESET)
	}
}

func (n *Network) isCut(l link) (bool, chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cut[l] || n.paused[l.from] || n.paused[l.to], n.changed
}

func hostOf(addr string) string {
	host, _, _ := net.SplitHostPort(addr)
	return host
}

type listener struct {
	n     *Network
	addr  string
	queue chan net.Conn
	done  chan struct{}
	once  sync.Once
}

// Listen listens on an address of this host.
func (h Host) Listen(addr string) (net.Listener, error) {
	h.n.mu.Lock()
	defer h.n.mu.Unlock()
	if h.n.listeners[addr] != nil {
		return nil, &net.OpError{Op: "listen", Net: "memnet", Addr: address(addr), Err: syscall.EADDRINUSE}
	}
	l := &listener{n: h.n, addr: addr, queue: make(chan net.Conn), done: make(chan struct{})}
	h.n.listeners[addr] = l
	return l, nil
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.queue:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *listener) shut() { l.once.Do(func() { close(l.done) }) }

func (l *listener) Close() error {
	l.n.mu.Lock()
	if l.n.listeners[l.addr] == l {
		delete(l.n.listeners, l.addr)
	}
	l.n.mu.Unlock()
	l.shut()
	return nil
}

func (l *listener) Addr() net.Addr { return address(l.addr) }

type address string

func (address) Network() string  { return "memnet" }
func (a address) String() string { return string(a) }

// Dial connects to an address of another host.
func (h Host) Dial(ctx context.Context, addr string) (net.Conn, error) {
	to := hostOf(addr)
	fail := func(err error) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "memnet", Addr: address(addr), Err: err}
	}
	for _, way := range []link{{h.name, to}, {to, h.name}} { // there and back
		for {
			cut, changed := h.n.isCut(way)
			if !cut {
				break
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return fail(ctx.Err())
			}
		}
	}
	h.n.mu.Lock()
	l := h.n.listeners[addr]
	h.n.mu.Unlock()
	if l == nil {
		return fail(syscall.ECONNREFUSED)
	}
	there, back := newHalf(h.n, link{h.name, to}), newHalf(h.n, link{to, h.name})
	near := &conn{n: h.n, in: back, out: there, local: h.name, remote: addr}
	far := &conn{n: h.n, in: there, out: back, local: addr, remote: h.name}
	h.n.mu.Lock()
	h.n.conns[near], h.n.conns[far] = struct{}{}, struct{}{}
	h.n.mu.Unlock()
	select {
	case l.queue <- far:
		return near, nil
	case <-l.done:
		near.Close()
		far.Close()
		return fail(syscall.ECONNREFUSED)
	case <-ctx.Done():
		near.Close()
		far.Close()
		return fail(ctx.Err())
	}
}

// maxBuffered limits the bytes in transit in one direction; beyond it, writes block.
const maxBuffered = 1 << 20

// half is one direction of a connection.
type half struct {
	n    *Network
	link link

	mu       sync.Mutex
	chunks   []chunk
	buffered int
	err      error         // readers get it once all chunks are read; writers fail at once
	changed  chan struct{} // closed on any change; nil if no goroutine waits
	timer    *time.Timer   // for reuse by the next wait
	readBy   time.Time     // deadlines; zero is none
	writeBy  time.Time
}

type chunk struct {
	at   time.Time // when it arrives
	data []byte
}

func newHalf(n *Network, l link) *half { return &half{n: n, link: l} }

func (h *half) change() {
	if h.changed != nil {
		close(h.changed)
		h.changed = nil
	}
}

// end ends the direction. With io.EOF, bytes in transit still arrive; with any other
// error they are lost.
func (h *half) end(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err == nil || err != io.EOF {
		h.err = err
		if err != io.EOF {
			h.chunks = nil
		}
		h.change()
	}
}

// wait unlocks h and blocks until h changes, links is closed (if not nil) or the time
// then is reached (if not zero). h is unlocked when wait returns.
func (h *half) wait(then time.Time, links <-chan struct{}) {
	if h.changed == nil {
		h.changed = make(chan struct{})
	}
	changed := h.changed
	if then.IsZero() && links == nil {
		h.mu.Unlock()
		<-changed
		return
	}
	var timer *time.Timer
	var late <-chan time.Time
	if !then.IsZero() {
		if timer, h.timer = h.timer, nil; timer == nil {
			timer = time.NewTimer(time.Until(then))
		} else {
			timer.Reset(time.Until(then))
		}
		late = timer.C
	}
	h.mu.Unlock()
	select {
	case <-changed:
	case <-links:
	case <-late:
	}
	if timer != nil {
		timer.Stop()
		h.mu.Lock()
		h.timer = timer
		h.mu.Unlock()
	}
}

func (h *half) read(p []byte) (int, error) {
	for {
		h.mu.Lock()
		now := time.Now()
		until := h.readBy
		if !until.IsZero() && !now.Before(until) {
			h.mu.Unlock()
			return 0, os.ErrDeadlineExceeded
		}
		if len(h.chunks) == 0 {
			if err := h.err; err != nil {
				h.mu.Unlock()
				return 0, err
			}
			h.wait(until, nil)
			continue
		}
		cut, links := h.n.isCut(h.link)
		at := h.chunks[0].at
		switch {
		case cut:
			h.wait(until, links)
		case !now.Before(at):
			n := 0
			for n < len(p) && len(h.chunks) > 0 && !now.Before(h.chunks[0].at) {
				c := &h.chunks[0]
				m := copy(p[n:], c.data)
				n += m
				if c.data = c.data[m:]; len(c.data) > 0 {
					break
				}
				*c = chunk{}
				if len(h.chunks) == 1 {
					h.chunks = h.chunks[:0]
				} else {
					h.chunks = h.chunks[1:]
				}
			}
			if h.buffered >= maxBuffered {
				h.change() // there is room
			}
			h.buffered -= n
			h.mu.Unlock()
			return n, nil
		case until.IsZero() || at.Before(until):
			h.wait(at, links)
		default:
			h.wait(until, links)
		}
	}
}

func (h *half) write(p []byte) (n int, err error) {
	for n < len(p) {
		h.mu.Lock()
		switch {
		case h.err != nil:
			h.mu.Unlock()
			return n, syscall.EPIPE
		case !h.writeBy.IsZero() && !time.Now().Before(h.writeBy):
			h.mu.Unlock()
			return n, os.ErrDeadlineExceeded
		case h.buffered < maxBuffered:
			m := min(len(p)-n, maxBuffered-h.buffered)
			at := time.Now()
			h.n.mu.Lock()
			if h.n.delay != nil {
				at = at.Add(h.n.delay(h.link.from, h.link.to))
			}
			h.n.mu.Unlock()
			if k := len(h.chunks); k > 0 && at.Before(h.chunks[k-1].at) {
				at = h.chunks[k-1].at // in order
			}
			h.chunks = append(h.chunks, chunk{at, append([]byte(nil), p[n:n+m]...)})
			h.buffered += m
			n += m
			if len(h.chunks) == 1 {
				h.change() // there is something
			}
			h.mu.Unlock()
			continue
		}
		h.wait(h.writeBy, nil)
	}
	return n, nil
}

// conn is one end of a connection.
type conn struct {
	n             *Network
	in, out       *half
	local, remote string
}

func (c *conn) Read(p []byte) (int, error)  { return c.in.read(p) }
func (c *conn) Write(p []byte) (int, error) { return c.out.write(p) }

func (c *conn) Close() error {
	c.n.mu.Lock()
	delete(c.n.conns, c)
	c.n.mu.Unlock()
	c.out.end(io.EOF)
	c.in.end(net.ErrClosed)
	return nil
}

func (c *conn) LocalAddr() net.Addr  { return address(c.local) }
func (c *conn) RemoteAddr() net.Addr { return address(c.remote) }

func (c *conn) SetDeadline(t time.Time) error {
	c.SetReadDeadline(t)
	return c.SetWriteDeadline(t)
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.in.mu.Lock()
	c.in.readBy = t
	c.in.change()
	c.in.mu.Unlock()
	return nil
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	c.out.mu.Lock()
	c.out.writeBy = t
	c.out.change()
	c.out.mu.Unlock()
	return nil
}
