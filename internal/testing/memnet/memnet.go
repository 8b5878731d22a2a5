// Package memnet is a network in memory for clusters in one process. It can delay
// bytes, make links narrow, cut them, pause and kill hosts, and make connections that
// lose everything. It runs in virtual time under testing/synctest, and without delays and
// faults it takes no time.
//
// It behaves as TCP does on Linux:
//   - Bytes arrive in order or not at all. At most 256 KiB wait in each direction of a
//     connection, until the reader reads them; then writes block.
//   - What is in flight when a link is cut, or is sent while it is, is lost and sent again
//     0.2 s later, then after 0.4 s, 0.8 s and so on, at most 120 s. So on an old
//     connection it may arrive as long after the link is healed as the cut took, although
//     a new connection works at once. (See [Network.HealAtOnce].) The sender gives up
//     after 924 s, or the time set by SetUserTimeout. The other end then hears nothing,
//     and its connection is reset when it sends something.
//   - Dial tries again after 1 s, 3 s, 7 s and so on, until its context ends.
//   - Ends and resets of connections travel as bytes do. A connection that is idle ends
//     150 s after its link was cut, as Go's keepalive does it.
//
// Unlike TCP, it does not hold back bytes because the link in the other direction, on
// which they would be acknowledged, is cut.
package memnet

import (
	"cmp"
	"context"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

const (
	maxBuffered = 256 << 10 // bytes on their way in one direction; beyond it, writes block
	maxSegment  = 64 << 10  // bytes that arrive together

	firstResend = 200 * time.Millisecond
	longestWait = 120 * time.Second // between two attempts to send something again
	giveUpAfter = 924600 * time.Millisecond
	firstDial   = time.Second // after this time Dial tries again, then after twice as long
	dials       = 7           // how often Dial tries

	keepAliveEvery = 15 * time.Second
	keepAliveEnds  = 10 * keepAliveEvery
)

// never is when lost bytes arrive.
var never = time.Unix(1<<40, 0)

// Network is a network of named hosts. Its methods are safe for concurrent use.
type Network struct {
	mu        sync.Mutex           // guards everything, also in connections
	listeners map[string]*listener // by address
	links     map[link]*state
	paused    map[string]bool // by host
	delay     func(from, to string) time.Duration
	conns     map[*conn]struct{} // both ends, until both have ended
	dialed    int
	atOnce    bool
	changed   chan struct{} // closed and replaced when links change
}

type link struct{ from, to string }

type state struct {
	cut  bool
	shut bool      // no connection can be made in this direction
	rate int       // bytes per second; 0 is unlimited
	free time.Time // when it has sent everything that was written so far
}

// New returns a network without hosts, delays or faults.
func New() *Network {
	return &Network{listeners: map[string]*listener{}, links: map[link]*state{}, paused: map[string]bool{}, conns: map[*conn]struct{}{}, changed: make(chan struct{})}
}

// HealAtOnce makes the network kinder than TCP: what a cut has held back arrives, and
// Dial connects, as soon as the link is healed.
func (n *Network) HealAtOnce() {
	n.mu.Lock()
	n.atOnce = true
	n.mu.Unlock()
}

// Host is the network as one host sees it. Its methods are those of peer.Network.
type Host struct {
	n    *Network
	name string
}

// Host returns the host of that name.
func (n *Network) Host(name string) Host { return Host{n, name} }

// SetDelay makes every write take as long to arrive as f returns, and Dial as long as a
// round trip. f may return random values. It is called while the network is locked.
func (n *Network) SetDelay(f func(from, to string) time.Duration) {
	n.mu.Lock()
	n.delay = f
	n.mu.Unlock()
}

// SetBandwidth limits what all connections together can send from one host to another, in
// bytes per second. What is written first is sent first. 0 is unlimited.
func (n *Network) SetBandwidth(from, to string, bytesPerSecond int) {
	n.mu.Lock()
	n.link(link{from, to}).rate = bytesPerSecond
	n.mu.Unlock()
}

// link returns the state of a link. n.mu must be held, as in all functions that follow and
// are not exported.
func (n *Network) link(l link) *state {
	s := n.links[l]
	if s == nil {
		s = &state{}
		n.links[l] = s
	}
	return s
}

// Cut cuts or heals the link from one host to another, but not the link back.
func (n *Network) Cut(from, to string, cut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := link{from, to}
	if s := n.link(l); s.cut != cut {
		s.cut = cut
		n.update(func(c *conn) bool { return c.out.link == l })
	}
}

// Shut makes attempts to connect from one host to another fail, or work again. Open connections are
// not affected, as with a firewall whose table is full.
func (n *Network) Shut(from, to string, shut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.link(link{from, to}).shut = shut
	n.update(func(*conn) bool { return false })
}

// Heal heals all links, and lets all connections be made.
func (n *Network) Heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range n.links {
		s.cut, s.shut = false, false
	}
	n.update(func(*conn) bool { return true })
}

