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

// maxFrame bounds the frames that are waited for; a length above it, or a
// negative one, is no frame.
const maxFrame = 16 << 20

var (
	errTimeout    = errors.New("nothing more came in time")
	errPeerClosed = errors.New("the server closed the connection")
	errNoFrame    = errors.New("the length prefix is absurd")
)

// conn is a connection whose bytes are compared as they come, also those of a frame
// that is cut short; so it is no rawclient.Client. It is read all the time, so that
// a peer which writes while it is written to never waits for us.
type conn struct {
	nc   net.Conn
	more chan struct{} // holds one token when in or err changed
	done chan struct{} // closed when the reader has ended

	mu  sync.Mutex // guards in and err, which the reader goroutine fills
	in  []byte
	err error

	// The fields below belong to the player.
	werr    error    // the first failed write
	shaken  bool     // the handshake answer has come
	session *session // what the handshake made or resumed
	judged  bool     // its leftover was looked at
}

func newConn(nc net.Conn) *conn {
	c := &conn{nc: nc, more: make(chan struct{}, 1), done: make(chan struct{})}
	go c.read()
	return c
}

// read collects what comes until the connection ends. It is ended by close.
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

// write sends bytes, and keeps the first error.
func (c *conn) write(b []byte, timeout time.Duration) {
	c.nc.SetWriteDeadline(time.Now().Add(timeout))
	if _, err := c.nc.Write(b); err != nil && c.werr == nil {
		c.werr = err
	}
}

// await waits until n bytes have come, and returns all that have come without
// taking them. Its error says why there are fewer than n.
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

// frame takes the next frame. With an error it returns, and takes, what there
// is of it.
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

// because joins the reason why reading failed with the write that failed
// before it, if one did.
func (c *conn) because(err error) string {
	if c.werr != nil {
		return fmt.Sprintf("%v (a write failed before: %v)", err, c.werr)
	}
	return err.Error()
}
