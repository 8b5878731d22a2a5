package rawclient

import (
	"fmt"
	"time"

	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

// Pipeline keeps up to window requests outstanding until there are no more, and then
// waits for the remaining replies. It is as cheap as a client can be, so that a load
// measures the server: requests that can be sent together are sent in one write, and
// replies are not copied.
//
// next appends the frame of a request with this xid to b, or returns b unchanged if there
// are no more requests. done gets the replies in order, with the time at which Pipeline
// sent the request. The frame's body is valid only until done returns. An error of done
// ends Pipeline, and so does a reply out of order. Events are appended to c.Events.
func (c *Client) Pipeline(window int, next func(b []byte, xid int32) []byte, done func(f *Frame, sent time.Time) error) error {
	times := make([]time.Time, window) // the n-th request was sent at times[n%window]
	asked, answered := 0, 0
	first := c.lastXid + 1
	for more := true; ; {
		sending := asked
		for more && asked-answered < window {
			before := len(c.out)
			if c.out = next(c.out, c.lastXid+1); len(c.out) == before {
				more = false
				break
			}
			c.lastXid++
			asked++
		}
		if asked == answered {
			return nil
		}
		now := time.Now()
		for n := sending; n < asked; n++ {
			times[n%window] = now
		}
		if len(c.out) > 0 {
			if err := c.Flush(); err != nil {
				return err
			}
		}
		c.Conn.SetReadDeadline(c.deadline())
		for {
			var err error
			if c.in, err = jute.ReadFrame(c.r, maxFrame, c.in); err != nil {
				return err
			}
			f, err := parse(c.in)
			if err != nil {
				return err
			}
			if e, ok := f.Event(); ok {
				c.Events = append(c.Events, e)
				continue
			}
			if want := first + int32(answered); f.Xid != want {
				return fmt.Errorf("reply to request %d, expected one to %d", f.Xid, want)
			}
			sent := times[answered%window]
			answered++
			if err := done(&f, sent); err != nil {
				return err
			}
			if answered == asked || c.r.Buffered() == 0 {
				break
			}
		}
	}
}

// CloseSession ends the session and waits until the server has done so. The connection
// stays open on this side.
func (c *Client) CloseSession() error {
	_, err := c.Call(proto.OpCloseSession, nil, nil)
	return err
}
