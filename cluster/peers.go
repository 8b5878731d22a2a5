package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/internal/core/either"
	"github.com/lockkeeper/lockkeeper/internal/core/fdlimit"
)

// peerPort accepts connections from other members and opens connections to them.
type peerPort struct {
	network Network
	addr    string // of this member, as the others know it
	log     *slog.Logger
	serve   map[byte]func(net.Conn) // handles a connection, by its kind; set before accept is started
	self    uint64                  // this member's id
	term    func() uint64           // the newest that this member knows
	gate    *gate
	idOf    func(addr string) uint64 // the member that should be at an address; 0 if unknown
	ran     func() int64             // running time
	called  func(h *hello)           // another member has called this one, which is not in a cluster yet
	raft    chan net.Conn            // accepted connections for Raft
	waiting *ungreeted

	l      net.Listener    // nil before open
	ctx    context.Context // canceled by close
	cancel context.CancelFunc
	cut    chan struct{}  // closed by close when nothing can be sent any more
	wg     sync.WaitGroup // of accept, the connections that it accepted, and what was started by run

	mu     sync.Mutex
	conns  map[net.Conn]struct{} // open connections; nil when closed
	warned map[warning]*said     // what warn has logged
}

func newPeerPort(network Network, self uint64, addr string, gate *gate, log *slog.Logger) *peerPort {
	if network == nil {
		network = TCP{}
	}
	p := &peerPort{
		network: network, self: self, addr: addr, gate: gate, log: log,
		idOf: func(string) uint64 { return 0 }, called: func(*hello) {}, term: func() uint64 { return 0 }, ran: func() int64 { return never },
		raft: make(chan net.Conn), waiting: newUngreeted(),
		conns: map[net.Conn]struct{}{}, warned: map[warning]*said{}, cut: make(chan struct{}),
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// open opens the port. Connections are not accepted before the caller starts accept,
// since serving them needs a running Raft.
func (p *peerPort) open() error {
	l, err := p.network.Listen(p.addr)
	if err != nil {
		return fmt.Errorf("peer port: %w", err)
	}
	p.l = l
	return nil
}

// close closes the port and all connections. It does not wait for the goroutines in
// wg: some end only when Raft has answered them or has shut down.
func (p *peerPort) close() {
	p.cancel()
	if p.l != nil {
		p.l.Close()
	}
	p.mu.Lock()
	for c := range p.conns {
		c.Close()
	}
	p.conns = nil
	p.mu.Unlock()
	close(p.cut)
}

// tracked is a connection that peerPort.close closes.
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

// run runs f in a goroutine for which close waits. It returns false if the port is closed.
func (p *peerPort) run(f func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conns == nil {
		return false
	}
	p.wg.Go(f) // close has not begun, so nobody waits for wg yet
	return true
}

// accept serves incoming connections until the port is closed.
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
			p.warn("cannot accept a peer", "error", err)
			select { // most likely too many files are open
			case <-time.After(10 * time.Millisecond):
			case <-p.ctx.Done():
			}
			continue
		}
		if fdlimit.Last(c, fdlimit.ForPeers) { // checked here, before many connections wait to be greeted
			p.warn("refusing a peer: the process has too many files open", "peer", c.RemoteAddr().String())
			c.Close()
			continue
		}
		p.waiting.add(c)
		p.wg.Go(func() { p.greet(c) })
	}
}

// greet reads the hello of a connection, answers it, and handles the connection according
// to its kind.
func (p *peerPort) greet(nc net.Conn) {
	c, err := p.track(nc)
	if err != nil {
		return
	}
	c.SetDeadline(time.Now().Add(helloTimeout))
	h := new(hello)
	if e, ok := nc.(*either.Conn); ok {
		_, err = e.Detect()
	}
	if err == nil {
		h, err = readHello(c)
	}
	serve := p.serve[h.kind]
	from := c.RemoteAddr().String()
	switch inTime := p.waiting.remove(nc); {
	case !inTime:
		p.warn("closing a connection to the peer port: too many do not say from which server they come, and this one is the oldest", "from", from)
	case errors.Is(err, errPeerVersion) && h.kind == tlsHandshake:
		p.warn("refusing a peer that uses TLS: this member does not, but all of a cluster must or none", "peer", from)
	case errors.Is(err, errPeerVersion):
		p.warn("refusing a peer that speaks another version: upgrade the older one", "peer", from, "version", h.version, "known", peerVersion)
	case err != nil:
		var plain tls.RecordHeaderError
		if errors.As(err, &plain) {
			p.warn("refusing a peer that does not use TLS: this member does, and all of a cluster must or none", "peer", from)
		} else if either.TLS(nc) != nil && err != io.EOF && p.ctx.Err() == nil {
			host, _, _ := net.SplitHostPort(from)
			p.warnOf(host, "a peer cannot connect: TLS handshake failed", "peer", from, "error", explainTLS(err))
		}
	case serve == nil:
		p.warn("closing a connection to the peer port: it does not come from a lockkeeper server", "from", from)
	default:
		a := p.judge(h)
		began := p.ran()
		if _, err := c.Write(a.append(nil)); err == nil && a.verdict == welcome {
			c.SetDeadline(time.Time{})
			serve(guest{c, h.from, began})
			return
		}
	}
	c.Close()
}

