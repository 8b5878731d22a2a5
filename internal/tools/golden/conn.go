package golden

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// maxFrame is the length of the longest frame; a greater or negative length is an error.
const maxFrame = 16 << 20

var (
	errTimeout    = errors.New("nothing more came in time")
	errPeerClosed = errors.New("the server closed the connection")
	errNoFrame    = errors.New("the length prefix is absurd")
)

// conn is a connection whose bytes are compared as they arrive, including those of a
// truncated frame; therefore it is not a rawclient.Client. A goroutine reads it all the
// time, so that a peer that writes before it reads is never blocked.
type conn struct {
	nc   net.Conn
	more chan struct{} // holds one element when in or err has changed
	done chan struct{} // closed when the reader has ended

	mu  sync.Mutex // guards in and err, which the reader goroutine fills
	in  []byte
	err error

	// The fields below belong to the player.
	werr    error    // the first failed write
	shaken  bool     // the answer to the handshake has been received
	session *session // opened or resumed by the handshake
	judged  bool     // leftover has checked it
}

func newConn(nc net.Conn) *conn {
	c := &conn{nc: nc, more: make(chan struct{}, 1), done: make(chan struct{})}
	go c.read()
	return c
}

// read collects received bytes until the connection ends or close is called.
func (c *conn) read() {
	defer close(c.done)
	buf := make([]byte, 16<<10)
	for {
		n, err := c.nc.Read(buf)
		c.mu.Lock()
		c.in = append(c.in, buf[:n]...)
		c.err = err
		c.mu.Unlock()
		select {
		case c.more <- struct{}{}:
		default:
		}
		if err != nil {
			return
		}
	}
}

// close closes the connection and waits for its reader.
func (c *conn) close() {
	c.nc.Close()
	<-c.done
}

// write sends bytes. It stores the first error in werr.
func (c *conn) write(b []byte, timeout time.Duration) {
	c.nc.SetWriteDeadline(time.Now().Add(timeout))
	if _, err := c.nc.Write(b); err != nil && c.werr == nil {
		c.werr = err
	}
}

// await waits until n bytes are available, and returns all available bytes without
// consuming them. The error says why there are fewer than n.
func (c *conn) await(ctx context.Context, timeout time.Duration, n int) ([]byte, error) {
	t := time.NewTimer(timeout)
	defer t.Stop()
	for {
		c.mu.Lock()
		in, err := c.in, c.err
		c.mu.Unlock()
		if len(in) >= n {
			return in, nil
		}
		if err != nil {
			return in, errPeerClosed
		}
		select {
		case <-c.more:
		case <-t.C:
			return in, errTimeout
		case <-ctx.Done():
			return in, ctx.Err()
		}
	}
}

// frame consumes and returns the next frame. If there is an error, it consumes and
// returns the part of the frame that has arrived.
func (c *conn) frame(ctx context.Context, timeout time.Duration) ([]byte, error) {
	deadline := time.Now().Add(timeout)
	in, err := c.await(ctx, timeout, 4)
	n := len(in)
	if err == nil {
		size := binary.BigEndian.Uint32(in)
		if size > maxFrame {
			err = errNoFrame
		} else {
			n = 4 + int(size)
			in, err = c.await(ctx, time.Until(deadline), n)
			n = min(n, len(in))
		}
	}
	c.mu.Lock()
	c.in = c.in[n:]
	c.mu.Unlock()
	return in[:n:n], err
}

// because formats a read error, together with an earlier write error if there was one.
func (c *conn) because(err error) string {
	if c.werr != nil {
		return fmt.Sprintf("%v (a write failed before: %v)", err, c.werr)
	}
	return err.Error()
}
