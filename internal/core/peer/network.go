package peer

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/either"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
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
	// PlainToo has Listen accept connections without TLS, too, and DialPlain has Dial make them, while
	// a cluster moves to TLS.
	PlainToo, DialPlain bool
	AllIPs              bool // listen on all addresses of this host, with the given port
	// ElectionTimeout is how long what was sent may stay unacknowledged before the system
	// ends the connection, where it can do that (Linux); 0 means 2 s. An unused connection
	// is probed as often.
	ElectionTimeout time.Duration
}

func (t TCP) electionTimeout() time.Duration {
	return cmp.Or(t.ElectionTimeout, timing.DefaultElectionTimeout)
}

func (t TCP) keepAlive() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: t.electionTimeout(), Interval: t.electionTimeout(), Count: 2}
}

// limit has the system end a connection over which something sent stays unacknowledged too long.
// If it cannot, the keep-alive probes remain.
func (t TCP) limit(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) { limitUnacknowledged(fd, t.electionTimeout()) })
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
	config := net.ListenConfig{Control: t.limit, KeepAliveConfig: t.keepAlive()}
	config.SetMultipathTCP(false) // Linux refuses the limit of a multipath socket; accepted connections have it from the listening one
	l, err := config.Listen(context.Background(), "tcp", addr)
	if err != nil {
		return nil, err
	}
	switch {
	case t.TLS != nil && t.PlainToo:
		l = eitherListener{l, t.TLS}
	case t.TLS != nil:
		l = tls.NewListener(l, t.TLS)
	}
	return l, nil
}

// eitherListener accepts connections with and without TLS; Port.greet finds out.
type eitherListener struct {
	net.Listener
	config *tls.Config
}

func (l eitherListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return either.New(c, l.config), nil
}

// Dial implements [Network].
func (t TCP) Dial(ctx context.Context, addr string) (net.Conn, error) {
	d := &net.Dialer{Control: t.limit, KeepAliveConfig: t.keepAlive()}
	config := t.TLS
	if t.DialTLS != nil {
		config = t.DialTLS()
	}
	if config == nil || t.DialPlain {
		return d.DialContext(ctx, "tcp", addr)
	}
	c, err := (&tls.Dialer{NetDialer: d, Config: config}).DialContext(ctx, "tcp", addr)
	var read *net.OpError
	switch {
	case err == nil:
		return c, nil
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET) && errors.As(err, &read) && read.Op == "read": // of the handshake
		err = &TLSError{"it closed the connection during the TLS handshake, as a server without TLS does", err}
	}
	return nil, ExplainTLS(err)
}

// TLSError says why TLS with another member fails, and which side refuses the other. In its text "it" is
// the other member. Unlike a lost or refused connection, this does not pass.
type TLSError struct {
	why string
	err error
}

func (e *TLSError) Error() string { return e.why }

func (e *TLSError) Unwrap() error { return e.err }

// ExplainTLS returns a TLSError in place of an error by which one side of a connection does not accept the
// other; otherwise err. In TLS 1.3 the side that connects learns only from its first read that the other
// refuses its certificate.
func ExplainTLS(err error) error {
	var (
		cert   *tls.CertificateVerificationError
		remote *net.OpError
	)
	switch {
	case errors.As(err, new(*TLSError)):
	case errors.As(err, &cert):
		of := ""
		if len(cert.UnverifiedCertificates) > 0 {
			of = fmt.Sprintf(" (%v)", cert.UnverifiedCertificates[0].Subject)
		}
		return &TLSError{fmt.Sprintf("its certificate%s is not accepted here: %v", of, cert.Err), err}
	case errors.As(err, new(tls.RecordHeaderError)):
		return &TLSError{"it does not use TLS, but this server does: all of a cluster must or none", err}
	case errors.As(err, &remote) && remote.Op == "remote error": // an alert
		what := "its TLS fails with this server"
		if strings.Contains(remote.Err.Error(), "certificate") {
			what = "it does not accept this server's certificate"
		}
		return &TLSError{fmt.Sprintf("%s (%v); its log says more", what, remote.Err), err}
	}
	return err
}
