package server

import (
	"crypto/tls"
	"net"
	"sync/atomic"
)

// tlsRecord is the first byte of a TLS handshake. A length of a frame, or a four-letter word, that
// begins with it would be more than any server accepts.
const tlsRecord = 0x16

// either is a connection whose client decides whether to use TLS, by its first byte.
type either struct {
	net.Conn // deadlines and addresses are the same with TLS
	config   *tls.Config
	tls      atomic.Pointer[tls.Conn] // nil without TLS, and before detect
	first    firstByte
}

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

// detect reads the first byte and returns the connection's TLS, whose handshake has yet to be
// done, or nil. Nobody else may read before.
func (e *either) detect() (*tls.Conn, error) {
	b := make([]byte, 1)
	if _, err := e.Conn.Read(b); err != nil {
		return nil, err
	}
	e.first = firstByte{e.Conn, b}
	if b[0] != tlsRecord {
		return nil, nil
	}
	t := tls.Server(&e.first, e.config)
	e.tls.Store(t)
	return t, nil
}

func (e *either) Read(p []byte) (int, error) {
	if t := e.tls.Load(); t != nil {
		return t.Read(p)
	}
	return e.first.Read(p)
}

func (e *either) Write(p []byte) (int, error) {
	if t := e.tls.Load(); t != nil {
		return t.Write(p)
	}
	return e.Conn.Write(p)
}

func (e *either) Close() error {
	if t := e.tls.Load(); t != nil {
		return t.Close()
	}
	return e.Conn.Close()
}

// tlsOf returns the TLS of a connection, or nil.
func tlsOf(nc net.Conn) *tls.Conn {
	switch c := nc.(type) {
	case *tls.Conn:
		return c
	case *either:
		return c.tls.Load()
	}
	return nil
}
