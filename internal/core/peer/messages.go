package peer

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/timing"
)

// MaxMessage is the most bytes that the payload of a message may have.
const MaxMessage = 1 << 30

// WriteMessage writes a message: a kind, the payload's length in four bytes, and the payload.
func WriteMessage(c net.Conn, kind byte, payload []byte) error {
	head := []byte{kind, byte(len(payload) >> 24), byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload))}
	buffers := net.Buffers{head, payload}
	_, err := buffers.WriteTo(c)
	return err
}

// ReadMessage reads a message. It sets no deadline, and allocates memory only as bytes arrive,
// whatever length the message claims.
func ReadMessage(r *bufio.Reader) (kind byte, payload []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := uint32(head[1])<<24 | uint32(head[2])<<16 | uint32(head[3])<<8 | uint32(head[4])
	if n > MaxMessage {
		return 0, nil, fmt.Errorf("cluster: message of %d bytes", n)
	}
	payload, err = ReadBytes(r, int(n))
	return head[0], payload, err
}

// ReadBytes reads n bytes, and allocates memory only as they arrive.
func ReadBytes(r io.Reader, n int) ([]byte, error) {
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

// TimeoutConn is a connection that limits the time of each read, unless ReadTimeout is 0, and of each
// write of up to timing.MaxWrite bytes. It divides a longer write.
type TimeoutConn struct {
	net.Conn
	ReadTimeout, WriteTimeout time.Duration
}

func (c TimeoutConn) Read(p []byte) (int, error) {
	if c.ReadTimeout > 0 {
		c.SetReadDeadline(time.Now().Add(c.ReadTimeout))
	}
	return c.Conn.Read(p)
}

func (c TimeoutConn) Write(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		c.SetWriteDeadline(time.Now().Add(c.WriteTimeout))
		var m int
		m, err = c.Conn.Write(p[n:min(len(p), n+timing.MaxWrite)])
		n += m
	}
	return n, err
}

// ReadFunc is an io.Reader.
type ReadFunc func([]byte) (int, error)

func (f ReadFunc) Read(p []byte) (int, error) { return f(p) }

// WriteFunc is an io.Writer.
type WriteFunc func([]byte) (int, error)

func (f WriteFunc) Write(p []byte) (int, error) { return f(p) }