// Pause stops or continues a host as SIGSTOP stops a process: it reads nothing, and what it
// writes is not sent. What had been sent arrives, and new connections to it are made.
// Heal does not continue it.
func (n *Network) Pause(host string, paused bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if paused {
		n.paused[host] = true
	} else {
		delete(n.paused, host)
	}
	n.update(func(c *conn) bool { return c.out.link.from == host })
}

// Forget makes connections between two hosts, in either direction, lose everything that is
// sent from now on, as a firewall does that has forgotten them. Their ends are not told.
// some chooses the connections among those that exist.
func (n *Network) Forget(a, b string, some func() bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.update(func(c *conn) bool {
		if l := c.out.link; l != (link{a, b}) && l != (link{b, a}) {
			return false
		}
		if c.dialer {
			c.out.forgotten = c.out.forgotten || some()
			c.in.forgotten = c.out.forgotten
		}
		return c.out.forgotten
	})
}

// update adapts those ends of connections that match to a change of the network. The end
// that dialed comes before the other one.
func (n *Network) update(match func(*conn) bool) {
	for _, c := range n.ends() {
		if match(c) {
			c.update()
		}
	}
	close(n.changed)
	n.changed = make(chan struct{})
}

// ends lists the ends of all connections in the order in which these were made.
func (n *Network) ends() []*conn {
	return slices.SortedFunc(maps.Keys(n.conns), func(a, b *conn) int { return cmp.Compare(a.id, b.id) })
}

// Open counts the connections between two hosts that have not ended at the first one, however
// they have ended at the other.
func (n *Network) Open(at, with string) (count int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		if c.out.link == (link{at, with}) && c.err == nil {
			count++
		}
	}
	return count
}

// HangUp closes the connections of a host at its end, as its process may do: those with one other
// host, or all if with is empty.
func (n *Network) HangUp(at, with string) {
	n.mu.Lock()
	ends := n.ends()
	n.mu.Unlock()
	for _, c := range ends {
		if l := c.out.link; l.from == at && (with == "" || l.to == with) {
			c.Close()
		}
	}
}

// Kill ends all connections and listeners of a host, as when its process is killed.
func (n *Network) Kill(host string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for addr, l := range n.listeners {
		if hostOf(addr) == host {
			delete(n.listeners, addr)
			l.shut()
		}
	}
	for _, c := range n.ends() {
		if c.out.link.from == host && c.err == nil {
			c.out.drop()
			if c.out.blocked() {
				c.out.send(nil, syscall.ECONNRESET)
			} else {
				c.peer.reset()
			}
			c.end(syscall.ECONNRESET)
		}
	}
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
	n, there, back := h.n, link{h.name, hostOf(addr)}, link{hostOf(addr), h.name}
	fail := func(err error) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "memnet", Addr: address(addr), Err: err}
	}
	pause := func(d time.Duration, changed <-chan struct{}) error {
		var after <-chan time.Time
		if d > 0 {
			after = time.After(d)
		}
		select {
		case <-after:
		case <-changed:
		case <-ctx.Done():
		}
		return ctx.Err()
	}
	n.mu.Lock()
	for try := 0; ; {
		var changed chan struct{}
		wait := time.Duration(0)
		switch {
		case n.paused[h.name]:
			changed = n.changed
		case !n.link(there).cut && !n.link(back).cut && !n.link(there).shut:
		case n.atOnce:
			changed = n.changed
		case try == dials:
			n.mu.Unlock()
			return fail(syscall.ETIMEDOUT)
		default:
			wait = firstDial << try
			try++
		}
		if changed == nil && wait == 0 {
			break
		}
		n.mu.Unlock()
		if err := pause(wait, changed); err != nil {
			return fail(err)
		}
		n.mu.Lock()
	}
	var trip time.Duration
	if n.delay != nil {
		trip = n.delay(there.from, there.to) + n.delay(back.from, back.to)
	}
	n.mu.Unlock()
	if trip > 0 {
		if err := pause(trip, nil); err != nil {
			return fail(err)
		}
	}
	n.mu.Lock()
	l := n.listeners[addr]
	if l == nil {
		n.mu.Unlock()
		return fail(syscall.ECONNREFUSED)
	}
	n.dialed++
	near := &conn{n: n, id: 2 * n.dialed, dialer: true, local: h.name, remote: addr}
	far := &conn{n: n, id: 2*n.dialed + 1, local: addr, remote: h.name}
	near.out, far.out = &half{n: n, link: there, from: near, to: far}, &half{n: n, link: back, from: far, to: near}
	near.in, far.in, near.peer, far.peer = far.out, near.out, far, near
	n.conns[near], n.conns[far] = struct{}{}, struct{}{}
	near.update() // a link may have been cut meanwhile
	far.update()
	n.mu.Unlock()
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

