package connect

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Hopeless is an error of [Dialer] that another attempt would not mend.
type Hopeless struct{ error }

func (h Hopeless) Unwrap() error { return h.error }

// Dialer opens connections to client ports. If a port speaks TLS and the Dialer does not, or the
// reverse, the server just closes the connection. Then the Dialer finds out, and the error of
// Dial, or of the first Read, is a [Hopeless] that says so. A certificate that one side refuses
// is Hopeless, too.
type Dialer struct {
	TLS        *tls.Config    // nil means no TLS
	OnHopeless func(Hopeless) // is called with each such error; it may be nil

	mu    sync.Mutex
	right map[string]bool // addresses of ports that were found to be of the right kind
}

// patience is how long a TLS handshake, or finding out what a port speaks, may take.
const patience = 5 * time.Second

// DialContext opens a connection.
func (d *Dialer) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	nc, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return d.secure(ctx, nc, addr)
}

// DialTimeout opens a connection. It is a dialer of go-zookeeper, whose timeout of one second is
// too short for a TLS handshake on a busy machine.
func (d *Dialer) DialTimeout(network, addr string, timeout time.Duration) (net.Conn, error) {
	nc, err := net.DialTimeout(network, addr, timeout)
	if err != nil {
		return nil, err
	}
	return d.secure(context.Background(), nc, addr)
}

// secure begins TLS on a connection, if that is wanted.
func (d *Dialer) secure(ctx context.Context, nc net.Conn, addr string) (net.Conn, error) {
	if d.TLS == nil {
		return &conn{Conn: nc, dialer: d, addr: addr}, nil
	}
	cfg := d.TLS
	if cfg.ServerName == "" && !cfg.InsecureSkipVerify {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			nc.Close()
			return nil, err
		}
		cfg = cfg.Clone()
		cfg.ServerName = host
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	secured := tls.Client(nc, cfg)
	if err := secured.HandshakeContext(ctx); err != nil {
		nc.Close()
		return nil, d.explain(ctx, addr, err)
	}
	return &conn{Conn: secured, dialer: d, addr: addr}, nil
}

// conn is a connection whose first Read may show that the port is not of the right kind.
type conn struct {
	net.Conn
	dialer *Dialer
	addr   string
	heard  bool // used by the one goroutine that reads
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.heard {
		return n, err
	}
	c.heard = c.heard || n > 0
	switch {
	case c.dialer.TLS == nil && isTLS(b[:n]):
		c.Close()
		return 0, c.dialer.wrongPort(c.addr)
	case n == 0 && err != nil:
		c.heard = true
		return n, c.dialer.explain(context.Background(), c.addr, err)
	}
	return n, err
}

// NetConn returns the connection below this one, as that of a tls.Conn does.
func (c *conn) NetConn() net.Conn { return c.Conn }

// CloseWrite says that nothing more will be sent.
func (c *conn) CloseWrite() error { return c.Conn.(interface{ CloseWrite() error }).CloseWrite() }

// isTLS reports whether bytes are the beginning of a TLS record: an alert or a handshake.
func isTLS(b []byte) bool { return len(b) >= 2 && (b[0] == 0x15 || b[0] == 0x16) && b[1] == 3 }

func (d *Dialer) hopeless(err error) error {
	h := Hopeless{err}
	if d.OnHopeless != nil {
		d.OnHopeless(h)
	}
	return h
}

// wrongPort returns the error for a port that is not of the Dialer's kind.
func (d *Dialer) wrongPort(addr string) error {
	if d.TLS == nil {
		return d.hopeless(fmt.Errorf("%s speaks TLS: connect to it with --tls", addr))
	}
	return d.hopeless(fmt.Errorf("%s does not speak TLS: connect to it without --tls, --tls-ca and --tls-cert", addr))
}

// explain finds out why a server has not answered.
func (d *Dialer) explain(ctx context.Context, addr string, err error) error {
	switch {
	case errors.As(err, new(*tls.CertificateVerificationError)), refused(err):
		return d.hopeless(fmt.Errorf("%s: %w", addr, err))
	case !errors.As(err, new(tls.RecordHeaderError)) && !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE):
		return err
	}
	d.mu.Lock()
	known := d.right[addr]
	d.mu.Unlock()
	if known {
		return err
	}
	return cmp.Or(d.Check(ctx, addr), err)
}

// refused reports whether a server does not accept what the client has, such as its certificate.
// Other alerts of servers may pass.
func refused(err error) bool {
	var remote *net.OpError
	if !errors.As(err, &remote) || remote.Op != "remote error" {
		return false
	}
	return slices.ContainsFunc([]string{"certificate", "handshake failure", "protocol version"}, func(why string) bool { return strings.Contains(remote.Err.Error(), why) })
}

// Check finds out what a port speaks, and returns a [Hopeless] if it is not of the Dialer's kind. A
// client that begins with a four-letter word needs it, since those are too short for a
// server that speaks TLS to see that they are not TLS.
func (d *Dialer) Check(ctx context.Context, addr string) error {
	speaks, ok := Speaks(ctx, addr)
	switch {
	case !ok:
		return nil
	case speaks != (d.TLS != nil):
		return d.wrongPort(addr)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.right == nil {
		d.right = map[string]bool{}
	}
	d.right[addr] = true
	return nil
}

// Speaks finds out whether the port at addr speaks TLS. It is not ok if it answers neither to TLS
// nor to a four-letter word.
func Speaks(ctx context.Context, addr string) (secure, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	hello := func(nc net.Conn) { tls.Client(nc, &tls.Config{InsecureSkipVerify: true}).Handshake() } // nothing is sent but a hello
	if answer := ask(ctx, addr, hello); isTLS(answer) {
		return true, true
	}
	answer := ask(ctx, addr, func(nc net.Conn) {
		io.WriteString(nc, "srvr")
		nc.Read(make([]byte, 16))
	})
	return false, len(answer) > 0 && !isTLS(answer)
}

// ask returns the first bytes with which a server answers.
func ask(ctx context.Context, addr string, talk func(net.Conn)) []byte {
	nc, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil
	}
	defer nc.Close()
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	defer stop()
	r := &firstBytes{Conn: nc}
	talk(r)
	return r.first
}

// firstBytes is a connection that keeps what it has read first.
type firstBytes struct {
	net.Conn
	first []byte
}

func (r *firstBytes) Read(b []byte) (int, error) {
	n, err := r.Conn.Read(b)
	if len(r.first) == 0 {
		r.first = append(r.first, b[:n]...)
	}
	return n, err
}
