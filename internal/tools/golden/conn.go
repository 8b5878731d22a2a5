package golden

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"time"
)

// maxFrame is the length of the longest frame; a greater or negative length is an error.
const maxFrame = 16 << 20

var (
	errTimeout    = errors.New("nothing more came in time")
	errPeerClosed = errors.New("the server closed the connection")
	errNoFrame    = errors.New("the length prefix is absurd")
)

// conn is a connection of a replay. Its frames may be cut short or lie about their length, so it is not a rawclient.Client. A
// goroutine reads it all the time, so that a peer that writes before it reads is not blocked.
type conn struct {
	nc     net.Conn
	frames chan []byte // received; closed at the end
	rest   []byte      // then: what came after the last whole frame
	err    error       // then: why there are no more

	werr    error    // the first failed write
	shaken  bool     // the answer to the handshake has been received
	session *session // opened or resumed by the handshake
	judged  bool     // leftover has checked it
}

func newConn(nc net.Conn) *conn {
	c := &conn{nc: nc, frames: make(chan []byte, 1<<10)}
	go c.read()
	return c
}

// read receives frames until the connection ends or close is called.
func (c *conn) read() {
	defer close(c.frames)
	for {
		b := make([]byte, 4)
		n, err := io.ReadFull(c.nc, b)
		if size := binary.BigEndian.Uint32(b); err == nil && size > maxFrame {
			c.rest, c.err = b, errNoFrame
			io.Copy(io.Discard, c.nc)
			return
		} else if err == nil {
			b = append(b, make([]byte, size)...)
			n, err = io.ReadFull(c.nc, b[4:])
			n += 4
		}
		if err != nil {
			c.rest, c.err = b[:n], errPeerClosed
			return
		}
		c.frames <- b
	}
}

// close closes the connection and waits for its reader.
func (c *conn) close() {
	c.nc.Close()
	for range c.frames {
	}
}

// write sends bytes. It stores the first error in werr.
func (c *conn) write(b []byte, timeout time.Duration) {
	c.nc.SetWriteDeadline(time.Now().Add(timeout))
	if _, err := c.nc.Write(b); err != nil && c.werr == nil {
		c.werr = err
	}
}

// frame returns the next frame. With an error, it returns what came of it, unless more may come.
func (c *conn) frame(ctx context.Context, timeout time.Duration) ([]byte, error) {
	select {
	case b, ok := <-c.frames:
		if ok {
			return b, nil
		}
		rest := c.rest
		c.rest = nil
		return rest, c.err
	case <-time.After(timeout):
		return nil, errTimeout
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