// half is one direction of a connection.
type half struct {
	n         *Network
	link      link
	from, to  *conn
	forgotten bool

	chunks   []chunk
	buffered int
	changed  chan struct{} // closed on any change; nil if no goroutine waits
	readBy   time.Time     // deadlines; zero is none
	writeBy  time.Time

	// Of bytes that were lost: when the first of them was sent, until all have arrived, and
	// when that is (zero if it is not known).
	lost    time.Time
	arrives time.Time
	giveUp  *time.Timer // ends the sender's connection
	bounces bool        // the sender is about to be told that the receiver's end has ended
	owed    bool        // the sender could not be told, as the link back is cut
}

// chunk is a part of what was sent.
type chunk struct {
	at   time.Time // when it arrives
	data []byte
	err  error // if not nil, the chunk is the end of the connection instead
}

func (h *half) change() {
	if h.changed != nil {
		close(h.changed)
		h.changed = nil
	}
}

// blocked reports whether what is sent now is lost or waits in the sender's host.
func (h *half) blocked() bool { return h.lossy() || h.n.paused[h.link.from] }

func (h *half) lossy() bool { return h.forgotten || h.n.link(h.link).cut }

// inFlight returns the index of the first chunk that has not arrived.
func (h *half) inFlight(now time.Time) int {
	i := len(h.chunks)
	for i > 0 && h.chunks[i-1].at.After(now) {
		i--
	}
	return i
}

// drop drops everything that has not arrived.
func (h *half) drop() {
	i := h.inFlight(time.Now())
	for _, c := range h.chunks[i:] {
		h.buffered -= len(c.data)
	}
	h.chunks = h.chunks[:i]
	h.lost = time.Time{}
	if h.giveUp != nil {
		h.giveUp.Stop()
		h.giveUp = nil
	}
}

// send sends data, or the end of the connection.
func (h *half) send(data []byte, err error) {
	now := time.Now()
	at := h.arrival(now, len(data))
	if k := len(h.chunks); k > 0 && at.Before(h.chunks[k-1].at) {
		at = h.chunks[k-1].at // in order
	}
	h.chunks = append(h.chunks, chunk{at, data, err})
	h.buffered += len(data)
	if at == never {
		h.lose(now)
	}
	if len(h.chunks) == 1 {
		h.change() // there is something
	}
}

// arrival returns when something of that size arrives that is sent now.
func (h *half) arrival(now time.Time, size int) time.Time {
	if h.blocked() {
		return never
	}
	at := now
	if s := h.n.link(h.link); s.rate > 0 {
		if s.free.After(at) {
			at = s.free
		}
		at = at.Add(transfer(size, s.rate))
		s.free = at
	}
	if h.n.delay != nil {
		at = at.Add(h.n.delay(h.link.from, h.link.to))
	}
	return at
}

func transfer(size, rate int) time.Duration {
	if rate == 0 {
		return 0
	}
	return time.Duration(size) * time.Second / time.Duration(rate)
}

// lose notes that something was lost, unless an earlier loss is still to be repaired.
func (h *half) lose(now time.Time) {
	if !h.lossy() {
		return // it waits for the sender, which is paused
	}
	fresh := h.lost.IsZero() || !h.arrives.IsZero() && !now.Before(h.arrives)
	if fresh {
		h.lost = now
	}
	if fresh || !h.arrives.IsZero() {
		h.arrives = time.Time{}
		h.limit(now)
	}
}

// limit makes the sender give up when it has sent lost bytes again for long enough.
func (h *half) limit(now time.Time) {
	if h.giveUp != nil {
		h.giveUp.Stop()
		h.giveUp = nil
	}
	end := h.lost.Add(cmp.Or(h.from.patience, giveUpAfter))
	if h.lost.IsZero() || !h.arrives.IsZero() && h.arrives.Before(end) {
		return
	}
	h.giveUp = time.AfterFunc(end.Sub(now), func() {
		h.n.mu.Lock()
		defer h.n.mu.Unlock()
		if now := time.Now(); h.outstanding(now) && !now.Before(h.lost.Add(cmp.Or(h.from.patience, giveUpAfter))) {
			h.drop()
			h.from.vanish()
		}
	})
}

