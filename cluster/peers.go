package cluster

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// Network is how members reach each other. Its methods may be called at any time.
type Network interface {
	Listen(addr string) (net.Listener, error)
	Dial(ctx context.Context, addr string) (net.Conn, error)
}

// TCP is the real network, with TLS if that is not nil. The same configuration
// serves both directions, and for members that prove themselves to each other
// it has a certificate, RootCAs, ClientCAs and RequireAndVerifyClientCert.
type TCP struct {
	TLS    *tls.Config
	AllIPs bool // listen on every address of this host, with the port given
}

// Listen implements [Network].
func (t TCP) Listen(addr string) (net.Listener, error) {
	if t.AllIPs {
		_, port, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, err
		}
		addr = ":" + port
	}
	l, err := net.Listen("tcp", addr)
	if err == nil && t.TLS != nil {
		l = tls.NewListener(l, t.TLS)
	}
	return l, err
}

// Dial implements [Network].
func (t TCP) Dial(ctx context.Context, addr string) (net.Conn, error) {
	if t.TLS != nil {
		return (&tls.Dialer{Config: t.TLS}).DialContext(ctx, "tcp", addr)
	}
	return new(net.Dialer).DialContext(ctx, "tcp", addr)
}

// A connection to a peer port begins with what it is for, and the version of
// the language that follows.
const (
	kindRaft    = 'R' // Raft's own messages
	kindForward = 'F' // commands and touches on their way to the leader
	kindAdmin   = 'A' // one request about the members
	kindReach   = 'P' // a question how the member is
	kindBeat    = 'H' // the leader's heartbeats

	peerVersion = 1
)

// Times of the peer port.
const (
	helloTimeout = 5 * time.Second // for a connection's first bytes
	peerTimeout  = 3 * time.Second // for one message
)

// peerPort is where other members reach this one, and the way to them.
type peerPort struct {
	m       *Member
	network Network
	l       net.Listener
	raft    chan net.Conn // accepted, for Raft

	ctx    context.Context // ends with close
	cancel context.CancelFunc
	cut    chan struct{} // closed by close when nothing can be sent any more
	wg     sync.WaitGroup

	mu     sync.Mutex
	conns  map[net.Conn]struct{} // those that close has to end; nil when closed
	warned map[string]time.Time  // when each message was logged last
}

// listenPeers takes the port. Who connects waits until there is a goroutine for
// accept, since what they ask for takes a Raft that runs.
func listenPeers(m *Member, network Network, addr string) (*peerPort, error) {
	l, err := network.Listen(addr)
	if err != nil {
		return nil, err
	}
	p := &peerPort{m: m, network: network, l: l, raft: make(chan net.Conn), conns: map[net.Conn]struct{}{}, warned: map[string]time.Time{}, cut: make(chan struct{})}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p, nil
}

// close ends all connections. The goroutines of those that came in end when
// Raft answers them, or has ended.
func (p *peerPort) close() {
	p.cancel()
	p.l.Close()
	p.mu.Lock()
	for c := range p.conns {
		c.Close()
	}
	p.conns = nil
	p.mu.Unlock()
	close(p.cut)
}

// tracked is a connection that close ends.
type tracked struct {
	net.Conn
	p *peerPort
}

func (c tracked) Close() error {
	c.p.mu.Lock()
	delete(c.p.conns, c.Conn)
	c.p.mu.Unlock()
	return c.Conn.Close()
}

func (p *peerPort) track(c net.Conn) (net.Conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conns == nil {
		c.Close()
		return nil, net.ErrClosed
	}
	p.conns[c] = struct{}{}
	return tracked{c, p}, nil
}

func (p *peerPort) accept() {
	for {
		c, err := p.l.Accept()
		if p.ctx.Err() != nil {
			if err == nil {
				c.Close()
			}
			return
		}
		if err != nil {
			p.m.cfg.Log.Warn("cannot accept a peer", "error", err)
			select { // most likely too many open files
			case <-time.After(10 * time.Millisecond):
			case <-p.ctx.Done():
			}
			continue
		}
		p.wg.Go(func() { p.serve(c) })
	}
}

