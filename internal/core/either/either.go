// Package either has connections with and without TLS share a port.
package either

import (
	"crypto/tls"
	"net"
	"sync/atomic"
)

// record is the first byte of a TLS handshake. A length of a frame, or a four-letter word, that
// begins with it would be more than any server accepts, and no hello of a member begins with it.
const record = 0x16

// Conn is a connection that was accepted, and whose other side decides whether to use TLS, by its first byte.
type Conn struct {
	net.Conn // deadlines and addresses are the same with TLS
	config   *tls.Config
	tls      atomic.Pointer[tls.Conn] // nil without TLS, and before Detect
	first    firstByte
}

// New returns a connection whose other side has not decided yet.
func New(c net.Conn, config *tls.Config) *Conn { return &Conn{Conn: c, config: config} }

// NetConn returns the connection below, as that of a tls.Conn does.
func (e *Conn) NetConn() net.Conn { return e.Conn }

// firstByte is a connection of which one byte has been read ahead.
type firstByte struct {
	net.Conn
	b []byte
}

func (f *firstByte) Read(p []byte) (int, error) {
	if len(f.b) > 0 && len(p) > 0 {
		p[0], f.b = f.b[0], nil
		return 1, nil
	}
	return f.Conn.Read(p)
}

// Detect reads the first byte and returns the connection's TLS, whose handshake has yet to be
// done, or nil. Nobody else may read before.
func (e *Conn) Detect() (*tls.Conn, error) {
	b := make([]byte, 1)
	if _, err := e.Conn.Read(b); err != nil {
		return nil, err
	}
	e.first = firstByte{e.Conn, b}
	if b[0] != record {
		return nil, nil
	}
	t := tls.Server(&e.first, e.config)
	e.tls.Store(t)
	return t, nil
}

func (e *Conn) Read(p []byte) (int, error) {
	if t := e.tls.Load(); t != nil {
		return t.Read(p)
	}
	return e.first.Read(p)
}

func (e *Conn) Write(p []byte) (int, error) {
	if t := e.tls.Load(); t != nil {
		return t.Write(p)
	}
	return e.Conn.Write(p)
}

func (e *Conn) Close() error {
	if t := e.tls.Load(); t != nil {
		return t.Close()
	}
	return e.Conn.Close()
}

// TLS returns the TLS of a connection, or nil.
func TLS(nc net.Conn) *tls.Conn {
	switch c := nc.(type) {
	case *tls.Conn:
		return c
	case *Conn:
		return c.tls.Load()
	}
	return nil
}