// outstanding reports whether something was lost and has not arrived since.
func (h *half) outstanding(now time.Time) bool {
	return !h.lost.IsZero() && (h.arrives.IsZero() || now.Before(h.arrives))
}

// resent returns when bytes that were lost at a time are sent again, not before now.
func (h *half) resent(now time.Time) time.Time {
	if !h.outstanding(now) || h.n.atOnce {
		return now
	}
	wait := firstResend
	at := h.lost.Add(wait)
	for at.Before(now) {
		wait = min(2*wait, longestWait)
		at = at.Add(wait)
	}
	return at
}

// update adapts what is on its way to a change of the network.
func (h *half) update() {
	now := time.Now()
	flying := h.chunks[h.inFlight(now):]
	switch {
	case h.lossy():
		for i := range flying {
			flying[i].at = never
		}
		if len(flying) > 0 {
			h.lose(now)
		}
	case !h.blocked() && len(flying) > 0 && flying[len(flying)-1].at == never:
		at := h.resent(now)
		if h.n.delay != nil {
			at = at.Add(h.n.delay(h.link.from, h.link.to))
		}
		for i := range flying {
			if c := &flying[i]; c.at == never {
				at = at.Add(transfer(len(c.data), h.n.link(h.link).rate))
				c.at = at
			}
		}
		h.arrives = at
		h.limit(now)
		h.change()
		if h.to.err != nil {
			h.bounce(at)
		}
	}
}

// bounce tells the sender that the receiver's end has ended, since something arrives there.
func (h *half) bounce(at time.Time) {
	switch {
	case at == never || h.bounces:
	case !at.After(time.Now()):
		if h.owed = h.to.out.lossy(); !h.owed {
			h.from.reset()
		}
	default:
		h.bounces = true
		time.AfterFunc(time.Until(at), func() {
			h.n.mu.Lock()
			defer h.n.mu.Unlock()
			h.bounces = false
			if !h.lossy() {
				h.bounce(at)
			}
		})
	}
}

// wait blocks until h changes or the time then is reached (if not zero). Meanwhile the
// network is not locked.
func (h *half) wait(then time.Time) {
	if h.changed == nil {
		h.changed = make(chan struct{})
	}
	changed := h.changed
	var reached <-chan time.Time
	if !then.IsZero() {
		reached = time.After(time.Until(then))
	}
	h.n.mu.Unlock()
	select {
	case <-changed:
	case <-reached:
	}
	h.n.mu.Lock()
}

// conn is one end of a connection.
type conn struct {
	n             *Network
	id            int
	dialer        bool
	in, out       *half
	peer          *conn
	local, remote string
	patience      time.Duration // set by SetUserTimeout

	err       error       // why it has ended here
	vanished  bool        // it has ended without telling the other end
	refused   bool        // it was told that the other end has ended, so writes fail
	keepAlive *time.Timer // runs while the other end cannot be heard
}

// update adapts both ends to a change of the link that this end sends over, or of its host.
func (c *conn) update() {
	c.out.update()
	c.in.change() // this end's host may read again
	if in := c.in; in.owed && !c.out.lossy() {
		in.owed = false
		in.bounce(in.resent(time.Now()))
	}
	c.keep()
	c.peer.keep()
}

// keep starts or stops what keepalive does to an end at which nothing arrives.
func (c *conn) keep() {
	if c.keepAlive != nil {
		c.keepAlive.Stop()
		c.keepAlive = nil
	}
	deaf := c.in.lossy() || c.out.lossy()
	if c.err != nil || c.refused || !deaf && !c.peer.vanished {
		return
	}
	wait := keepAliveEvery
	if deaf {
		wait = keepAliveEnds
		if c.patience > 0 {
			wait = min(wait, max(c.patience, keepAliveEvery)+keepAliveEvery)
		}
	}
	c.keepAlive = time.AfterFunc(wait, func() {
		c.n.mu.Lock()
		defer c.n.mu.Unlock()
		switch {
		case c.in.lossy() || c.out.lossy():
			if !c.out.outstanding(time.Now()) { // otherwise giveUp ends it
				c.vanish()
			}
		case c.peer.vanished:
			c.reset()
		}
	})
}

// vanish ends the connection here without telling the other end.
func (c *conn) vanish() {
	if c.err == nil {
		c.vanished = true
		c.end(syscall.ETIMEDOUT)
		c.peer.keep()
	}
}