// guest is a connection of another member.
type guest struct {
	net.Conn
	from uint64 // its id, as it says
	at   int64  // a time before it was told that it is welcome, in running time
}

// judge decides whether to accept a connection. Everybody may ask about the members;
// everything else is for members of the same cluster.
func (p *peerPort) judge(h *hello) answer {
	a := answer{welcome, p.gate.cluster(), p.self}
	switch {
	case h.kind == kindAdmin:
	case a.cluster == 0:
		a.verdict = notYet
		if h.to == p.self {
			p.called(h)
		}
	case h.cluster != a.cluster:
		a.verdict = otherCluster
		p.warn("refusing a server of another cluster: one of the two has the wrong data directory, or is called at the wrong address",
			"server", h.from, "address", h.addr, "its cluster", h.cluster, "cluster", a.cluster)
	case h.to != 0 && h.to != p.self:
		a.verdict = otherMember
		p.warn("refusing a connection that is meant for another server: the list of members has a wrong address", "from", h.from, "to", h.to, "this is", p.self)
	}
	return a
}

// toRaft hands a connection over to Raft.
func (p *peerPort) toRaft(c net.Conn) {
	select {
	case p.raft <- c:
	case <-p.ctx.Done():
		c.Close()
	}
}

// A warning is a message about one peer, or about any.
type warning struct{ about, message string }

// said is when a warning was logged last, and how long it is not logged again.
type said struct {
	at    time.Time
	quiet time.Duration
}

const (
	quietFirst  = 10 * time.Second
	quietMost   = 10 * time.Minute
	maxWarnings = 256 // strangers may come from many addresses
)

// warn logs a warning, but the same message again only after ten seconds, and then after pauses that
// double, since peers may reconnect all the time. A message that did not come for twice a pause is a new one.
func (p *peerPort) warn(message string, args ...any) { p.warnOf("", message, args...) }

// warnOf is warn for a message about one peer.
func (p *peerPort) warnOf(about, message string, args ...any) {
	if p.due(about, message) {
		p.log.Warn(message, args...)
	}
}

// due reports whether a message about a peer may be logged now, and counts it as logged.
func (p *peerPort) due(about, message string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now, key := time.Now(), warning{about, message}
	last := p.warned[key]
	if last == nil && len(p.warned) >= maxWarnings {
		key.about = ""
		last = p.warned[key]
	}
	switch {
	case last != nil && now.Sub(last.at) < last.quiet:
		return false
	case last == nil, now.Sub(last.at) >= 2*last.quiet:
		p.warned[key] = &said{now, quietFirst}
	default:
		*last = said{now, min(2*last.quiet, quietMost)}
	}
	return true
}

// subjectOf returns the subject of the verified certificate of whoever has opened a connection, in DER; nil for none.
func subjectOf(c net.Conn) []byte {
	for {
		switch x := c.(type) {
		case guest:
			c = x.Conn
		case tracked:
			c = x.Conn
		default:
			if t := either.TLS(c); t != nil {
				if state := t.ConnectionState(); len(state.VerifiedChains) > 0 {
					return state.PeerCertificates[0].RawSubject
				}
			}
			return nil
		}
	}
}

// dial connects to the member with the id to; 0 means that whichever member is at the
// address is meant. The connection is closed when the port is. The first read from it
// fails with a [*notWelcome] if the other server refuses it.
func (p *peerPort) dial(ctx context.Context, addr string, kind byte, to uint64) (net.Conn, error) {
	of := p.gate.cluster()
	if of == 0 {
		return nil, errNotInCluster
	}
	nc, err := p.network.Dial(ctx, addr)
	if err != nil {
		if errors.As(err, new(*TLSError)) {
			p.warnOf(addr, "TLS with another member fails", "server", to, "address", addr, "error", err)
		}
		return nil, err
	}
	c, err := p.track(nc)
	if err != nil {
		return nil, err
	}
	return greetPeer(c, addr, &hello{kind: kind, cluster: of, from: p.self, to: to, term: p.term(), addr: p.addr}, p.warnOf)
}

// dialAgain is dial, within timeout, in up to two attempts: if TCP's first packet is lost, it
// sends the next one after a second, and then waits for longer and longer.
func (p *peerPort) dialAgain(ctx context.Context, addr string, kind byte, to uint64, timeout time.Duration) (c net.Conn, err error) {
	for range 2 {
		attempt, cancel := context.WithTimeout(ctx, timeout/2)
		c, err = p.dial(attempt, addr, kind, to)
		late := attempt.Err() != nil
		cancel()
		if err == nil || !late || ctx.Err() != nil {
			break
		}
	}
	return c, err
}

// raftLayer implements [raft.StreamLayer] on the peer port.
type raftLayer struct{ *peerPort }

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
	return l.dialAgain(l.ctx, string(addr), kindRaft, l.idOf(string(addr)), timeout)
}

// peerAddr is an address as the configuration gives it.
type peerAddr string

func (peerAddr) Network() string  { return "tcp" }
func (a peerAddr) String() string { return string(a) }