// serve reads what a connection is for, and sees to it.
func (p *peerPort) serve(nc net.Conn) {
	c, err := p.track(nc)
	if err != nil {
		return
	}
	c.SetDeadline(time.Now().Add(helloTimeout))
	var hello [2]byte
	if _, err := io.ReadFull(c, hello[:]); err != nil {
		if _, ok := nc.(*tls.Conn); ok && err != io.EOF && p.ctx.Err() == nil {
			p.warn("refusing a peer that does not prove itself", "peer", c.RemoteAddr().String(), "error", err)
		}
		c.Close()
		return
	}
	c.SetDeadline(time.Time{})
	if hello[1] != peerVersion {
		p.warn("refusing a peer that speaks another version: upgrade the older one", "peer", c.RemoteAddr().String(), "version", hello[1], "known", peerVersion)
		c.Close()
		return
	}
	switch hello[0] {
	case kindRaft:
		if !p.m.gate.lifted() {
			c.Close()
			return
		}
		select {
		case p.raft <- c:
		case <-p.ctx.Done():
			c.Close()
		}
	case kindForward:
		p.m.serveForward(c)
	case kindAdmin:
		p.m.serveAdmin(c)
	case kindReach, kindBeat:
		switch {
		case !p.m.gate.lifted():
			c.Close()
		case hello[0] == kindReach:
			p.m.tellState(c)
		default:
			p.m.takeBeats(c)
		}
	default:
		p.warn("closing a connection to the peer port that is of no peer", "from", c.RemoteAddr().String())
		c.Close()
	}
}

// warn logs a message about somebody who may come again and again: a message
// once in ten seconds.
func (p *peerPort) warn(message string, args ...any) {
	p.mu.Lock()
	now := time.Now()
	quiet := now.Sub(p.warned[message]) < 10*time.Second
	if !quiet {
		p.warned[message] = now
	}
	p.mu.Unlock()
	if !quiet {
		p.m.cfg.Log.Warn(message, args...)
	}
}

// dial connects to another member.
func (p *peerPort) dial(ctx context.Context, addr string, kind byte) (net.Conn, error) {
	c, err := hello(ctx, p.network, addr, kind)
	if err != nil {
		return nil, err
	}
	return p.track(c)
}

func hello(ctx context.Context, network Network, addr string, kind byte) (net.Conn, error) {
	c, err := network.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	c.SetWriteDeadline(time.Now().Add(helloTimeout))
	if _, err := c.Write([]byte{kind, peerVersion}); err != nil {
		c.Close()
		return nil, err
	}
	c.SetWriteDeadline(time.Time{})
	return c, nil
}

// raftLayer is the part of the peer port that Raft's transport uses.
type raftLayer struct {
	*peerPort
	addr string // of this member, as the others know it
}

var _ raft.StreamLayer = raftLayer{}

func (l raftLayer) Accept() (net.Conn, error) {
	select {
	case c := <-l.raft:
		return c, nil
	case <-l.ctx.Done():
		return nil, net.ErrClosed
	}
}

func (l raftLayer) Close() error { return nil } // the peer port is closed by its owner

func (l raftLayer) Addr() net.Addr { return peerAddr(l.addr) }

func (l raftLayer) Dial(addr raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(l.ctx, timeout)
	defer cancel()
	return l.dial(ctx, string(addr), kindRaft)
}

// peerAddr is an address as the configuration gives it.
type peerAddr string

func (peerAddr) Network() string  { return "tcp" }
func (a peerAddr) String() string { return string(a) }

// Messages between members are a kind, a length and that many bytes.
const (
	msgBatch   = 'B' // to the leader: an entry of the log
	msgTouched = 'T' // to the leader: sessions that were heard of
	msgHeard   = 'H' // from it: that this was heard
	msgRefused = 'N' // from it: an entry was not taken, or may not have been

	maxMessage = 1 << 30
)

func writeMessage(c net.Conn, kind byte, payload []byte) error {
	c.SetWriteDeadline(time.Now().Add(peerTimeout))
	head := []byte{kind, byte(len(payload) >> 24), byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload))}
	buffers := net.Buffers{head, payload}
	_, err := buffers.WriteTo(c)
	return err
}

// readMessage waits for a message as long as it takes. Memory grows with the
// bytes that come.
func readMessage(r *bufio.Reader) (kind byte, payload []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := uint32(head[1])<<24 | uint32(head[2])<<16 | uint32(head[3])<<8 | uint32(head[4])
	if n > maxMessage {
		return 0, nil, fmt.Errorf("cluster: message of %d bytes", n)
	}
	payload, err = readBytes(r, int(n))
	return head[0], payload, err
}

func readBytes(r io.Reader, n int) ([]byte, error) {
	b := make([]byte, 0, min(n, 64<<10))
	for len(b) < n {
		if len(b) == cap(b) {
			b = append(b, make([]byte, min(n-len(b), len(b)))...)[:len(b)]
		}
		m, err := r.Read(b[len(b):min(cap(b), n)])
		b = b[:len(b)+m]
		if err != nil && len(b) < n {
			return nil, errors.Join(io.ErrUnexpectedEOF, err)
		}
	}
	return b, nil
}