// end ends the connection here. What arrives from now on resets the other end.
func (c *conn) end(err error) {
	c.err = err
	in, now := c.in, time.Now()
	i := in.inFlight(now)
	unread, flying := in.chunks[:i], in.chunks[i:]
	for _, x := range unread {
		in.buffered -= len(x.data)
	}
	in.chunks = flying
	switch {
	case c.vanished || c.peer.err != nil:
	case len(unread) > 0 && unread[0].err == nil:
		in.bounce(now)
	case len(flying) > 0:
		in.bounce(flying[0].at)
	}
	c.changed()
}

// reset ends the other direction, too, when this end learns that the other one has ended.
func (c *conn) reset() {
	if c.err != nil || c.refused {
		return
	}
	c.refused = true
	c.out.drop()
	c.in.drop()
	if k := len(c.in.chunks); k == 0 || c.in.chunks[k-1].err == nil {
		c.in.chunks = append(c.in.chunks, chunk{time.Now(), nil, syscall.ECONNRESET})
	}
	c.changed()
}

// changed wakes those who wait for this end, and drops the connection when nothing can
// happen to it any more.
func (c *conn) changed() {
	c.in.change()
	c.out.change()
	c.keep()
	if (c.err != nil || c.refused) && (c.peer.err != nil || c.peer.refused) {
		delete(c.n.conns, c)
		delete(c.n.conns, c.peer)
	}
}

func (c *conn) Read(p []byte) (int, error) {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	for h := c.in; ; {
		now, until := time.Now(), h.readBy
		switch {
		case c.err != nil:
			return 0, c.err
		case !until.IsZero() && !now.Before(until):
			return 0, os.ErrDeadlineExceeded
		}
		if len(h.chunks) > 0 && !c.n.paused[h.link.to] {
			at, err := h.chunks[0].at, h.chunks[0].err
			switch {
			case !at.After(now) && err != nil:
				if err != io.EOF {
					c.refused = true
				}
				return 0, err
			case !at.After(now):
				return h.take(p, now), nil
			case at != never && (until.IsZero() || at.Before(until)):
				until = at
			}
		}
		h.wait(until)
	}
}

func (h *half) take(p []byte, now time.Time) (n int) {
	for n < len(p) && len(h.chunks) > 0 && h.chunks[0].err == nil && !now.Before(h.chunks[0].at) {
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
	return n
}

func (c *conn) Write(p []byte) (n int, err error) {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	moved := time.Now()
	for h := c.out; n < len(p); {
		now, until := time.Now(), h.writeBy
		switch {
		case c.err != nil:
			return n, c.err
		case c.refused:
			return n, syscall.EPIPE
		case !until.IsZero() && !now.Before(until):
			return n, os.ErrDeadlineExceeded
		case h.buffered >= maxBuffered: // the other end does not read
			if c.patience > 0 {
				end := moved.Add(c.patience)
				if !now.Before(end) {
					c.vanish()
					continue
				}
				if until.IsZero() || end.Before(until) {
					until = end
				}
			}
			h.wait(until)
			continue
		}
		m := min(len(p)-n, maxBuffered-h.buffered, maxSegment)
		if c.peer.err != nil && !h.blocked() {
			h.bounce(h.arrival(now, m))
		} else {
			h.send(append([]byte(nil), p[n:n+m]...), nil)
		}
		n += m
		moved = now
	}
	return n, nil
}

func (c *conn) Close() error {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	if c.err == nil {
		if !c.refused {
			c.out.send(nil, io.EOF)
		}
		c.end(net.ErrClosed)
	}
	return nil
}

// SetUserTimeout limits, like TCP_USER_TIMEOUT, for how long what was sent may be on its way
// or wait for the other end to read, before the connection ends with ETIMEDOUT. 0 stands for
// TCP's own limit.
func (c *conn) SetUserTimeout(d time.Duration) error {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	c.patience = d
	if now := time.Now(); c.out.outstanding(now) {
		c.out.limit(now)
	}
	c.keep()
	return c.err
}

func (c *conn) LocalAddr() net.Addr  { return address(c.local) }
func (c *conn) RemoteAddr() net.Addr { return address(c.remote) }

func (c *conn) SetDeadline(t time.Time) error {
	c.SetReadDeadline(t)
	return c.SetWriteDeadline(t)
}

func (c *conn) SetReadDeadline(t time.Time) error { return c.setDeadline(&c.in.readBy, c.in, t) }

func (c *conn) SetWriteDeadline(t time.Time) error { return c.setDeadline(&c.out.writeBy, c.out, t) }

func (c *conn) setDeadline(d *time.Time, h *half, t time.Time) error {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	*d = t
	h.change()
	return nil
}
