package peer

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

	"github.com/lockkeeper/lockkeeper/internal/core/either"
	"github.com/lockkeeper/lockkeeper/internal/core/fdlimit"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
)

// Port accepts connections from other members and opens connections to them. Its fields are not changed after
// Start, and its methods are safe for concurrent use.
type Port struct {
	Network     Network
	Addr        string // of this port, as the others know it
	Log         *slog.Logger
	Serve       map[byte]func(net.Conn) // handles a connection, by its kind
	RunningTime func() int64            // in ms
	Called      func(h *Hello)          // called when another member calls this one, which is in no cluster yet
	Ctx         context.Context         // canceled by Close
	Closed      chan struct{}           // closed when Close has closed all connections

	self    uint64 // this member's id
	gate    *Gate
	waiting *ungreeted
	cancel  context.CancelFunc
	l       net.Listener   // nil before Open
	wg      sync.WaitGroup // of accept, the connections that it accepted, and what Run started

	mu     sync.Mutex
	conns  map[net.Conn]struct{} // open connections; nil when closed
	warned map[warning]*said     // what warn has logged
}

// NewPort returns the peer port of the member with the id self. network nil stands for TCP without TLS.
func NewPort(network Network, self uint64, addr string, gate *Gate, log *slog.Logger) *Port {
	if network == nil {
		network = TCP{}
	}
	p := &Port{
		Network: network, self: self, Addr: addr, gate: gate, Log: log,
		Serve: map[byte]func(net.Conn){}, Called: func(*Hello) {}, RunningTime: func() int64 { return timing.Never },
		waiting: &ungreeted{most: max(1, fdlimit.Sixteenth(2*maxUngreeted)/2)},
		conns:   map[net.Conn]struct{}{}, warned: map[warning]*said{}, Closed: make(chan struct{}),
	}
	p.Ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// Open opens the port. Connections are accepted only after Start.
func (p *Port) Open() error {
	l, err := p.Network.Listen(p.Addr)
	if err != nil {
		return fmt.Errorf("peer port: %w", err)
	}
	p.l = l
	return nil
}

// Close closes the port and all connections. It does not wait for the goroutines; see Wait.
func (p *Port) Close() {
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
	close(p.Closed)
}

// tracked is a connection that Port.Close closes.
type tracked struct {
	net.Conn
	p *Port
}

func (c tracked) Close() error {
	c.p.mu.Lock()
	delete(c.p.conns, c.Conn)
	c.p.mu.Unlock()
	return c.Conn.Close()
}

func (p *Port) track(c net.Conn) (net.Conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conns == nil {
		c.Close()
		return nil, net.ErrClosed
	}
	p.conns[c] = struct{}{}
	return tracked{c, p}, nil
}

// Run runs f in a goroutine that Wait waits for. It returns false if the port is closed.
func (p *Port) Run(f func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conns == nil {
		return false
	}
	p.wg.Go(f) // the port is open, so nobody waits for wg yet
	return true
}

// Start starts accepting connections; serving them needs a running Raft.
func (p *Port) Start() { p.wg.Go(p.accept) }

// Wait waits, after Close, until the goroutines have ended: some end only when Raft has answered them or has shut down.
func (p *Port) Wait() { p.wg.Wait() }

// accept serves incoming connections until the port is closed.
func (p *Port) accept() {
	for {
		c, err := p.l.Accept()
		if p.Ctx.Err() != nil {
			if err == nil {
				c.Close()
			}
			return
		}
		if err != nil {
			p.warn("cannot accept a peer", "error", err)
			select { // most likely too many files are open
			case <-time.After(10 * time.Millisecond):
			case <-p.Ctx.Done():
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
func (p *Port) greet(nc net.Conn) {
	c, err := p.track(nc)
	if err != nil {
		return
	}
	c.SetDeadline(time.Now().Add(timing.HelloTimeout))
	h := new(Hello)
	if e, ok := nc.(*either.Conn); ok {
		_, err = e.Detect()
	}
	if err == nil {
		h, err = readHello(c)
	}
	serve := p.Serve[h.Kind]
	from := c.RemoteAddr().String()
	switch inTime := p.waiting.remove(nc); {
	case !inTime:
		p.warn("closing a connection to the peer port: too many do not say from which server they come, and this one is the oldest", "from", from)
	case errors.Is(err, errPeerVersion) && h.Kind == tlsHandshake:
		p.warn("refusing a peer that uses TLS: this member does not, but all of a cluster must or none", "peer", from)
	case errors.Is(err, errPeerVersion):
		p.warn("refusing a peer that speaks another version: upgrade the older one", "peer", from, "version", h.version, "known", Version)
	case err != nil:
		if errors.As(err, new(tls.RecordHeaderError)) {
			p.warn("refusing a peer that does not use TLS: this member does, and all of a cluster must or none", "peer", from)
		} else if either.TLS(nc) != nil && err != io.EOF && p.Ctx.Err() == nil {
			host, _, _ := net.SplitHostPort(from)
			p.warnOf(host, "a peer cannot connect: TLS handshake failed", "peer", from, "error", ExplainTLS(err))
		}
	case serve == nil:
		p.warn("closing a connection to the peer port: it does not come from a lockkeeper server", "from", from)
	default:
		a := p.judge(h)
		began := p.RunningTime()
		if _, err := c.Write(a.encode()); err == nil && a.verdict == welcome {
			c.SetDeadline(time.Time{})
			serve(Incoming{c, h.From, h.Addr, began})
			return
		}
	}
	c.Close()
}

// Incoming is a connection that another member has opened.
type Incoming struct {
	net.Conn
	From          uint64 // the id that the member gives
	Addr          string // of its peer port, as it says
	WelcomedAfter int64  // a running time: it was told later than then that it is welcome
}

// judge decides whether to accept a connection. Any is accepted that is of KindAdmin, all others only
// from members of the same cluster.
func (p *Port) judge(h *Hello) answer {
	a := answer{welcome, p.gate.Cluster(), p.self}
	switch {
	case h.Kind == KindAdmin:
	case a.cluster == 0:
		a.verdict = notYet
		if h.to == p.self {
			p.Called(h)
		}
	case h.Cluster != a.cluster:
		a.verdict = otherCluster
		p.warn("refusing a server of another cluster: one of the two has the wrong data directory, or is called at the wrong address",
			"server", h.From, "address", h.Addr, "its cluster", h.Cluster, "cluster", a.cluster)
	case h.to != 0 && h.to != p.self:
		a.verdict = otherMember
		p.warn("refusing a connection that is meant for another server: the list of members has a wrong address", "from", h.From, "to", h.to, "this is", p.self)
	}
	return a
}

// warning is a message about one peer, or about any.
type warning struct{ about, message string }

// said is when a warning was last logged, and for how long it is not logged again.
type said struct {
	at    time.Time
	quiet time.Duration
}

const (
	quietFirst  = 10 * time.Second
	quietMost   = 10 * time.Minute
	maxWarnings = 256 // strangers may come from many addresses
)

// warn logs a warning. Since peers may reconnect all the time, the same message is logged again only after ten
// seconds, and then after pauses that double. One that was not due for twice such a pause counts as new.
func (p *Port) warn(message string, args ...any) { p.warnOf("", message, args...) }

// warnOf is warn for a message about one peer.
func (p *Port) warnOf(about, message string, args ...any) {
	if p.MayLog(about, message) {
		p.Log.Warn(message, args...)
	}
}

// MayLog reports whether a message about a peer may be logged now; if so, it counts as logged.
func (p *Port) MayLog(about, message string) bool {
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

// SubjectOf returns the subject, in DER, of the verified certificate of whoever opened a connection; nil if there is none.
func SubjectOf(c net.Conn) []byte {
	for {
		switch x := c.(type) {
		case Incoming:
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

// Dial connects to the member with the id to, or to whichever is at addr if to is 0. The connection
// is closed when the port is. It is an *[Outgoing]: the other server may still refuse it.
func (p *Port) Dial(ctx context.Context, addr string, kind byte, to uint64) (net.Conn, error) {
	of := p.gate.Cluster()
	if of == 0 {
		return nil, errNotInCluster
	}
	nc, err := p.Network.Dial(ctx, addr)
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
	return Greet(c, addr, &Hello{Kind: kind, Cluster: of, From: p.self, to: to, Addr: p.Addr}, p.warnOf)
}

// DialTwice is Dial in up to two attempts within timeout. If TCP's first packet is lost, TCP itself
// waits for a second before it sends another one, and then for longer and longer.
func (p *Port) DialTwice(ctx context.Context, addr string, kind byte, to uint64, timeout time.Duration) (c net.Conn, err error) {
	for range 2 {
		attempt, cancel := context.WithTimeout(ctx, timeout/2)
		c, err = p.Dial(attempt, addr, kind, to)
		late := attempt.Err() != nil
		cancel()
		if err == nil || !late || ctx.Err() != nil {
			break
		}
	}
	return c, err
}
