package server

import (
	"net"
	"sync"
)

// outbox is what waits to be sent on a connection: whole frames, in order.
// Anybody may add to it; the writer goroutine empties it.
type outbox struct {
	mu     sync.Mutex
	room   sync.Cond // on mu: less than the soft limit is queued, or closed
	buf    []byte
	spare  []byte // the writer's other buffer, to swap with
	last   bool   // nothing more will be added; close the connection when it is sent
	closed bool   // the connection is of no use any more; what is queued is lost

	limit int           // most bytes that are queued; a client that has more to take does not read
	wake  chan struct{} // has an element when the writer has something to do
}

// softLimit is the number of bytes queued beyond which no further requests of a
// connection are carried out, until its client has taken some.
const softLimit = 1 << 20

// MinOutbox is how much longer than a request an outbox must be, so that a znode
// that was written can be read.
const MinOutbox = 2 << 20

func (o *outbox) init(limit int) {
	o.limit = limit
	o.room.L = &o.mu
	o.wake = make(chan struct{}, 1)
}

// add appends what frame makes. It reports false if that is more than the
// outbox may hold.
func (o *outbox) add(frame func(b []byte) []byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed || o.last {
		return true
	}
	o.buf = frame(o.buf)
	return len(o.buf) <= o.limit
}

// space is how many bytes may still be added. It reports false if nothing is
// added any more.
func (o *outbox) space() (n int, open bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return max(0, o.limit-len(o.buf)), !o.last && !o.closed
}

// finish says that nothing more will be added.
func (o *outbox) finish() {
	o.mu.Lock()
	o.last = true
	o.mu.Unlock()
	o.flush()
}

// flush wakes the writer.
func (o *outbox) flush() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// waitRoom waits until the client has taken most of what is queued. Nobody may
// have woken the writer yet: the caller would have done so before it read on.
func (o *outbox) waitRoom() {
	o.mu.Lock()
	for len(o.buf) > softLimit && !o.closed {
		o.flush()
		o.room.Wait()
	}
	o.mu.Unlock()
}

// close drops what is queued and ends the writer.
func (o *outbox) close() {
	o.mu.Lock()
	o.closed = true
	o.buf, o.spare = nil, nil
	o.room.Broadcast()
	o.mu.Unlock()
	o.flush()
}

// run is the writer. It returns when the last frame is sent, when the outbox
// is closed, or when the client cannot be reached.
func (o *outbox) run(to net.Conn) {
	for range o.wake {
		for {
			o.mu.Lock()
			out, last, closed := o.buf, o.last, o.closed
			o.buf, o.spare = o.spare[:0], nil
			o.mu.Unlock()
			if closed {
				return
			}
			if len(out) > 0 {
				if _, err := to.Write(out); err != nil {
					return
				}
			}
			o.mu.Lock()
			if cap(out) <= 64<<10 { // a large reply's buffer is not kept for a quiet connection
				o.spare = out[:0]
			}
			more := len(o.buf) > 0
			if len(o.buf) <= softLimit {
				o.room.Broadcast()
			}
			o.mu.Unlock()
			if last && !more {
				return
			}
			if !more {
				break
			}
		}
	}
}
