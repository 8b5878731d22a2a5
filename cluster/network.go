package cluster

import (
	"cmp"
	"context"
	"crypto/tls"
	"net"
	"syscall"
	"time"
)

// Network is how members reach each other. Its methods must be safe for concurrent
// use.
type Network interface {
	Listen(addr string) (net.Listener, error)
	Dial(ctx context.Context, addr string) (net.Conn, error)
}

// TCP is the [Network] of a real deployment.
type TCP struct {
	// TLS, if not nil, is used for incoming and outgoing connections. For members
	// to authenticate each other it needs a certificate, RootCAs, ClientCAs and
	// RequireAndVerifyClientCert.
	TLS *tls.Config
	// DialTLS, if not nil, returns the configuration of one outgoing connection, in place of TLS.
	DialTLS func() *tls.Config
	AllIPs  bool // listen on all addresses of this host, with the given port
	// ElectionTimeout is how long what was sent may stay unacknowledged before the system
	// ends the connection, where it can do that (Linux); 0 means 2 s. An unused connection
	// is probed as often.
	ElectionTimeout time.Duration
}

func (t TCP) silence() time.Duration { return cmp.Or(t.ElectionTimeout, defaultElectionTimeout) }

func (t TCP) keepAlive() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: t.silence(), Interval: t.silence(), Count: 2}
}

// limit has the system end a connection when what was sent over it has not been acknowledged
// for long. If that fails, the probes remain.
func (t TCP) limit(c syscall.RawConn) error {
	return c.Control(func(fd uintptr) { limitUnacknowledged(fd, t.silence()) })
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
	l, err := (&net.ListenConfig{KeepAliveConfig: t.keepAlive()}).Listen(context.Background(), "tcp", addr)
	if err != nil {
		return nil, err
	}
	l = limitedListener{l, t}
	if t.TLS != nil {
		l = tls.NewListener(l, t.TLS)
	}
	return l, nil
}

type limitedListener struct {
	net.Listener
	t TCP
}

func (l limitedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		if raw, err := c.(*net.TCPConn).SyscallConn(); err == nil {
			l.t.limit(raw)
		}
	}
	return c, err
}

// Dial implements [Network].
func (t TCP) Dial(ctx context.Context, addr string) (net.Conn, error) {
	d := &net.Dialer{
		Control:         func(_, _ string, c syscall.RawConn) error { return t.limit(c) },
		KeepAliveConfig: t.keepAlive(),
	}
	config := t.TLS
	if t.DialTLS != nil {
		config = t.DialTLS()
	}
	if config != nil {
		return (&tls.Dialer{NetDialer: d, Config: config}).DialContext(ctx, "tcp", addr)
	}
	return d.DialContext(ctx, "tcp", addr)
}
